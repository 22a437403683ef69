"""Models computed in float64 throughout, also where their code casts to float32.

Hugging Face's norms and softmaxes cast to float32 whatever the input. That would leave 1e-6 of noise, in which a
small wrong change could hide; without the casts a symmetry shows at 1e-12 and a mistake far above.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def double_precision() -> Iterator[None]:
    """Casts from float64 to float32 do nothing, and new tensors are float64."""

    float_cast, to, kind = torch.Tensor.float, torch.Tensor.to, torch.Tensor.type

    class Double(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if kwargs.get("dtype") is torch.float32:
                kwargs["dtype"] = torch.float64
            if func is float_cast:
                return to(args[0], torch.float64)
            if func is to or func is kind:
                args = tuple(torch.float64 if a is torch.float32 else a for a in args)
            return func(*args, **kwargs)

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Double():
            yield
    finally:
        torch.set_default_dtype(before)

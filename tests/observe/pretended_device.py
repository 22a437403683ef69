"""A device that every machine has: a second memory in name, with the rules of a real one.

Tensors of the device ``meta`` that hold numbers after all, while `pretended` is open. Operations on them are the
processor's own; as on a graphics card, one that mixes both memories fails (numbers without axes apart), and so does
numpy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Thread
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "meta"


class There(torch.Tensor):
    """A tensor on the device; ``held`` has its numbers."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> There:
        found = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME),
        )
        found.held = held
        return found

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operation gives, where it belongs."""
    given = pytree.tree_leaves((args, kwargs))
    there = any(isinstance(x, There) for x in given)
    here = any(isinstance(x, torch.Tensor) and not isinstance(x, There) and x.ndim for x in given)
    name = func._schema.name
    if there and here and name != "aten::copy_":
        raise RuntimeError(f"{name}: expected all tensors to be on the same device")
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": torch.device("cpu")}
    elif name == "aten::copy_":
        there = isinstance(args[0], There)
    held, named = pytree.tree_map_only(There, lambda t: t.held, (args, kwargs))
    found = func(*held, **named)
    if func._schema.is_mutable and isinstance(args[0], There) and name.endswith("_"):
        return args[0]
    return pytree.tree_map_only(torch.Tensor, There, found) if there else found


class _Device(TorchDispatchMode):
    def __init__(self, done: Counter[str]) -> None:
        super().__init__()
        self.done = done

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(isinstance(x, There) for x in pytree.tree_leaves((args, kwargs))):
            self.done[func._schema.name.removeprefix("aten::")] += 1
        return computed(func, args, kwargs or {})


class _Made(TorchFunctionMode):
    """Numbers from lists, which torch makes below where operations are seen."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is torch.tensor and torch.device(given.get("device") or "cpu").type == NAME:
            return func(*args, **{**given, "device": "cpu"}).to(NAME)
        return func(*args, **given)


@contextmanager
def pretended() -> Iterator[Counter[str]]:
    """In this thread and in those that it starts, ``meta`` is a device with memory; what was computed on it, by
    operation. Products in half precision (`torch.autocast`) are products in full there."""
    done: Counter[str] = Counter()
    run, autocast = Thread.run, torch.autocast

    def run_there(thread: Thread) -> None:
        with _Device(done), _Made():
            run(thread)

    def autocast_there(device_type: str, *args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
        return nullcontext() if device_type == NAME else autocast(device_type, *args, **kwargs)

    with (
        patch.object(Thread, "run", run_there),
        patch.object(torch, "autocast", autocast_there),
        _Device(done),
        _Made(),
    ):
        yield done

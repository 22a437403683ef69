"""timm's own vision transformers.

timm and torchvision are installed beside the environment (the group ``apart`` in pyproject.toml): torchvision's
wheels are built for CUDA builds of torch, and beside a CPU build their operators are missing, so that transformers,
which takes torchvision up where it finds it, would fail in every process. timm's transformers need nothing of it
but names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from toys import randomise

APART = Path(sys.prefix) / "apart"
SHAPE = {
    "img_size": 8,
    "patch_size": 4,
    "embed_dim": 48,
    "depth": 2,
    "num_heads": 6,
    "mlp_ratio": 40 / 48,
    "num_classes": 5,
}
"""Of tiny models; that of the toys in `plain_models`."""
# torchvision describes its operators to torch there, which are missing beside a CPU build
_OPERATORS = "torchvision._meta_registrations"
_imported: dict[str, ModuleType] = {_OPERATORS: ModuleType(_OPERATORS)}


@contextmanager
def timm_at_hand() -> Iterator[Any]:
    """The package, which can be imported in the block alone, so that nothing else takes it up.

    Raises ImportError where it is not installed (`make .venv/.developer` does).
    """
    sys.path.insert(0, str(APART))
    sys.modules.update(_imported)
    try:
        import timm

        yield timm
    finally:
        sys.path.remove(str(APART))
        for name in [name for name in sys.modules if name.partition(".")[0] in ("timm", "torchvision")]:
            _imported[name] = sys.modules.pop(name)


def made(folder: Path, architecture: str, seed: int = 0, **args: Any) -> Path:
    """A tiny model with every parameter drawn at random, as timm stores it for the hub."""
    args = {**SHAPE, **args}
    with timm_at_hand() as timm:
        model = timm.create_model(architecture, pretrained=False, **args).eval()
        randomise(model, seed)
        timm.models.save_for_hf(model, folder, model_args=args, safe_serialization=True)
    return folder


def answers(folder: Path) -> torch.Tensor:
    """What timm says with a folder, which it loads itself: logits, or features where the model has no head; in
    float64."""
    pixels = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    with timm_at_hand() as timm, torch.no_grad():
        return timm.create_model(f"local-dir:{folder}", pretrained=True).double().eval()(pixels)

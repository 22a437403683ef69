"""Live modules as folders: what a module computes now, not what it was loaded from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.progress import silent


def save_module(module: Any, folder: str | Path) -> None:
    """Write a live module of transformers or diffusers as a checkpoint, without a bar.

    Raises:
        IsomergeError: it has adapters, of which alone ``save_pretrained`` would write the weights; or it cannot be
            saved (weights without values, on the device meta; settings of generation that contradict each other).
    """
    kind = type(module).__name__
    if getattr(module, "peft_config", None):
        raise IsomergeError(
            f"{kind}: save_pretrained writes the adapter alone, and the base would be read from disk, whatever it "
            "is in memory: give merge_and_unload() of it, or save the adapter and give base+adapter"
        )
    try:
        with silent():
            module.save_pretrained(folder)
    except Exception as error:  # NotImplementedError, ValueError, RuntimeError: whatever does not fit
        reason = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
        raise IsomergeError(
            f"{kind}: save_pretrained fails ({reason}): correct what it names, or give the folder that the module "
            f"was loaded from"
        ) from error

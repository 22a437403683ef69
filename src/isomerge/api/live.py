"""Live out: what a command would write, as a module in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isomerge.checkpoint.dtypes import STORED_FLOATS, torch_dtype
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.checkpoint.own_class import ATTRIBUTE, OwnClass, is_own
from isomerge.checkpoint.reader import Checkpoint
from isomerge.observe.live.modules import load_module
from isomerge.progress import Observer
from isomerge.run.arguments import as_report


def written(planned: Callable[..., AbstractContextManager[Any]], asked: Any, observer: Observer) -> Any:
    """What is planned, written to its folder, and the report; without one, the module of what would be written.

    Args:
        planned: gives the plan of a request.
        asked: the request, with ``model`` and ``out``.
        observer: told of progress.
    """
    if asked.out is None:
        return live(lambda folder: written(planned, replace(asked, out=folder), observer), asked.model)
    with planned(asked, observer) as plan:
        return plan.run()


def live(write: Callable[[Path], Any], like: Any) -> nn.Module:
    """The module of what a function writes: on the device and in the dtype of a live module that went in, else as
    it is stored, on the CPU.

    Args:
        write: is given a folder to write; its report becomes the module's attribute ``isomerge_report``.
        like: the first model that went in.
    """
    with tempfile.TemporaryDirectory(prefix="isomerge-") as scratch:
        out = Path(scratch) / "model"
        report = as_report(write(out))
        device, dtype, own = "cpu", _stored_dtype(out), None
        if isinstance(like, Checkpoint):
            own = like.own
            like = None if own is None else own.module
        elif is_own(like):
            own = OwnClass(like)
        if isinstance(like, nn.Module):
            first = next((p for p in like.parameters() if p.is_floating_point()), None)
            device, dtype = (device, dtype) if first is None else (str(first.device), first.dtype)
        module: Any = load_module(out, dtype, device, own=own)
    if own is not None:
        delattr(module, ATTRIBUTE)
        module.train(own.module.training)
        for new, old in zip(module.parameters(), own.module.parameters(), strict=True):
            new.requires_grad_(old.requires_grad)
    module.isomerge_report = report
    if hasattr(module, "name_or_path"):
        module.name_or_path = ""  # the folder is gone
    return module


def _stored_dtype(folder: Path) -> torch.dtype:
    """The dtype of the first weights."""
    tensors = open_checkpoint(folder).tensors.values()
    return next((torch_dtype(info.dtype) for info in tensors if info.dtype in STORED_FLOATS), torch.float32)

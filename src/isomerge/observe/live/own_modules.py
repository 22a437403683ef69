"""Modules of one's own: built from a checkpoint's tensors, called with batches, and what they give."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.checkpoint.own_class import ATTRIBUTE, OwnClass
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError
from isomerge.observe.live.accelerator import check_device

LABELS = "labels"


def load_own(
    checkpoint: Checkpoint, own: OwnClass, dtype: torch.dtype | None = None, device: str = "cpu"
) -> nn.Module:
    """A copy of a module of one's own with the tensors of a checkpoint, in eval mode.

    Args:
        checkpoint: tensors by the names of the module's ``state_dict``.
        own: the class.
        dtype: of floating-point parameters and buffers; float32 when None.
        device: where they are put.

    Raises:
        IsomergeError: the checkpoint lacks a tensor of the module, or has one of another name or shape.
    """
    where = check_device(device)
    module: nn.Module = copy.deepcopy(own.module).eval()
    state = {name: checkpoint.read(name) for name in checkpoint.tensors}
    _check_fits(module, state, checkpoint.ref)
    module.to(dtype or torch.float32)
    module.load_state_dict(state)
    for parameter in module.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    setattr(module, ATTRIBUTE, own)
    return module.to(where)


def _check_fits(module: nn.Module, state: Mapping[str, Tensor], ref: str) -> None:
    kind, wanted = type(module).__name__, module.state_dict()
    for name in {**wanted, **state}:
        if name not in state:
            raise IsomergeError(f"{ref} has no tensor {name}, which {kind} has: give modules of one class")
        if name not in wanted:
            raise IsomergeError(f"{ref} has tensor {name}, which {kind} has not: give modules of one class")
        if wanted[name].shape != state[name].shape:
            raise IsomergeError(
                f"{ref}: tensor {name} has shape {list(state[name].shape)}, and that of {kind} has shape "
                f"{list(wanted[name].shape)}: give modules of equal sizes"
            )


def inputs_of(module: nn.Module) -> tuple[list[str], int, bool]:
    """What the forward of a module takes without a name, but for labels: the arguments, how many of them have no
    default, and whether it takes any name."""
    parameters = [p for p in signature(module.forward).parameters.values() if p.name != LABELS]
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    plain = [p for p in parameters if p.kind in kinds]
    needed = sum(p.default is Parameter.empty for p in plain)
    return [p.name for p in plain], needed, any(p.kind is Parameter.VAR_KEYWORD for p in parameters)


def called_with(module: nn.Module, batch: Mapping[str, Tensor], *, labels: bool = False) -> Any:
    """What a module of one's own gives for a batch: tensors that have the names of its forward's arguments are
    given by name, all others before them in their order. Its labels are given only where they are asked for, or
    forward does not run without.

    Raises:
        TypeError: its forward takes something else.
    """
    inputs = {name: x for name, x in batch.items() if name != LABELS}
    parameters = signature(module.forward).parameters
    needed = LABELS in parameters and (labels or parameters[LABELS].default is Parameter.empty)
    if needed and LABELS in batch:
        inputs[LABELS] = batch[LABELS].to(next(module.parameters()).device)
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    named = {name for name, p in parameters.items() if p.kind in kinds}
    if any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values()):
        named |= inputs.keys()
    plain = [x for name, x in inputs.items() if name not in named]
    return module(*plain, **{name: x for name, x in inputs.items() if name in named})


def first_output(module: nn.Module, outputs: Any) -> Tensor:
    """The tensor that predicts, of what a module of one's own gives: ``logits`` where something has that name, else
    the first of floating point.

    Raises:
        IsomergeError: there is none.
    """
    if isinstance(outputs, Mapping):
        named = outputs.get("logits")
        parts = [value for name, value in outputs.items() if name != "loss"]
    elif isinstance(outputs, (tuple, list)):
        named, parts = None, list(outputs)
    else:
        named, parts = getattr(outputs, "logits", None), [outputs]
    candidates = [named, *parts]
    tensor = next((x for x in candidates if isinstance(x, Tensor) and x.is_floating_point()), None)
    if tensor is None:
        raise IsomergeError(
            f"{type(module).__name__} gives a {type(outputs).__name__} without a tensor of floating point: have "
            f"its forward return one, a tuple that begins with one, or a dict with logits"
        )
    return tensor


def own_loss_of(outputs: Any) -> Tensor | None:
    """The loss that a module of one's own gives beside its outputs; None where it gives none."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    return loss if isinstance(loss, Tensor) and loss.ndim == 0 else None

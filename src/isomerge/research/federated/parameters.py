"""Parameters as federated learning carries them: named tensors, or lists of arrays with their names apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from isomerge.checkpoint.in_memory import in_memory
from isomerge.errors import IsomergeError
from isomerge.models.compatible import check_compatible
from isomerge.models.recognised import Model, recognise

Parameters = Mapping[str, Any] | Sequence[Any]
"""One model: a ``state_dict`` (name -> torch tensor or numpy array), or arrays in the order of ``names``."""


def named(parameters: Parameters, names: Sequence[str] | None, ref: str) -> Mapping[str, Any]:
    """Parameters by name.

    Raises:
        IsomergeError: a list without names, or of another length than its names.
    """
    if isinstance(parameters, Mapping):
        return parameters
    if names is None:
        raise IsomergeError(f"{ref} is a list of arrays: give their names, names=list(model.state_dict())")
    if len(parameters) != len(names):
        raise IsomergeError(
            f"{ref} has {len(parameters)} arrays, but there are {len(names)} names: give one for each"
        )
    return dict(zip(names, parameters, strict=True))


def like(original: Parameters, names: Sequence[str] | None, tensors: Mapping[str, Tensor]) -> Any:
    """Tensors in the form of what was given: its container, its order, its kind of array, its devices."""
    if isinstance(original, Mapping):
        return {name: _as(old, tensors[name]) for name, old in original.items()}
    return [_as(old, tensors[name]) for name, old in zip(names or (), original, strict=True)]


def _as(old: Any, new: Tensor) -> Any:
    return new.to(old.device) if hasattr(old, "device") and hasattr(old, "detach") else new.numpy()


def recognised(
    each: Mapping[str, Parameters], config: Any, names: Sequence[str] | None = None, spec: str | Path | None = None
) -> list[Model]:
    """The models of one round, every tensor understood, all with the same names, types and shapes.

    Args:
        each: the parameters by what they are called in messages, the donor first.
        config: of all of them: the content of config.json, or a transformers configuration.
        names: of the arrays, where parameters are lists.
        spec: a spec file for an architecture that isomerge does not know.

    Raises:
        IsomergeError: an unknown architecture, or a name, type or shape that does not fit.
    """
    models = [
        recognise(in_memory(named(parameters, names, ref), config, ref=ref), spec_file=spec)
        for ref, parameters in each.items()
    ]
    first = models[0].checkpoint
    for other in (model.checkpoint for model in models[1:]):
        for a, b in ((first, other), (other, first)):
            if lacking := [name for name in a.tensors if name not in b.tensors]:
                raise IsomergeError(
                    f"{b.ref}: tensor {lacking[0]} is missing, but {a.ref} has it: send whole state_dicts "
                    f"of one model"
                )
        for name, info in first.tensors.items():
            theirs = other.tensors[name]
            if (info.dtype, info.shape) != (theirs.dtype, theirs.shape):
                raise IsomergeError(
                    f"{other.ref}: tensor {name} is {theirs.dtype} {list(theirs.shape)}, but {info.dtype} "
                    f"{list(info.shape)} in {first.ref}: all parameters must be of one model"
                )
    check_compatible(models[0], models[1:])
    return models

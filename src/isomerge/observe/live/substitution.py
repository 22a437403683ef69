"""A live module with other weights for a while, or with a head of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model
from isomerge.observe.live.modules import load_module


@contextmanager
def substituted(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """While it lasts, weights of a module are these tensors (by their names, see `weights_of`; tied places follow).

    Unlike torch's functional call it may outlive the forward pass: recomputed activations see the same tensors.
    """
    places: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for part in module.modules():
        for owner in (part._parameters, part._buffers):
            for name, old in owner.items():
                if old is not None:
                    places.setdefault(id(old), []).append((owner, name))
    by_name = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    kept = []
    try:
        for name, tensor in tensors.items():
            old = by_name[name]
            for owner, attribute in places[id(old)]:
                kept.append((owner, attribute, old))
                owner[attribute] = tensor
        yield
    finally:
        for owner, attribute, old in kept:
            owner[attribute] = old


def module_as_told(model: Model, device: str, dtype: torch.dtype | None = None) -> nn.Module:
    """The module of a model, its parameters in ``dtype`` (float32 when None), with a head of its own where the
    model has one, stored or in memory: of a model that was untied, the config in its folder says otherwise.

    Raises:
        IsomergeError: see `untied_module`.
    """
    return untied_module(model, device, dtype) if model.has_own_head else load_module(model, dtype, device)


def untied_module(model: Model, device: str, dtype: torch.dtype | None = None) -> nn.Module:
    """The module of a model, its parameters in ``dtype`` (float32 when None); where the model was untied, the
    module's head has weights of its own.

    Raises:
        IsomergeError: transformers cannot load it, or the module has no place for a head that is stored.
    """

    module = load_module(model, dtype, device)
    for line in model.spec.lines:
        if line.tied is None or (canonical := line.canonical({})) not in model.names:
            continue
        for name in _live_names(module, model, canonical):
            owner, _, attribute = name.rpartition(".")
            place: Any = module.get_submodule(owner)
            setattr(place, attribute, torch.nn.Parameter(getattr(place, attribute).detach().clone()))
    return module


def _live_names(module: nn.Module, model: Model, canonical: str) -> list[str]:
    """The module's names of a head that is stored; none where its class has no head.

    Raises:
        IsomergeError: it has a head, but not this one.
    """
    names = []
    for name, _ in module.named_parameters(remove_duplicate=False):
        with suppress(IsomergeError):  # what transformers keeps fused is no head
            names += [name] if model.spec.match(name).canonical == canonical else []
    head: Any = getattr(module, "get_output_embeddings", lambda: None)()
    if not names and head is not None:
        raise IsomergeError(
            f"{model.ref} stores {model.names[canonical]}, but {type(module).__name__} of this version of "
            f"transformers has "
            "its head under a name that the spec does not know: update isomerge, or match without data"
        )
    return names

"""A live module with other weights for a while, or with a head of its own; and one whose layers get their weights
when they compute, and lose them afterwards.

Learning moves every weight of a model in every step. All at once that takes a moved copy of the model, its
gradient and what the moves keep for it. Layers that ask for their weights when they run need that for one layer at
a time: in the backward pass each is computed once more, moves and all, so that neither activations nor weights are
kept (Chen et al. 2016, gradient checkpointing, here of the weights as well).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model
from isomerge.observe.live.modules import load_module
from isomerge.observe.live.parameter_places import every_weight


@contextmanager
def substituted(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """While it lasts, weights of a module are these tensors (by their names, see `weights_of`; tied places follow).

    Unlike torch's functional call it may outlive the forward pass: recomputed activations see the same tensors.
    """
    places: dict[int, list[tuple[Any, str]]] = {}
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


Give = Callable[[str], Mapping[str, Tensor]]
"""The weights of a layer, by their names in it, for the layer's name."""


def layers_of(module: nn.Module, names: Iterable[str]) -> dict[str, set[str]]:
    """The numbered submodules that compute with weights, and which weights they have to themselves.

    Args:
        module: a live one.
        names: the module's names of weights.

    Returns:
        By the name of a layer, up to the first number in it, the names of its weights. A weight that is used in
        several places is left out.
    """
    weights = every_weight(module)
    places = Counter(map(id, weights.values()))
    layers: dict[str, set[str]] = {}
    for name in names:
        parts = name.split(".")[:-1]
        numbered = next((k for k, part in enumerate(parts, 1) if part.isdigit()), 0)
        layer = ".".join(parts[:numbered])
        if layer and places[id(weights[name])] == 1 and _computes(module.get_submodule(layer)):
            layers.setdefault(layer, set()).add(name)
    return layers


def _computes(part: nn.Module) -> bool:
    """Whether a submodule is called, and does not only hold others."""
    return type(part).forward is not nn.Module.forward and not isinstance(part, nn.ModuleList | nn.ModuleDict)


def ask_for_weights(module: nn.Module, layers: Mapping[str, Iterable[str]], give: Give) -> None:
    """Have layers take their weights from outside for as long as they compute, and let go of their own.

    Args:
        module: a live one, in evaluation mode.
        layers: see `layers_of`.
        give: asked in the forward pass, and once more in the backward pass.

    Raises:
        IsomergeError: no layer has its weights to itself.
    """
    if not layers:
        raise IsomergeError(
            f"{type(module).__name__} has no layers with weights of their own to compute once more: leave "
            "--gradient-checkpointing out"
        )
    for name, weights in layers.items():
        layer = module.get_submodule(name)
        for weight in weights:
            owner, _, attribute = weight.rpartition(".")
            _let_go(module.get_submodule(owner), attribute)
        layer.forward = partial(_recomputing, layer, layer.forward, partial(give, name))
    config: Any = getattr(module, "config", None)
    if hasattr(config, "use_cache"):
        config.use_cache = False  # a layer that is computed twice would write it twice


def _let_go(owner: nn.Module, attribute: str) -> None:
    """In the place of a weight one number that looks like it: of its shape, dtype and device."""
    old = getattr(owner, attribute)
    small = torch.zeros((), dtype=old.dtype, device=old.device).expand(old.shape)
    if attribute in owner._parameters:
        owner._parameters[attribute] = nn.Parameter(small, requires_grad=False)
    else:
        owner._buffers[attribute] = small


def _recomputing(
    layer: nn.Module,
    forward: Callable[..., Any],
    give: Callable[[], Mapping[str, Tensor]],
    *args: Any,
    **named: Any,
) -> Any:
    """A layer's forward pass, with weights that are made for it and not kept."""

    def computed(*args: Any, **named: Any) -> Any:
        with substituted(layer, give()):
            return forward(*args, **named)

    if not torch.is_grad_enabled():
        return computed(*args, **named)
    # nothing is drawn: modules are in evaluation mode
    return checkpoint(computed, *args, use_reentrant=False, preserve_rng_state=False, **named)

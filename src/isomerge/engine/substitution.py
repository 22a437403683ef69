"""A live module with other weights for a while, with a head of its own, or with activations that are recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from isomerge.engine.modules import load_module
from isomerge.errors import IsomergeError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from isomerge.engine.models import Model


@contextmanager
def substituted(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """While it lasts, weights of a module are these tensors (by their names, see `weights_of`; tied places follow).

    Unlike torch's functional call it may outlive the forward pass: recomputed activations see the same tensors.
    """
    places: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for _, part in module.named_modules():
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


def untied_module(model: Model, device: str) -> nn.Module:
    """The module of a model; where the model was untied, the module's head has weights of its own."""
    import torch

    module = load_module(model, device=device)
    for name in model.names:
        for line in model.spec.lines:
            if line.tied is not None and line.canonical({}) == name and model.names[name] == name:
                owner, _, attribute = name.rpartition(".")
                place: Any = module.get_submodule(owner)
                setattr(place, attribute, torch.nn.Parameter(getattr(place, attribute).detach().clone()))
    return module


def enable_checkpointing(module: nn.Module) -> None:
    from torch import nn

    # of the two names the older one is on its way out
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    enable: Any = next((found for name in names if (found := getattr(module, name, None)) is not None), None)
    if enable is None or not getattr(module, "supports_gradient_checkpointing", True):
        raise IsomergeError(
            f"{type(module).__name__} cannot recompute its activations: leave --gradient-checkpointing away"
        )
    enable()
    config: Any = getattr(module, "config", None)
    if hasattr(config, "use_cache"):
        config.use_cache = False  # nothing is generated; layers that recompute cannot keep a cache
    module.train()  # transformers recomputes in training mode only; nothing may be drawn there
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        for name, value in vars(part).items():  # drop_prob, attention_dropout, layerdrop, router_jitter_noise, ...
            if isinstance(value, float) and any(word in name for word in ("drop", "jitter")):
                setattr(part, name, 0.0)

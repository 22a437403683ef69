"""The line between two matched models, as weights that a live module can be given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from isomerge.engine.learning import LearnSettings
from isomerge.engine.modules import load_module, parameter_names
from isomerge.engine.streams import StreamSolver
from isomerge.errors import IsomergeError
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.stage import Stage

if TYPE_CHECKING:
    from torch import Tensor, nn

    from isomerge.engine.models import Model


@contextmanager
def substituted(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """While it lasts, parameters of a module are these tensors (by parameter name; tied places follow).

    Unlike torch's functional call it may outlive the forward pass: recomputed activations see the same tensors.
    """
    places: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for _, part in module.named_modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((part._parameters, name))
    by_name = dict(module.named_parameters(remove_duplicate=False))
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


class MatchedLine:
    """The line from the anchor to the source as the solver has matched it, moved further by learned elements.

    Args:
        solver: a solver after its descent.
        settings: device and precision.
    """

    def __init__(self, solver: StreamSolver, settings: LearnSettings) -> None:
        import torch

        self.solver, self.settings = solver, settings
        anchor = solver.pair.anchor
        self.module = untied_module(anchor, settings.device)
        self.module.requires_grad_(False)
        if settings.checkpointing:
            enable_checkpointing(self.module)
        self.names = parameter_names(self.module, anchor.spec)
        self.anchor: dict[Block, Tensor] = {}
        self.source: dict[Block, Tensor] = {}
        for unit in solver.pair.plan.units:
            matched = solver.placed_unit(unit)
            for block in unit.blocks:
                if matched.anchor[block].is_floating_point():
                    self.anchor[block] = matched.anchor[block].to(settings.device, torch.float32)
                    self.source[block] = matched.source[block].to(settings.device, torch.float32)
        shared = {block.key for block in self.anchor}
        self.alone = {
            block: solver.folded(anchor, block).to(settings.device, torch.float32)
            for block in anchor.blocks
            if block.key not in shared and block.canonical[0] in self.names
        }

    def point(self, t: float, stage: Stage | None) -> dict[str, Tensor]:
        """The weights at ``(1 - t) anchor + t source`` by parameter name, with gradients to the stage's elements."""
        import torch

        found = {}
        for block, a in self.anchor.items():
            b = self.source[block]
            if stage is not None and t > 0:
                b = b.clone()
                stage.act_linearly(block, b)
            mixed = torch.lerp(a, b, t) if t < 1 else b
            found |= {self.names[n]: part for n, part in block.split(mixed) if n in self.names}
        for block, a in self.alone.items():
            found |= {self.names[n]: part for n, part in block.split(a) if n in self.names}
        return found

    def logits(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The module's logits with the weights that are substituted now."""
        import torch

        from isomerge.evidence.losses import logits_of

        half = self.settings.precision == "bfloat16"
        kind = torch.device(self.settings.device).type
        with torch.autocast(kind, torch.bfloat16) if half else nullcontext():
            return logits_of(self.module, batch).float()


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

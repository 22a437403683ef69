"""Clients of a federation in memory: a toy's parameters, symmetry twins of it, and what the toy computes with
some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from transformers import ViTConfig, ViTForImageClassification

from isomerge.checkpoint.in_memory import in_memory
from isomerge.evidence.law import random_alignment, random_turn, with_streams
from isomerge.models.recognised import Model, recognise
from isomerge.symmetry.alignment import Alignment
from toys import TOYS, inputs, randomise

State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Server:
    """A float32 toy and its parameters."""

    module: Any
    state: State

    @property
    def config(self) -> dict[str, Any]:
        return self.module.config.to_dict()

    def outputs(self, state: Mapping[str, Any]) -> torch.Tensor:
        """The logits with other parameters."""
        self.module.load_state_dict({name: torch.as_tensor(x) for name, x in state.items()}, strict=False)
        given = {k: v.float() if v.is_floating_point() else v for k, v in inputs(self.module.config).items()}
        with torch.no_grad():
            return self.module(**given).logits.clone()

    def recognised(self) -> Model:
        return recognise(in_memory(self.state, self.config))

    def twin(self, seed: int, *, streams: bool = False) -> State:
        """The same function in other weights: a random element of every space, with ``streams`` of those as
        well."""
        model, rng = self.recognised(), torch.Generator().manual_seed(seed)
        spec, blocks = with_streams(model.spec) if streams else model.spec, model.blocks

        def load(block: Any) -> torch.Tensor:
            return model.assemble(block, torch.float64)

        local = [n for n in spec.spaces if n not in spec.residual_names] + [s.name for s in spec.shifts]
        g = random_turn(spec, blocks, load, rng) if streams else random_alignment(spec, blocks, rng, local)
        return self.moved(g)

    def moved(self, g: Alignment, state: State | None = None) -> State:
        """The parameters, or others, moved by an alignment."""
        model = recognise(in_memory(state or self.state, self.config))
        moved = {block: model.assemble(block, torch.float64) for block in model.blocks}
        g.act({block: x for block, x in moved.items() if x.is_floating_point()})
        parts = {model.names[n]: x for block, t in moved.items() for n, x in block.split(t)}
        return {name: parts[name].to(old.dtype).contiguous() for name, old in self.state.items()}


def tiny_vit() -> Any:
    """A vision transformer of one layer, for what costs many passes."""
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    return ViTForImageClassification(ViTConfig(**shape, image_size=8, patch_size=4, num_labels=5))


@cache
def server(name: str, seed: int = 0) -> Server:
    """A toy (or ``tiny``) with all parameters drawn at random; do not change its state."""
    module = (tiny_vit() if name == "tiny" else TOYS[name][0]()).float().eval()
    randomise(module, seed)
    module.tie_weights()
    return Server(module, {key: x.detach().clone() for key, x in module.state_dict().items()})


def plain(updates: list[State], weights: list[float]) -> State:
    """What FedAvg does."""
    total = sum(weights)
    return {
        name: sum(
            (u[name].double() * (w / total) for u, w in zip(updates, weights, strict=True)), torch.tensor(0.0)
        )
        for name in updates[0]
    }

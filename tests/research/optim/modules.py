"""Live toys for the laws of optimisation on the quotient: randomised, with a loss, and moved by random elements."""

from __future__ import annotations

import copy
from typing import Any

import torch

from isomerge.research.optim import Quotient
from toys import TOYS, inputs, randomise

LIVE = ["gpt2", "llama", "llama-biased", "qwen3", "vit", "bert", "t5-gated", "t5-relu", "dinov2"]
"""Toys with every kind of space: GL, scales of either sign, rotary pairs, shifts, grouped queries, ties, stacks."""


def live(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """A randomised toy in eval mode."""
    model = TOYS[name][0]().to(dtype).eval()
    randomise(model, seed)
    return model


def logits(model: Any) -> torch.Tensor:
    """Its outputs on fixed inputs."""
    dtype = next(model.parameters()).dtype
    given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs(model.config).items()}
    return model(**given).logits


def loss(model: Any) -> torch.Tensor:
    """A loss whose optimum is far: outputs are drawn to fixed random numbers."""
    out = logits(model)
    wanted = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(out.dtype)
    return (out - wanted).square().mean()


def train(model: Any, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """The losses before every step."""
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        optimizer.step()
        found.append(float(value.detach()))
    return found


def drawn(quotient: Quotient, seed: int, condition: float = 4.0, shifts: float = 0.3) -> torch.Tensor:
    """Elements of all families and shifts at random [dimension]."""
    rng = torch.Generator().manual_seed(seed)
    space = quotient.vertical_space
    found = quotient.identity()
    for family in space.families:
        batch = family.shape[: -2 if family.kind == "matrix" else -1]
        family.of(found).copy_(family.space.group.sample(batch, family.n, rng, condition))
    for shift in space.shifts:
        shift.of(found).copy_(torch.randn(shift.shape, generator=rng, dtype=torch.float64) * shifts)
    return found


def moved(model: Any, seed: int) -> tuple[Any, torch.Tensor]:
    """A copy of the same function in other weights, and what moved it."""
    twin = copy.deepcopy(model)
    quotient = Quotient(twin)
    elements = drawn(quotient, seed)
    quotient.move(elements)
    assert apart(model, twin) > 0.05
    return twin, elements


def apart(one: Any, two: Any) -> float:
    """The largest relative difference of any parameter."""
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    return max(float((a - b).detach().norm() / a.detach().norm().clamp_min(1e-12)) for a, b in pairs)


def direction(quotient: Quotient, seed: int) -> dict[str, torch.Tensor]:
    """A random update of the moved parameters, float64."""
    rng = torch.Generator().manual_seed(seed)
    return {n: torch.randn(p.shape, generator=rng, dtype=torch.float64) for n, p in quotient.parameters.items()}


def inner(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    """The Frobenius inner product of two updates."""
    return sum(float((one[name].double() * two[name].double()).sum()) for name in two)


def size(update: dict[str, torch.Tensor]) -> float:
    """The norm of an update."""
    return inner(update, update) ** 0.5


def less(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The difference of two updates."""
    return {name: one[name] - two[name] for name in two}

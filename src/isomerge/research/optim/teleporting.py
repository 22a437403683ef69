"""Teleportation: along the orbit to where the gradient is largest, or smallest, without changing the function.

The gradient at ``g theta`` is ``g^-T G`` (plain leaves) and ``g G`` (dual ones), so one gradient tells the
gradients on the whole orbit, and the search needs no more evaluations of the loss (Zhao, Dehmamy, Walters and Yu,
Symmetry Teleportation for Accelerated Optimization, 2022, who take the gradient of the loss for every step).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.research.optim.layout import Family
from isomerge.research.optim.movement import Movement, transport
from isomerge.research.optim.quotient import Quotient
from isomerge.research.optim.vertical import VerticalSpace
from isomerge.symmetry.groups.singular import singular_values_and_vectors

# The first step changes no logarithm by more than this; steps that do not help are halved down to the last.
FIRST, LAST = 0.5, 1e-6
# Largest change of a loss that rounding explains: float32 networks repeat theirs to some 1e-6.
SAME = 1e-3


@dataclass(frozen=True)
class Teleported:
    """What a teleportation did."""

    before: float
    """The norm of the gradient of all parameters, before."""
    after: float
    """After; both are measured by the closure."""
    loss: float
    moved: bool
    """False where nothing better was found; the parameters are then bit for bit as they were."""
    condition: float
    """The largest ratio of singular values of any element that acted."""


def teleport(
    model: nn.Module,
    closure: Callable[[], Any],
    goal: str = "max",
    *,
    steps: int = 50,
    condition: float = 10.0,
    optimizers: Iterable[torch.optim.Optimizer] = (),
    spaces: Collection[str] | None = None,
    spec: Any = None,
) -> Teleported:
    """Move a module along its orbit to where the norm of the gradient is larger (or smaller), in place.

    The function stays the same. The goal is never missed: what does not help is undone.

    Args:
        model: a module of transformers.
        closure: clears the gradients, computes the loss of one fixed batch, calls ``backward``, returns the loss.
            It is called twice and must be deterministic (no dropout).
        goal: ``max`` or ``min``.
        steps: of the search, each as dear as moving the gradients once.
        condition: a bound on the condition number of every element: singular values stay within its square root and
            the inverse of that, which also bounds by how much sizes change. Without it ``max`` has no solution.
        optimizers: whose buffers go with the parameters, see `Quotient.rebalance`.
        spaces, spec: see `Quotient`. Shifts do not act.

    Raises:
        IsomergeError: see `Quotient`; another goal, a bound below one, or a closure that is not deterministic (the
            parameters are then as they were).
    """
    if goal not in ("max", "min") or not condition >= 1:
        raise IsomergeError(f"goal={goal!r}, condition={condition}: expected max or min, and a bound of at least 1")

    space = Quotient(model, spaces=spaces, spec=spec).vertical_space
    loss, before = _value(closure()), _norm(model)
    parameters = space.layout.parameters
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    movement = _search(space, space.layout.gather(gradients, torch.float64), goal, steps, condition)
    unmoved = Teleported(before, before, loss, False, 1.0)
    if movement is None:
        return unmoved
    kept = [p.detach().clone() for p in parameters]
    x = space.layout.gather(parameters, torch.float64)
    movement.parameters(x)
    space.layout.scatter(x, parameters)
    again, after = _value(closure()), _norm(model)
    good = abs(again - loss) <= SAME * max(1.0, abs(loss))
    if not good or not (after > before if goal == "max" else after < before):
        with torch.no_grad():
            for p, old in zip(parameters, kept, strict=True):
                p.copy_(old)
        if not good:
            raise IsomergeError(
                f"the closure gave {loss:.6g} and then {again:.6g} at weights of the same function: it must "
                "compute the loss of one fixed batch, without dropout (model.eval())"
            )
        closure()  # the gradients of the parameters as they are
        return unmoved
    transport(movement, optimizers)
    ratios = [_ratio(family, family.of(movement.elements)) for family in space.families]
    return Teleported(before, after, again, True, max(ratios, default=1.0))


def _value(loss: Any) -> float:
    """A loss that a closure returned."""
    return float(loss.detach() if hasattr(loss, "detach") else loss)


def _norm(model: nn.Module) -> float:
    """The norm of the gradient of all parameters, summed in float64."""
    return math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None))


def _search(space: VerticalSpace, g: Tensor, goal: str, steps: int, condition: float) -> Movement | None:
    """Gradient steps in the Lie algebras, halved until they help; None where nothing helps."""
    sign = 1.0 if goal == "max" else -1.0
    best, moved = Movement.identity(space), g.clone()
    value, size, helped = sign * float(g.dot(g)), FIRST, False
    for _ in range(steps):
        xi = _slope(space, moved) * sign
        largest = float(xi.abs().max())
        while largest > 0 and size > LAST:
            tried = Movement(space, _step(space, best.elements, xi * (size / largest), condition))
            there = g.clone()
            tried.gradients(there)
            if (new := sign * float(there.dot(there))) > value:
                break
            size /= 2
        else:
            break
        best, moved, value, helped, size = tried, there, new, True, min(2 * size, FIRST)
    return best if helped else None


def _slope(space: VerticalSpace, g: Tensor) -> Tensor:
    """Half the derivative of the squared norm of gradients along elements [elements]: ``B - A``, their Grams."""
    slope = g.new_zeros(space.size)
    for family in space.families:
        plain, dual = family.grams(g)
        family.of(slope).copy_(dual - plain)
    return slope


def _step(space: VerticalSpace, elements: Tensor, xi: Tensor, condition: float) -> Tensor:
    """``exp(xi) g``, its singular values brought within the bound."""
    stepped, bound = elements.clone(), math.sqrt(condition)
    for family in space.families:
        g, step = family.of(elements), family.of(xi)
        if family.kind == "matrix":
            u, s, vh = singular_values_and_vectors(torch.linalg.matrix_exp(step) @ g)
            g = (u * s.clamp(1 / bound, bound).unsqueeze(-2)) @ vh
        elif family.kind == "scale":
            g = (g * step.exp()).clamp(1 / bound, bound)
        else:
            g = g * step[..., :1].exp()
            size = g.norm(dim=-1, keepdim=True)
            g = g / size * size.clamp(1 / bound, bound)
        family.of(stepped).copy_(g)
    return stepped


def _ratio(family: Family, g: Tensor) -> float:
    """The largest condition number of an element; of numbers, by how much any two of a family differ."""
    if family.kind == "matrix":
        s = torch.linalg.svdvals(g)
        return float((s[..., 0] / s[..., -1]).max())
    sizes = g.norm(dim=-1) if family.kind == "complex" else g.abs()
    return float(sizes.max() / sizes.min())

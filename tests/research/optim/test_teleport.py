"""Teleportation: the same function, a larger or a smaller gradient, within a bound."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from isomerge.errors import IsomergeError
from isomerge.research.optim import Quotient, teleport
from research.optim.modules import apart, drawn, live, logits, loss, train
from toys import TOYS, relative


def backward(model: Any) -> Callable[[], torch.Tensor]:
    """A closure as `teleport` wants it."""

    def closure() -> torch.Tensor:
        model.zero_grad()
        value = loss(model)
        value.backward()
        return value.detach()

    return closure


@pytest.mark.parametrize("goal", ["max", "min"])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("gpt2", torch.float64), ("llama", torch.float64), ("t5-relu", torch.float64), ("vit", torch.float32)],
)
def test_teleport(name: str, goal: str, dtype: torch.dtype) -> None:
    """Outputs stay, the gradient's norm goes the wanted way, elements keep within the bound."""
    model = live(name, dtype)
    begun, before = copy.deepcopy(model), logits(model).detach()
    found = teleport(model, backward(model), goal, steps=15, condition=4.0)
    assert relative(logits(model).detach(), before) < (TOYS[name][1] if dtype == torch.float64 else 1e-5)
    assert found.moved
    assert apart(begun, model) > 0.01
    assert found.after > 1.2 * found.before if goal == "max" else found.after < 0.97 * found.before
    assert 1 < found.condition <= 4.0 * (1 + 1e-9)
    backward(model)()
    norm = sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None) ** 0.5
    assert norm == pytest.approx(found.after)


def test_nothing_better_is_nothing_moved() -> None:
    """At a bound of one there is nowhere to go: bit for bit the same weights."""
    model = live("bert")
    begun = copy.deepcopy(model)
    found = teleport(model, backward(model), "max", condition=1.0)
    assert not found.moved
    assert found.after == found.before
    assert apart(begun, model) == 0


def test_min_undoes_what_max_did() -> None:
    """The least gradient of an orbit does not depend on where on it one begins."""
    model = live("bert")
    twin = copy.deepcopy(model)
    quotient = Quotient(twin)
    quotient.move(drawn(quotient, 1, shifts=0.0))
    one, two = (teleport(m, backward(m), "min", steps=150, condition=1e4) for m in (model, twin))
    assert abs(one.before - two.before) > 0.05 * one.before
    assert one.after == pytest.approx(two.after, rel=1e-3)


def test_momentum_goes_along() -> None:
    """Buffers are those of the new point: a further step of the same gradient is the gradient there."""
    model = live("vit")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    train(model, optimizer, 1)
    teleport(model, backward(model), "max", condition=3.0, optimizers=[optimizer])
    backward(model)()
    for p in model.parameters():
        assert p.grad is not None
        assert torch.allclose(optimizer.state[p]["momentum_buffer"], p.grad, atol=1e-10)


def test_closures_must_repeat() -> None:
    """A loss that changes by itself is refused, and the weights are as they were."""
    model = live("bert")
    begun, calls = copy.deepcopy(model), [0.0]

    def closure() -> torch.Tensor:
        calls[0] += 1
        model.zero_grad()
        value = loss(model) * calls[0]
        value.backward()
        return value.detach()

    with pytest.raises(IsomergeError, match="without dropout"):
        teleport(model, closure)
    assert apart(begun, model) == 0
    with pytest.raises(IsomergeError, match="expected max or min"):
        teleport(model, closure, "up")

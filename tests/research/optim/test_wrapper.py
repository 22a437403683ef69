"""Any optimiser on the quotient: horizontal steps, conserved quantities, re-gauging, and torch's own protocol."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from depth import more
from isomerge.errors import IsomergeError
from isomerge.research.optim import Quotient, QuotientOptimizer
from research.optim.modules import LIVE, apart, drawn, less, live, logits, loss, size, train
from toys import TOYS, relative

Make = Callable[[Any, float], torch.optim.Optimizer]


def adamw(model: Any, lr: float = 1e-3) -> torch.optim.Optimizer:
    """With a weight decay that shows."""
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)


def projected(model: Any, lr: float = 1e-3) -> torch.optim.Optimizer:
    """AdamW on the quotient, nearly exact."""
    return QuotientOptimizer(adamw(model, lr), model, tolerance=1e-9)


def sgd(model: Any, lr: float) -> torch.optim.Optimizer:
    """Plain gradient descent."""
    return torch.optim.SGD(model.parameters(), lr=lr)


def values(quotient: Quotient) -> dict[str, torch.Tensor]:
    """The moved parameters as they are."""
    return {n: p.detach().clone() for n, p in quotient.parameters.items()}


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, torch.float64) for n in LIVE] + [(n, torch.float32) for n in ("gpt2", "llama")]
)
def test_every_step_is_horizontal(name: str, dtype: torch.dtype) -> None:
    """Up to the default tolerance, which is estimated, from a warm start with an old preconditioner; AdamW's own
    steps are not."""
    model = live(name, dtype)
    optimizer = QuotientOptimizer(adamw(model), model)
    quotient = optimizer.quotient
    for _ in range(3):
        plain = copy.deepcopy(model)
        before = values(quotient)
        train(model, optimizer, 1)
        step = less(values(quotient), before)
        at = Quotient(plain)
        assert size(less(at.horizontal(step), step)) < 2 * optimizer.tolerance * size(step)
    reference = copy.deepcopy(live(name, dtype))
    before = values(Quotient(reference))
    train(reference, adamw(reference), 1)
    step = less(values(Quotient(reference)), before)
    at = Quotient(live(name, dtype))
    assert size(less(at.horizontal(step), step)) > 0.05 * size(step)


def drift(name: str, make: Make, lr: float, steps: int) -> float:
    """By how much the conserved quantities change in training."""
    model = live(name)
    quotient = Quotient(model)
    before = quotient.conserved()
    train(model, make(model, lr), steps)
    after = quotient.conserved()
    return sum(float((after[k] - before[k]).square().sum()) for k in before) ** 0.5


@pytest.mark.parametrize("name", ["llama", *more("bert", "t5-relu")])
def test_conserved_quantities(name: str) -> None:
    """``Q Q^T - K K^T`` and the like drift by the step of SGD, and of Adam on the quotient; Adam just moves
    them."""
    fine = {
        "sgd": [drift(name, sgd, lr, n) for lr, n in ((1e-2, 8), (5e-3, 16))],
        "projected": [drift(name, projected, lr, n) for lr, n in ((1e-3, 8), (5e-4, 16))],
    }
    plain = [drift(name, adamw, lr, n) for lr, n in ((1e-3, 8), (5e-4, 16))]
    for one, half in fine.values():
        assert 0 < half < 0.62 * one
    assert plain[1] > 0.8 * plain[0]
    assert plain[0] > 5 * fine["projected"][0]


@pytest.mark.parametrize(("name", "dtype"), [(n, torch.float64) for n in LIVE] + [("vit", torch.float32)])
def test_rebalancing_keeps_the_function(name: str, dtype: torch.dtype) -> None:
    """Both sides of every space are of one size afterwards, the norm is less, something has moved."""
    model = live(name, dtype)
    quotient = Quotient(model)
    quotient.move(drawn(quotient, 3))
    before, norm = logits(model).detach(), size(values(quotient))
    found = quotient.rebalance()
    assert found.moved > 0.1
    assert not found.dead
    assert size(values(quotient)) < norm
    exact = dtype == torch.float64
    assert relative(logits(model).detach(), before) < (max(TOYS[name][1], 1e-10) if exact else 1e-5)
    scale = 1e-8 if exact else 1e-4
    assert all(float(c.abs().max()) < scale * norm**2 for c in quotient.conserved().values())
    assert quotient.rebalance().moved < (1e-8 if exact else 1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama-biased", "dinov2"])
def test_momentum_moves_with_the_parameters(name: str) -> None:
    """The buffer of a moved model is the buffer that the same gradients would have left there."""
    model = live(name)
    twin = copy.deepcopy(model)
    one, two = (torch.optim.SGD(m.parameters(), lr=0.0, momentum=0.9) for m in (model, twin))
    quotient = Quotient(twin)
    elements = drawn(quotient, 2)
    train(model, one, 3)
    Quotient(model).move(elements, one)
    quotient.move(elements)
    train(twin, two, 3)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        a, b = (o.state[x].get("momentum_buffer", torch.zeros(1)) for o, x in ((one, p), (two, q)))
        assert float((a - b).norm()) < 1e-6 * float(b.norm()) + 1e-12


def test_second_moments_under_scales_are_exact() -> None:
    """Where only scales act, Adam's buffers are those that training there would have left."""
    model = live("llama")
    twin = copy.deepcopy(model)
    one, two = (torch.optim.Adam(m.parameters(), lr=0.0) for m in (model, twin))
    quotient = Quotient(twin, spaces=["u", "n2"])
    elements = drawn(quotient, 2)
    train(model, one, 3)
    Quotient(model, spaces=["u", "n2"]).move(elements, one)
    quotient.move(elements)
    train(twin, two, 3)
    p, q = (m.model.layers[1].mlp.up_proj.weight for m in (model, twin))
    assert float((p - q).detach().abs().max()) < 1e-12
    for name in ("exp_avg", "exp_avg_sq"):
        a, b = one.state[p][name], two.state[q][name]
        assert float((a - b).norm()) < 1e-6 * float(b.norm())


def test_rebalancing_while_training() -> None:
    """Every third step the point is balanced, and training goes on: buffers are finite and positive."""
    model = live("vit")
    inner = adamw(model)
    optimizer = QuotientOptimizer(inner, model, rebalance_every=3)
    losses = train(model, optimizer, 12)
    assert losses[-1] < losses[0]
    assert all(float(c.abs().max()) < 1e-7 for c in optimizer.quotient.conserved().values())
    assert all(bool((s["exp_avg_sq"] >= 0).all()) for s in inner.state.values())


def test_unknown_buffers_are_refused() -> None:
    """An optimiser whose buffers transform in an unknown way cannot be re-gauged."""
    model = live("vit")
    optimizer = QuotientOptimizer(torch.optim.Rprop(model.parameters(), lr=1e-4), model, rebalance_every=2)
    train(model, optimizer, 1)
    with pytest.raises(IsomergeError, match="keeps prev"):
        train(model, optimizer, 1)


def test_torch_protocol() -> None:
    """Schedulers, closures, parameter groups, and a state that resumes."""
    model, other = live("bert"), live("bert")
    optimizer = QuotientOptimizer(adamw(model), model, tolerance=1e-9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        return value

    assert optimizer.step(closure).item() > 0
    scheduler.step()
    assert optimizer.optimizer.param_groups[0]["lr"] == 5e-4
    saved = copy.deepcopy(optimizer.state_dict())
    other.load_state_dict(model.state_dict())
    resumed = QuotientOptimizer(adamw(other), other, tolerance=1e-9)
    resumed.load_state_dict(saved)
    assert (resumed.steps, resumed.param_groups[0]["lr"]) == (1, 5e-4)
    train(model, optimizer, 2)
    train(other, resumed, 2)
    assert apart(model, other) < 1e-9
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_parameters_of_the_optimiser_count() -> None:
    """What it does not train is no part of the symmetry, until it is added."""
    model = live("llama")
    some = [p for n, p in model.named_parameters() if "q_proj" not in n]
    optimizer = QuotientOptimizer(torch.optim.SGD(some, lr=1e-3), model)
    assert "c" in optimizer.quotient.left_out
    optimizer.add_param_group({"params": [p for n, p in model.named_parameters() if "q_proj" in n]})
    assert "c" not in optimizer.quotient.left_out
    with pytest.raises(IsomergeError, match="rebalance_every"):
        QuotientOptimizer(optimizer.optimizer, model, rebalance_every=-1)

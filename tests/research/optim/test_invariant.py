"""Trajectories that begin at two points of one orbit stay on one orbit; Adam's do not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from depth import more
from isomerge.errors import IsomergeError
from isomerge.research.optim import InvariantAdam, InvariantSGD, Quotient
from isomerge.research.optim.invariant import InvariantMetric
from research.optim.modules import LIVE, apart, live, logits, moved, train
from toys import relative

INVARIANT: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda m: InvariantSGD(m, lr=1e-2, momentum=0.9, weight_decay=0.1),
    "adam": lambda m: InvariantAdam(m, lr=3e-3, weight_decay=0.1),
}


def related(name: str, make: Callable[[Any], torch.optim.Optimizer], steps: int = 5) -> tuple[float, float]:
    """How far two trajectories of one function have come apart, modulo what moved one; and the descent."""
    model = live(name)
    twin, elements = moved(model, 4)
    begun = copy.deepcopy(model)
    losses = train(model, make(model), steps)
    train(twin, make(twin), steps)
    assert apart(begun, model) > 1e-3
    quotient = Quotient(model)
    quotient.move(elements)
    return apart(model, twin), losses[-1] / losses[0]


@pytest.mark.parametrize("kind", INVARIANT)
@pytest.mark.parametrize("name", LIVE)
def test_trajectories_stay_related(name: str, kind: str) -> None:
    """Under every space and shift at once, with weight decay; norms in float32 disturb gradients by 1e-7."""
    gap, descent = related(name, INVARIANT[kind])
    assert gap < 1e-8
    assert descent < 1


@pytest.mark.parametrize("name", ["gpt2", *more("llama", "t5-gated")])
def test_adams_do_not(name: str) -> None:
    """Nor does plain SGD, whose metric is not invariant."""
    assert related(name, lambda m: torch.optim.Adam(m.parameters(), lr=3e-3))[0] > 1e-2
    assert related(name, lambda m: torch.optim.SGD(m.parameters(), lr=1e-2))[0] > 1e-3


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_metric_that_forgets_where_spaces_meet_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grams that feel the other spaces' elements are not invariant."""
    monkeypatch.setattr("isomerge.research.optim.invariant.multiply", lambda *args, **options: None)
    assert related(name, INVARIANT["sgd"])[0] > 1e-4


def test_balanced_and_isotropic_is_plain() -> None:
    """Where both sides of every space have equal, isotropic Grams, the metric is the Frobenius metric."""
    model = live("vit")
    quotient = Quotient(model, spaces=["ov"])
    space = quotient.vertical_space
    with torch.no_grad():
        for touch in (t for f in space.families for t in f.touches):
            x = space.layout.gather(space.layout.parameters)
            here = touch.at.of(x)
            if here.shape[-1] > 1:
                u, _, vh = torch.linalg.svd(here, full_matrices=False)
                here.copy_(2 * u @ vh)
                space.layout.scatter(x, space.layout.parameters)
    x = space.layout.gather(space.layout.parameters)
    for leaf in space.layout.leaves:  # biases add to the Gram
        if leaf.view.of(x).ndim == 3:
            leaf.view.of(x).zero_()
    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    metric = InvariantMetric(space)
    assert float((metric.raised(g, metric.at(x)) - g).abs().max()) < 1e-10


def test_zero_sides_have_the_plain_metric() -> None:
    """An output projection of zeros: nothing to measure by, and numbers stay finite."""
    model = live("vit")
    for name, p in model.named_parameters():
        if "attention.output" in name or "o_proj" in name:
            torch.nn.init.zeros_(p)
    before = logits(model).detach()
    losses = train(model, InvariantAdam(model, lr=1e-3), 4)
    assert losses[-1] < losses[0]
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert relative(logits(model).detach(), before) > 1e-4


def test_state_resumes_and_schedulers_work() -> None:
    """The state is torch's: one dictionary per parameter."""
    model = live("llama", torch.float32)
    optimizer = InvariantAdam(model, lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    train(model, optimizer, 2)
    scheduler.step()
    other = copy.deepcopy(model)
    resumed = InvariantAdam(other)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert resumed.param_groups[0]["lr"] == 5e-4
    train(model, optimizer, 2)
    train(other, resumed, 2)
    assert apart(model, other) == 0
    with pytest.raises(IsomergeError, match="one group"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    for wrong in ({"lr": -1.0}, {"betas": (1.0, 0.9)}):
        with pytest.raises(IsomergeError, match="expected"):
            InvariantAdam(model, **wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(IsomergeError, match="momentum"):
        InvariantSGD(model, momentum=1.0)


def test_other_parameters_get_adam() -> None:
    """Embeddings, which no continuous space moves, take the steps of torch's AdamW."""
    model = live("bert")
    other = copy.deepcopy(model)
    train(model, InvariantAdam(model, lr=1e-3, weight_decay=0.1), 1)
    train(other, torch.optim.AdamW(other.parameters(), lr=1e-3, weight_decay=0.1), 1)
    tables = [m.bert.embeddings.word_embeddings.weight for m in (model, other)]
    assert torch.allclose(*tables, atol=1e-12)
    queries = [m.bert.encoder.layer[0].attention.self.query.weight for m in (model, other)]
    assert not torch.allclose(*queries, atol=1e-5)

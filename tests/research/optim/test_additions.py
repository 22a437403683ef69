"""What LayerNorm leaves free and constants that are traded are directions of the orbit, all of them."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from isomerge.discovery.building import real_config
from isomerge.discovery.redundancy import tiny_specimen
from isomerge.research.optim import Quotient, QuotientOptimizer
from isomerge.research.optim.additions import Addition, Folded, NormsAt
from isomerge.research.optim.vertical import Preconditioner, project
from research.optim.modules import apart, direction, inner, less, live, logits, loss, size
from toys import relative

COUNTED = Path(__file__).parents[3] / "benchmarks" / "results" / "completeness.json"
KINDS = {
    "gpt2": {"Written", "Read", "Folded"},
    "vit": {"Written", "Read", "Folded", "Constant"},
    "bert": {"Written", "Read", "Folded", "Scaled", "Traded", "Constant"},
    "gptj": {"Written", "Read", "Folded", "Made"},
    "dinov2": {"Written", "Read", "Folded", "Constant"},
    "t5-relu": {"Constant"},
    "openai-gpt": {"Written", "Read", "Folded", "CarriedOn"},
}
"""By toy, what may be added in it; all kinds occur."""


def along(quotient: Quotient, which: Addition, seed: int = 0) -> dict[str, torch.Tensor]:
    """A random direction of one addition."""
    rng, space = torch.Generator().manual_seed(seed), quotient.vertical_space
    xi = torch.zeros(quotient.dimension, dtype=torch.float64)
    for addition, part in space.additions.parts(xi[space.size :]):
        if addition is which:
            part.copy_(torch.randn(part.shape, generator=rng, dtype=torch.float64))
    return quotient.vertical(xi)


def change(model: Any, update: dict[str, torch.Tensor], step: float) -> float:
    """By how much outputs change after a step of this length."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in Quotient(other).parameters.items():
            parameter += update[name] * (step / size(update))
    return relative(logits(other).detach(), logits(model).detach())


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_changes_no_output(name: str) -> None:
    """To first order; what is scaled changes outputs by the square of the step, all else by nothing at all."""
    model = live(name)
    quotient = Quotient(model)
    each = quotient.vertical_space.additions.each
    assert {type(addition).__name__ for addition in each} == KINDS[name]
    for addition in each:
        update, kind = along(quotient, addition), type(addition).__name__
        assert size(update) > 0, kind
        far = change(model, update, 0.1)
        assert far < (1e-2 if kind in ("Scaled", "Folded", "Made") else 1e-10), kind
        assert change(model, update, 0.01) < max(0.02 * far, 1e-10), kind
    assert change(model, direction(quotient, 0), 0.1) > 1e-3


@pytest.mark.parametrize("name", KINDS)
def test_the_adjoint_is_one(name: str) -> None:
    """``<V xi, D> = <xi, V^T D>``, for each addition."""
    quotient = Quotient(live(name))
    space, rng = quotient.vertical_space, torch.Generator().manual_seed(0)
    point = space.at(quotient._x())
    d = quotient._flat(direction(quotient, 1))
    for addition in space.additions.each:
        c = torch.randn(addition.shape, generator=rng, dtype=torch.float64)
        moved = torch.zeros_like(d)
        addition.push(point.norms, c, moved)
        there, back = float(moved @ d), float((c * addition.pull(point.norms, d)).sum())
        assert abs(there - back) < 1e-10 * float(moved.norm() * d.norm()), type(addition).__name__
        assert abs(there) > 0


@pytest.mark.parametrize("name", ["gpt2", "bert", "gptj"])
def test_what_pays_for_nothing_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what the norm's bias makes of it, the same directions change outputs by their length."""
    monkeypatch.setattr(NormsAt, "paid", lambda self, stack: self.x.new_full((stack.count,), 10.0))
    model = live(name)
    quotient = Quotient(model)
    wrong = {
        type(addition).__name__
        for addition in quotient.vertical_space.additions.each
        if change(model, along(quotient, addition), 0.01) > 1e-5
    }
    assert wrong == {"gpt2": {"Read"}, "bert": {"Read", "Traded"}, "gptj": {"Read", "Folded", "Made"}}[name]


@pytest.mark.parametrize("role", ["bias", "carried"])
def test_a_bias_that_nothing_takes_up_is_noticed(role: str) -> None:
    """A norm's bias that its readers', or the next writer's, do not lose changes outputs by its length."""
    model = live("bert")
    quotient = Quotient(model)
    each = quotient.vertical_space.additions.each
    folded = next(a for a in each if isinstance(a, Folded) and a.stack.carried is not None)
    stack = folded.stack
    lost = {"carried": {"carried": None}, "bias": {"readers": stack.readers[1:]}}[role]
    mutant = replace(folded, stack=replace(stack, **lost))
    each[each.index(folded)] = mutant
    assert change(model, along(quotient, mutant), 0.01) > 1e-5


@cache
def specimen(model_type: str, kind: str) -> Any:
    """The tiny model whose redundancy is counted."""
    config = transformers.AutoConfig.for_model(model_type).to_dict() | {"architectures": [kind]}
    return tiny_specimen(real_config(config)).module


@pytest.mark.parametrize(
    ("model_type", "kind", "rotations"),
    [
        ("gpt2", "GPT2LMHeadModel", 0),  # its head is tied
        ("bert", "BertForMaskedLM", 0),
        ("vit", "ViTForImageClassification", 21),
        ("llama", "LlamaForCausalLM", 28),
        ("gpt_neo", "GPTNeoForCausalLM", 0),
        ("openai-gpt", "OpenAIGPTLMHeadModel", 0),
    ],
)
def test_the_whole_group_but_for_rotations_of_streams(model_type: str, kind: str, rotations: int) -> None:
    """As many dimensions as change no output (`python -m benchmarks.completeness`)."""
    quotient = Quotient(specimen(model_type, kind))
    basis = torch.eye(quotient.dimension, dtype=torch.float64)
    columns = torch.stack([torch.cat([t.flatten() for t in quotient.vertical(e).values()]) for e in basis])
    values = torch.linalg.svdvals(columns)
    rank = int((values > 1e-9 * values[0]).sum())
    true = json.loads(COUNTED.read_text())[model_type]["redundancy"]["true"]
    assert rank + rotations == true
    assert values[rank - 1] > 1e-3 * values[0]


@pytest.mark.parametrize("name", ["bert", "gptj"])
def test_joint_solution_equals_dense_least_squares(name: str) -> None:
    """Where additions meet groups in one tensor."""
    quotient = Quotient(specimen("bert", "BertForMaskedLM") if name == "bert" else live(name), spaces=SOME[name])
    basis = torch.eye(quotient.dimension, dtype=torch.float64)
    matrix = torch.stack([torch.cat([t.flatten() for t in quotient.vertical(e).values()]) for e in basis], 1)
    d = direction(quotient, 1)
    flat = torch.cat([t.flatten() for t in d.values()])
    wanted = flat - matrix @ torch.linalg.lstsq(matrix, flat.unsqueeze(1), driver="gelsd").solution.squeeze(1)
    projected = torch.cat([t.flatten() for t in quotient.horizontal(d).values()])
    assert float((projected - wanted).norm()) < 1e-10 * float(flat.norm())
    assert float((flat - wanted).norm()) > 0.1 * float(flat.norm())


SOME = {"bert": None, "gptj": ["norms"]}


def test_a_norm_with_a_gain_of_zero_stays() -> None:
    """What it leaves free is another there: nothing divides by zero, and the others move as before."""
    model = live("gpt2")
    with torch.no_grad():
        model.transformer.h[0].ln_1.weight[3] = 0
        model.transformer.h[1].ln_2.bias.zero_()
    quotient = Quotient(model, spaces=["norms"])
    d = direction(quotient, 0)
    h = quotient.horizontal(d)
    assert all(bool(t.isfinite().all()) for t in h.values())
    bias = "transformer.h.0.ln_1.bias"
    assert torch.equal(h[bias], d[bias])
    assert not torch.equal(h[bias.replace("h.0", "h.1")], d[bias.replace("h.0", "h.1")])
    assert size(less(quotient.horizontal(h), h)) < 1e-10 * size(h)


def test_what_is_not_trained_or_given_out_stays() -> None:
    """A frozen reader holds its norm's bias, and not the other readers; a body's last norm is an output."""
    model = live("gpt2")
    model.transformer.h[0].mlp.c_fc.weight.requires_grad_(False)
    free = {block.key for addition in [Quotient(model)] for block in addition.vertical_space.layout.places}
    assert free
    quotient, whole = Quotient(model), Quotient(live("gpt2"))
    lost = whole.vertical_space.additions.size - quotient.vertical_space.additions.size
    width, neurons = model.config.n_embd, model.transformer.h[0].mlp.c_fc.bias.numel()
    assert lost == neurons + width
    model.requires_grad_(False)
    model.transformer.h[0].mlp.c_proj.weight.requires_grad_(True)
    alone = Quotient(model)
    assert alone.vertical_space.additions.size == neurons
    assert "nf" in alone.left_out
    none = Quotient(live("gpt2"), spaces=["qk"])
    assert not none.vertical_space.additions.size


def test_steps_have_nothing_of_it() -> None:
    """Adam's own steps put something along the ones of what is written; wrapped, the sum stays what it was."""
    plain, wrapped = live("gpt2"), live("gpt2")
    before = copy.deepcopy(plain)
    optimizers = [torch.optim.Adam(plain.parameters(), lr=1e-3), None]
    optimizers[1] = QuotientOptimizer(torch.optim.Adam(wrapped.parameters(), lr=1e-3), wrapped, tolerance=1e-9)
    drifts = []
    for model, optimizer in zip((plain, wrapped), optimizers, strict=True):
        for _ in range(3):
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()
        assert apart(before, model) > 1e-4
        rows = (m.transformer.h[0].mlp.c_proj.weight.detach() for m in (model, before))
        drifts.append(float(torch.sub(*rows).mean(-1).norm()))
    assert drifts[1] < 1e-6 * drifts[0]


def test_iterations_stay_few() -> None:
    """The solver of a norm's bias, with its readers, is what keeps conjugate gradients short."""
    quotient = Quotient(live("bert"))
    point = quotient.vertical_space.at(quotient._x())
    d = quotient._flat(direction(quotient, 1))
    solved = project(point, Preconditioner(point), d, tolerance=1e-3)
    assert solved.iterations <= 10
    poor = Preconditioner(point)
    poor.additions.matrices.clear()
    for addition, part in quotient.vertical_space.additions.parts(poor.additions.numbers):
        if isinstance(addition, Folded):
            part.fill_(1)
    assert project(point, poor, d, tolerance=1e-3).iterations > solved.iterations
    whole = dict(zip(quotient.parameters, quotient.vertical_space.layout.split(d), strict=True))
    assert inner(quotient.horizontal(whole), along(quotient, quotient.vertical_space.additions.each[0])) < 1e-9

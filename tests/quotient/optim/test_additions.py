"""What LayerNorm leaves free and constants that are traded are directions of the orbit, all of them."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from isomerge.discovery.building import real_config
from isomerge.discovery.redundancy import tiny_specimen
from isomerge.quotient.optim import Quotient, QuotientOptimizer, additions
from isomerge.quotient.optim.additions import Addition
from isomerge.quotient.optim.projection import Preconditioner, project
from quotient.optim.modules import apart, direction, inner, less, live, logits, loss, size
from toys import relative

COUNTED = Path(__file__).parents[3] / "benchmarks" / "results" / "completeness.json"
KINDS = {
    "gpt2": {"_written", "_read", "_folded"},
    "vit": {"_written", "_read", "_folded", "_constant"},
    "bert": {"_written", "_read", "_folded", "_scaled", "_traded", "_constant"},
    "gptj": {"_written", "_read", "_folded", "_made"},
    "dinov2": {"_written", "_read", "_folded", "_constant"},
    "t5-relu": {"_constant"},
}
"""By toy, what may be added in it; all kinds occur."""


def kind(addition: Addition) -> str:
    """The name of the function that adds it."""
    return getattr(addition.add, "func").__name__  # noqa: B009 (a partial)


def along(quotient: Quotient, addition: Addition, seed: int = 0) -> dict[str, torch.Tensor]:
    """A random direction of one addition."""
    rng = torch.Generator().manual_seed(seed)
    xi = torch.zeros(quotient.dimension, dtype=torch.float64)
    at = quotient.vertical_space.size + addition.offset
    xi[at : at + addition.numbers] = torch.randn(addition.numbers, generator=rng, dtype=torch.float64)
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
    assert {kind(addition) for addition in each} == KINDS[name]
    for addition in each:
        update = along(quotient, addition)
        assert size(update) > 0, kind(addition)
        far = change(model, update, 0.1)
        exact = kind(addition) not in ("_scaled", "_folded", "_made")
        assert far < (1e-10 if exact else 1e-2), kind(addition)
        assert change(model, update, 0.01) < max(0.02 * far, 1e-10), kind(addition)
    assert change(model, direction(quotient, 0), 0.1) > 1e-3


MUTANTS = {"_read": "gpt2", "_folded": "bert", "_traded": "bert", "_made": "gptj"}
"""What a tensor beside it pays for, and a toy."""


@pytest.mark.parametrize("what", MUTANTS)
def test_what_pays_for_nothing_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the bias that pays, the same direction changes outputs by its length."""
    whole = getattr(additions, what)
    monkeypatch.setattr(additions, what, lambda *args: list(whole(*args))[:1])
    model = live(MUTANTS[what])
    quotient = Quotient(model)
    each = [a for a in quotient.vertical_space.additions.each if "<lambda>" in kind(a)]
    worst = max(change(model, along(quotient, addition), 0.01) for addition in each)
    assert worst > 1e-5


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
    for addition, _ in quotient.vertical_space.additions.folds:
        addition.of(poor.additions.numbers).fill_(1)
    assert project(point, poor, d, tolerance=1e-3).iterations > solved.iterations
    whole = dict(zip(quotient.parameters, quotient.vertical_space.layout.split(d), strict=True))
    assert inner(quotient.horizontal(whole), along(quotient, quotient.vertical_space.additions.each[0])) < 1e-9

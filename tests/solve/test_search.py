"""The forward-only search: never worse on what it judges by, guarded by what it does not see, always a symmetry."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from depth import more
from families.vit import PATCHES
from isomerge.errors import IsomergeError
from isomerge.models.recognised import recognise, working_dtype
from isomerge.models.unit_plan import make_plan
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.stats.taps import capture
from isomerge.solve.pairs import rematch, search
from isomerge.solve.pairs import stream_descent as streams
from isomerge.solve.pairs.midpoint import Midpoint
from isomerge.solve.pairs.pair import PairSolver
from isomerge.solve.pairs.rematch import FunctionalMatch
from isomerge.solve.pairs.search import Search, search_forward, stream_step
from isomerge.solve.pairs.stream_descent import StreamSolver
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.groups import GROUPS
from observe.test_statistics import examples_for
from solve.disguises import perturb, single, turn
from toys import load_toy, outputs, randomise, relative, write_toy


@pytest.fixture(autouse=True)
def few_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts need not have settled."""
    monkeypatch.setattr(streams, "SWEEPS", 2)


def told(*_: Any) -> None:
    """An observer."""


def solved(a: Path, b: Path, examples: Examples | None, spaces: str = "all") -> StreamSolver:
    """A solver after its descent, with activations where there are examples."""
    anchor, source = recognise(a), recognise(b)
    plan = make_plan(anchor, [source], spaces)
    pair = PairSolver(anchor, source, plan, working_dtype([anchor, source]), guard=False)
    acts = None
    if examples is not None:
        one, two = (capture(m, load_module(m), examples).centred() for m in (anchor, source))
        acts = (one, two)
    solver = StreamSolver(pair, told, acts)
    solver.solve()
    return solver


def four_heads(folder: Path) -> Path:
    """A ViT of four heads, all of whose orders are tried."""
    model = tf.ViTForImageClassification(
        tf.ViTConfig(**{**PATCHES, "num_attention_heads": 4, "num_hidden_layers": 2})
    )
    randomise(model, 0)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("name", "spaces"), [
    ("gpt2", "all"), ("bert", "default,res:Perm"), *more(("vit", "all"), ("llama", "all"), ("t5-gated", "default")),
])  # fmt: skip
def test_accepted_moves_only_lower_the_divergence(
    name: str, spaces: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unrelated models: down at every accepted move, the best held-out state is left behind, outputs stay."""
    monkeypatch.setattr("isomerge.solve.pairs.search.ALL_HEADS", 3)
    monkeypatch.setattr(search, "STEPS", 6)
    a, b = single(name, tmp_path / "a"), single(name, tmp_path / "b", 5)
    examples = examples_for(a, 24)
    solver = solved(a, b, examples, spaces)
    with torch.no_grad():
        found = Search(solver, examples, told, 0, "cpu")
        report = found.run(0.0, 50)
    down = [value for value, _ in found.history]
    assert all(later < earlier for earlier, later in pairwise(down))
    assert sum(report["accepted"].values()) == len(down) - 1 >= 1
    assert report["moves"] == 50 == sum(report["tried"].values())
    assert report["divergence"]["held_out"][1] == min(guard for _, guard in found.history)
    assert {"heads", "stream"} & report["tried"].keys()
    assert "functional pass" in report["tried"]
    with torch.no_grad():
        again = Midpoint(solver)
        for part, key in ((found.judge, "search"), (found.guard, "held_out")):
            value = sum(again.divergence(again.judged(_examples(part)))) / part.count
            assert value == pytest.approx(report["divergence"][key][1], rel=1e-3)
    toy = load_toy(name, b)
    blocks = toy.fresh()
    solver.alignment().act(blocks)
    write_toy(toy, toy.named(blocks), tmp_path / "moved")
    assert relative(outputs(tmp_path / "moved"), outputs(b)) <= 1e-4


def _examples(judged: Any) -> Examples:
    return Examples({k: torch.cat([b[k] for b in judged.batches]) for k in judged.batches[0]}, False)


@pytest.mark.parametrize("evidence", ["data", *more("weights")])
def test_heads_in_a_wrong_order_are_repaired(evidence: str, tmp_path: Path) -> None:
    """A planted start: a twin whose heads were exchanged after the match."""
    a = four_heads(tmp_path / "a")
    b = perturb(a, tmp_path / "b", 0.05)
    examples = examples_for(a, 24)
    solver = solved(a, b, examples if evidence == "data" else None)
    units = [u for u in solver.pair.plan.units if any(k.startswith("h[") for k in u.elements)]
    right = {u.key: solver.inner[u.key] for u in units}
    with torch.no_grad():
        reached = Search(solver, examples, told, 0, "cpu").history[0][0]
    wrong = torch.tensor([2, 0, 3, 1])
    for unit in units:
        turned = solver.turned_unit(unit)
        key = next(k for k in unit.elements if k.startswith("h["))
        assert torch.equal(right[unit.key][key], torch.arange(4))
        solver.inner[unit.key] = rematch.solve_again(solver, turned, "weights", {key: wrong})
        assert torch.equal(solver.inner[unit.key][key], wrong)
    report = search_forward(solver, examples, 0.0, told, moves=400)
    before, after = report["divergence"]["search"]
    assert before > 100 * reached
    assert after < 0.05 * before
    for unit in units:
        (key,) = (k for k in unit.elements if k.startswith("h["))
        assert torch.equal(solver.inner[unit.key][key], torch.arange(4))
    assert report["accepted"]["heads"] >= len(units)


def test_the_guard_keeps_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When every accepted move is worse on the held-out half, nothing is kept, and the search ends early."""
    a, b = single("vit", tmp_path / "a"), single("vit", tmp_path / "b", 5)
    examples = examples_for(a, 20)
    solver = solved(a, b, examples)
    turn_before, inner_before = solver.turn, dict(solver.inner)
    worse = iter(range(1000))
    monkeypatch.setattr(Search, "guarded", lambda self: float(next(worse)))
    monkeypatch.setattr(search, "PATIENCE", 3)
    report = search_forward(solver, examples, 0.0, told, moves=500)
    assert report["ended"] == "guard"
    assert sum(report["accepted"].values()) == 3
    assert report["divergence"]["search"][0] == report["divergence"]["search"][1]
    assert solver.turn is turn_before
    assert solver.inner.keys() == inner_before.keys()
    assert all(solver.inner[k] is inner_before[k] for k in inner_before)


def test_a_twin_settles_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be gained but rounding: the search ends by itself, after few rounds."""
    monkeypatch.setattr("isomerge.solve.pairs.search.ALL_HEADS", 2)
    monkeypatch.setattr(search, "STEPS", 3)
    a = single("vit", tmp_path / "a")
    moved = turn("vit", a, tmp_path / "moved", 3)
    examples = examples_for(a, 12)
    report = search_forward(solved(a, moved, examples), examples, 60.0, told)
    assert report["ended"] == "settled"
    assert report["rounds"] <= 6
    assert report["divergence"]["search"][1] <= report["divergence"]["search"][0] < 1e-6


def test_the_seed_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal seeds and moves give equal matches; another seed another one."""
    monkeypatch.setattr("isomerge.solve.pairs.search.ALL_HEADS", 3)
    a, b = single("vit", tmp_path / "a"), single("vit", tmp_path / "b", 5)
    examples = examples_for(a, 16)
    found = []
    for seed in (0, 0, 1):
        solver = solved(a, b, examples)
        report = search_forward(solver, examples, 0.0, told, moves=30, seed=seed)
        report.pop("seconds")
        found.append((report, solver.alignment().digest()))
    assert found[0] == found[1]
    assert found[0][1] != found[2][1]


def test_time_is_a_budget(tmp_path: Path) -> None:
    """No time, no moves; one example cannot be split."""
    a, b = single("vit", tmp_path / "a"), single("vit", tmp_path / "b", 5)
    examples = examples_for(a, 8)
    solver = solved(a, b, None)
    report = search_forward(solver, examples, 0.0, told)
    assert report["moves"] == 0
    assert report["ended"] == "time"
    with pytest.raises(IsomergeError, match="cannot be split"):
        search_forward(solver, examples.head(1), 1.0, told)


@pytest.mark.parametrize("group", ["O", "OFixingOnes", "Perm", "SignedPerm", "Sign"])
def test_stream_steps_are_small_elements(group: str) -> None:
    """In the group, not the identity, and near it: two coordinates, or few degrees."""
    rng = torch.Generator().manual_seed(0)
    for k in range(8):
        cross = torch.randn(12, 12, generator=rng) if k % 2 and group in ("O", "OFixingOnes") else None
        step = stream_step(group, 12, rng, cross)
        assert step is not None
        assert GROUPS[group].contains(step)
        eye = GROUPS[group].identity((), 12)
        assert not torch.equal(step, eye)
        if step.ndim == 1:
            assert int((step != eye).sum()) <= 2
        elif cross is None:
            assert float(torch.linalg.matrix_norm(step - eye, 2)) < 0.9
    assert stream_step("Fixed", 12, rng) is None


@pytest.mark.parametrize("name", ["gpt2-untied", "llama", "bert-relu", *more("vit", "t5-gated", "bert")])
def test_the_functional_cost_finds_a_twins_neurons(name: str, tmp_path: Path) -> None:
    """In every architecture with plain or gated layers, by what neurons compute, whatever order they were left
    in."""
    a = single(name, tmp_path / "a")
    twin = turn(name, a, tmp_path / "twin", 3, "declared" if name.startswith("bert") else "largest")
    examples = examples_for(a, 24)
    solver = solved(a, twin, None, "default,res:Perm" if name.startswith("bert") else "default,residual")
    with torch.no_grad():
        midpoint = Midpoint(solver)
        match = FunctionalMatch(midpoint, list(examples.batches(12)))
        assert len(match.layers) == {"t5-gated": 5}.get(name, 3)
        for key in match.layers:
            unit = midpoint.units[key]
            turned = solver.turned_unit(unit)
            found = match.match(unit, turned)
            assert found is not None
            space = next(k for k in found if match.layers[key].space == k.partition("[")[0])
            assert torch.equal(found[space], solver.inner[key][space])
            there = turned.moved(Alignment(solver.local, found))
            norm = sum(float(t.norm()) for t in there.anchor.values())
            assert sum(float((t - there.source[b]).norm()) for b, t in there.anchor.items()) < 1e-3 * norm


def test_layers_that_are_not_understood_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another activation function than the config's name says is noticed."""
    a = single("vit", tmp_path / "a")
    solver = solved(a, a, None)
    batches = list(examples_for(a, 8).batches(8))
    quick: Callable = torch.nn.functional.relu
    with torch.no_grad():
        midpoint = Midpoint(solver)
        assert FunctionalMatch(midpoint, batches).layers
        monkeypatch.setattr(rematch, "activations_of", lambda module: [quick])
        assert not FunctionalMatch(midpoint, batches).layers
        monkeypatch.setattr(rematch, "activations_of", lambda module: [])
        assert not FunctionalMatch(midpoint, batches).layers


def test_the_functional_pass_lowers_the_divergence(tmp_path: Path) -> None:
    """A step of its own after the descent: on noisy neurons left in a drawn order, it comes near the twin's
    match."""
    a = single("vit", tmp_path / "a")
    b = perturb(a, tmp_path / "b", 0.1)
    examples = examples_for(a, 24)
    solver = solved(a, b, examples)
    reached = {key: dict(x) for key, x in solver.inner.items()}
    rng = torch.Generator().manual_seed(0)
    for elements in solver.inner.values():
        for key in [k for k in elements if k.startswith("ff[")]:
            elements[key] = torch.randperm(40, generator=rng)
    with torch.no_grad():
        before = sum(Midpoint(solver).divergence(Midpoint(solver).judged(examples)))
        changed = rematch.match_functionally(solver, examples)
        after = sum(Midpoint(solver).divergence(Midpoint(solver).judged(examples)))
    assert len(changed) == 3
    assert after < 0.1 * before
    for key in changed:
        (name,) = (k for k in solver.inner[key] if k.startswith("ff["))
        assert int((solver.inner[key][name] == reached[key][name]).sum()) >= 36

"""Weights measured by what they do to inputs: the metric is the change of outputs, and solutions are best in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge
from depth import more
from isomerge.errors import IsomergeError
from isomerge.models.recognised import recognise
from isomerge.observe.live.modules import load_module
from isomerge.observe.stats.gathering import gather
from isomerge.observe.stats.taps import plan_inputs, reading, unpadded
from isomerge.progress import quiet
from isomerge.solve.match_options import Matching
from isomerge.solve.pairs import match_evidence
from isomerge.solve.pairs import stream_descent as streams
from isomerge.solve.pairs.input_metric import in_metric, input_metrics, solve_in_metric
from isomerge.solve.pairs.match_evidence import MatchEvidence
from isomerge.solve.pairs.rematch import solve_again
from isomerge.solve.pairs.stream_descent import StreamSolver, UnitPair
from isomerge.symmetry.alignment import Alignment
from observe.test_statistics import examples_for, gathered
from solve.disguises import single, turn
from solve.test_search import solved
from toys import outputs, relative

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)


@pytest.fixture(autouse=True)
def few_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts need not have settled."""
    monkeypatch.setattr(streams, "SWEEPS", 2)


def statistics(a: Path, b: Path):
    """Those of both models on the same examples."""
    examples = examples_for(a, 24)
    return tuple(gathered(folder, examples)[1] for folder in (a, b))


def gap(solver: StreamSolver, unit: UnitPair) -> float:
    """The unit's part of the objective."""
    return solver.units.distance(unit.anchor, unit.source)


@pytest.mark.parametrize("name", ["vit", "llama", "gpt2-untied"])
def test_the_metric_is_the_change_of_outputs(name: str, tmp_path: Path) -> None:
    """|W C^(1/2)|^2 is E |W x|^2 over the inputs of both models, up to the scale of C; other tensors stay."""
    a = single(name, tmp_path / "a")
    solver = solved(a, a, None)
    one = statistics(a, a)
    metrics = input_metrics(solver, one)
    model, examples = solver.pair.anchor, examples_for(a, 24)
    module = load_module(model)
    places, seen = plan_inputs(model, module), {}
    assert set(metrics) == {tap.block for tap, _ in places}
    with torch.no_grad(), reading(module, places, seen):
        module(**examples.tensors)
    stored, paths = one[0].moved(solver.units.folds[0]), {tap.block: path for tap, path in places}
    checked = [block for block in model.blocks if block.key in metrics]
    assert len(checked) >= 7
    for block in checked:
        folded = {block: solver.units.folded(0, block)}
        found = in_metric(solver.frame, UnitPair(folded, folded), metrics)
        layer: Any = module.get_submodule(paths[block.key])
        (x,) = seen[f"{block.key}:in"]
        with torch.no_grad():
            x = unpadded(x, examples.tensors.get("attention_mask"))
            outputs = layer(x) - (0 if layer.bias is None else layer.bias)
        scale = float(stored.grams[stored.inputs[block.key]].trace()) / x.shape[1]
        wanted = float(outputs.double().square().sum(1).mean()) / scale
        assert float(found.anchor[block].double().square().sum()) == pytest.approx(wanted, rel=1e-4)
        assert abs(float(folded[block].double().square().sum()) / wanted - 1) > 1e-4
    others = {block: torch.ones(3) for block in model.blocks if block.key not in metrics}
    assert in_metric(solver.frame, UnitPair(others, others), metrics).source == others


@pytest.mark.parametrize("name", ["gpt2-untied", *more("vit", "llama")])
def test_solutions_are_best_in_the_metric(name: str, tmp_path: Path) -> None:
    """Unrelated models: never worse in the metric than the solution by plain weights, and better somewhere."""
    a, b = single(name, tmp_path / "a"), single(name, tmp_path / "b", 5)
    solver = solved(a, b, None)
    metrics, better = input_metrics(solver, statistics(a, b)), 0
    for unit in solver.pair.plan.units:
        if not solver.pair.plan.is_matched(unit):
            continue
        turned = solver.turned_unit(unit)
        reached = []
        for elements in (solve_in_metric(solver, turned, metrics), solve_again(solver, turned, "weights")):
            moved = turned.moved(Alignment(solver.local, elements))
            reached.append(gap(solver, in_metric(solver.frame, moved, metrics)))
        assert reached[0] <= reached[1] * (1 + 1e-5)
        better += reached[0] < reached[1] * (1 - 1e-3)
    assert better >= 2


def test_twins_are_found_in_the_metric(tmp_path: Path) -> None:
    """A disguised twin is as close as it is by plain weights: the metrics of both models are one."""
    a = single("vit", tmp_path / "a")
    twin = turn("vit", a, tmp_path / "twin", 3)
    solver = solved(a, twin, None)
    metrics = input_metrics(solver, statistics(a, twin))
    for unit in (u for u in solver.pair.plan.units if solver.pair.plan.is_matched(u)):
        turned = solver.turned_unit(unit)
        moved = turned.moved(Alignment(solver.local, solve_in_metric(solver, turned, metrics)))
        nothing = {block: torch.zeros_like(t) for block, t in moved.anchor.items()}
        norm = solver.units.distance(moved.anchor, nothing)
        assert norm > 0
        assert gap(solver, moved) < 1e-6 * norm


def test_aligning_in_the_metric(tmp_path: Path) -> None:
    """With data or files of them, other elements than without, of the same function; said in the report."""
    a, b = single("llama", tmp_path / "a"), single("llama", tmp_path / "b", 5)
    data = tmp_path / "data.safetensors"
    save_file(dict(examples_for(a, 24).tensors), data)
    files = [tmp_path / f"{folder.name}.stats.safetensors" for folder in (a, b)]
    for folder, file in zip((a, b), files, strict=True):
        isomerge.stats(folder, data=data, out=file)
    ways = {
        "plain": {"data": data},
        "data": {"data": data, "input_metric": True},
        "files": {"stats_anchor": files[0], "stats_src": files[1], "input_metric": True},
    }
    found = {}
    for name, options in ways.items():
        _, report = isomerge.align(b, onto=a, out=tmp_path / name, functional=False, **options)
        found[name] = load_file(tmp_path / name / "model.safetensors")
        assert relative(outputs(tmp_path / name), outputs(b)) < 1e-4
        units = report["streams"][0].get("input_metric")
        assert units is None if name == "plain" else len(units) >= 3
    assert max(float((found["data"][k] - t).abs().max()) for k, t in found["plain"].items()) > 1e-2
    assert all(torch.allclose(found["files"][k], t, atol=1e-3) for k, t in found["data"].items())


def test_one_run_gives_rows_and_grams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each model is loaded and run once, and gives the rows and Grams that a run for each of them gives."""
    a = single("llama", tmp_path / "a")
    model = recognise(a)
    save_file(dict(examples_for(a, 24).tensors), tmp_path / "data.safetensors")
    loads = []
    monkeypatch.setattr(
        match_evidence, "load_module", lambda *of, **how: loads.append(of) or load_module(*of, **how)
    )
    found, plain = (
        MatchEvidence(Matching(data=str(tmp_path / "data.safetensors"), rows=16, input_metric=how), model, quiet)
        for how in (True, False)
    )
    for of in (found.of_anchor, found.of_source(model, 0)):
        assert of is not None
        assert plain.of_anchor is not None
        assert of.fingerprint == plain.of_anchor.fingerprint
        assert all(torch.equal(of.values[key], x) for key, x in plain.of_anchor.values.items())
    apart = gather(model, load_module(model), examples_for(a, 24).head(16), kinds=("regmean",))
    for moments in (found.moments_of_anchor, found.moments_of_source(model, 0)):
        assert moments.inputs == apart.inputs
        assert moments.grams.keys() == set(apart.inputs.values())
        assert all(torch.equal(apart.grams[key], gram) for key, gram in moments.grams.items())
    assert len(loads) == 3  # two with both, one with rows alone


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "input_metric=True.* needs what layers read"),
        ({"anchor": "none", "data": "x"}, "input_metric=True.* moves one model at a time"),
        ({"align": False, "data": "x"}, "align=False.* leaves nothing to match: leave it out, or input_metric=True"),
        ({"match": "git-rebasin", "data": "x"}, "match='git-rebasin'"),
    ],
)  # fmt: skip
def test_refused(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    """Where nothing tells what layers read, or nothing is matched by it."""
    a, b = single("llama", tmp_path / "a"), single("llama", tmp_path / "b", 5)
    with pytest.raises(IsomergeError, match=says):
        isomerge.merge([a, b], out=tmp_path / "out", input_metric=True, **options)

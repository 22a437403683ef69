"""Weights measured by what they do to inputs: the metric is the change of outputs, and solutions are best in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from depth import more
from engine.disguises import single, turn
from engine.test_search import solved
from engine.test_statistics import examples_for, gathered
from isomerge.engine.live.modules import load_module
from isomerge.engine.pairs import streams
from isomerge.engine.pairs.metric import in_metric, input_metrics, solve_in_metric
from isomerge.engine.pairs.rematch import solve_again
from isomerge.engine.pairs.streams import StreamSolver
from isomerge.engine.pairs.unit_pair import UnitPair
from isomerge.engine.stats.taps import plan_inputs, reading, unpadded
from isomerge.symmetry.alignment import Alignment


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
    return sum(solver.units.weight(b) * float((t - unit.source[b]).square().sum()) for b, t in unit.anchor.items())


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
        norm = sum(solver.units.weight(b) * float(t.square().sum()) for b, t in moved.anchor.items())
        assert gap(solver, moved) < 1e-6 * norm

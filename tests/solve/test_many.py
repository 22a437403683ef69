"""Merging without an anchor: one mean of all orbits, whatever the order; cycles close; the objective never
rises."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from depth import more, thorough
from isomerge.errors import IsomergeError
from isomerge.fusion.fusion import fusion_of
from isomerge.matching.many import Graph, mean_of_others, synchronise
from isomerge.merging.merge_plan import plan_merge
from isomerge.merging.merge_request import MergeRequest
from isomerge.merging.merge_run import run_plan
from isomerge.models.recognised import Model, recognise, working_dtype
from isomerge.models.unit_plan import make_plan
from isomerge.run.writing_run import Output
from isomerge.solve.canonical.canonical_units import CanonicalUnits
from isomerge.solve.learn.simplex import judged_points, random_point
from isomerge.solve.many import mean_solver as many
from isomerge.solve.many.mean_solver import ManySolver
from isomerge.solve.match_options import Matching
from isomerge.solve.pairs import stream_descent as streams
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.groups.orthogonal import random_orthogonal
from solve.disguises import disguise, files_of, perturb, single, turn
from toys import load_toy, outputs, relative, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

WEIGHTS = [0.5, 0.2, 0.3]


@pytest.fixture(autouse=True)
def few_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here needs unrelated models to settle."""
    monkeypatch.setattr(streams, "SWEEPS", 2)
    monkeypatch.setattr(many, "TRIAL", 1)


def merge(folders: Sequence[Path], out: Path, *, anchor: str = "none", **how: Any) -> dict[str, Any]:
    """A merge on disk, its alignments kept beside it; the report."""
    observer = how.pop("observer", lambda what, done, total: None)
    models = [recognise(folder) for folder in folders]
    fusion = fusion_of(len(models), weights=how.pop("weights", None))
    how = {"align": True, "spaces": "default", **how}
    request = MergeRequest(models=tuple(folders), fusion=fusion, anchor=anchor, **how)
    report = run_plan(plan_merge(request, models, Output(out, observer=observer)))
    for file in out.glob("alignment*"):  # `outputs` and `tensors` read every safetensors file of a folder
        beside = out.parent / f"{out.name}-alignments"
        beside.mkdir(exist_ok=True)
        file.rename(beside / file.name)
    return report.document()


def family(name: str, folder: Path, noise: float = 0.3) -> list[Path]:
    """Three relatives of one model: close enough that there is a mean worth finding."""
    base = single(name, folder / "base")
    return [perturb(base, folder / f"m{k}", noise, seed=k + 1) for k in range(3)]


def solver_of(folders: Sequence[Path], spaces: str, shares: Sequence[float] = (0.5, 0.2, 0.3)) -> ManySolver:
    """A solver over models on disk."""
    models: list[Model] = [recognise(folder) for folder in folders]
    plan = make_plan(models[0], models[1:], spaces)
    units = CanonicalUnits(models, plan, working_dtype(models), shares)
    return ManySolver(units, lambda what, done, total: None)


@pytest.mark.parametrize(("name", "spaces"), [("gpt2", "default"), *more(("bert", "all"))])
def test_no_anchor_no_order_no_gauge(
    name: str, spaces: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unrelated models: the objective never rises and ends below every anchor's; order and gauges are nothing."""
    folders = [single(name, tmp_path / f"m{k}", k) for k in range(3)]
    descents: list[list[float]] = []
    sweep = ManySolver.sweep

    def watched(self: ManySolver, places: Any, graph: Any, movable: Any, label: str, **how: Any) -> Any:
        found = sweep(self, places, graph, movable, label, **how)
        if "sweep 1" in label:
            descents.append([found[0]])
        if "sweep" in label:
            descents[-1].append(found[1])
        return found

    monkeypatch.setattr(ManySolver, "sweep", watched)
    mean = merge(folders, tmp_path / "a", spaces=spaces, weights=WEIGHTS)["mean"]
    steps = mean["objective"]
    assert all(later <= earlier * (1 + 1e-8) for earlier, later in pairwise(steps))
    # as every pass measured it, those too that were thrown away as rounding
    assert len(descents) >= 3
    assert all(y <= x * (1 + 1e-6) for values in descents for x, y in pairwise(values))
    assert steps[-1] < min(anchor["objective"] for anchor in mean["anchors"])
    assert len({round(anchor["objective"], 6) for anchor in mean["anchors"]}) == 3
    assert mean["gain"]["over_best_anchor"] > 0.001
    move = disguise if spaces == "default" else lambda *given: turn(*given, gains=False)
    moved = [move(name, f, tmp_path / f"g{f.name}", 20 + k) for k, f in enumerate(folders)]
    order = (2, 0, 1)
    for tag, models, limit in (("b", folders, 1e-6), ("c", moved, 1e-5)):
        again = merge(
            [models[k] for k in order], tmp_path / tag, spaces=spaces, weights=[WEIGHTS[k] for k in order]
        )
        assert again["mean"]["objective"][-1] == pytest.approx(steps[-1], rel=limit)
        assert min(x["objective"] for x in again["mean"]["anchors"]) == pytest.approx(steps[0], rel=limit)
        assert relative(outputs(tmp_path / tag), outputs(tmp_path / "a")) <= 1e-5
    # in the coordinates of one of the models, whichever was given first
    first = tensors(tmp_path / "a")
    assert max(float((first[n] - t).abs().max()) for n, t in tensors(tmp_path / "b").items()) <= 1e-5


@thorough
def test_turned_relatives_come_together(tmp_path: Path) -> None:
    """Streams, gains and local spaces of relatives are undone: the mean of the disguised is that of the
    relatives."""
    name = "gpt2-untied"
    folders = family(name, tmp_path, 0.02)
    moved = [turn(name, f, tmp_path / f"g{f.name}", 30 + k) for k, f in enumerate(folders)]
    mean = merge(moved, tmp_path / "mean", spaces="all")["mean"]
    plain = merge(folders, tmp_path / "plain", spaces="all")["mean"]
    assert mean["objective"][-1] == pytest.approx(plain["objective"][-1], rel=1e-3)
    assert relative(outputs(tmp_path / "mean"), outputs(tmp_path / "plain")) <= 2e-3


@pytest.mark.parametrize(("name", "spaces"), [("t5-gated", "default"), ("bert", "h,qk,ov,ff,bias,res")])
def test_two_models_agree_with_the_pair(name: str, spaces: str, tmp_path: Path) -> None:
    """With two models there is nothing to choose: the same function as onto an anchor."""
    folders = family(name, tmp_path)[:2]
    folders[1] = (disguise if spaces == "default" else turn)(name, folders[1], tmp_path / "moved", 3)
    for anchor in ("none", "first"):
        merge(folders, tmp_path / anchor, anchor=anchor, spaces=spaces, weights=[0.6, 0.4])
    # with streams, tensors are weighed by the anchor's norms or by the mean of both
    limit = 1e-5 if spaces == "default" else 1e-3
    assert relative(outputs(tmp_path / "none"), outputs(tmp_path / "first")) <= limit


def acted(name: str, folder: Path, *elements: Alignment) -> dict[str, torch.Tensor]:
    """The stored weights of a model, moved by elements one after the other."""
    toy = load_toy(name, folder)
    blocks = toy.fresh()
    for element in elements:
        element.act(blocks)
    return toy.named(blocks)


def test_cycles_close(tmp_path: Path) -> None:
    """Whoever is first, models are brought to the same places, so that from b to c by way of a is from b to c; with
    anchors it is not."""
    a, b, c = folders = [single("gpt2", tmp_path / f"m{k}", k) for k in range(3)]
    spec = recognise(a).declared

    def placed(first: Path, folder: str, anchor: str) -> dict[Path, Alignment]:
        models = merge([first, *(f for f in folders if f != first)], tmp_path / folder, anchor=anchor)["models"]
        files = [tmp_path / f"{folder}-alignments" / f"alignment-{k}.safetensors" for k in (2, 3)]
        moves = [Alignment(spec), *(Alignment.load(f, spec) for f in files)]
        return dict(zip(map(Path, models), moves, strict=True))

    gaps = {}
    for anchor in ("none", "first"):
        by_a, by_c = placed(a, f"{anchor}-a", anchor), placed(c, f"{anchor}-c", anchor)
        straight = acted("gpt2", b, by_c[b], by_c[c].inverse())
        around = acted("gpt2", b, by_a[b], by_a[c].inverse())
        gaps[anchor] = max(float((straight[n] - t).abs().max()) for n, t in around.items())
    assert gaps["none"] < 1e-4
    assert gaps["first"] > 0.1


@thorough
def test_elements_compose_around_cycles(tmp_path: Path) -> None:
    """Exactly, with residual streams: the alignments between all models are one model's element undone by
    another's."""
    folders = [single("llama", tmp_path / f"m{k}", k) for k in range(3)]
    solver = solver_of(folders, "all")
    solver.solve()
    to_first = [solver.alignment(m) for m in range(3)]
    around = (to_first[0].inverse() @ to_first[2]) @ (to_first[2].inverse() @ to_first[1]) @ (
        to_first[1].inverse() @ to_first[0]
    )  # fmt: skip
    before = load_toy("llama", folders[0]).stored
    after = acted("llama", folders[0], around)
    assert max(float((after[n] - t).abs().max()) for n, t in before.items()) < 1e-5
    moved = acted("llama", folders[0], to_first[0])
    assert max(float((moved[n] - t).abs().max()) for n, t in before.items()) < 1e-5


def test_the_objective_is_the_distance_to_the_mean(tmp_path: Path) -> None:
    """The sum over pairs that is minimised is the weighted sum of squared distances to the weighted mean."""
    solver = solver_of(family("gpt2", tmp_path), "default")
    report = solver.solve()
    total, shares = 0.0, solver.units.shares
    for unit in solver.units.plan.units:
        placed = solver.placed(solver.places, unit)
        for block in placed[0]:
            mean = sum(w * x[block].double() for w, x in zip(shares, placed, strict=True))
            total += sum(w * float((x[block] - mean).square().sum()) for w, x in zip(shares, placed, strict=True))
    assert report["objective"][-1] == pytest.approx(total, rel=1e-5)


def test_synchronise_finds_planted_rotations() -> None:
    """Noisy copies under random rotations: below the best anchor, and close to the planted rotations' objective."""
    from types import SimpleNamespace

    from isomerge.symmetry.groups import GROUPS

    rng = torch.Generator().manual_seed(0)
    n, d = 5, 12
    base = torch.randn(d, 40, generator=rng, dtype=torch.float64)
    noisy = [base + 0.7 * torch.randn(d, 40, generator=rng, dtype=torch.float64) for _ in range(n)]
    copies = [random_orthogonal((), d, rng) @ x for x in noisy]
    graph = Graph.complete(range(n), [1 / n] * n)
    spec: Any = SimpleNamespace(spaces={"res": SimpleNamespace(group=GROUPS["O"])})

    def spread(xs: Sequence[torch.Tensor]) -> float:
        mean = sum(xs[1:], xs[0]) / n
        return sum(float((x - mean).square().sum()) for x in xs) / n

    def moved(steps: list[dict[str, torch.Tensor]], xs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [step["res"] @ x if step else x for step, x in zip(steps, xs, strict=True)]

    crosses = {(i, k): {"res": copies[i] @ copies[k].mT} for i, k in graph.weights}
    stars = []
    for centre in range(n):
        star = graph.only([centre])
        stars.append(
            spread(moved(synchronise(spec, crosses, star, [m for m in range(n) if m != centre])[0], copies))
        )
    steps, gain = synchronise(spec, crosses, graph, range(n))
    reached = spread(moved(steps, copies))
    assert gain == pytest.approx(spread(copies) - reached, rel=1e-9)
    assert reached < min(stars)
    assert reached < spread(noisy)


def test_the_mean_of_others_leaves_one_out() -> None:
    """Weighted by the pairs, normalised; the models themselves are not changed."""
    graph = Graph.complete([2, 0, 1], [0.5, 0.2, 0.3])
    placed = [{"x": torch.full((2,), float(v))} for v in (1, 10, 100)]
    found = mean_of_others(graph, 0, placed)["x"]
    assert torch.allclose(found, torch.full((2,), (0.2 * 10 + 0.3 * 100) / 0.5))
    assert [float(p["x"][0]) for p in placed] == [1, 10, 100]
    assert graph.only([1]).others(0) == [(1, 0.1)]
    assert graph.only([1]).others(2) == [(1, 0.06)]
    assert not graph.only([1]).couples([0, 2])
    assert graph.couples([0, 2])


@thorough
def test_streamed_equals_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that do not fit into the cache are read again in every pass, with the same bytes as the result."""
    folders = family("bert", tmp_path)
    merge(folders, tmp_path / "cached", spaces="all")
    monkeypatch.setattr("isomerge.run.cost.CACHE", 0)
    merge(folders, tmp_path / "streamed", spaces="all")
    assert files_of(tmp_path / "cached") == files_of(tmp_path / "streamed")


@pytest.mark.parametrize("fraction", [0.4, 0.98])
def test_interrupted_and_run_again(fraction: float, tmp_path: Path) -> None:
    """Stopped in the passes or while writing: the second run ends with the bytes of an undisturbed one."""
    folders = family("gpt2", tmp_path)

    def run(out: str, stop: int = -1) -> list[str]:
        seen: list[str] = []

        def observer(unit: str, done: int, total: int) -> None:
            seen.append(unit)
            if len(seen) == stop:
                raise KeyboardInterrupt

        merge(folders, tmp_path / out, observer=observer, spaces="attention", layers="0")
        return seen

    whole = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("out", int(fraction * len(whole)))
    assert not (tmp_path / "out").exists()
    again = run("out")
    assert any("common mean" in unit for unit in again) == (fraction < 0.5)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_layers_stay_in_bounds(tmp_path: Path) -> None:
    """Only the chosen layers move."""
    folders = [single("gpt2", tmp_path / f"m{k}", k) for k in range(3)]
    merge(folders, tmp_path / "out", layers="0")
    found = Alignment.load(tmp_path / "out-alignments" / "alignment-2.safetensors", recognise(folders[0]).declared)
    assert {key.partition("[")[2] for key in found} == {"0]"}


@thorough
def test_stack_wide_heads(tmp_path: Path) -> None:
    """T5: one permutation of heads per stack and model, which comes back from a disguise; the functions are
    kept."""
    base = single("t5-gated", tmp_path / "base")
    moved = [disguise("t5-gated", base, tmp_path / f"g{k}", k) for k in (1, 2)]
    mean = merge([base, *moved], tmp_path / "out")["mean"]
    assert mean["objective"][-1] <= 1e-6
    assert relative(outputs(tmp_path / "out"), outputs(base)) <= 1e-5


def test_what_has_no_mean_is_refused(tmp_path: Path) -> None:
    """One sentence that names the way out; nothing is written."""
    folders = family("gpt2", tmp_path)
    with pytest.raises(IsomergeError, match=r"--anchor second: choose from first, none"):
        merge(folders, tmp_path / "out", anchor="second")
    with pytest.raises(IsomergeError, match=r"--search moves one model at a time"):
        merge(folders, tmp_path / "out", matching=Matching(data="x", search=1.0))
    assert not (tmp_path / "out").exists()


def test_shares_of_merges_that_subtract(tmp_path: Path) -> None:
    """A negative weight makes no mean: all models count alike while they are matched, and the merge is as asked."""
    report = merge(family("gpt2", tmp_path), tmp_path / "out", weights=[1.0, 0.5, -0.5], layers="0")
    assert report["mean"]["shares"] == [pytest.approx(1 / 3)] * 3
    assert sorted(report["weights"]) == [-0.5, 0.5, 1.0]
    rows = report["roles"]
    assert [row["weight"] for row in rows] == [1.0, 0.5, -0.5]


def test_random_points_lie_inside() -> None:
    """Half way to the barycentre, and the judged points end with the one that is written."""
    rng = torch.Generator().manual_seed(0)
    points = torch.tensor([random_point(3, rng) for _ in range(2000)])
    assert torch.allclose(points.sum(1), torch.ones(2000), atol=1e-6)
    assert float(points.min()) >= 1 / 6 - 1e-6
    assert torch.allclose(points.mean(0), torch.full((3,), 1 / 3), atol=0.01)
    assert judged_points([0.5, 0.2, 0.3]) == [[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5], [0.5, 0.2, 0.3]]

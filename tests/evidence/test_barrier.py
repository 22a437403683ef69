"""Barriers where they are known in closed form, on lines and planes, and on real models."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import dist
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import isomerge
from isomerge.errors import IsomergeError
from isomerge.evidence.barrier import LineReport, PlaneReport
from isomerge.evidence.digits import example_models, held_out_digits
from isomerge.evidence.line import Line, definitions, draw_lines, loss_line
from isomerge.evidence.plane import draw_planes, loss_plane, plane_corners, weights_at
from isomerge.observe.data.examples import Examples
from isomerge.observe.data.opening_data import open_data
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import evaluate
from toys import save_toy


class Point(nn.Module):
    """A model that is a point: two parameters, one of them used twice, and buffers of three kinds."""

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor(numbers[:1], dtype=torch.float64))
        self.rest = nn.Parameter(torch.tensor(numbers[1:], dtype=torch.float64))
        self.tied = self.first
        self.trained: torch.Tensor
        self.register_buffer("trained", torch.zeros(1, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(len(numbers)))
        self.register_buffer("computed", torch.tensor(numbers, dtype=torch.float64), persistent=False)

    @property
    def buffers_at(self) -> list[list[float]]:
        """What its buffers are."""
        return [buffer.flatten().tolist() for buffer in self.buffers()]

    @property
    def at(self) -> torch.Tensor:
        """Where it is."""
        return torch.cat([self.first, self.rest]).detach()


NUMBERS = st.floats(-3, 3).map(lambda x: round(x, 3))
POINTS = st.tuples(NUMBERS, NUMBERS, NUMBERS)


def quadratic(
    curvature: tuple[float, ...], centre: tuple[float, ...]
) -> Callable[[nn.Module], tuple[float, float]]:
    """A loss 1/2 sum_i c_i (w_i - m_i)^2, and an accuracy of 1 minus it."""

    def evaluate_point(module: nn.Module) -> tuple[float, float]:
        assert isinstance(module, Point)
        away = module.at - torch.tensor(centre, dtype=torch.float64)
        loss = float(0.5 * (torch.tensor(curvature, dtype=torch.float64) * away**2).sum())
        return loss, 1 - loss

    return evaluate_point


@given(a=POINTS, b=POINTS, curvature=POINTS, centre=POINTS)
def test_quadratic(
    a: tuple[float, ...], b: tuple[float, ...], curvature: tuple[float, ...], centre: tuple[float, ...]
) -> None:
    """On a quadratic the gap to the chord is -t (1 - t) q / 2, with q the curvature along the line: -q / 8 at
    most."""
    run = quadratic(curvature, centre)
    line = loss_line(Point(*a), Point(*b), run, 25)
    q = sum(c * (y - x) ** 2 for c, x, y in zip(curvature, a, b, strict=True))
    ends = run(Point(*a))[0], run(Point(*b))[0]
    wanted = [(1 - t) * ends[0] + t * ends[1] - t * (1 - t) * q / 2 for t in line.points]
    assert line.losses == pytest.approx(wanted, abs=1e-9)
    assert line.barrier == pytest.approx(max(0.0, -q / 8), abs=1e-9)
    assert line.barriers["verma"] == pytest.approx(max(wanted) - sum(ends) / 2, abs=1e-9)
    assert line.barriers["range"] == pytest.approx(max(wanted) - min(wanted), abs=1e-9)
    assert line.accuracy_drops == pytest.approx(line.barriers, abs=1e-9)
    assert line.midpoint[0] == pytest.approx(sum(ends) / 2 - q / 8, abs=1e-9)
    assert line.worst[1] == max(line.losses)
    assert line.losses[line.points.index(line.worst[0])] == line.worst[1]


def test_definitions_differ() -> None:
    """Three numbers that are three numbers: the ends are 1 and 3, the top is 6, the bottom 0.5."""
    points, losses = (0.0, 0.25, 0.5, 0.75, 1.0), (1.0, 0.5, 6.0, 2.0, 3.0)
    assert definitions(points, losses) == {"entezari": 4.0, "verma": 4.0, "range": 5.5}
    late = definitions(points, (1.0, 0.5, 2.0, 6.0, 3.0))
    assert late == {"entezari": 3.5, "verma": 4.0, "range": 5.5}
    falling = definitions(points, (4.0, 3.0, 2.0, 1.0, 0.0))
    assert falling == {"entezari": 0.0, "verma": 2.0, "range": 4.0}


def test_ends_buffers_and_ties() -> None:
    """Both ends are met exactly, tied parameters move once, stored numbers move, other buffers and the models
    stay."""
    a, b, seen = Point(0.1, 0.7), Point(0.3, -0.2), []
    b.trained.fill_(3)
    b.get_buffer("count").fill_(5)

    def watch(module: nn.Module) -> tuple[float, float]:
        assert isinstance(module, Point)
        assert module.tied is module.first
        seen.append((module.at.tolist(), module.buffers_at))
        return 0.0, 0.0

    done: list[int] = []
    loss_line(a, b, watch, 3, done.append)
    assert seen[0][0] == [0.1, 0.7]
    assert seen[2][0] == [0.3, -0.2]
    assert seen[1][0] == pytest.approx([0.2, 0.25])
    assert [buffers for _, buffers in seen] == [[[x], [2], [0.1, 0.7]] for x in (0, 1.5, 3)]
    assert (a.at.tolist(), b.at.tolist()) == ([0.1, 0.7], [0.3, -0.2])
    assert done == [1, 2, 3]


def test_models_of_other_shapes() -> None:
    """No line between them."""
    with pytest.raises(IsomergeError, match="rest is not in all models alike"):
        loss_line(Point(1, 2), Point(1, 2, 3), lambda module: (0.0, 0.0))


# ----------------------------------------------------------------------------------------------------- planes


@given(corners=st.tuples(POINTS, POINTS, POINTS))
def test_coordinates_are_distances(corners: tuple[tuple[float, ...], ...]) -> None:
    """The corners are as far apart in the plane as in the weights; weights give every corner back."""
    sides = [(0, 1), (0, 2), (1, 2)]
    long = [dist(corners[i], corners[j]) for i, j in sides]
    if min(long) < 0.1 or sum(long) - 2 * max(long) < 0.1:
        return
    placed = plane_corners(*(Point(*c) for c in corners))
    assert [dist(placed[i], placed[j]) for i, j in sides] == pytest.approx(long, rel=1e-6)
    assert placed[0] == (0, 0)
    assert placed[1][1] == 0
    assert placed[2][1] > 0
    for k, (x, y) in enumerate(placed):
        assert weights_at(placed, x, y) == pytest.approx([float(k == j) for j in range(3)], abs=1e-9)


def test_plane_of_a_bowl(tmp_path: Path) -> None:
    """A loss that is half the squared distance from A is half of x^2 + y^2 on the plane; other corners likewise."""
    a, b, c = Point(1, 2, 3), Point(1, 5, 7), Point(4, 2, 0)
    run = quadratic((1, 1, 1), (1, 2, 3))
    plane = loss_plane(a, b, c, run, 5)
    for y, row in zip(plane.ys, plane.losses, strict=True):
        for x, loss in zip(plane.xs, row, strict=True):
            assert loss == pytest.approx((x**2 + y**2) / 2, abs=1e-9)
    assert plane.corner_losses == pytest.approx([0, 12.5, 9])
    assert plane.centroid[0] == pytest.approx(run(Point(2, 3, 10 / 3))[0])
    assert plane.highest_inside[0] == pytest.approx(12.5)
    assert plane.highest_inside[1:] == pytest.approx((5, 0))
    assert plane.lowest[0] == min(v for row in plane.losses for v in row)
    assert plane.xs[0] < 0 < plane.ys[-1]
    report = PlaneReport("bowl", plane=plane).document()
    assert json.loads(json.dumps(report))["corners"][1] == pytest.approx(
        {"x": 5.0, "y": 0.0, "loss": 12.5, "accuracy": -11.5}
    )
    draw_planes([("one", plane), ("two", plane)], ["a", "b", "c"], tmp_path / "x.png", "loss")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("third", [(5.0, 8.0), (1.0, 2.0), (3.0, 5.0)])
def test_no_plane(third: tuple[float, ...]) -> None:
    """Three models on one line."""
    with pytest.raises(IsomergeError, match="lie on one line"):
        plane_corners(Point(1, 2), Point(3, 5), Point(*third))


def test_pictures_that_cannot_be_written(tmp_path: Path) -> None:
    """One sentence."""
    line = Line((0.0, 0.5, 1.0), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    for name, said in (("none/x.png", r"writing .*x\.png failed"), ("x.docx", "cannot write this picture")):
        with pytest.raises(IsomergeError, match=said):
            draw_lines([("one", line)] * 8, ("a", "b"), tmp_path / name, "title", ensemble=(0.1, 0.5))


def test_report_is_json() -> None:
    """The figures of a line."""
    report = LineReport("x", line=Line((0.0, 0.5, 1.0), (1.0, 3.0, 2.0), (0.9, 0.1, 0.8))).document()
    assert json.loads(json.dumps(report)) == report
    assert report["highest"] == {"loss": 3.0, "at": 0.5}
    assert report["midpoint"] == {"loss": 3.0, "accuracy": 0.1}
    assert report["ends"] == [{"loss": 1.0, "accuracy": 0.9}, {"loss": 2.0, "accuracy": 0.8}]
    assert report["accuracy_drop"]["entezari"] == pytest.approx(0.75)


# ------------------------------------------------------------------------------------------------ real models


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits that the two example models have not seen, as the models read them."""
    images, labels = held_out_digits()
    path = tmp_path_factory.mktemp("digits") / "digits.safetensors"
    save_file({"pixel_values": images, "labels": labels}, path)
    return path


def test_digits(digits: Path, tmp_path: Path) -> None:
    """Two real models: their published accuracies, the midpoint is the plain average, aligned ends keep their
    loss."""
    a, b = example_models()
    report = isomerge.barrier(a, b, data=str(digits), points=3, spaces=["paper"], batch_size=450)
    stored, aligned = report["lines"]
    assert [end["accuracy"] for end in stored["ends"]] == pytest.approx([447 / 450, 449 / 450])
    assert report["data"]["examples"] == 450
    isomerge.merge([a, b], out=tmp_path / "average", align=False)
    examples = open_data(str(digits), a, config=json.loads((a / "config.json").read_text()))
    assert report["data"]["fingerprint"] == examples.fingerprint
    average = evaluate(load_module(tmp_path / "average"), examples, 100)
    assert stored["midpoint"]["loss"] == pytest.approx(average.loss, rel=1e-4)
    assert stored["midpoint"]["accuracy"] == average.accuracy
    assert stored["barrier"]["entezari"] > 1
    assert aligned["name"] == "aligned, paper"
    assert aligned["ends"][1]["loss"] == pytest.approx(stored["ends"][1]["loss"], rel=1e-3)
    assert aligned["midpoint"]["loss"] != pytest.approx(stored["midpoint"]["loss"], rel=1e-3)
    assert aligned["distances"][0]["after"] < aligned["distances"][0]["before"]
    assert report["ensemble"]["loss"] < max(end["loss"] for end in stored["ends"])


def test_a_twin_has_no_barrier(digits: Path, tmp_path: Path) -> None:
    """A disguised copy: far apart as stored, nothing in between once aligned; the same through ``aligned``."""
    from isomerge.evidence.law import random_alignment
    from isomerge.matching.selection import select_spaces
    from isomerge.models.recognised import recognise

    a, _ = example_models()
    model = recognise(a)
    spec = select_spaces(model.spec, "default").spec
    isomerge.apply(random_alignment(spec, model.blocks, torch.Generator().manual_seed(0)), a, out=tmp_path / "twin")
    isomerge.align(tmp_path / "twin", onto=a, out=tmp_path / "back")
    report = isomerge.barrier(
        a, tmp_path / "twin", data=str(digits), points=3, limit=100, aligned=[tmp_path / "back"]
    )
    stored, aligned, given = (line["barrier"]["entezari"] for line in report["lines"])
    assert stored > 0.5
    assert aligned == pytest.approx(0, abs=1e-3)
    assert given == pytest.approx(0, abs=1e-3)


def test_a_headless_model_is_told_before_labels_are_asked_for(tmp_path: Path) -> None:
    """They would not help."""
    model = save_toy("siglip_vision_model", tmp_path / "m")
    images = torch.randn(2, 3, 8, 8)
    for examples in (
        Examples({"pixel_values": images}, False),
        Examples({"pixel_values": images, "labels": torch.arange(2)}, True),
    ):
        with pytest.raises(IsomergeError, match="SiglipVisionModel predicts nothing"):
            isomerge.barrier(model, model, data=examples)


def test_options_are_checked_first(digits: Path, tmp_path: Path) -> None:
    """Before a weight is read: what cannot be done."""
    a, b = example_models()
    cases = [
        ({"points": 4}, "odd"), ({"points": 1}, "odd"), ({"grid": 1}, "grid=1"), ({"batch_size": 0}, "batch_size=0"),
        ({"device": "tpu9"}, "device='tpu9'"), ({"png": tmp_path / "no" / "x.png"}, "no such folder"),
        ({"grid": 5}, "grid=5.* is of a plane"), ({"third": a, "points": 5}, "points=5.* is of a line"),
        ({"spaces": "nothing"}, "nothing.* residual, "), ({"third": a, "aligned": [b]}, "leave one of them out"),
    ]  # fmt: skip
    for options, words in cases:
        with pytest.raises(IsomergeError, match=words):
            isomerge.barrier(a, b, data=str(digits), **options)

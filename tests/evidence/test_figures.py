"""Distances, residuals and verdicts from rows; the line between two models and its barrier."""

from __future__ import annotations

from io import BytesIO
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from isomerge.evidence.distance import relative_residuals, summarise
from isomerge.evidence.line import Line, draw_lines, loss_line
from isomerge.evidence.plane import Plane, draw_planes
from isomerge.matching.distances import BlockResidual, TensorGap


def row(spaces: list[str], layer: int | None, before: float, after: float, norm: float) -> dict[str, Any]:
    """One tensor's squared figures."""
    return TensorGap("t", spaces, layer, norm, before, after)


def test_summarise() -> None:
    """Squares add up; spaces overlap; what no space moves is fixed; what has no layer is outside."""
    rows = [row(["a", "b"], 0, 9, 4, 16), row(["a"], 1, 16, 0, 9), row([], None, 1, 1, 4)]
    assert summarise(rows).document() == {
        "before": sqrt(26), "after": sqrt(5), "norm": sqrt(29),
        "spaces": {
            "a": {"before": 5, "after": 2, "norm": 5},
            "b": {"before": 3, "after": 2, "norm": 4},
            "fixed": {"before": 1, "after": 1, "norm": 2},
        },
        "layers": {
            "0": {
                "before": 3, "after": 2, "norm": 4,
                "spaces": {"a": {"before": 3, "after": 2, "norm": 4}, "b": {"before": 3, "after": 2, "norm": 4}},
            },
            "1": {"before": 4, "after": 0, "norm": 3, "spaces": {"a": {"before": 4, "after": 0, "norm": 3}}},
            "outside": {
                "before": 1, "after": 1, "norm": 2, "spaces": {"fixed": {"before": 1, "after": 1, "norm": 2}},
            },
        },
    }  # fmt: skip
    assert summarise([]).document() == {"before": 0, "after": 0, "norm": 0, "spaces": {}, "layers": {}}


def test_relative_residuals() -> None:
    """The worst tensor; a tensor of nearly nothing is measured against its fellows."""

    def row(tensor: str, residual: float, norm: float) -> BlockResidual:
        return BlockResidual(tensor, 100, residual, norm, peak_residual=0.0, peak=1.0)

    rows = [
        row("large", 4.0, 400.0),
        row("small", 1.0, 4.0),
        row("zero", 1e-12, 0.0),
    ]
    assert relative_residuals(rows) == (pytest.approx(0.5), "small")
    zero = [row("large", 0.0, 400.0), rows[2]]
    assert relative_residuals(zero) == (pytest.approx(sqrt(1e-12 / 2e-4)), "zero")
    assert relative_residuals([]) == (0.0, "")
    assert relative_residuals([row("nothing", 0.0, 0.0)])[0] == 0


def test_a_local_change_counts() -> None:
    """One entry of a large tensor that is wholly other is not averaged away."""
    block = BlockResidual("embeddings", 10**6, 1.0, 1e6, peak_residual=1.0, peak=4.0)
    assert relative_residuals([block]) == (pytest.approx(0.25), "embeddings")


def test_barrier() -> None:
    """How far the loss rises above the straight line between its ends."""
    points = (0.0, 0.5, 1.0)
    assert Line(points, (1.0, 3.0, 2.0), (0.9, 0.1, 0.8)).barrier == pytest.approx(1.5)
    assert Line(points, (1.0, 1.5, 2.0), (0.9, 0.9, 0.8)).barrier == 0
    assert Line(points, (1.0, 0.2, 2.0), (0.9, 0.9, 0.8)).barrier == 0


def test_loss_line() -> None:
    """Parameters are interpolated between the ends, which stay as they are."""
    a, b = nn.Linear(2, 1), nn.Linear(2, 1)
    first, last = (torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (a, b))
    seen = []

    def evaluate(model: nn.Module) -> tuple[float, float]:
        seen.append(torch.cat([p.detach().flatten() for p in model.parameters()]).clone())
        return float(len(seen)), 0.5

    line = loss_line(a, b, evaluate, points=5)
    assert line.points == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert line.losses == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert line.accuracies == (0.5,) * 5
    for t, found in zip(line.points, seen, strict=True):
        assert torch.allclose(found, (1 - t) * first + t * last)
    assert torch.equal(torch.cat([p.detach().flatten() for p in a.parameters()]), first)


def test_pictures_are_the_same_under_all_settings(tmp_path: Path) -> None:
    """Equal bytes for equal figures, whatever matplotlib is set to; its settings, its backend and the user's own figures
    stay as they are."""
    import matplotlib
    from matplotlib import pyplot

    line = Line((0.0, 0.5, 1.0), (1.0, 3.0, 2.0), (0.9, 0.1, 0.8))
    plane = Plane(
        (0.0, 1.0),
        (0.0, 1.0),
        ((1.0, 2.0), (3.0, 4.0)),
        ((1.0,) * 2,) * 2,
        ((0.0, 0.0),) * 3,
        (1.0,) * 3,
        (1.0,) * 3,
        (1.0, 1.0),
    )
    written: list[list[bytes]] = []
    for settings in ({}, {"font.size": 20, "savefig.dpi": 30, "backend": "svg"}):
        with matplotlib.rc_context(settings):
            before, own = matplotlib.get_backend(), pyplot.figure()
            draw_lines([("one", line), ("two", line)], ("a", "b"), tmp_path / "x.png", "Title")
            draw_planes([("one", plane)], ["a", "b", "c"], tmp_path / "y.png", "loss")
            assert matplotlib.get_backend() == before
            assert matplotlib.rcParams["font.size"] == settings.get("font.size", 10)
            assert pyplot.fignum_exists(own.number)
            pyplot.close(own)
        written.append([(tmp_path / name).read_bytes() for name in ("x.png", "y.png")])
    assert written[0] == written[1]
    assert all(picture.startswith(b"\x89PNG") for picture in written[0])


def test_titles_of_planes_stay_in_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of planes of different proportions; where axes of one scale are laid out as free ones are, a title is cut off."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn: list[Figure] = []

    def draw_it(draw: Any, size: tuple[float, float], _path: Path) -> None:
        drawn.append(figure := Figure(figsize=size, dpi=130, layout="constrained"))
        FigureCanvasAgg(figure)
        draw(figure)
        figure.savefig(BytesIO(), format="png")

    monkeypatch.setattr("isomerge.evidence.plane.write_picture", draw_it)
    grid, ones = ((0.2, 1.0), (2.0, 3.0)), (1.0, 1.0, 1.0)
    planes = []
    for name, wide, high in (("as stored", 14.1, 12.0), ("aligned", 9.25, 8.55)):
        corners = ((0.0, 0.0), (wide - 4, 0.0), (wide / 3, high - 4))
        planes.append((name, Plane((-2.0, wide - 2), (-2.0, high - 2), grid, grid, corners, ones, ones, ones[:2])))
    draw_planes(planes, "abc", Path("x.png"), "loss (nats)")
    (figure,) = drawn
    assert [axes.get_title() for axes in figure.axes if axes.title.get_window_extent().y1 > figure.bbox.y1] == []

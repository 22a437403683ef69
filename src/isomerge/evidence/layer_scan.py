"""The picture of a scan over layers: what a merge is worth with only some of them matched."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

PICTURE = "layers.png"


def scan_picture(scan: Mapping[str, Any]) -> bytes:
    """A PNG of the losses by choice of layers, the chosen one marked, lines at none and all; equal bytes for equal
    scans whatever the user's matplotlib settings.

    Args:
        scan: ``candidates`` (rows of ``layers`` and ``loss``) and ``chosen``.
    """
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in scan["candidates"] if row["layers"] not in ("none", "all")]
    level = {row["layers"]: row["loss"] for row in scan["candidates"]}
    with style.context("default", after_reset=True):
        figure = Figure(figsize=(max(6.4, 0.28 * len(rows)), 3.2), dpi=100, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        colours = ["#1f5fa8" if row["layers"] == scan["chosen"] else "#b8c4d0" for row in rows]
        axes.bar([row["layers"] for row in rows], [row["loss"] for row in rows], color=colours)
        axes.axhline(level["none"], color="#8c8c8c", linestyle="--", label="none matched")
        axes.axhline(level["all"], color="#333333", linestyle=":", label="all matched")
        axes.tick_params(axis="x", rotation=90)
        axes.set_xlabel("layers matched")
        axes.set_ylabel("validation loss")
        axes.legend(frameon=False)
        picture = BytesIO()
        figure.savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()

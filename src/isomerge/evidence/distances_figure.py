"""The picture of an output: distance to the anchor, layer by layer, before and after alignment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from io import BytesIO
from threading import Thread
from typing import Any

PICTURE = "distances.png"


def all_left(pairs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all models of a verdict's pairs were left as they are, being aligned already."""
    return bool(pairs) and all(pair["left_as_it_is"] for pair in pairs)


def is_moved(report: Mapping[str, Any]) -> bool:
    """Whether anything was matched: not where no alignment was asked for, nor where all models were left alone."""
    return report.get("align") is not False and not all_left((report.get("verdict") or {}).get("pairs") or [])


def layer_distances(report: dict[str, Any]) -> list[tuple[int, float, float]]:
    """Number of the layer, distance before and after (Frobenius, relative to the first model's norm there), in
    order.

    Empty for reports of other commands than merge and align, and where nothing was moved.
    """
    if report.get("command") not in ("merge", "align") or not is_moved(report):
        return []
    layers = report.get("distance", {}).get("layers", {})
    numbered = sorted((int(name), d) for name, d in layers.items() if name.isdigit())
    return [(n, *(d[key] / max(d["norm"], 1e-300) for key in ("before", "after"))) for n, d in numbered]


def import_ahead() -> None:
    """Begin to import what `distances_picture` draws with, in a thread: beside the work it costs nothing, after it
    half a second."""
    libraries = ("matplotlib.backends.backend_agg", "matplotlib.figure", "matplotlib.style")

    def attempt() -> None:
        with suppress(Exception):  # who draws will see what is wrong
            list(map(import_module, libraries))

    with suppress(RuntimeError):  # no memory for a thread
        Thread(target=attempt, name="import ahead").start()


def distances_picture(report: dict[str, Any]) -> bytes | None:
    """A PNG, equal bytes for equal reports whatever the user's matplotlib settings; None where no layer was
    aligned."""
    rows = layer_distances(report)
    if not rows:
        return None
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with style.context("default", after_reset=True):
        figure = Figure(figsize=(6.4, 3.2), dpi=100, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for shift, of, colour, label in ((-0.2, 1, "#8c8c8c", "before alignment"), (0.2, 2, "#1f5fa8", "after")):
            axes.bar([row[0] + shift for row in rows], [row[of] for row in rows], 0.4, color=colour, label=label)
        axes.set_title("How far apart the layers are", fontsize=11)
        axes.set_xlabel("layer")
        axes.set_ylabel("distance / norm")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
        figure.legend(frameon=False, loc="outside lower center", ncols=2)  # it covers no bar there
        written = BytesIO()
        # the software's name would carry matplotlib's version
        figure.savefig(written, format="png", metadata={"Software": None})
    return written.getvalue()

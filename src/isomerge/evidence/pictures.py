"""Pictures as files: what they are drawn with, and those of an output: how far its layers are apart, and what it is
worth with only some of them matched. The charts of pages are SVG (`isomerge.evidence.report.svg`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.files import write_whole
from isomerge.records import Json

PICTURE = "distances.png"
SCAN_PICTURE = "layers.png"
PNG = "png"


def drawn(draw: Callable[[Any], None], size: tuple[float, float], *, dpi: int = 100, form: str = PNG) -> bytes:
    """A picture: equal bytes for equal drawings whatever the user's matplotlib settings, which stay as they are.

    Args:
        draw: draws on a figure of matplotlib's.
        size: inches.
        dpi: dots per inch.
        form: the format, as files end.

    Raises:
        ValueError: no format of pictures.
    """
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with style.context("default", after_reset=True):
        figure = Figure(figsize=size, dpi=dpi, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        picture = BytesIO()
        # the software's name would carry matplotlib's version
        figure.savefig(picture, format=form, metadata={"Software": None} if form == PNG else None)
    return picture.getvalue()


def check_picture(path: Path) -> None:
    """Refuse a file that no picture can be written to, before anything is measured for it.

    Raises:
        IsomergeError: a folder, or a name whose ending is no format of pictures.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if path.is_dir() or (path.suffix and path.suffix[1:].lower() not in known):
        raise IsomergeError(f"--png {path}: no format of pictures; give a file such as line.png")


def write_picture(draw: Callable[[Any], None], size: tuple[float, float], path: Path) -> None:
    """Draw a picture (see `drawn`) and write it; the file's ending tells the format.

    Raises:
        IsomergeError: the file cannot be written, or its ending is no format of pictures.
    """
    try:
        picture = drawn(draw, size, dpi=130, form=path.suffix[1:].lower() or PNG)
    except ValueError as error:
        raise IsomergeError(f"{path}: cannot write this picture ({error}); give a file such as line.png") from None
    write_whole(path, picture)


def all_left(pairs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all models of a verdict's pairs were left as they are, being aligned already."""
    return bool(pairs) and all(pair["left_as_it_is"] for pair in pairs)


def is_moved(report: Mapping[str, Any]) -> bool:
    """Whether anything was matched: not where no alignment was asked for, nor where all models were left alone."""
    return report.get("align") is not False and not all_left((report.get("verdict") or {}).get("pairs") or [])


def layer_distances(report: Json) -> list[tuple[int, float, float]]:
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


def distances_picture(report: Json) -> bytes | None:
    """A PNG; None where no layer was aligned."""
    rows = layer_distances(report)

    def draw(figure: Any) -> None:
        from matplotlib.ticker import MaxNLocator

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

    return drawn(draw, (6.4, 3.2)) if rows else None


def scan_picture(scan: Mapping[str, Any]) -> bytes:
    """A PNG of the losses by choice of layers, the chosen one marked, lines at none and all.

    Args:
        scan: ``candidates`` (rows of ``layers`` and ``loss``) and ``chosen``.
    """
    rows = [row for row in scan["candidates"] if row["layers"] not in ("none", "all")]
    level = {row["layers"]: row["loss"] for row in scan["candidates"]}

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        colours = ["#1f5fa8" if row["layers"] == scan["chosen"] else "#b8c4d0" for row in rows]
        axes.bar([row["layers"] for row in rows], [row["loss"] for row in rows], color=colours)
        axes.axhline(level["none"], color="#8c8c8c", linestyle="--", label="none matched")
        axes.axhline(level["all"], color="#333333", linestyle=":", label="all matched")
        axes.tick_params(axis="x", rotation=90)
        axes.set_xlabel("layers matched")
        axes.set_ylabel("validation loss")
        axes.legend(frameon=False)

    return drawn(draw, (max(6.4, 0.28 * len(rows)), 3.2))

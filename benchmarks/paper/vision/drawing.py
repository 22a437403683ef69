"""How the figures look, and what matchings and methods are called in them."""

from __future__ import annotations

from typing import Any

from benchmarks.paper.vision.endpoints import RESULTS

LABELS = {
    "none": "no matching",
    "paper": "the paper",
    "paper-no-rescale": "the paper, w/o rescaling",
    "paper-ffn": "the paper, w/o attention",
    "paper-attention": "the paper, w/o FFN",
    "paper-joint": "the paper, joint optimum",
    "git-rebasin": "Git Re-Basin",
    "git-rebasin-inside": "Git Re-Basin, inside layers",
    "otfusion": "OTFusion",
    "otfusion-ffn": "OTFusion, FFN only",
    "default": "ours, inside layers",
    "all": "ours, data-free",
    "activations": "ours, activations",
    "activations-ffn": "ours, w/o attention",
    "activations-attention": "ours, w/o FFN",
    "activations-inside": "ours, w/o residual stream",
    "learned": "ours, learned (300 steps)",
}
ROW_LABELS = {
    "simple": "Simple",
    "fisher": "Fisher",
    "regmean": "RegMean",
    "ot-acts-emd": "OT-ACTS-EMD",
    "ot-acts": "OT-ACTS",
    "ot-wts": "OT-WTS",
    "repair": "Simple + REPAIR",
    "regression": "Regression, layer by layer",
}
COLOURS = {
    "none": "0.45",
    "paper-ffn": "#e6ab02",
    "paper-attention": "#d95f02",
    "paper-no-rescale": "#a6761d",
    "paper": "#a50f15",
    "otfusion-ffn": "#fdbe85",
    "otfusion": "#fd8d3c",
    "git-rebasin-inside": "#fbb4d9",
    "git-rebasin": "#e7298a",
    "default": "#bcbddc",
    "all": "#7570b3",
    "activations": "#1f78b4",
    "learned": "#1b9e77",
}


def figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (7.0, 4.0), **more: Any) -> tuple[Any, Any]:
    """A figure and its axes, without frames above and to the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", **more)
    for part in drawn.axes:
        part.spines[["top", "right"]].set_visible(False)
        part.grid(axis="y", alpha=0.25)
        part.set_axisbelow(True)
    return drawn, axes


def save(drawn: Any, name: str) -> None:
    """Write `NAME.png` and `NAME.svg` beside the results; the SVG without the date, so that equal figures are equal
    files."""
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = name
    drawn.savefig(RESULTS / f"{name}.png", dpi=120)
    drawn.savefig(RESULTS / f"{name}.svg", metadata={"Date": None})
    pyplot.close(drawn)

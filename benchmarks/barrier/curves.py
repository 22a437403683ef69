"""The picture of docs/lab/measured-barriers.md: loss along the line, by kind of matching, one panel a family."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

PANELS = {
    "vit-digits": "ViT, digits, width 64", "vit-fashion": "ViT, Fashion-MNIST, width 64", "gpt2-width-256": "GPT-2-like, width 256",
    "llama": "Llama-like, width 128", "llama-width-256": "Llama-like, width 256", "llama-width-512": "Llama-like, width 512",
}  # fmt: skip
LINES = {
    "as stored": (("stored",), "#8c8c8c"), "the paper's spaces": (("paper",), "#d8a200"), "streams too": (("all",), "#d1495b"),
    "with activations": (("activations",), "#7b4fa6"), "learned, 300 steps": (("distilled-quick", "learned-quick"), "#2a7fb8"),
    "learned longest": (("thorough", "distilled"), "#1b7f4b"),
}  # fmt: skip


def draw(families: Sequence[dict[str, Any]], path: Path) -> None:
    """Means over the pairs of a family; losses in a logarithmic scale, as they differ by a factor of a hundred."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    by_name = {found["family"]: found for found in families}
    figure, grid = pyplot.subplots(2, 3, figsize=(11, 6.2), layout="constrained", sharex=True)
    for axes, (name, title) in zip(grid.flat, PANELS.items(), strict=True):
        pairs = by_name[name]["pairs"].values()
        for label, (rows, colour) in LINES.items():
            row = next((row for row in rows if row in by_name[name]["summary"]), None)
            here = [entry for entry in pairs if row in entry.get("rows", {})]
            if here:
                losses = [sum(at) / len(at) for at in zip(*(e["rows"][row]["losses"] for e in here), strict=True)]
                axes.plot(here[0]["points"], losses, color=colour, linewidth=1.8, label=label)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_title(f"{title} ({len(pairs)} pair{'s' * (len(pairs) > 1)})", fontsize=10)
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("test loss (nats)")
    for axes in grid[1]:
        axes.set_xlabel("from the anchor to the aligned model", fontsize=9)
    handles = dict(pair[::-1] for axes in grid.flat for pair in zip(*axes.get_legend_handles_labels(), strict=True))
    named = [label for label in LINES if label in handles]
    figure.legend(
        [handles[label] for label in named], named, loc="outside lower center", ncols=6, frameon=False, fontsize=9
    )
    figure.savefig(path, dpi=130)
    pyplot.close(figure)

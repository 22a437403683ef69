"""Figure 6: a part of the layers matched, one alone, the last ones, or the first ones.

    python -m benchmarks.paper.vision.layers

The elements of the other layers are left out of the whole alignment, which keeps it a symmetry. The paper's
matching acts inside layers alone, so this is what matching these layers gives; of ours, the residual stream stays
matched everywhere. Loss and accuracy of the mean; cells `NAME/LAYERS/PAIR` of
`benchmarks/results/paper/layers.json`, and `figure6.png`.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import isomerge
from benchmarks.paper.results import Results, mean_spread
from benchmarks.paper.vision.drawing import COLOURS, LABELS, figure, save
from benchmarks.paper.vision.endpoints import ENDPOINTS, MADE, PAIRS, RESULTS, ends, prepare
from benchmarks.paper.vision.fusions import merged
from benchmarks.paper.vision.matching import aligned, space
from isomerge.matching.selection import select_layers
from isomerge.models.recognised import recognise
from isomerge.symmetry.alignment import Alignment

NAMES = ("paper", "activations", "learned")
DEPTH = 4
CHOICES = {
    "single": [str(k) for k in range(DEPTH)],
    "tail": [f"tail:{n}" for n in range(DEPTH + 1)],
    "head": [f"head:{n}" for n in range(DEPTH + 1)],
}


def cells() -> Results:
    """Every merge; those of all layers and of none are there once."""
    return Results(RESULTS / "layers.json", ENDPOINTS)


def layer(key: str) -> int | None:
    """The layer of an element's key, ``2:qk[3]``; None for one that acts in all of them."""
    _, bracket, index = key.partition("[")
    return int(index.split(",")[0].rstrip("]")) if bracket else None


def only(alignment: Alignment, chosen: set[int]) -> Alignment:
    """The elements of these layers, and those of the residual stream with its gains."""
    streams = alignment.spec.residual_names
    kept = {k: g for k, g in alignment.items() if space(k) in streams or layer(k) in chosen | {None}}
    return Alignment(alignment.spec, kept)


def name_of(chosen: set[int]) -> str:
    """The name of a set of layers in a cell's key."""
    return "+".join(map(str, sorted(chosen))) or "none"


def measure(name: str, chosen: set[int], pair: str) -> dict[str, Any]:
    """The mean of the anchor and the source that is matched in these layers."""
    anchor, source = ends(pair)
    file = aligned(name, pair) / "alignment.safetensors"
    part = only(Alignment.load(file, recognise(source).declared), chosen)
    with tempfile.TemporaryDirectory(dir=MADE) as temporary:
        moved = Path(temporary) / "moved"
        isomerge.apply(part, source, out=moved)
        return merged("simple", anchor, moved)


def curve(name: str, kind: str, figure_of: str = "loss") -> list[tuple[float, float]]:
    """Mean and spread over pairs for every choice of a kind that was measured."""
    found = cells()
    values = []
    for text in CHOICES[kind]:
        key = name_of(select_layers(text, DEPTH) or set())
        here = [cell[figure_of] for pair in PAIRS if (cell := found.get(f"{name}/{key}/{pair}"))]
        if here:
            values.append(mean_spread(here))
    return values


def every_choice() -> list[set[int]]:
    """The sets of layers that are matched."""
    return [select_layers(text, DEPTH) or set() for kind in CHOICES.values() for text in kind]


def complete(name: str) -> bool:
    """Whether every choice of a matching was measured for all pairs."""
    found = cells()
    return all(found.has(f"{name}/{name_of(chosen)}/{pair}") for chosen in every_choice() for pair in PAIRS)


def halves(name: str, kind: str) -> list[float]:
    """Losses of all pairs with the first (``head``) or the last half of the layers matched."""
    key = name_of(select_layers(f"{kind}:{DEPTH // 2}", DEPTH) or set())
    return [cell["loss"] for pair in PAIRS if (cell := cells().get(f"{name}/{key}/{pair}"))]


def draw() -> None:
    """The three kinds side by side."""
    drawn, axes = figure(1, 3, size=(9.6, 3.6), sharey=True)
    titles = {"single": "one layer", "tail": "the last layers", "head": "the first layers"}
    for part, (kind, choices) in zip(axes, CHOICES.items(), strict=True):
        for name in NAMES:
            if complete(name):
                found = curve(name, kind)
                means, spreads = zip(*found, strict=True)
                part.errorbar(
                    range(len(found)),
                    means,
                    spreads,
                    color=COLOURS[name],
                    label=LABELS[name],
                    capsize=2,
                    marker="o",
                    markersize=4,
                )
        part.set_title(f"{titles[kind]} matched", fontsize=10)
        part.set_xlabel("layer" if kind == "single" else "number of layers")
        part.set_xticks(range(len(choices)))
    axes[0].set_ylabel("test loss of the mean (nats)")
    axes[0].legend(frameon=False, fontsize=8)
    save(drawn, "figure6")


def main() -> None:
    """Measure what is missing, and draw."""
    prepare()
    found = cells()
    for name in NAMES:
        for pair in PAIRS:
            for layers in every_choice():
                if found.has(key := f"{name}/{name_of(layers)}/{pair}"):
                    continue
                began = time.perf_counter()
                cell = measure(name, layers, pair)
                found.put(key, {**cell, "seconds": round(time.perf_counter() - began, 2)})
                print(f"{key:32s} {cell['loss']:.3f} nats", flush=True)
    draw()


if __name__ == "__main__":
    main()

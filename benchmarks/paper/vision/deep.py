"""Figure 6 at the depth of the paper's models: 24 layers, of which a part is matched.

    python -m benchmarks.paper.vision.deep       # trains two models (width 64, digits), measures, draws; an hour on one core

As `layers`, for one pair of digits ViTs of 24 layers from seeds 0 and 1: one layer alone, or every fourth number of first or
last ones, matched the paper's way, with activations, and learned in 300 steps. Loss and accuracy of the mean on the 450 test
images. What is there is kept; ``benchmarks/results/paper/deep-layers.json`` and ``figure6-deep.png``.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import ViTConfig, ViTForImageClassification

import isomerge
from benchmarks.barrier.data import BARRIER
from benchmarks.barrier.digits import fitted, scored
from benchmarks.paper.results import Results
from benchmarks.paper.vision.drawing import COLOURS, LABELS, figure, save
from benchmarks.paper.vision.endpoints import MADE, RESULTS, prepare
from benchmarks.paper.vision.layers import name_of, only
from isomerge.matching.selection import select_layers
from isomerge.models.recognised import recognise
from isomerge.symmetry.alignment import Alignment

DEPTH, WIDTH, STEPS, RATE = 24, 64, 1200, 1e-3
TRAIN = str(BARRIER / "digits" / "train.safetensors")
WAYS: dict[str, dict[str, Any]] = {
    "paper": {"spaces": "paper"},
    "activations": {"spaces": "all", "data": TRAIN, "limit": 512},
    "learned": {"spaces": "all", "learn": TRAIN, "steps": 300, "seed": 0},
}
CHOICES = {
    "single": [str(k) for k in range(DEPTH)],
    "tail": [f"tail:{n}" for n in range(0, DEPTH + 1, 4)],
    "head": [f"head:{n}" for n in range(0, DEPTH + 1, 4)],
}
TITLES = {"single": "one layer", "tail": "the last layers", "head": "the first layers"}


def built(seed: int) -> ViTForImageClassification:
    """A fresh model; the deeper, the smaller its weights begin."""
    config = ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=4, intermediate_size=2 * WIDTH, hidden_act="gelu",
        image_size=8, patch_size=2, num_channels=1, layer_norm_eps=1e-6, initializer_range=0.1 * math.sqrt(4 / DEPTH), id2label={k: str(k) for k in range(10)},
    )  # fmt: skip
    torch.manual_seed(seed)
    return ViTForImageClassification(config)


def trained(seed: int) -> Path:
    """A model of a seed, made once."""
    folder = MADE / f"deep-{seed}"
    if not folder.exists():
        fitted(built(seed), STEPS, RATE, 1000 + seed).save_pretrained(folder)
    return folder


def measured(*folders: Path) -> dict[str, float]:
    """Loss and accuracy on the test images, of the mean of the probabilities where there are several."""
    return scored(*(ViTForImageClassification.from_pretrained(folder).eval() for folder in folders))


def cells() -> Results:
    """What was measured."""
    about = {"models": "two digits ViTs of 24 layers, width 64", "steps": STEPS, "tested_on": "450 test images"}
    return Results(RESULTS / "deep-layers.json", about)


def losses(found: Results, way: str, kind: str) -> list[float]:
    """The losses of all choices of a kind."""
    return [found.get(f"{way}/{name_of(select_layers(text, DEPTH) or set())}")["loss"] for text in CHOICES[kind]]


def complete(found: Results, way: str) -> bool:
    """Whether every choice of a way was measured."""
    keys = (name_of(select_layers(text, DEPTH) or set()) for choices in CHOICES.values() for text in choices)
    return all(found.has(f"{way}/{key}") for key in keys)


def section() -> list[str]:
    """Its part of the page; none before it was measured."""
    found = cells()
    ways = [way for way in WAYS if complete(found, way)]
    if not ways:
        return []
    ends = " and ".join(f"{found.get(f'end {k}')['loss']:.3f}" for k in (0, 1))
    lines = [
        "### At 24 layers",
        "",
        f"The same for one pair of digits ViTs of {DEPTH} layers and width {WIDTH} (losses of the models: {ends}), as deep as the paper's; one pair, so that small differences say little.",
        "",
        f"![Three panels: test loss of the mean when one, the last, or the first of {DEPTH} layers are matched](../../benchmarks/results/paper/figure6-deep.png)",
        "",
        f"| matched | {' | '.join(f'first {n}' if n else 'none' for n in range(0, DEPTH + 1, 4))} | {' | '.join(f'last {n}' for n in range(4, DEPTH, 4))} | best single layer |",
        f"|---|{'---|' * (2 * (DEPTH // 4) + 1)}",
    ]  # fmt: skip
    for way in ways:
        head, tail, single = (losses(found, way, kind) for kind in ("head", "tail", "single"))
        best = min(range(DEPTH), key=lambda k, values=single: values[k])
        told = [f"{loss:.3f}" for loss in (*head, *tail[1:-1])]
        lines.append(f"| {LABELS[way]} | {' | '.join(told)} | {best}: {single[best]:.3f} |")
    told = []
    for way in ways:
        (none, *_, every), (first, *_) = losses(found, way, "head"), losses(found, way, "single")
        told.append(f"{LABELS[way]} {100 * (none - first) / (none - every):.0f} %")
    return [
        *lines,
        "",
        "What matching all layers takes off the loss, the first one alone takes: "
        f"{', '.join(told)}. Without the first ones, the last ones bring nothing.",
        "",
    ]


def measure(found: Results) -> None:
    """Every choice of every way that is missing."""
    ends = [trained(seed) for seed in (0, 1)]
    for number, end in enumerate(ends):
        if not found.has(f"end {number}"):
            found.put(f"end {number}", measured(end))
    for way, how in WAYS.items():
        out = MADE / f"deep-{way}"
        if not out.exists():
            isomerge.align(ends[1], onto=ends[0], out=out, align=True, **how)
        alignment = Alignment.load(out / "alignment.safetensors", recognise(ends[1]).declared)
        for chosen in [select_layers(text, DEPTH) or set() for choices in CHOICES.values() for text in choices]:
            if found.has(key := f"{way}/{name_of(chosen)}"):
                continue
            with tempfile.TemporaryDirectory(dir=MADE) as folder:
                moved, mean = Path(folder) / "moved", Path(folder) / "mean"
                isomerge.apply(only(alignment, chosen), ends[1], out=moved)
                isomerge.merge([ends[0], moved], out=mean, align=False)
                found.put(key, measured(mean))
            print(f"{key:32s} {found.get(key)}", flush=True)


def draw(found: Results) -> None:
    """One layer, the last and the first ones side by side."""
    drawn, axes = figure(1, 3, size=(9.6, 3.6), sharey=True)
    for part, (kind, choices) in zip(axes, CHOICES.items(), strict=True):
        for way in WAYS:
            at = [int(text.rpartition(":")[2]) for text in choices]
            part.plot(at, losses(found, way, kind), color=COLOURS[way], label=LABELS[way], marker="o", markersize=3)
        part.set_title(f"{TITLES[kind]} matched", fontsize=10)
        part.set_xlabel("layer" if kind == "single" else "number of layers")
    axes[0].set_ylabel("test loss of the mean (nats)")
    axes[0].legend(frameon=False, fontsize=8)
    save(drawn, "figure6-deep")


def main() -> None:
    """Measure what is missing, and draw."""
    prepare()
    measure(found := cells())
    draw(found)


if __name__ == "__main__":
    main()

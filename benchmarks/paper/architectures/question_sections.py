"""The page's sections on what the reviewers asked. Every sentence is computed."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.paper.architectures import t5
from benchmarks.paper.results import Results, mean_spread
from benchmarks.paper.sentences import difference, listed, markdown, value
from benchmarks.paper.vision import reviewers
from benchmarks.paper.vision.drawing import LABELS
from benchmarks.paper.vision.endpoints import PAIRS, RESULTS
from benchmarks.paper.vision.matching import costs

BARRIER = RESULTS.parent / "barrier"
BARRIER_ROWS = {
    "stored": "no matching",
    "paper": "the paper",
    "default": "ours, inside layers",
    "all": "ours, data-free",
    "activations": "ours, activations",
    "learned-quick": "ours, learned (300 steps)",
    "learned": "ours, learned",
    "distilled": "ours, learned without labels",
}
FAMILIES = {
    "gpt2": "GPT-2 (bytes)",
    "llama": "Llama-like (bytes)",
    "vit-digits": "ViT (digits)",
    "vit-fashion": "ViT (Fashion-MNIST)",
}


def stored(name: str) -> dict[str, Any]:
    """A results file of the barrier benchmark; empty where it was not made."""
    path = BARRIER / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def more_models() -> list[str]:
    """Three and five models."""
    found = stored("many")
    text = []
    for count in ("3", "5"):
        if not (part := found.get(count)):
            continue
        rows = part["rows"]
        anchors = {k: r for k, r in rows.items() if k.startswith("anchor") and k.endswith("all")}
        chosen = {
            "no matching": [rows["average"]],
            "onto one anchor, data-free (mean over anchors)": list(anchors.values()),
            "one after the other, data-free": [rows["sequence, all"]],
            "onto their common mean, data-free": [rows["mean, all"]],
            "onto their common mean, activations": [rows["mean, activations"]],
            "onto their common mean, learned": [rows["mean, learned"]],
        }
        spread = [100 * r["accuracy"] for r in anchors.values()]
        ends = [100 * e["accuracy"] for e in part["ends"]]
        lines = [
            [name, value([100 * r["accuracy"] for r in here]), value([r["loss"] for r in here], 3)]
            for name, here in chosen.items()
        ]
        text += [
            f"{count} digit ViTs (the models: {value(ends)} %):",
            "",
            *markdown(["matched how", "accuracy (%)", "loss (nats)"], lines),
            f"The choice of the anchor changes the accuracy by {max(spread) - min(spread):.2f} points (the "
            f"paper's limitation); the common "
            "mean has no anchor.",
            "",
        ]
    return ["### More than two models", "", *text] if text else []


def classifier() -> list[str]:
    """Merging with and without the head."""
    found = reviewers.cells()
    columns = {
        (heads, name): [100 * c["accuracy"] for p in PAIRS if (c := found.get(f"classifier/{heads}/{name}/{p}"))]
        for heads in reviewers.HEADS
        for name in reviewers.MATCHINGS
    }
    if any(len(values) != len(PAIRS) for values in columns.values()):
        return []
    rows = [
        [LABELS[name], *(value(columns[heads, name]) for heads in reviewers.HEADS)] for name in reviewers.MATCHINGS
    ]
    largest = max(
        (difference(columns[h, n], columns["average", n]) for h in ("copy", "keep:2") for n in reviewers.MATCHINGS),
        key=lambda d: abs(d.mean),
    )
    return [
        "### The classifier",
        "",
        "The paper leaves the classifier unmerged. Here both models have the same labels, so that it can be "
        "averaged; accuracy in percent of the "
        "mean of the ViTs with the head averaged, the anchor's, or the matched source's:",
        "",
        *markdown(["matching", *(f"head {word}" for word in reviewers.HEADS.values())], rows),
        f"The largest change by copying a head instead of averaging is {largest.text()} points.",
        "",
    ]


def optimum() -> list[str]:
    """The joint optimum, and general linear maps."""
    found, cost = reviewers.cells(), costs()
    rows, apart, score = [], {}, {}
    for name, label in reviewers.OPTIMA.items():
        merges = [c for p in PAIRS if (c := found.get(f"optimum/{name}/{p}"))]
        if len(merges) != len(PAIRS):
            return []
        matched = [cost.get(f"{name}/{p}") for p in PAIRS]
        apart[name] = [
            c["distance"] if c else cost.get(f"rotations/{p}")["distance_stored"]
            for c, p in zip(matched, PAIRS, strict=True)
        ]
        score[name] = [100 * c["accuracy"] for c in merges]
        rows.append([label, value(apart[name], 3), value(score[name]), value([c["loss"] for c in merges], 3)])
    joint = difference(apart["joint-attention"], apart["paper-attention"])
    linear = difference(apart["linear"], apart["joint-attention"])
    accuracy = difference(score["linear"], score["joint-attention"])
    text = [
        "### One after the other, or together; rotations, or any invertible maps",
        "",
        "The paper solves rotations first and the factor second, and asks whether the joint optimum can be "
        "had. It can, with a certificate "
        "([optima](optima.md)). Heads of the ViTs alone, FFNs as stored:",
        "",
        *markdown(["heads moved by", "distance", "accuracy of the mean (%)", "loss of the mean"], rows),
        f"Solving both together changes the distance by {joint.text(4)}"
        + (
            ": the paper's order loses next to nothing on these models. "
            if abs(joint.mean) < 1e-3 * mean_spread(apart["none"])[0]
            else ". "
        ),
        f"Invertible maps change it by {linear.text(3)} and the accuracy by {accuracy.text()} points"
        + (". " if accuracy.counts else ", within the spread. "),
        "",
    ]
    optima = RESULTS.parent / "optima.json"
    if optima.is_file():
        joined = [r for r in json.loads(optima.read_text())["joint"] if r["n"] == 64]
        told = [f"{100 * r['gain']['mean']:.2g} % ({r['heads']})" for r in joined]
        text += [
            f"On random heads of size 64 the joint optimum takes off, of the squared distance that the paper's "
            f"order leaves, {listed(told)}: it "
            "matters where a factor is hidden, as in models that were rescaled after training.",
            "",
        ]
    return text


def others() -> list[str]:
    """Other architectures."""
    rows = []
    for name, title in FAMILIES.items():
        found = stored(name)
        for row, label in BARRIER_ROWS.items():
            here = [e["rows"] for e in found.get("pairs", {}).values() if row in e.get("rows", {})]
            if not here:
                continue
            barriers = [r[row]["barrier"]["entezari"] for r in here]
            share = 100 * sum(barriers) / sum(r["stored"]["barrier"]["entezari"] for r in here)
            rows.append([title, label, str(len(here)), value(barriers, 3), f"{share:.0f} %"])
    rows += t5_rows()
    text = [
        "### Other architectures",
        "",
        "Barriers (nats; per byte for language models) of pairs trained from scratch, from [the barrier "
        "benchmark](measured-barriers.md), and of a "
        f"small T5 that continues text ({t5.STEPS} steps of training, one pair):",
        "",
        *markdown(["models", "matching", "pairs", "barrier", "of unmatched"], rows),
    ]
    if not t5_rows():
        text += ["T5 was not measured.", ""]
    return text


def t5_rows() -> list[list[str]]:
    """The lines of T5, where it was measured."""
    found = Results(RESULTS / "t5.json", t5.SETTINGS)
    here = {name: found.get(name) for name in t5.MATCHINGS if found.has(name)}
    if "none" not in here:
        return []
    whole = here["none"]["barrier"]["entezari"]
    barriers = {name: cell["barrier"]["entezari"] for name, cell in here.items()}
    return [["T5 (bytes)", LABELS[n], "1", value([b], 3), f"{100 * b / whole:.0f} %"] for n, b in barriers.items()]


def questions() -> list[str]:
    """Everything that the reviewers asked and that is not a figure of its own."""
    parts = [more_models(), classifier(), others(), optimum()]
    return ["## The reviewers' questions", "", *(line for part in parts for line in part)]

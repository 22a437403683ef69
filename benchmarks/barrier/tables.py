"""Write docs/lab/measured-barriers.md from the results of the barrier benchmarks.

python benchmarks/barrier/tables.py
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.barrier import reach
from benchmarks.barrier.cost import BASE, KINDS
from benchmarks.barrier.measurements import MEASUREMENTS, RESULTS
from benchmarks.barrier.run import IMAGES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "lab" / "measured-barriers.md"
NAMES = {
    "stored": "no matching",
    "paper": "the paper's spaces",
    "default": "all local spaces",
    "all": "all, data-free",
    "activations": "all, with activations",
    "search": "forward-only search, 60 s",
    "learned-quick": "learned, labels",
    "learned": "learned, labels",
    "distilled-quick": "learned, no labels",
    "distilled": "learned, no labels",
    "thorough": "learned, no labels",
    "generated": "no data: activations on generated examples",
    "generated-distilled": "no data: learned from generated examples",
}
HEAD = """# Measured barriers

Models of one architecture, trained from scratch from different seeds; the second is aligned onto the first in each way, and
the loss is measured on test data along the line between them, in the original architecture. Barrier: the largest excess over
the straight line between the endpoints' losses (Entezari et al.), in nats (per byte for language models), at the points of the line that each section counts.
Made by `python -m benchmarks.barrier` ([its commands](#how-to-measure-again)) on CPU cores shared with other work: seconds
are an upper bound. Generated examples are texts that the two models write, or noise (`isomerge generate`). Predictions of images are softened where they are the target
(temperature 4, since November 2026); rows from before are marked *not softened*. With weights alone, layers
are matched once more where the streams have ended (since November 2026); rows from before are marked *layers not matched once more*. Models of width 512 take their products in bfloat16, in training and while a match is learned. This page is written by `benchmarks/barrier/tables.py` from [the results](../../benchmarks/results/barrier).
"""


def number(value: float | None, digits: int = 3) -> str:
    """A figure, or a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def family(path: Path) -> list[str]:
    """The section of one family."""
    found = json.loads(path.read_text())
    pairs: dict[str, Any] = {k: e for k, e in found["pairs"].items() if e.get("rows")}
    ends = [end for entry in pairs.values() for end in entry["pair"]["ends"]]
    together = [entry["pair"]["ensemble"] for entry in pairs.values()]
    examples = next(iter(pairs.values()))["pair"]["examples"]
    points = " or ".join(map(str, sorted({len(entry["points"]) for entry in pairs.values()})))
    loss = sum(e["loss"] for e in ends) / len(ends)
    accuracy = sum(e["accuracy"] for e in ends) / len(ends)
    lines = [
        f"## {found['family']}",
        "",
        f"Pairs of seeds: {', '.join(pairs)}. {examples} test examples, {points} points of the line. Endpoints "
        f"on average: loss {loss:.4f}, "
        f"accuracy {100 * accuracy:.2f} %; ensemble (mean of probabilities): loss "
        f"{sum(e['loss'] for e in together) / len(together):.4f}, accuracy "
        f"{100 * sum(e['accuracy'] for e in together) / len(together):.2f} %.",
        "",
        "| matching | pairs | barrier | spread | of unmatched | midpoint loss | midpoint accuracy | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in NAMES:
        if row in found["summary"]:
            s = found["summary"][row]
            here = [entry["rows"] for entry in pairs.values() if row in entry["rows"]]
            name = named(found, row)
            unmatched = sum(rows["stored"]["barrier"]["entezari"] for rows in here) / len(here)  # of the same pairs
            lines.append(
                f"| {name} | {s['pairs']} | {s['barrier']:.3f} | {number(s['barrier_spread'])} | "
                f"{100 * s['barrier'] / unmatched:.1f} % | {s['midpoint_loss']:.3f} | "
                f"{100 * s['midpoint_accuracy']:.2f} % | {s['seconds']:.0f} |"
            )
    picture = path.with_suffix(".png")
    if picture.exists():
        lines += ["", f"![Loss along the lines](../../benchmarks/results/barrier/{picture.name})"]
    return [*lines, ""]


def named(found: dict[str, Any], row: str) -> str:
    """What a row is called, with the steps that it was learned in, and which later step it was measured without."""
    entries = [entry["rows"][row] for entry in found["pairs"].values() if row in entry.get("rows", {})]
    learned = [about for entry in entries if (about := entry.get("learned"))]
    steps = sorted({about["steps"] for about in learned if "steps" in about})
    sharp = found["family"].startswith(tuple(IMAGES)) and any(
        about.get("target") == "distill" and "temperature" not in about for about in learned
    )
    before = row == "all" and not all(entry.get("in_place") for entry in entries)
    without = (", not softened" if sharp else "") + (", layers not matched once more" if before else "")
    return NAMES[row] + "".join(f", {count} steps" for count in steps) + without


def many(path: Path) -> list[str]:
    """The section of more than two models."""
    lines = [
        "## More than two models: digits ViTs",
        "",
        "Learned rows are from before predictions were softened.",
        "",
    ]
    for count, found in json.loads(path.read_text()).items():
        if not isinstance(found, dict) or "rows" not in found:
            continue
        lines += [f"{count} seeds:", "", "| merged how | loss | accuracy | seconds |", "|---|---|---|---|"]
        for name, row in found["rows"].items():
            lines.append(
                f"| {name} | {row['loss']:.3f} | {100 * row['accuracy']:.2f} % | {number(row.get('seconds'), 0)} |"
            )
        lines.append("")
    return lines


def cost(path: Path) -> list[str]:
    """The section of time and memory."""
    found = json.loads(path.read_text())
    kinds = KINDS
    settings = found["settings"]
    lines = [
        "## What matching costs",
        "",
        "CPU seconds (one thread) and peak memory of a whole `align` of random Llama-like models in float32, "
        "libraries "
        f"included: {settings['sweeps']} sweeps, {settings['rows']} rows of activations of 64 windows, "
        f"{settings['learning_steps']} learning steps of {settings['batch']} (which start from activations, and "
        f"judge the "
        f"path before and after). *search* is activations and the first {settings['moves']} moves that "
        f"`--search` tries (matching neurons by what they compute, "
        "orders of heads), judged on half of the windows; where its seconds are given in place of moves, they "
        "are what it costs. "
        "*none* to *all* were measured after the other columns (November 2026), while nothing else ran.",
        "",
        f"| model | parameters | {' | '.join(kinds)} |",
        f"|---|---|{'---|' * len(kinds)}",
    ]
    for size, row in found["rows"].items():
        cells = [_cost(row[kind]) if kind in row else "–" for kind in kinds]
        lines.append(f"| {size} | {row['parameters'] / 1e6:.2f} M | {' | '.join(cells)} |")
    lines += [
        "",
        "How CPU seconds beyond those of *none* (reading and libraries) grow: the exponent p of size^p, by "
        "least squares of logarithms, over the sizes that differ in nothing else. "
        "*search* counts its moves alone, without the match that they start from. Figures of a few tenths of a "
        "second, and such as were measured beside other work, are rough.",
        "",
        f"| grows with | sizes | {' | '.join(kinds[1:])} |",
        f"|---|---|{'---|' * (len(kinds) - 1)}",
    ]
    for axis in BASE:
        fits = exponents(found["rows"], axis)
        sizes = ", ".join(map(str, sorted(fits["sizes"])))
        lines.append(f"| {axis} | {sizes} | {' | '.join(number(fits[kind], 1) for kind in kinds[1:])} |")
    return [*lines, ""]


def _cost(figures: dict[str, Any]) -> str:
    """Seconds, how many of them are of moves alone, and memory."""
    moves = f" ({figures['own_cpu_seconds']:.1f} s of moves)" if "own_cpu_seconds" in figures else ""
    return f"{figures['cpu_seconds']:.1f} s{moves}, {figures['peak_bytes'] / 1e6:.0f} MB"


def exponents(rows: dict[str, Any], axis: str) -> dict[str, Any]:
    """How each kind's seconds beyond its start grow along one axis, with the ``sizes`` of it; None where a figure
    is missing.

    Args:
        rows: by size, such as ``width 128 depth 4 heads 8``.
        axis: one of these words; the others are those of the base.
    """
    found: dict[str, Any] = {"sizes": []}
    chosen: dict[int, dict[str, Any]] = {}
    for name, row in rows.items():
        words = name.split()
        size = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        if all(size[other] == BASE[other] for other in BASE if other != axis):
            chosen[size[axis]] = row
    found["sizes"] = list(chosen)
    for kind in KINDS[1:]:
        costs = {n: _growing(row, kind) for n, row in chosen.items()}
        points = [(math.log(n), math.log(cost)) for n, cost in costs.items() if cost is not None and cost > 0]
        found[kind] = _slope(points) if len(points) == len(chosen) > 1 else None
    return found


def _growing(row: dict[str, Any], kind: str) -> float | None:
    """A kind's CPU seconds beyond those of reading and libraries, of the search those of its moves; None where it
    has no figure."""
    if kind == "search":
        return row.get(kind, {}).get("own_cpu_seconds")
    return row[kind]["cpu_seconds"] - row["none"]["cpu_seconds"] if kind in row else None


def _slope(points: list[tuple[float, float]]) -> float:
    """Of the line of least squares."""
    middle = [sum(part) / len(points) for part in zip(*points, strict=True)]
    rise = sum((x - middle[0]) * (y - middle[1]) for x, y in points)
    return rise / sum((x - middle[0]) ** 2 for x, _ in points)


def diagnosis(path: Path) -> list[str]:
    """The section of what limits a learned barrier."""
    lines = [
        "## Where what is left sits",
        "",
        "Only one part is averaged, all other tensors are the anchor's, and the symmetries are learned anew "
        "for just that "
        "(text, or the models' predictions of images; few steps; `benchmarks/barrier/diagnose.py`): the excess "
        "of the midpoint over the mean of the endpoints, "
        "in nats. *Unseen* are that many test examples, by their labels, that neither the models nor learning "
        "have seen. Where none are named, the figures are of "
        "training examples held out from learning alone, images by the mean of the models' predictions: the "
        "models have seen them, so an excess may be negative.",
        "",
        "| models | part | before learning | learned | steps | unseen |",
        "|---|---|---|---|---|---|",
    ]
    for pair, parts in json.loads(path.read_text()).items():
        lines += [
            f"| {pair} | {part} | {row['before_learning']:.3f} | {row['midpoint']:.3f} | {row['steps']} | "
            f"{row.get('unseen', '–')} |"
            for part, row in sorted(parts.items(), key=lambda item: -item[1]["midpoint"])
        ]
    told = [
        f"{pair}: {_largest(parts)}"
        for pair, parts in json.loads(path.read_text()).items()
        if "all" in parts and len(parts) > 1
    ]
    return [
        *lines,
        "",
        f"What is left is largest for: {'; '.join(told)}. Parts do not add up: each is learned for itself.",
        "",
    ]


def _largest(parts: dict[str, Any]) -> str:
    """The part whose average leaves most, beside what averaging everything leaves."""
    most = max((name for name in parts if name != "all"), key=lambda name: parts[name]["midpoint"])
    return f"{most} ({parts[most]['midpoint']:.3f}; everything {parts['all']['midpoint']:.3f})"


def aims(paths: list[Path]) -> list[str]:
    """The section of what was aimed at, and by how much it is missed."""
    families = [found for path in paths if (found := json.loads(path.read_text())).get("summary")]
    return [*reach.HEAD, *(row for found in families for row in reach.reach(found, named)), ""]


def commands() -> list[str]:
    """The section of what each file of results is made by."""
    lines = [
        "## How to measure again",
        "",
        "`python -m benchmarks.barrier` (`make barrier`) trains and measures what is missing in the results, "
        "and goes on where it was "
        "stopped; a file of results that was removed is measured whole. *Hours* are those of matching and "
        "merging that the file "
        "tells, on one thread. Training (`train.py`, many hours for all models) and measuring the lines come "
        "on top; both were not kept.",
        "",
        "| results | models to train | commands, in `benchmarks/barrier` | hours |",
        "|---|---|---|---|",
    ]
    for m in MEASUREMENTS:
        told = "<br>".join(f"`{shlex.join(command)}`" for command in m.commands)
        lines.append(f"| {m.name} | {len(m.models)} | {told} | {m.seconds() / 3600:.2f} |")
    return [*lines, ""]


def page() -> str:
    """The whole page."""
    paths = sorted(RESULTS.glob("*.json"))
    lines = [HEAD, *aims(paths)]
    for path in paths:
        if path.name == "many.json":
            lines += many(path)
        elif path.name == "cost.json":
            lines += cost(path)
        elif path.name == "diagnosis.json":
            lines += diagnosis(path)
        elif json.loads(path.read_text()).get("pairs"):
            lines += family(path)
    return "\n".join([*lines, *commands()]).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())

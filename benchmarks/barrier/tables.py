"""Write docs/measured-barriers.md from the results of the barrier benchmarks.

python benchmarks/barrier/tables.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "barrier"
PAGE = ROOT / "docs" / "measured-barriers.md"
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
    "thorough": "learned longer",
    "generated": "no data: activations on generated examples",
    "generated-distilled": "no data: learned from generated examples",
}
DATA_FREE = {
    "all": "data-free",
    "generated": "data-free, activations on generated examples",
    "generated-distilled": "data-free, learned from generated examples",
}
HEAD = """# Measured barriers

Models of one architecture, trained from scratch from different seeds; the second is aligned onto the first in each way, and
the loss is measured on test data along the line between them, in the original architecture. Barrier: the largest excess over
the straight line between the endpoints' losses (Entezari et al.), in nats (per byte for language models), over the whole path.
Made by `benchmarks/barrier/train.py` (models), `run.py`, `many.py` and `cost.py` on CPU cores shared with other work: seconds
are an upper bound. Generated examples are texts that the two models write, or noise (`isomerge generate`). Those of width 512 take their products in bfloat16, in training and while a match is learned. This page is written by `benchmarks/barrier/tables.py` from [the results](../benchmarks/results/barrier).
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
    loss = sum(e["loss"] for e in ends) / len(ends)
    accuracy = sum(e["accuracy"] for e in ends) / len(ends)
    lines = [
        f"## {found['family']}",
        "",
        f"Pairs of seeds: {', '.join(pairs)}. {examples} test examples. Endpoints on average: loss {loss:.4f}, "
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
        lines += ["", f"![Loss along the lines](../benchmarks/results/barrier/{picture.name})"]
    return [*lines, ""]


def named(found: dict[str, Any], row: str) -> str:
    """What a row is called, with the steps that it was learned in."""
    entries = (entry.get("rows", {}).get(row, {}) for entry in found["pairs"].values())
    steps = {about["steps"] for entry in entries if "steps" in (about := entry.get("learned") or {})}
    return NAMES[row] + "".join(f", {count} steps" for count in sorted(steps))


def many(path: Path) -> list[str]:
    """The section of more than two models."""
    lines = ["## More than two models: digits ViTs", ""]
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
    kinds = ("none", "paper", "default", "all", "activations", "learned")
    settings = found["settings"]
    lines = [
        "## What matching costs",
        "",
        "CPU seconds (one thread) and peak memory of a whole `align` of random Llama-like models in float32, libraries "
        f"included: {settings['sweeps']} sweeps, {settings['rows']} rows of activations of 64 windows, "
        f"{settings['learning_steps']} learning steps of {settings['batch']} (which start from activations, and judge the "
        "path before and after).",
        "",
        f"| model | parameters | {' | '.join(kinds)} |",
        f"|---|---|{'---|' * len(kinds)}",
    ]
    for size, row in found["rows"].items():
        cells = [
            f"{row[k]['cpu_seconds']:.1f} s, {row[k]['peak_bytes'] / 1e6:.0f} MB" if k in row else "–"
            for k in kinds
        ]
        lines.append(f"| {size} | {row['parameters'] / 1e6:.2f} M | {' | '.join(cells)} |")
    return [*lines, ""]


LEARNED = ("thorough", "distilled", "learned", "distilled-quick", "learned-quick")


def best_learned(found: dict[str, Any]) -> str | None:
    """The learned row of the lowest barrier among those measured on most pairs."""
    rows = {row: found["summary"][row] for row in LEARNED if row in found["summary"]}
    most = max((s["pairs"] for s in rows.values()), default=0)
    return min(
        (row for row, s in rows.items() if s["pairs"] == most), key=lambda r: rows[r]["barrier"], default=None
    )


def reach(paths: list[Path]) -> list[str]:
    """What was aimed at, and what was measured: the sentences say by how much it falls short."""
    lines = [
        "## What was aimed at",
        "",
        "Means over the pairs measured. *Short by* is measured minus aim; a dash where the aim is met.",
        "",
        "| models | aim | measured | short by |",
        "|---|---|---|---|",
    ]
    for path in paths:
        found = json.loads(path.read_text())
        if "family" not in found:
            continue
        pairs: dict[str, Any] = {k: e for k, e in found["pairs"].items() if e.get("rows")}
        if not pairs:
            continue
        name, row = found["family"], best_learned(found)
        for free, how in DATA_FREE.items():
            if free in found["summary"]:
                share = 100 * found["summary"][free]["barrier"] / _unmatched(pairs, free)
                lines.append(_aim(name, f"{how}: barrier at most 20 % of the unmatched", share, 20, " %"))
        if row is None:
            continue
        best, label = found["summary"][row], named(found, row)
        here = [entry for entry in pairs.values() if row in entry["rows"]]
        if name.startswith("vit"):
            lines.append(_aim(name, f"{label}: barrier at most 0.02 nats", best["barrier"], 0.02, " nats"))
            ends = [end["accuracy"] for entry in here for end in entry["pair"]["ends"]]
            lost = 100 * (sum(ends) / len(ends) - best["midpoint_accuracy"])
            lines.append(
                _aim(name, f"{label}: midpoint at most 0.3 points below the endpoints' mean", lost, 0.3, " points")
            )
            top = [max(end["accuracy"] for end in entry["pair"]["ends"]) for entry in here]
            above = 100 * (sum(top) / len(top) - best["midpoint_accuracy"])
            lines.append(
                _aim(name, f"{label}: midpoint above both endpoints", above, 0, " points below the better")
            )
        else:
            share = 100 * best["barrier"] / _unmatched(pairs, row)
            lines.append(_aim(name, f"{label}: barrier at most 5 % of the unmatched", share, 5, " %"))
    return [*lines, ""]


def _unmatched(pairs: dict[str, Any], row: str) -> float:
    """The mean unmatched barrier of the pairs that have a row."""
    here = [entry["rows"]["stored"]["barrier"]["entezari"] for entry in pairs.values() if row in entry["rows"]]
    return sum(here) / len(here)


def _aim(name: str, aim: str, measured: float, most: float, unit: str) -> str:
    short = "–" if measured <= most else f"{measured - most:.3g}{unit.partition(' below')[0]}"
    return f"| {name} | {aim} | {measured:.3g}{unit} | {short} |"


def diagnosis(path: Path) -> list[str]:
    """The section of what limits a learned barrier."""
    lines = [
        "## Where what is left sits",
        "",
        "Only one part is averaged, all other tensors are the anchor's, and the symmetries are learned anew for just that "
        "(text, or the models' predictions of images; few steps; `benchmarks/barrier/diagnose.py`): the excess of the midpoint over the mean of the endpoints, "
        "in nats, on examples held out from learning.",
        "",
        "| models | part | before learning | learned | steps |",
        "|---|---|---|---|---|",
    ]
    for pair, parts in json.loads(path.read_text()).items():
        lines += [
            f"| {pair} | {part} | {row['before_learning']:.3f} | {row['midpoint']:.3f} | {row['steps']} |"
            for part, row in sorted(parts.items(), key=lambda item: -item[1]["midpoint"])
        ]
    told = [f"{pair}: {_largest(parts)}" for pair, parts in json.loads(path.read_text()).items() if len(parts) > 1]
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


def main() -> None:
    """Write the page."""
    lines = [HEAD, *reach(sorted(RESULTS.glob("*.json")))]
    for path in sorted(RESULTS.glob("*.json")):
        if path.name == "many.json":
            lines += many(path)
        elif path.name == "cost.json":
            lines += cost(path)
        elif path.name == "diagnosis.json":
            lines += diagnosis(path)
        elif json.loads(path.read_text()).get("pairs"):
            lines += family(path)
    PAGE.write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()

"""The tables of docs/lab/performance.md, from what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "performance"
PAGE = ROOT / "docs" / "lab" / "performance.md"


def merging(found: dict[str, Any]) -> list[str]:
    """Against mergekit and `cp`."""
    lines = [
        f"Two fine-tunes of a random {found['parameters'] / 1e9:.2f}-billion-parameter Llama in bfloat16 (and "
        f"the base, for "
        f"`ties` at density 0.5), {found['threads']} threads, all rows in turns, inputs in the page cache, "
        f"machine of {found['cores']} "
        f"cores shared with others (load {_loads(found)}). Seconds are those of the whole command, median and "
        f"range; processor "
        "seconds are user and system; memory is the peak of anonymous memory.",
        "",
        "| method | command | runs | seconds | processor seconds | memory (MB) |",
        "|---|---|---|---|---|---|",
    ]
    for method, entry in found["methods"].items():
        for name, row in entry["summary"].items():
            seconds = f"{row['seconds']:.1f} ({row['range'][0]:.1f}–{row['range'][1]:.1f})"
            memory = f"{row['peak_anonymous_bytes'] / 1e6:.0f}"
            busy = f"{row['cpu_seconds']:.1f}"
            lines.append(f"| `{method}` | {name} | {row['runs']} | {seconds} | {busy} | {memory} |")
    lines += ["", "| method | ratio of seconds, run by run | median | range |", "|---|---|---|---|"]
    for method, entry in found["methods"].items():
        for name, r in entry["ratios"].items():
            said = f"isomerge's work / {name}" if name.startswith("cp") else f"{name} / isomerge"
            lines.append(f"| `{method}` | {said} | {r['median']:.1f} | {r['least']:.1f}–{r['most']:.1f} |")
    gaps = ", ".join(f"`{m}` {e['against_mergekit']['relative']:.1g}" for m, e in found["methods"].items())
    lines += [
        "",
        f"How far the outputs of the two tools differ, as a share of the norm: {gaps}. mergekit computes in "
        f"bfloat16, as the "
        "recipe's `dtype` says; isomerge computes in float32 and rounds once, when it writes.",
    ]
    return lines


def _loads(found: dict[str, Any]) -> str:
    loads = [load for entry in found["methods"].values() for run in entry["runs"] for load in run["load"]]
    return f"{min(loads):.1f} to {max(loads):.1f}"


def startup(found: dict[str, Any]) -> list[str]:
    """Against an empty interpreter."""
    lines = [
        f"Medians of {found['runs']} runs in turns.",
        "",
        "| command | ms (range) | times `python -c pass` |",
        "|---|---|---|",
    ]
    for name, row in found["rows"].items():
        low, high = (1000 * x for x in row["range"])
        lines.append(f"| `{name}` | {1000 * row['seconds']:.0f} ({low:.0f}–{high:.0f}) | {row['ratio']:.1f} |")
    return lines


def scaling(found: dict[str, Any]) -> list[str]:
    """Curves, one row each."""
    lines = [
        "Pairs of Llama-shaped models in bfloat16, a tenth of the weights' standard deviation apart (width "
        "1024, 4 layers, 16 heads "
        "where the row does not say otherwise), default spaces, one thread unless `-j` is said, one run each.",
        "",
        "| row | million parameters | seconds | processor seconds | memory (MB) | estimate of `--dry-run` (MB) |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        expected = row.get("dry_run", {}).get("memory")
        told = f"{expected / 1e6:.0f}" if expected else ""
        figures = (
            f"{row['seconds']:.1f} | {row['cpu_seconds']:.1f} | {row['peak_anonymous_bytes'] / 1e6:.0f} | {told}"
        )
        lines.append(f"| {name} | {row['parameters'] / 1e6:.0f} | {figures} |")
    return lines


def bounds(found: dict[str, Any]) -> list[str]:
    """What was allowed and what was taken."""
    lines = [
        "Pairs as above with the least `--max-memory` that is not refused, 64 texts of 64 random tokens where "
        "models are run, inside layers alone "
        "(but for `--spaces all`), one thread, one run each.",
        "",
        "| row | least bound (MB) | peak of anonymous memory (MB) | of the bound |",
        "|---|---|---|---|",
    ]
    for name, row in found.items():
        least, peak = row["least"], row["peak_anonymous_bytes"]
        lines.append(f"| {name} | {least / 1e6:.0f} | {peak / 1e6:.0f} | {peak / least:.0%} |")
    return lines


def split(found: dict[str, Any]) -> list[str]:
    """Parts of an aligned merge."""
    total = found["total"]
    lines = [
        f"The same pair aligned (default spaces) and merged in one thread: {total:.0f} processor seconds.",
        "",
        "| part | processor seconds | share |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {seconds:.1f} | {seconds / total:.0%} |" for name, seconds in found["parts"].items()]
    lines += [
        "",
        f"The first five are what no match can do without, {found['floor']:.1f} s: all of it takes "
        f"{total / found['floor']:.1f} times as long.",
    ]
    return lines


def methods(found: dict[str, Any]) -> list[str]:
    """Every method that needs no data."""
    sizes = {kind: f"{count / 1e9:.2f}" for kind, count in found["parameters"].items()}
    loads = [load for row in found["rows"].values() for load in row["load"]]
    lines = [
        f"Two fine-tunes of a random Llama in bfloat16 and their base, merged as they are (`--no-align`) by each "
        f"method's defaults, {found['threads']} threads, one run each, on a machine of {found['cores']} cores that "
        f"others used as well (load {min(loads):.1f} to {max(loads):.1f}): processor seconds count, and wall seconds "
        f"are an upper bound. Methods of whole matrices have a pair of {sizes['small']} billion parameters.",
        "",
        "| method | billion parameters | processor seconds | seconds | memory (MB) |",
        "|---|---|---|---|---|",
    ]
    for name, row in sorted(found["rows"].items(), key=lambda pair: (pair[1]["pair"], pair[1]["cpu_seconds"])):
        memory = f"{row['peak_anonymous_bytes'] / 1e6:.0f}"
        busy = f"stopped after {row['cpu_seconds']:.0f}" if row.get("stopped") else f"{row['cpu_seconds']:.0f}"
        lines.append(f"| `{name}` | {sizes[row['pair']]} | {busy} | {row['seconds']:.0f} | {memory} |")
    return lines


TABLES: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "startup": startup,
    "merging": merging,
    "methods": methods,
    "split": split,
    "scaling": scaling,
    "bounds": bounds,
}


def write_tables() -> None:
    """Replace what is between the marks of every table that was measured."""
    page = PAGE.read_text()
    for name, table in TABLES.items():
        file = RESULTS / f"{name}.json"
        marks = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        if not file.exists() or marks[0] not in page:
            continue
        before, rest = page.split(marks[0])
        body = "\n".join(table(json.loads(file.read_text())))
        page = f"{before}{marks[0]}\n{body}\n{marks[1]}{rest.split(marks[1])[1]}"
    PAGE.write_text(page)

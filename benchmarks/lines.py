"""What reviewers of the paper asked: the loss on the line between fine-tunes of one base (text, three pairs), and between a
model and its own matched copy, which computes the same.

    python -m benchmarks.lines      # after python -m benchmarks.situations, whose models and data it takes; a few minutes

Writes benchmarks/results/lines.json and the second table of docs/lab/situations.md.
"""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

import isomerge
from benchmarks.situations import DATA, PAGE, made, parts, tuned

RESULTS = Path(__file__).resolve().parent / "results" / "lines.json"
POINTS = 11
THIRDS = ("llama-0-third-1", "llama-0-third-2", "llama-0-third-3")


def line(name: str, one: str, two: str, **how: Any) -> dict[str, Any]:
    """The losses on a line, as stored and as matched."""
    report = isomerge.barrier(DATA / one, DATA / two, data=DATA / "test.safetensors", points=POINTS, **how)
    return {
        "name": name,
        "lines": [
            {"name": part["name"], "losses": part["losses"], "barrier": part["barrier"]["entezari"]}
            for part in report["lines"]
        ],
        "ensemble": report["ensemble"]["loss"],
    }


def prepare() -> None:
    """Three fine-tunes on a third of the text each, and a copy of one, matched onto another that was trained apart."""
    rows, _ = parts()
    for name, piece in zip(THIRDS, rows.chunk(3), strict=True):
        made(name, lambda out, piece=piece: tuned(piece, out))
    made("llama-1-matched", lambda out: matched("llama-1", "llama-0", out))


def matched(source: str, anchor: str, out: Path) -> None:
    """A model in the weights nearest to another's."""
    isomerge.align(DATA / source, onto=DATA / anchor, out=out)


def measure() -> list[dict[str, Any]]:
    """All lines."""
    rows = [
        line(f"fine-tunes {one[-1]} and {two[-1]}", one, two, spaces=["none", "all"])
        for one, two in combinations(THIRDS, 2)
    ]
    copy = ("llama-1", "llama-1-matched")
    rows.append(line("a model and its own matched copy", *copy, spaces=["none", "all"]))
    rows.append(line("the models trained apart, for comparison", "llama-0", "llama-1", spaces=["none", "all"]))
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The page's table."""
    lines = ["| line | | loss at the ends | in the middle | barrier |", "|---|---|---|---:|---:|"]
    for row in rows:
        for part in row["lines"]:
            ends = f"{part['losses'][0]:.4f}, {part['losses'][-1]:.4f}"
            middle = part["losses"][POINTS // 2]
            lines.append(f"| {row['name']} | {part['name']} | {ends} | {middle:.4f} | {part['barrier']:.4f} |")
    return "\n".join(lines)


def main() -> None:
    """Make what is missing, measure, write."""
    torch.set_num_threads(1)
    prepare()
    rows = measure()
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    begin, end = "<!-- lines: begin -->", "<!-- lines: end -->"
    text = PAGE.read_text()
    PAGE.write_text(re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n{table(rows)}\n{end}", text, flags=re.DOTALL))


if __name__ == "__main__":
    main()

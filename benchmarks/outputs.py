"""Does any symmetry move anything that a class of models returns? Every class of transformers that a spec covers,
tiny and random.

    python -m benchmarks.outputs                  # hours on one core; resumable
    python -m benchmarks.outputs --minutes 30     # what is not measured yet, for so long
    python -m benchmarks.outputs --part 0/2       # every second class, for two processes (each writes its own rows)

Each is made from the config of a toy of the tests, saved, and moved through the real writer by a random element of
all that may act with ``--spaces default``, and with ``--spaces all``. All that it returns by default is compared in
float64, and `verify` has to call the two the same. Writes results/outputs.json and the sentence about it in
docs/lab/residual.md. Classes that the toys' inputs do not suffice for, or that a spec refuses in words, are counted
by what was said.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

import isomerge
from isomerge.errors import IsomergeError
from isomerge.models.recognised import recognise

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "outputs.json"
PAGE = ROOT / "docs" / "lab" / "residual.md"
MARKS = "<!-- outputs: begin -->\n", "<!-- outputs: end -->"
ROUNDED = 1e-5
"""Of the largest number: what is left where a class computes norms or rotations in float32 whatever its weights
are."""


def measured(kind: Any, toy: str, config: Any, folder: Path) -> dict[str, Any]:
    """One class: what it returns, the largest change of any of it, and what `verify` says; or why it was not
    measured."""
    from archs.every_class import changes, everything, made

    def said(error: IsomergeError) -> str:
        return str(error).replace(str(folder), "")[:240]

    row: dict[str, Any] = {"type": config.model_type, "toy": toy}
    try:
        given = made(kind, config, folder / "in")
        old, again = everything(kind, folder / "in", given), everything(kind, folder / "in", given)
    except Exception as error:  # classes that ask for other inputs, or another config, say so in many ways
        return {**row, "left_out": f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:120]}"}
    try:
        recognise(folder / "in")
    except IsomergeError as error:
        return {**row, "refused": said(error)}
    if not old or any(not torch.equal(old[key], again[key]) for key in old):
        return {**row, "left_out": "it returns no tensors, or draws by chance"}
    row["returns"] = sorted(old)
    for spaces in ("default", "all"):
        try:
            apart = changes(kind, toy, folder / "in", given, spaces)
            same = isomerge.verify(folder / "in", folder / spaces)["same"]
        except IsomergeError as error:
            return {**row, "refused": said(error)}
        except Exception as error:
            return {**row, "failed": f"{spaces}: {type(error).__name__}: {str(error)[:200]}"}
        row[spaces] = {"change": float(f"{max(apart.values()):.2g}"), "same": same}
        if row[spaces]["change"] > ROUNDED:
            row[spaces]["moved"] = sorted(key for key, value in apart.items() if value > ROUNDED)
    return row


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Counts, and the classes of which something moved or `verify` called two the same model different."""
    run = {kind: row for kind, row in rows.items() if "all" in row}
    both = ("default", "all")
    return {
        "classes": len(rows),
        "measured": len(run),
        "model_types": len({row["type"] for row in run.values()}),
        "outputs": sum(len(row["returns"]) for row in run.values()),
        "returning_more_than_logits": sum(
            any("logits" not in name for name in row["returns"]) for row in run.values()
        ),
        "moved": sorted(k for k, row in run.items() if any("moved" in row[s] for s in both)),
        "called_different": sorted(k for k, row in run.items() if any(row[s]["same"] is False for s in both)),
        "cannot_tell": sorted(k for k, row in run.items() if any(row[s]["same"] is None for s in both)),
        "failed": sorted(kind for kind, row in rows.items() if "failed" in row),
        "refused": sorted(kind for kind, row in rows.items() if "refused" in row),
        "left_out": Counter(row["left_out"].partition(":")[0] for row in rows.values() if "left_out" in row),
        "largest_change": max((row[s]["change"] for row in run.values() for s in ("default", "all")), default=0.0),
    }


def sentence(told: dict[str, Any]) -> str:
    """What the page says."""
    wrong = told["moved"] + told["failed"]
    doubts = "".join(
        f", but for {', '.join(told[what])}, {words}"
        for what, words in (
            ("cannot_tell", "of which it cannot tell"),
            ("called_different", "which it calls different"),
        )
        if told[what]
    )
    return (
        f"Of {told['measured']} classes (of {told['planned']} that specs cover) of {told['model_types']} model "
        f"types, {told['outputs']} tensors in all, random elements of all that may act under "
        f"`--spaces default` and under `all` move "
        f"{'none' if not wrong else 'something of ' + ', '.join(wrong)}, and `verify` calls every pair the "
        f"same{doubts}; "
        f"{told['returning_more_than_logits']} of them return more than logits. The largest change is "
        f"{told['largest_change']:.1g} of the largest number (float32 "
        f"inside of some classes). {len(told['refused'])} more are refused in words, "
        f"{sum(told['left_out'].values())} ask for inputs that the tests do not have. "
        "Tiny random models in float64, through the writer (`python -m benchmarks.outputs`).\n"
    )


def write(rows: dict[str, dict[str, Any]], planned: int) -> None:
    """The results, and the sentence on the page."""
    told = {**summary(rows), "planned": planned}
    RESULTS.write_text(json.dumps({"summary": told, "classes": dict(sorted(rows.items()))}, indent=1) + "\n")
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(MARKS[0]) + len(MARKS[0]), text.index(MARKS[1])
    PAGE.write_text(text[:start] + sentence(told) + text[end:], encoding="utf-8")


def rows_of(part: Path) -> dict[str, dict[str, Any]]:
    """The rows of a part's log."""
    lines = part.read_text().splitlines() if part.exists() else []
    return {row.pop("class"): row for row in map(json.loads, lines)}


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--logs", type=Path, default=ROOT / "benchmarks" / "data" / "outputs")
    options = parser.parse_args()
    number, parts = map(int, options.part.split("/"))
    sys.path.insert(0, str(ROOT / "tests"))
    from archs.every_class import classes_of, every_config

    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    options.logs.mkdir(parents=True, exist_ok=True)
    log, until = options.logs / f"{number}.jsonl", time.monotonic() + 60 * options.minutes
    rows: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text())["classes"] if RESULTS.exists() else {}
    known = set(rows).union(*(rows_of(file) for file in options.logs.glob("*.jsonl")))
    cases = [(kind, toy, config) for toy, config in every_config().values() for kind in classes_of(config)]
    cases = list({case[0].__name__: case for case in cases}.values())
    # those that return more than predictions first
    cases.sort(
        key=lambda case: ("For" in case[0].__name__ and "Generation" not in case[0].__name__, case[0].__name__)
    )
    for kind, toy, config in cases[number::parts]:
        if kind.__name__ in known or time.monotonic() > until:
            continue
        with tempfile.TemporaryDirectory() as folder:
            row = measured(kind, toy, config, Path(folder))
        with log.open("a") as file:
            file.write(json.dumps({"class": kind.__name__, **row}) + "\n")
    for file in sorted(options.logs.glob("*.jsonl")):
        rows |= rows_of(file)
    write(rows, len(cases))
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()

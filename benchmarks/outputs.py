"""Does any symmetry move anything that a class of models returns? Every class of transformers that a spec covers,
tiny and random.

    python -m benchmarks.outputs                  # hours on one core; `--minutes 30` for so long, `--part 0/2` for two processes

Each is made from the config of a toy of the tests, saved, and moved through the real writer by a random element of
all that may act with ``--spaces default``, and with ``--spaces all``. All that it returns by default is compared in
float64, and `verify` has to call the two the same. Classes that the toys' inputs do not suffice for, or that a spec refuses in words, are counted
by what was said.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import torch

import isomerge
from benchmarks.harness import Benchmark, Cells, Section, quiet, reach_tests
from isomerge.errors import IsomergeError
from isomerge.models.recognised import recognise

ROUNDED = 1e-5
"""Of the largest number: what is left where a class computes norms or rotations in float32 whatever its weights
are."""


def measured(name: str) -> dict[str, Any]:
    """One class: what it returns, the largest change of any of it, and what `verify` says; or why it was not
    measured."""
    with tempfile.TemporaryDirectory() as folder:
        return measured_in(Path(folder), *cases()[name])


def measured_in(folder: Path, kind: Any, toy: str, config: Any) -> dict[str, Any]:
    """The same in a folder."""
    from archs.every_class import changes, everything, made

    def words(error: IsomergeError) -> str:
        return str(error).replace(str(folder), "")[:240]

    row: dict[str, Any] = {"type": config.model_type, "toy": toy}
    try:
        inputs = made(kind, config, folder / "in")
        old, again = everything(kind, folder / "in", inputs), everything(kind, folder / "in", inputs)
    except Exception as error:  # classes that ask for other inputs, or another config, say so in many ways
        return {**row, "left_out": f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:120]}"}
    try:
        recognise(folder / "in")
    except IsomergeError as error:
        return {**row, "refused": words(error)}
    if not old or any(not torch.equal(old[key], again[key]) for key in old):
        return {**row, "left_out": "it returns no tensors, or draws by chance"}
    row["returns"] = sorted(old)
    for spaces in ("default", "all"):
        try:
            apart = changes(kind, toy, folder / "in", inputs, spaces)
            same = isomerge.verify(folder / "in", folder / spaces)["same"]
        except IsomergeError as error:
            return {**row, "refused": words(error)}
        except Exception as error:
            return {**row, "failed": f"{spaces}: {type(error).__name__}: {str(error)[:200]}"}
        row[spaces] = {"change": float(f"{max(apart.values()):.2g}"), "same": same}
        if row[spaces]["change"] > ROUNDED:
            row[spaces]["moved"] = sorted(key for key, value in apart.items() if value > ROUNDED)
    return row


def summary(rows: dict[str, Any]) -> dict[str, Any]:
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


def sentence(cells: dict[str, Any]) -> str:
    counts = {**summary(cells), "planned": BENCHMARK.document()["summary"]["planned"]}
    wrong = counts["moved"] + counts["failed"]
    doubts = "".join(
        f", but for {', '.join(counts[what])}, {words}"
        for what, words in (
            ("cannot_tell", "of which it cannot tell"),
            ("called_different", "which it calls different"),
        )
        if counts[what]
    )
    return (
        f"Of {counts['measured']} classes (of {counts['planned']} that specs cover) of {counts['model_types']} model "
        f"types, {counts['outputs']} tensors in all, random elements of all that may act under "
        f"`--spaces default` and under `all` move "
        f"{'none' if not wrong else 'something of ' + ', '.join(wrong)}, and `verify` calls every pair the "
        f"same{doubts}; "
        f"{counts['returning_more_than_logits']} of them return more than logits. The largest change is "
        f"{counts['largest_change']:.1g} of the largest number (float32 "
        f"inside of some classes). {len(counts['refused'])} more are refused in words, "
        f"{sum(counts['left_out'].values())} ask for inputs that the tests do not have. "
        "Tiny random models in float64, through the writer (`python -m benchmarks.outputs`)."
    )


@cache
def cases() -> dict[str, tuple[Any, str, Any]]:
    """Every class with its toy and config, by name; those that return more than predictions first."""
    reach_tests()
    from archs.every_class import classes_of, every_config

    classes = [(kind, toy, config) for toy, config in every_config().values() for kind in classes_of(config)]
    named = {case[0].__name__: case for case in classes}
    return dict(sorted(named.items(), key=lambda case: ("For" in case[0] and "Generation" not in case[0], case[0])))


def cells(asked: argparse.Namespace) -> Cells:
    return {name: {"name": name} for name in cases()}


BENCHMARK = Benchmark(
    "outputs", cells, measured, inside="classes",
    about=lambda rows: {"summary": {**summary(rows), "planned": len(cases())}},
    sections=(Section("lab/residual.md", "outputs", sentence),),
)  # fmt: skip

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    quiet()
    BENCHMARK.main()

"""Table 2: two ViTs of different seeds merged by six methods, over six ways to match them, and two methods of ours.

    python -m benchmarks.paper.vision.table2 [COLUMN ...]

Loss (nats) and accuracy on the test images; cells `ROW/COLUMN/PAIR`, and `endpoints/PAIR`, `ensemble/PAIR`. Writes
`benchmarks/results/paper/table2.json`; measured cells are kept.
"""

from __future__ import annotations

import itertools
import sys
import time
from dataclasses import asdict

from benchmarks.paper.results import Results
from benchmarks.paper.vision.endpoints import (
    BATCH,
    ENDPOINTS,
    PAIRS,
    RESULTS,
    TEST,
    ends,
    examples,
    measured,
    prepare,
)
from benchmarks.paper.vision.fusions import OUR_ROWS, PAPER_ROWS, SETTINGS, merged
from benchmarks.paper.vision.matching import MATCHINGS, aligned, portable
from isomerge.evidence.barrier import ensemble
from isomerge.observe.live.modules import load_module

COLUMNS = ("none", "paper-no-rescale", "paper", "all", "activations", "learned")


def table() -> Results:
    """The cells."""
    matchings = {name: portable(MATCHINGS[name]) for name in COLUMNS}
    return Results(RESULTS / "table2.json", {**ENDPOINTS, **SETTINGS, "matchings": matchings})


def run(found: Results, pair: str) -> None:
    """The models of a pair themselves."""
    anchor, source = ends(pair)
    if not found.has(f"endpoints/{pair}"):
        found.put(f"endpoints/{pair}", [measured(anchor), measured(source)])
    if not found.has(f"ensemble/{pair}"):
        together = ensemble([load_module(anchor), load_module(source)], examples(TEST), BATCH)
        found.put(f"ensemble/{pair}", {k: asdict(together)[k] for k in ("loss", "accuracy")})


def main() -> None:
    """Measure what is missing, column by column."""
    prepare()
    found = table()
    for pair in PAIRS:
        run(found, pair)
    columns = sys.argv[1:] or COLUMNS
    for rows in (PAPER_ROWS, OUR_ROWS):
        for column, pair, row in itertools.product(columns, PAIRS, rows):
            if found.has(key := f"{row}/{column}/{pair}"):
                continue
            source, began = aligned(column, pair), time.perf_counter()
            cell = merged(row, ends(pair)[0], source)
            found.put(key, {**cell, "seconds": round(time.perf_counter() - began, 2)})
            print(f"{key:32s} {100 * cell['accuracy']:6.2f} %  {cell['loss']:.3f} nats", flush=True)


if __name__ == "__main__":
    main()

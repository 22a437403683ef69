"""What the paper's reviewers asked, on the ViTs: the classifier, the joint optimum, general linear maps.

    python -m benchmarks.paper.vision.reviewers

Cells of `benchmarks/results/paper/reviewers.json`: `classifier/HEADS/MATCHING/PAIR` (the head averaged, the
anchor's, or the matched source's) and `optimum/MATCHING/PAIR` (heads moved by rotations, by rotations and one
factor one after the other, by both together, or by any invertible map; FFN as stored).
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.paper.results import Results
from benchmarks.paper.vision.endpoints import ENDPOINTS, PAIRS, RESULTS, ends, prepare
from benchmarks.paper.vision.fusions import merged
from benchmarks.paper.vision.matching import aligned

HEADS = {"average": "averaged", "copy": "the anchor's", "keep:2": "the matched source's"}
MATCHINGS = ("none", "paper", "all", "activations", "learned")
OPTIMA = {
    "none": "no matching",
    "rotations": "rotations (the paper without rescaling)",
    "paper-attention": "rotations, then rescaling (the paper, Eq. 12)",
    "joint-attention": "rotations and rescaling together (certified optimum)",
    "linear": "invertible maps (GL)",
}


def cells() -> Results:
    """Every merge by the mean."""
    return Results(RESULTS / "reviewers.json", ENDPOINTS)


def main() -> None:
    """Measure what is missing."""
    prepare()
    found = cells()
    asked: list[tuple[str, str, dict[str, Any]]] = [
        (f"classifier/{heads}/{name}", name, {"heads": heads}) for heads in HEADS for name in MATCHINGS
    ]
    asked += [(f"optimum/{name}", name, {}) for name in OPTIMA]
    for what, name, more in asked:
        for pair in PAIRS:
            source = aligned(name, pair)
            if found.has(key := f"{what}/{pair}"):
                continue
            began = time.perf_counter()
            cell = merged("simple", ends(pair)[0], source, **more)
            found.put(key, {**cell, "seconds": round(time.perf_counter() - began, 2)})
            print(f"{key:40s} {100 * cell['accuracy']:6.2f} %  {cell['loss']:.3f} nats", flush=True)


if __name__ == "__main__":
    main()

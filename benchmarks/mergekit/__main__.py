"""The same recipes through mergekit 0.1.5 and through isomerge: the largest difference of any weight.

    python -m benchmarks.mergekit                           # what is missing: recipes, modules, mixtures of experts
    python -m benchmarks.mergekit --only 'mergekit/bert*'   # `mergekit` is all methods; also `mergekit-modules`, `mergekit-moe`

mergekit runs in a virtual environment of its own, made on the first run (benchmarks/data/mergekit-env).
"""

from __future__ import annotations

import os

from benchmarks.harness import main, quiet
from benchmarks.mergekit import experts, methods, modules

BENCHMARKS = (methods.BENCHMARK, modules.BENCHMARK, experts.BENCHMARK)

if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    quiet()
    main(*BENCHMARKS, about=__doc__)

"""Speed and memory: all measurements, and the tables of docs/lab/performance.md (Linux; an hour on two quiet cores).

    python -m benchmarks.performance                       # what is missing
    python -m benchmarks.performance --only 'startup/*'    # one kind anew
    python -m benchmarks.performance --only 'startup/*' 'alignment/roberta-base*memory' --check    # against what is committed
    python -m benchmarks.performance --page                # the tables alone, from the results that there are

Every row is a process of its own: none pays for the memory of another. `--large` adds a pair of so many billions.
"""

from __future__ import annotations

from benchmarks.harness import main, quiet
from benchmarks.performance import alignment, bounds, merging, methods, scaling, split, startup

BENCHMARKS = tuple(part.BENCHMARK for part in (startup, alignment, merging, methods, split, scaling, bounds))

if __name__ == "__main__":
    quiet()
    main(*BENCHMARKS, about=__doc__)

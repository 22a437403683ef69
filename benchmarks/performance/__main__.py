"""All measurements of speed and memory, one after the other, and the tables of docs/lab/performance.md.

python -m benchmarks.performance               # an hour on two quiet cores
python -m benchmarks.performance --tables      # the tables alone, from the results that there are
"""

from __future__ import annotations

import subprocess
import sys

from benchmarks.performance.tables import write_tables

MODULES = ("startup", "alignment", "merging", "methods", "split", "scaling")


def main() -> None:
    """Each in a process of its own: none pays for the memory of another."""
    if "--tables" not in sys.argv[1:]:
        for module in MODULES:
            subprocess.run([sys.executable, "-m", f"benchmarks.performance.{module}"], check=True)
    write_tables()


if __name__ == "__main__":
    main()

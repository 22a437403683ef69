"""All committed results of the barrier benchmarks: what is missing is trained and measured, and
docs/lab/measured-barriers.md written.

    python -m benchmarks.barrier                        # everything that is missing, one core; from nothing many hours
    python -m benchmarks.barrier llama-width-512 cost   # some files of results
    python -m benchmarks.barrier --list                 # every file, whether it is complete, its commands and hours

Resumable: models that are trained and rows that are measured are kept. To measure a file of results again, remove
it from ``benchmarks/results/barrier`` first; `git diff` then shows what differs.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from benchmarks.barrier.measurements import MEASUREMENTS, Measurement, Model

HERE = Path(__file__).resolve().parent


def run(*command: str) -> None:
    """A script of this folder in a process of its own, one thread."""
    print(shlex.join(command), flush=True)
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    subprocess.run([sys.executable, str(HERE / command[0]), *command[1:]], check=True, env=environment)


def training(model: Model) -> tuple[str, ...]:
    """The command that trains a model; it does nothing where that is there."""
    family, seed, width, half = model
    options = {"--seed": seed, "--width": width, "--half": half}
    return ("train.py", family, *(word for name, n in options.items() if n is not None for word in (name, str(n))))


def listed(measurement: Measurement) -> str:
    """A file of results and how it is made."""
    missing = len(measurement.missing())
    state = f"{missing} of {len(measurement.keys)} figures missing" if missing else "complete"
    told = f"{measurement.name}: {state}, {measurement.seconds() / 3600:.1f} hours of matching"
    return "\n".join([told, *(f"    {shlex.join(command)}" for command in measurement.commands)])


def main() -> None:
    """Train and measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = {measurement.name: measurement for measurement in MEASUREMENTS}
    parser.add_argument("results", nargs="*", help=f"all, or some of {', '.join(names)}")
    parser.add_argument("--list", action="store_true", help="print what there is and run nothing")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.results if name not in names]:
        parser.error(f"{', '.join(unknown)}: no results of that name, choose from {', '.join(names)}")
    for measurement in [names[name] for name in arguments.results] or MEASUREMENTS:
        if arguments.list:
            print(listed(measurement))
        elif measurement.missing():
            for model in measurement.models:
                run(*training(model))
            for command in measurement.commands:
                run(*command)
        else:
            print(f"{measurement.name}: complete", flush=True)
    if not arguments.list:
        run("tables.py")


if __name__ == "__main__":
    main()

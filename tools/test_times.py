"""Writes tests/times.json: the tests that take more than `make test` allows, with their processor seconds.

    python tools/test_times.py                  # runs every test, two at a time
    python tools/test_times.py --only PATH...   # these files or folders again; all other entries stay
    python tools/test_times.py --from FILE...   # what `pytest --record-times FOLDER` wrote
    python tools/test_times.py --check          # writes nothing; fails where a listed test is no more

Which test is in which tier follows from this list alone (tests/tiers.py). Entries of tests that are no more are
dropped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from tiers import END_TO_END, LIMIT, gone, read_times, write_times  # noqa: E402


def pytest(*arguments: str, capture: bool = False) -> subprocess.CompletedProcess[str]:
    """A run of pytest on one thread per process."""
    env = {name: value for name, value in os.environ.items() if name != "ISOMERGE_ALL_TOYS"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env=env | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE if capture else None,
        text=True,
        check=False,
    )


def collected() -> list[str]:
    """The ids of all tests."""
    run = pytest("-o", "addopts=", "--collect-only", "-q", capture=True)
    if run.returncode:
        sys.exit(f"pytest cannot collect the tests:\n{run.stdout}")
    return [line for line in run.stdout.splitlines() if "::" in line]


def read_records(files: Iterable[Path]) -> dict[str, dict[str, float]]:
    """By test: seconds of its setup, its call (the lesser of two, where it ran twice) and its teardown."""
    return dict(json.loads(line) for file in files for line in file.read_text().splitlines())


def measured(paths: list[str], jobs: int) -> dict[str, dict[str, float]]:
    """The records of a run of the tests, or of those below some paths."""
    with tempfile.TemporaryDirectory() as folder:
        run = pytest("-n", str(jobs), "--cheap-outputs", "--record-times", folder, *paths)
        if run.returncode:
            print(
                f"pytest ended with {run.returncode}: times of tests that failed may be too small", file=sys.stderr
            )
        return read_records(sorted(Path(folder).glob("*.jsonl")))


def table(records: dict[str, dict[str, float]], slow: Iterable[str]) -> str:
    """Tests and processor seconds by tier."""
    names, lines = set(slow), []
    for tier, nodes in (
        ("make test", [n for n in records if n not in names or n in END_TO_END]),
        ("make test-slow", [n for n in records if n in names and n not in END_TO_END]),
    ):
        spent = {phase: sum(records[n][phase] for n in nodes) for phase in ("setup", "call", "teardown")}
        cold = sum(records[n].get("cold", records[n]["call"]) for n in nodes) + spent["setup"] + spent["teardown"]
        lines.append(f"{tier:15} {len(nodes):6} tests {sum(spent.values()):7.0f} s warm {cold:7.0f} s as they came")
    return "\n".join(lines)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="PATH")
    parser.add_argument("--from", nargs="+", default=[], type=Path, dest="files", metavar="FILE")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    times = read_times()
    if asked.check:
        lost = gone([*times, *END_TO_END], collected(), everywhere=True)
        sys.exit("\n".join(f"{node}: listed, and no test" for node in lost) or 0)
    records = read_records(asked.files) if asked.files else measured(asked.only, asked.jobs)
    times |= {node: seconds["call"] for node, seconds in records.items()}
    cheap = {node for node, seconds in records.items() if seconds["call"] <= LIMIT}  # what is listed is rounded
    dropped = {*cheap, *gone(times, collected(), everywhere=True)}
    times = {node: seconds for node, seconds in times.items() if node not in dropped}
    write_times(times)
    print(table(records, times))


if __name__ == "__main__":
    main()

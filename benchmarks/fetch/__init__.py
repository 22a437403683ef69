"""Real data and checkpoints that packages ship: `python -m benchmarks.fetch --help`."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
"""Where data, and what benchmarks train, is kept; ignored by git."""


def fetch(*names: str) -> None:
    """Bring these entries of `benchmarks.fetch.table` into `DATA`; what is there is kept.

    Raises:
        FetchError: a sentence that says what is missing.
    """
    from benchmarks.fetch.table import TABLE

    for name in names:
        for folder in TABLE[name].fetch(DATA):
            print(f"{folder}: from {TABLE[name].source.package}", flush=True)

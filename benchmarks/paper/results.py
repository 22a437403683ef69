"""A JSON file of measured cells: a benchmark that was stopped goes on with the cells it lacks.

The file is `{"settings": {...}, "versions": {...}, "cells": {key: value}}`. It is written beside and renamed after
every cell, so it is whole at any moment. A key is a string of the caller's making, such as
`vader/regmean/paper/movie+tweets/seed-0`.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PACKAGES = ("isomerge", "torch", "transformers", "numpy", "scipy", "scikit-learn", "pot")


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


class Results:
    """The cells of one table or figure.

    Args:
        path: the JSON file; made with the first cell.
        settings: what all cells were measured with. A file of other settings is refused: its cells do not compare.
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any]):
        self.path = Path(path)
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        self.cells: dict[str, Any] = self._stored()

    def _stored(self) -> dict[str, Any]:
        """The cells on disk; those that another process wrote meanwhile are among them."""
        if not self.path.is_file():
            return {}
        stored = json.loads(self.path.read_text())
        other = {k for k in stored["settings"] | self.settings if stored["settings"].get(k) != self.settings.get(k)}
        if other:
            sys.exit(
                f"{self.path}: measured with another {', '.join(sorted(other))}; move the file away, or measure "
                f"as it was"
            )
        return stored["cells"]

    def has(self, key: str) -> bool:
        """Whether a cell was measured."""
        return key in self.cells

    def get(self, key: str, default: Any = None) -> Any:
        """A cell, or `default` where it was not measured."""
        return self.cells.get(key, default)

    def put(self, key: str, value: Any) -> None:
        """Add a cell and write the file, beside and renamed."""
        self.cells = {**self._stored(), key: json.loads(json.dumps(value))}
        whole = {"settings": self.settings, "versions": versions(), "cells": self.cells}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        beside.write_text(json.dumps(whole, indent=1) + "\n")
        beside.replace(self.path)


def mean_spread(values: Iterable[float]) -> tuple[float, float]:
    """The mean and the sample standard deviation (0 for one value)."""
    found = [float(value) for value in values]
    return statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else 0.0

"""Print the requirements of dependency groups of pyproject.toml (``dev`` by default), for older pips."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

if __name__ == "__main__":
    groups = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["dependency-groups"]
    print(*(requirement for name in sys.argv[1:] or ["dev"] for requirement in groups[name]))

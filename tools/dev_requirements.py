"""Print the development requirements of pyproject.toml, for pips that do not know dependency groups."""

from __future__ import annotations

import tomllib
from pathlib import Path

if __name__ == "__main__":
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    print(*project["dependency-groups"]["dev"])

"""The files of the package, each parsed once for all tests that read source."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

import isomerge

ROOT = Path(isomerge.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


@cache
def _trees() -> dict[Path, tuple[ast.AST, ...]]:
    """The nodes of every file's syntax tree."""
    gc.disable()  # which would look again and again at 700,000 nodes that stay: two thirds of the time
    try:
        return {path: tuple(ast.walk(ast.parse(path.read_text()))) for path in FILES}
    finally:
        gc.freeze()
        gc.enable()


def nodes(path: Path) -> tuple[ast.AST, ...]:
    """The nodes of a file's syntax tree, the module first."""
    return _trees()[path]


def relative_name(path: Path) -> str:
    """A file's name within the package."""
    return str(path.relative_to(ROOT))

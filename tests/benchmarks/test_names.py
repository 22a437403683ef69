"""What benchmarks, tools and examples import of isomerge is where they look for it: nobody runs them all."""

from __future__ import annotations

import ast
from pathlib import Path

from sources import ROOT as PACKAGE

ROOT = PACKAGE.parents[1]


def _named(tree: ast.Module) -> set[str]:
    """What a module defines or imports, at any depth."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def lacking(text: str) -> list[str]:
    """What a source imports from modules of isomerge that do not have it."""
    lacks = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("isomerge."):
            continue
        path = ROOT / "src" / Path(*str(node.module).split("."))
        files = [path.with_suffix(".py"), path / "__init__.py"]
        named = set[str]().union(*(_named(ast.parse(file.read_text())) for file in files if file.is_file()))
        beside = {p.stem for p in path.glob("*")} if path.is_dir() else set[str]()
        lacks += [
            f"{node.module}.{a.name}"
            for a in node.names
            if a.name not in named | beside and "__getattr__" not in named
        ]
    return lacks


def test_what_is_imported_is_there() -> None:
    """`map_private` had moved to another module, and a benchmark looked for it where it had been."""
    assert lacking("from isomerge.checkpoint.disk import map_private") == ["isomerge.checkpoint.disk.map_private"]
    folders = ("benchmarks", "tools", "examples", "docs")
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 20
    assert {str(file): names for file in files if (names := lacking(file.read_text()))} == {}

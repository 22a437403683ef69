"""The notebooks of the guide run from their first cell to their last, and have no outputs of some other run."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from depth import more
from docs.markdown import DOCS, ROOT

NOTEBOOKS = sorted((DOCS / "guide").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook."""
    return json.loads(path.read_text())["cells"]


def run(path: Path, names: dict[str, Any]) -> None:
    """Run its code as a notebook does: in one namespace, what the last line of a cell gives is shown."""
    for number, cell in enumerate(cells(path)):
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, f"{path.name}, cell {number}", "exec"), names)
            if isinstance(last, ast.Expr):
                shown = eval(compile(ast.Expression(last.value), f"{path.name}, cell {number}", "eval"), names)
                rich = getattr(shown, "_repr_html_", None)
                assert isinstance(repr(shown), str)
                assert rich is None or rich()


def merged_in_python(names: dict[str, Any]) -> None:
    """What the first one says."""
    assert names["losses"]["merge"] < names["losses"]["plain average"]
    assert type(names["merged"]) is type(names["a"])
    assert names["same"]["same"] is True
    assert names["said"].startswith("merge(..., limit=0)")
    assert Path("merged-digits/model.safetensors").is_file()


def own_module(names: dict[str, Any]) -> None:
    """What the second one says."""
    assert names["proof"]["proven"]
    assert type(names["merged"]) is names["Reader"]
    assert names["losses"]["merge"] < names["losses"]["plain average"]
    assert names["same"] == [True, False]
    assert names["gap"] < 1e-4


SAYS = {"merge-in-python": merged_in_python, "own-module": own_module}


@pytest.mark.parametrize("name", ["own-module", *more("merge-in-python")])
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder; learning is cut to a few steps, as on pages."""
    from isomerge.solve.learn import settings as learning

    monkeypatch.setattr(learning, "EFFORTS", {"quick": 4, "thorough": 5})
    monkeypatch.setenv("ISOMERGE_CACHE", str(tmp_path / "answers"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__notebook__"}
    run(DOCS / "guide" / f"{name}.ipynb", names)
    SAYS[name](names)


def test_notebooks_are_found() -> None:
    """Both, from the index and from the README."""
    assert {path.stem for path in NOTEBOOKS} == SAYS.keys()
    index, readme = (DOCS / "index.md").read_text(), (ROOT / "README.md").read_text()
    for path in NOTEBOOKS:
        assert f"guide/{path.name})" in index
        assert f"docs/guide/{path.name})" in readme


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nothing_is_left_of_a_run(path: Path) -> None:
    """No outputs, no numbers; lines that fit."""
    for cell in cells(path):
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert max(len(line.rstrip("\n")) for line in cell["source"]) <= 150

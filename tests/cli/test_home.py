"""Paths that no shell has read, and tables on narrow terminals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import isomerge as api


def test_home_is_found_in_every_path(
    stored: Callable, isomerge: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are read and written may begin with ``~``, as models may: nothing expands it in
    ``--json=~/file``."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    a, b = stored("bert", 0), stored("bert", 5)
    said = isomerge("align", b, "--onto", a, "-o", "~/moved", "--save-alignment", "~/patch", "--json=~/report.json")
    assert said.code == 0, said.err
    assert isomerge("apply", "~/patch", b, "-o", "~/again").code == 0
    assert isomerge("fingerprint", a, "-o", "~/print.json").code == 0
    (tmp_path / "recipe.yml").write_text(f"models: [{{model: {a}}}, {{model: {b}}}]\nmerge_method: linear\n")
    assert isomerge("merge", "~/recipe.yml", "~/merged", "--dry-run").code == 0
    api.apply("~/patch", b, out="~/live")
    made = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert made == {"elsewhere", "moved", "patch", "report.json", "again", "live", "print.json", "recipe.yml"}
    assert not list((tmp_path / "elsewhere").iterdir())


def test_one_folder_is_no_recipe(stored: Callable, tmp_path: Path) -> None:
    """A model alone is told from a recipe that cannot be read."""
    with pytest.raises(api.IsomergeError, match="is a folder: merge needs at least two models"):
        api.merge(str(stored("bert", 0)), out=tmp_path / "out")


def test_tables_are_never_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers stay whole where the terminal is narrow, and where there is none; what is the same in a row of its own
    is printed once."""
    from isomerge.cli.console import Voice

    monkeypatch.setenv("COLUMNS", "20")
    Voice().table(["a name", "group", "number"], [["first of all", "SignedPerm(4096)", "123.456789"]] * 2)
    head, row = capsys.readouterr().out.splitlines()
    assert row.split("  ") == ["first of all", "SignedPerm(4096)", "123.456789"]
    assert head.split() == ["a", "name", "group", "number"]

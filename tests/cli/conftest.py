"""Fixtures of the command line's tests: the program in-process, and small models to give it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from progress_lines import without_progress


@dataclass(frozen=True)
class Said:
    """What one run of the program did."""

    code: int
    out: str
    err: str


@pytest.fixture
def isomerge(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """``isomerge("merge", a, b, "-o", out)``: the entry point with these arguments; exit code, stdout, stderr."""
    from isomerge.cli.app import main

    def run(*arguments: object) -> Said:
        monkeypatch.setattr("sys.argv", ["isomerge", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "160")
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = 0 if stop.code is None else int(stop.code)
        captured = capsys.readouterr()
        return Said(code, captured.out, without_progress(captured.err))

    return run


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """``stored("gpt2", 5)``: a saved float32 toy, made once; read only."""
    from solve.disguises import single

    made: dict[tuple[str, int], Path] = {}

    def make(name: str, seed: int = 0) -> Path:
        if (name, seed) not in made:
            made[name, seed] = single(name, tmp_path_factory.mktemp("stored") / f"{name}-{seed}", seed)
        return made[name, seed]

    return make


@pytest.fixture
def copies(stored: Callable[[str, int], Path], tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """``copies("gpt2")``: two unrelated toys at tmp_path / "a" and "b", to be damaged."""

    def make(name: str = "gpt2") -> tuple[Path, Path]:
        return tuple(Path(shutil.copytree(stored(name, s), tmp_path / t)) for t, s in (("a", 0), ("b", 5)))

    return make


@pytest.fixture
def refuses(isomerge: Callable, tmp_path: Path) -> Callable[..., str]:
    """Runs a command that must refuse; what it said."""

    def run(*arguments: object, words: list[str]) -> str:
        before = sorted(tmp_path.rglob("*"))
        said = isomerge(*arguments)
        assert (said.code, said.out) == (2, "")
        assert len(said.err.splitlines()) == 1
        assert said.err.startswith("isomerge: ")
        assert said.err.rstrip("\n").isprintable()
        assert [word for word in words if word not in said.err] == [], said.err
        assert sorted(tmp_path.rglob("*")) == before
        return said.err

    return run

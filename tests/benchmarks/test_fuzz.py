"""The fuzzer itself: its inputs are repeatable and differ, and its judge sees every kind of fault."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from benchmarks.fuzz import sandbox
from benchmarks.fuzz.mutations import mutate_body, mutate_bytes, mutate_header, mutate_json, mutate_recipe
from benchmarks.fuzz.sandbox import run_one
from benchmarks.fuzz.subjects import RECIPE, SUBJECTS, Subject, make_inputs
from raw_files import entry, raw_safetensors

FILE = raw_safetensors({"a": entry("F32", [4], 0, 16)}, bytes(16))
SOUND = {
    mutate_bytes: FILE,
    mutate_header: FILE,
    mutate_body: FILE,
    mutate_json: b'{"a": [1, {"b": "c"}]}',
    mutate_recipe: RECIPE.encode(),
}


@pytest.mark.parametrize("mutate", SOUND, ids=lambda m: m.__name__)
def test_mutations(mutate: Callable[[bytes, Random], bytes]) -> None:
    """A seed gives the same bytes again, and most seeds give other bytes."""
    found = set()
    for seed in range(60):
        one = sandbox._mutated(Subject("", mutate, ()), SOUND[mutate], Random(seed))
        assert one == sandbox._mutated(Subject("", mutate, ()), SOUND[mutate], Random(seed))
        found.add(one)
    assert len(found - {SOUND[mutate]}) > 20


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("fuzz") / "inputs")


@pytest.fixture
def judged(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], str]:
    """What the judge calls a program that does this."""
    sys.addaudithook(sandbox._audit)
    monkeypatch.chdir(tmp_path)

    def run(program: Callable[[], None]) -> str:
        monkeypatch.setattr("isomerge.cli.app.main", program)
        return run_one(inputs, tmp_path / "box", 0, 0, list(SUBJECTS)).outcome

    return run


def stop(said: str, code: int = 2) -> None:
    sys.stderr.write(said)
    raise SystemExit(code)


def leave(path: str) -> None:
    Path(path).write_text("x")
    stop("isomerge: no\n")


def append(path: str) -> None:
    with open(path, "a") as stream:
        stream.write("x")


PROGRAMS: dict[str, tuple[Callable[[], None], str]] = {
    "answers": (lambda: None, "accepted"),
    "refuses": (lambda: stop("isomerge: no\n"), "refused"),
    "raises": (lambda: [][0], "crash"),
    "says nothing": (lambda: stop(""), "not one sentence"),
    "says two lines": (lambda: stop("isomerge: a\nb\n"), "not one sentence"),
    "steers the terminal": (lambda: stop("isomerge: \x1b[2J\n"), "not one sentence"),
    "leaves a file": (lambda: leave("left"), "partial output"),
    "leaves an output": (lambda: leave("out"), "partial output"),
    "writes outside": (lambda: leave("../outside"), "file outside"),
    "removes outside": (lambda: (append("../x"), os.remove("../x")), "file outside"),  # type: ignore[dict-item]
    "changes an input": (lambda: append("b/config.json"), "input changed"),
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_the_judge(kind: str, judged: Callable[[Callable[[], None]], str]) -> None:
    """Programs with one fault each."""
    program, outcome = PROGRAMS[kind]
    assert judged(program) == outcome


def test_a_few_inputs(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of every kind through the program itself; kinds have sound inputs, so some are accepted."""
    monkeypatch.chdir(tmp_path)
    kinds = [kind for kind in SUBJECTS if kind != "fingerprint"]
    found = [run_one(inputs, tmp_path / "box", number, 3, kinds) for number in range(2 * len(kinds))]
    assert [v for v in found if v.outcome not in ("accepted", "refused")] == []
    assert {v.outcome for v in found} == {"accepted", "refused"}

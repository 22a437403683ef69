"""Models that differ by what may be added for nothing stand in other places, and come back."""

from __future__ import annotations

from pathlib import Path

import pytest

import isomerge
from isomerge.models.recognised import recognise
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from isomerge.symmetry.norm_stage import CARRY, FOLD
from solve.disguises import single
from symmetry.twins import Moves, of_norms, of_spaces

MOVED: dict[str, tuple[str, Moves]] = {
    "words and types": ("bert-relu", of_spaces("wt")),
    "positions and types": ("bert", of_spaces("pt")),
    "keys' biases": ("bert", of_spaces("kb")),
    "values' biases, which outputs pay for": ("gpt2-untied", of_spaces("vb")),
    "distances of T5's first layer": ("t5-gated", of_spaces("db")),
    "norms' biases, which readers pay for": ("bert", of_norms(FOLD, size=0.3)),
    "a constant that several layers share": ("deberta-shared", of_norms(CARRY, size=0.3)),
}


@pytest.mark.parametrize("case", MOVED)
def test_what_was_added_is_taken_back(case: str, tmp_path: Path) -> None:
    """By default: such a model is not called aligned. Where `settled`, `is_disguised` or `standing` looks at no
    additions, it is left as it is."""
    name, moves = MOVED[case]
    model = recognise(single(name, tmp_path / "a"))
    run_apply(moves(model), model, Output(tmp_path / "moved"))
    _, report = isomerge.align(tmp_path / "moved", onto=tmp_path / "a", out=tmp_path / "back")
    distance = report["distance"]
    assert not report["verdict"]["pairs"][0]["left_as_it_is"]
    assert distance["after"] <= 1e-5 * distance["before"]

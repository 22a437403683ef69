"""What LayerNorm is said to leave free changes no output, of any toy: towers whose stream something else reads too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from depth import more
from families import TOYS
from isomerge.models.layer_norm_form import layer_norm_form
from isomerge.models.recognised import recognise
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from symmetry.twins import free_moves
from toys import Toy, outputs, relative

READ_OTHERWISE = ["llava", "aya_vision"]


@pytest.mark.parametrize("name", [*READ_OTHERWISE, *more(*(name for name in TOYS if name not in READ_OTHERWISE))])
def test_free_moves_change_no_output(name: str, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Random moves of all of it, through disk; a model of which nothing is free has no form of its own."""
    first = toy(name)
    model = recognise(first.folder)
    moves = free_moves(model)
    if not moves.elements:
        assert not layer_norm_form(model)
        return
    run_apply(moves, model, Output(tmp_path / "moved"))
    assert relative(outputs(tmp_path / "moved"), first.reference) < 1e-4  # the moves are large

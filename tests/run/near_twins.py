"""Near-twins: a model moved by symmetries, in which one tensor did not follow the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import isomerge
from isomerge.models.recognised import Model, recognise
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from isomerge.symmetry.alignment import Alignment
from toys import Toy, overwrite, tensors


def near_twin(first: Toy, moves: Callable[[Model], Alignment], left: str, out: Path) -> Path:
    """The toy after some moves, but for one block."""
    model = recognise(first.folder)
    run_apply(moves(model), model, Output(out))
    stored = model.names[left]
    overwrite(out, {**tensors(out), stored: first.stored[stored]})
    return out


def assert_told(one: Path, two: Path) -> None:
    """`verify` and fingerprints call two models different."""
    assert isomerge.verify(one, two)["same"] is False
    assert isomerge.fingerprint(one).hash != isomerge.fingerprint(two).hash

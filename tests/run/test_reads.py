"""Passes over the residual stream read every tensor of both models once per sweep, when nothing is kept between
sweeps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from isomerge.models.recognised import Model, recognise, working_dtype
from isomerge.models.unit_plan import make_plan
from isomerge.solve.pairs import stream_descent as streams
from isomerge.solve.pairs.pair import PairSolver
from solve.disguises import single, turn


@pytest.mark.parametrize("name", ["gpt2-untied", "bert"])
def test_a_sweep_reads_every_tensor_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted where tensors are read; with room to keep them, a second sweep reads nothing."""
    a = recognise(single(name, tmp_path / "a"))
    b = recognise(turn(name, tmp_path / "a", tmp_path / "b", 3))
    reads: Counter[tuple[str, str]] = Counter()
    read = Model.read

    def counted(model: Model, stored: str, dtype: object, **how: bool) -> object:
        reads[model.ref, stored] += 1
        return read(model, stored, dtype, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(Model, "read", counted)
    for room, wanted in ((0, 1), (1 << 30, 0)):
        pair = PairSolver(a, b, make_plan(b, [a], "all"), working_dtype([a, b]), guard=True, room=room)
        solver = streams.StreamSolver(pair, lambda *told: None)
        solver.sweep()
        reads.clear()
        solver.sweep()
        assert all(count == 1 for count in reads.values())
        blocks = [block for unit in pair.plan.units for block in unit.blocks]
        stored = {(m.ref, m.names[n]) for m in (a, b) for block in blocks for n in block.canonical}
        assert len(reads) == wanted * len(stored)

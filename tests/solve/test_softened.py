"""Predictions of examples are softened while a match is learned, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from isomerge.models.recognised import recognise
from isomerge.models.unit_plan import make_plan
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.solve.learn.learner import Learner
from isomerge.solve.learn.settings import LearnSettings, softened
from isomerge.solve.learn.simplex import MatchedLine
from isomerge.solve.pairs import stream_descent as streams
from isomerge.solve.pairs.pair import PairSolver
from isomerge.solve.pairs.stream_descent import StreamSolver
from solve.disguises import single


def test_softened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Target and loss of a step are those of logits over the temperature; what judges a path is not softened."""
    monkeypatch.setattr(streams, "SWEEPS", 1)
    folders = [single("vit", tmp_path / name, seed) for seed, name in enumerate("ab")]
    one, two = map(recognise, folders)
    solver = StreamSolver(
        PairSolver(one, two, make_plan(two, [one], "all"), torch.float32, guard=False), lambda *_: None
    )
    solver.solve()
    images = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    settings = LearnSettings(steps=1, batch_size=4, shifts=False)
    found = Learner(
        MatchedLine(solver, settings), Examples({"pixel_values": images}, False), tmp_path / "s", lambda *_: None
    )
    batch = {"pixel_values": images[:4]}
    with torch.no_grad():
        logits = [load_module(folder)(**batch).logits for folder in folders]
        for heat in (1.0, 4.0):
            wanted = sum((x / heat).softmax(-1) for x in logits) / 2
            assert found.wanted(batch, heat) == pytest.approx(wanted, abs=1e-5)
            with found.simplex.standing_at([1.0, 0.0], None):
                loss = float(found.loss(batch, found.wanted(batch, heat), heat))
            assert loss == pytest.approx(float(cross_entropy(logits[0] / heat, wanted)), abs=1e-5)
    heats: list[float] = []
    plain = found.loss
    monkeypatch.setattr(found, "loss", lambda x, wanted, heat=1.0: (heats.append(heat), plain(x, wanted, heat))[1])
    assert found.run().report["temperature"] == settings.temperature
    assert heats.count(settings.temperature) == 1 < settings.temperature
    assert len(heats) > heats.count(1.0) > 10


def test_tokens_are_not() -> None:
    """A text has an answer for every token: those are enough as they are."""
    assert torch.equal(softened(torch.ones(2, 3, 4), 4.0), torch.ones(2, 3, 4))
    assert torch.equal(softened(torch.ones(2, 4), 4.0), torch.full((2, 4), 0.25))

"""Learning of several models: each joins those before it, then all are learned together; resumable, and symmetries
all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from depth import more
from isomerge.models.recognised import recognise
from isomerge.observe.data.opening_data import open_data
from isomerge.progress import Observer
from isomerge.solve.learn import learner as learned
from isomerge.solve.learn.learner import Learned, learn_together
from isomerge.solve.learn.settings import LearnSettings
from isomerge.solve.learn.simplex import MatchedSimplex
from isomerge.solve.many import mean_solver as many
from isomerge.solve.match_options import Matching
from isomerge.solve.pairs import stream_descent as streams
from isomerge.symmetry.alignment import Alignment
from solve.disguises import single
from solve.test_many import acted, merge, solver_of
from toys import config_of, load_toy, outputs, relative, write_toy

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

LEARNING = "learning, loss"
"""What is told of steps."""


@pytest.fixture(autouse=True)
def few_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is learned starts from a rough match."""
    monkeypatch.setattr(streams, "SWEEPS", 2)
    monkeypatch.setattr(many, "TRIAL", 1)


@pytest.fixture
def learning(tmp_path: Path) -> Matching:
    """Learning from random images, a few steps."""
    rng = torch.Generator().manual_seed(0)
    data = {
        "pixel_values": torch.randn(96, 3, 8, 8, generator=rng),
        "labels": torch.randint(5, (96,), generator=rng),
    }
    save_file(data, tmp_path / "data.safetensors")
    settings = LearnSettings(steps=8, batch_size=16, target="distill")
    return Matching(learn=str(tmp_path / "data.safetensors"), settings=settings, rows=64)


@pytest.fixture
def simplex(learning: Matching, tmp_path: Path) -> MatchedSimplex:
    """Between three vision models as they are matched by weights."""
    solver = solver_of([single("vit", tmp_path / f"m{k}", k) for k in range(3)], "all")
    solver.solve()
    return MatchedSimplex.of(solver, replace(learning.settings or LearnSettings(), steps=4))


def test_learning_keeps_the_functions(learning: Matching, tmp_path: Path) -> None:
    """Three vision models: the written alignments are symmetries; what joins is nearer, and no worse together."""
    folders = [single("vit", tmp_path / f"m{k}", k) for k in range(3)]
    told: list[tuple[str, int, int]] = []
    report = merge(
        folders, tmp_path / "out", spaces="all", matching=learning, observer=lambda *one: told.append(one)
    )
    found = report["mean"]["learned"]
    assert [x["step"] for one in found["joining"] for x in one["history"][:1]] == [0, 0]
    for one in (found, *found["joining"]):
        assert one["barrier"] == min(x["barrier"] for x in one["history"])
    assert all(one["barrier"] < one["history"][0]["barrier"] for one in found["joining"])
    assert found["history"][0]["midpoint"] < min(one["history"][0]["midpoint"] for one in found["joining"])
    assert len(found["points"]) == 4
    steps = [(done, total) for what, done, total in told if LEARNING in what]
    assert steps == [(done, 24) for done in range(1, 25)]
    for k, folder in enumerate(map(Path, report["models"][1:]), 2):
        file = tmp_path / "out-alignments" / f"alignment-{k}.safetensors"
        element = Alignment.load(file, recognise(folder).declared)
        toy = load_toy("vit", folder)
        write_toy(toy, acted("vit", folder, element), tmp_path / f"moved-{k}")
        assert relative(outputs(tmp_path / f"moved-{k}"), outputs(folder)) <= 1e-4
    assert json.loads((tmp_path / "out" / "isomerge.json").read_text())["anchor"] == "none"


@pytest.mark.parametrize("at", [10, *more(2, 6)])
def test_learning_of_three_goes_on(
    at: int, learning: Matching, simplex: MatchedSimplex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while the first joins, the second joins or all are together, and run again: the same elements."""
    monkeypatch.setattr(learned, "SAVE_EVERY", 0.0)
    examples = open_data(str(learning.learn), tmp_path / "m0", config=config_of(tmp_path / "m0"))

    def run(folder: str, observer: Observer = lambda *_: None) -> Learned:
        (tmp_path / folder).mkdir(exist_ok=True)
        return learn_together(simplex, examples, (tmp_path / folder).joinpath, observer)

    def killed(what: str, done: int, total: int) -> None:
        if done == at:
            raise KeyboardInterrupt

    rest: list[int] = []
    whole = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("cut", killed)
    found = run("cut", lambda what, done, total: rest.append(done))
    assert rest == list(range(rest[0], 13))
    assert rest[0] >= at - 1
    for one, two in zip(whole.elements, found.elements, strict=True):
        assert all(torch.equal(x, two[key]) for key, x in one.items())
    assert whole.report == found.report

"""The comparison of all methods: every method is in it, and the page says what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import isomerge
from benchmarks.comparison import __main__ as comparison
from benchmarks.comparison import models
from isomerge.fusion.registry import method, methods


def test_the_page_is_of_the_results() -> None:
    """Every table, and every method in the first: without a base two models trained apart have fewer."""
    results = json.loads(comparison.RESULTS.read_text())
    assert comparison.tables(results) in comparison.PAGE.read_text()
    for family in models.TASKS:
        cases = results[family]
        assert set(cases) == {"fine-tunes", "apart"}
        for case in cases.values():
            assert set(case) == {str(seed) for seed in comparison.SEEDS}
        for way in (comparison.UNALIGNED, comparison.ALIGNED):
            assert set(cases["fine-tunes"]["0"][way]) == {*methods()} - {"passthrough"}
    refused = [
        (name, row["refused"])
        for case in results.values()
        for seeds in case.values()
        for seed in seeds.values()
        for way in (comparison.UNALIGNED, comparison.ALIGNED, comparison.LEARNED)
        for name, row in seed.get(way, {}).items()
        if "refused" in row
    ]
    assert not refused


def test_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge of one model with itself has that model's score, at every lambda; one that is refused says why."""
    monkeypatch.setattr(comparison, "DATA", tmp_path)
    monkeypatch.setattr(comparison, "score", lambda family, folder, tasks: {"mean": float((folder / "a").exists())})
    monkeypatch.setattr(isomerge, "merge", lambda models, out, **options: (out.mkdir(exist_ok=True), options))
    said = []

    def run(how: object, more: dict[str, float]) -> Path:
        said.append(more)
        return comparison.merged(how, [tmp_path, tmp_path], tmp_path, tmp_path, more)  # pyright: ignore

    row = comparison.cell("vit", "ties", run, ("plain",))
    assert row["default"]["mean"] == row["best"]["mean"] == 0.0
    assert said == [{}, *({"lambda": value} for value in comparison.LAMBDAS)]
    assert comparison.cell("vit", "linear", run, ("plain",))["lambda"] is None


def test_tasks_are_others() -> None:
    """What a task shows is not what the ancestor saw."""
    images = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert not torch.equal(models.seen("turned", images), images)
    assert torch.equal(models.seen("inverted", images), -images)
    assert method("slerp").models[1] == 1

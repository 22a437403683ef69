"""`isomerge eval`: parents and merge in one table, by losses and by the tasks of a harness."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge as library
from harness_at_hand import harness_at_hand
from isomerge.errors import IsomergeError
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import evaluate


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Tokens for the toys."""
    file = tmp_path / "ids.safetensors"
    save_file({"input_ids": torch.randint(1, 60, (20, 9), generator=torch.Generator().manual_seed(0))}, file)
    return file


def test_losses_are_the_models_own(stored: Callable, texts: Path, isomerge: Callable, tmp_path: Path) -> None:
    """A row per model with what it has by itself, in the table and the JSON; Python says the same."""
    models = [stored("gpt2", 0), stored("gpt2", 5)]
    said = isomerge("eval", *models, "--data", texts, "--json", tmp_path / "r.json")
    assert said.code == 0, said.err
    report = json.loads((tmp_path / "r.json").read_text())
    examples = Examples(load_file(texts), True)
    for row, model in zip(report["models"], models, strict=True):
        own = evaluate(load_module(model), examples)
        assert row["loss"] == pytest.approx(own.loss, rel=1e-6)
        assert row["perplexity"] == pytest.approx(own.perplexity, rel=1e-6)
        assert f"{own.loss:.4f}" in said.out
    assert report["models"][0]["loss"] != report["models"][1]["loss"]
    batches = [dict(load_file(texts))]
    again = library.evaluate([load_module(model) for model in models], data=batches)
    assert [row["loss"] for row in again["models"]] == pytest.approx([row["loss"] for row in report["models"]])
    few = library.evaluate(models, data=texts, limit=3)
    assert few["examples"] == 3


def test_tasks_are_handed_over(
    stored: Callable, isomerge: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every model goes to lm-evaluation-harness by its folder; the numbers come back in one table."""
    asked: list[dict[str, Any]] = []

    def simple_evaluate(**how: Any) -> dict[str, Any]:
        asked.append(how)
        return {"results": {task: {"acc,none": 0.25 * len(asked), "alias": task} for task in how["tasks"]}}

    harness: Any = ModuleType("lm_eval")
    harness.simple_evaluate = simple_evaluate
    monkeypatch.setitem(sys.modules, "lm_eval", harness)
    models = [stored("gpt2", 0), stored("gpt2", 5)]
    said = isomerge("eval", *models, "--tasks", "arc_easy, piqa", "--limit", 5, "--json", tmp_path / "r.json")
    assert said.code == 0, said.err
    assert [how["model_args"].split(",")[0] for how in asked] == [f"pretrained={model}" for model in models]
    assert all((how["tasks"], how["limit"]) == (["arc_easy", "piqa"], 5) for how in asked)
    rows = json.loads((tmp_path / "r.json").read_text())["models"]
    assert [row["tasks"]["piqa"] for row in rows] == [{"acc": 0.25}, {"acc": 0.5}]
    assert "0.5000" in said.out


def test_the_harness_says_no(stored: Callable, isomerge: Callable) -> None:
    """What the real one raises is one sentence, whatever it is."""
    with harness_at_hand():
        said = isomerge("eval", stored("gpt2", 0), "--tasks", "no_such_task")
    assert said.code == 2
    assert "--tasks no_such_task: lm-evaluation-harness cannot run them on" in said.err
    assert "Traceback" not in said.err


def test_refused(stored: Callable, texts: Path, isomerge: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to evaluate on, no labels, no harness: one sentence, with the commands to run elsewhere."""
    a, vit = stored("gpt2", 0), stored("vit", 0)
    assert "add --data DATA, or --tasks" in isomerge("eval", a).err
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    said = isomerge("eval", a, "--tasks", "piqa")
    assert said.code == 2
    assert "pip install 'lm-eval[hf]'" in said.err
    assert f"lm_eval --model hf --model_args pretrained={a} --tasks piqa" in said.err
    with pytest.raises(IsomergeError, match="no labels"):
        library.evaluate([vit], data=[{"pixel_values": torch.randn(2, 3, 8, 8)}])
    with pytest.raises(IsomergeError, match="is in memory"):
        library.evaluate([load_module(a)], tasks=["piqa"])

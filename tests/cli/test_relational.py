"""``isomerge relational``: what it writes is loaded, and is the same function."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from isomerge.observe.live.modules import load_module
from isomerge.research.relational import load
from toys import inputs, relative


@pytest.mark.parametrize("anchors", ["identity", "tokens"])
def test_relational(anchors: str, stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Written beside and renamed; the logits agree."""
    model, out, report = stored("gpt2"), tmp_path / "out", tmp_path / "report.json"
    dry = isomerge("relational", model, "-o", out, "--anchors", anchors, "--dry-run")
    assert (dry.code, out.exists()) == (0, False), dry.err
    said = isomerge("relational", model, "-o", out, "--anchors", anchors, "--json", report)
    assert said.code == 0, said.err
    assert "isomerge.research.relational.load" in said.out
    assert json.loads(report.read_text())["anchors"] == 49
    assert 'load("out")' in (out / "README.md").read_text()
    module = load_module(model)
    x = inputs(module.config)
    with torch.no_grad():
        assert relative(load(out)(x["input_ids"]), module(**x).logits) < 1e-3
    assert isomerge("relational", model, "-o", out).code == 2


def test_what_has_no_relational_form(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """One sentence, and nothing is written."""
    said = isomerge("relational", stored("qwen3"), "-o", tmp_path / "out")
    assert said.code == 2
    assert "no relational form" in said.err
    assert len(said.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()

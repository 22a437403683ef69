"""`isomerge surgery`: what a task's head reads in a merged model, corrected."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import save_file

import isomerge as library
from observe.test_statistics import examples_for
from solve.disguises import perturb, single


def test_a_head_and_what_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isomerge: Callable) -> None:
    """What the command line writes is what Python does; the adapter is a model wherever one is named; refusals."""
    monkeypatch.chdir(tmp_path)
    base = single("vit", tmp_path / "base")
    for k in (1, 2):
        perturb(base, tmp_path / f"task{k}", 0.5, seed=k)
    library.merge(["task1", "task2"], out="merged", method="linear", align=False)
    save_file(dict(examples_for(base, 32).tensors), "x.safetensors")
    words = ("surgery", "merged", "task1", "--data", "x.safetensors", "--steps", "100")
    said = isomerge(*words, "-o", "head", "--json", "r.json")
    assert said.code == 0, said.err
    report = json.loads(Path("r.json").read_text())
    assert f"{report['after']:.1%} with it" in said.out
    assert report["agreement"].keys() == {"before", "after"}
    own = library.surgery("merged", "task1", data="x.safetensors", out="own", steps=100)
    assert {**own, "out": 0} == {**report, "out": 0}
    assert Path("head/adapter_model.safetensors").read_bytes() == Path("own/adapter_model.safetensors").read_bytes()
    said = isomerge("inspect", "merged+head")
    assert said.code == 0, said.err
    said = isomerge(*words, "-o", "merged")
    assert said.code == 2
    assert "merged" in said.err

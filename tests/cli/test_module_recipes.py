"""``isomerge merge RECIPE OUT`` where the recipe's modules differ: parts of a model by merges of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import isomerge as library
from isomerge.fusion.registry import method
from solve.disguises import single

ENCODER, DECODER, SHARED = "encoder.", "decoder.", ""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three encoder-decoders in the current folder."""
    for seed, name in enumerate("abc"):
        single("t5-gated", tmp_path / name, seed=seed)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(content: dict[str, Any]) -> str:
    Path("r.yml").write_text(yaml.safe_dump(content, sort_keys=False))
    return "r.yml"


def part(name: str) -> str:
    return next((p for p in (ENCODER, DECODER) if name.startswith(p)), SHARED)


def models(*names: str, **parameters: Any) -> dict[str, Any]:
    return {"models": [{"model": name} for name in names], **({"parameters": parameters} if parameters else {})}


def test_other_models_and_methods_for_each_part(here: Path, isomerge: Callable) -> None:
    """As mergekit, whose modules have other models; and, beyond it, a method and a base of a module's own."""
    ties = {"merge_method": "ties", "base_model": "c", **models("a", "b", density=0.5)}
    content = {
        "merge_method": "linear",
        "parameters": {"weight": 1.0},
        "modules": {"encoder": models("a", "b"), "decoder": ties, "shared": models("b")},
    }
    said = isomerge("merge", write(content), "out", "--no-report", "--json", "x.json")
    assert said.code == 0, said.err
    assert "decoder and encoder" not in said.out + said.err  # whose outputs are not averaged
    a, b, c, out = (load_file(f"{name}/model.safetensors") for name in ("a", "b", "c", "out"))
    assert {part(name) for name in out} == {ENCODER, DECODER, SHARED}
    for name, x in out.items():
        by_ties = method("ties").fuse([a[name], b[name]], {"density": [0.5, 0.5]}, base=c[name])
        want = {ENCODER: (a[name] + b[name]) / 2, DECODER: by_ties, SHARED: b[name]}[part(name)]
        torch.testing.assert_close(x, want, rtol=1e-5, atol=1e-6)
    steps = json.loads(Path("x.json").read_text())["steps"]
    assert [step["name"] for step in steps] == ["encoder", "decoder", "shared", None]
    said = isomerge("merge", "r.yml", "plan", "--dry-run")
    assert said.code == 0, said.err
    assert "step decoder:" in said.out


def test_other_parameters_for_each_part_are_one_merge(here: Path) -> None:
    """By filters, in one pass; a module that the models do not have is told."""
    content = {
        "merge_method": "linear",
        "modules": {
            "encoder": models("a", "b", weight=[0.5, 1.0]),
            "decoder": {"models": [{"model": "a", "parameters": {"weight": 3}}, {"model": "b"}], "parameters": {"weight": 1}},
            "shared": models("a", "b", weight=1),
        },
    }  # fmt: skip
    report = library.merge(write(content), out="out")
    assert "steps" not in report
    assert not any("filter" in note for note in report["notes"])
    a, b, out = (load_file(f"{name}/model.safetensors") for name in ("a", "b", "out"))
    for name in (n for n in out if part(n) == DECODER):
        torch.testing.assert_close(out[name], 0.75 * a[name] + 0.25 * b[name])
    del content["modules"]["shared"]
    content["modules"]["vision_tower"] = models("a", "b", weight=0.2)
    report = library.merge(write(content), out="again")
    assert any("vision_tower., visual. is in no tensor's name" in note for note in report["notes"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"encoder": models("a", "b"), "decodr": models("a", "c")}, "`modules.decodr` is no known part"),
        ({"encoder": models("encoder", "b"), "decoder": models("a", "c")}, "is called as one of the models"),
        ({"encoder": models("a", "b"), "decoder": models("c", "a")}, "aligned onto a and c"),
    ],
)
def test_what_is_refused(here: Path, content: dict[str, Any], words: str) -> None:
    """In one sentence, and nothing is written."""
    whole = {"merge_method": "linear", "parameters": {"weight": 1.0}, "align": "onto" in words, "modules": content}
    with pytest.raises(library.IsomergeError, match=words):
        library.merge(write(whole), out="out")
    assert not Path("out").exists()
    assert not Path("out.steps").exists()

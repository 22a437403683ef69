"""Tokens that a model lacks: their rows come from models in other bases, and end where those models are moved to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import isomerge
from isomerge.errors import IsomergeError
from isomerge.models.recognised import recognise
from isomerge.symmetry.axes import VOCABULARY
from solve.disguises import turn
from toys import config_of, save_toy

HOW: dict[str, dict[str, Any]] = {
    "a model with all tokens first": {},
    "another one first": {"first": 1},
    "no anchor": {"anchor": "none"},
    "task vectors": {"method": "task_arithmetic", "base_model": 0, "parameters": {"weight": 0.5}},
}


def knows(folder: Path, out: Path, gone: set[int]) -> Path:
    """A copy that does not know some tokens: they have no rows, and others other numbers."""
    model = recognise(folder)
    size = model.spec.sizes[VOCABULARY]
    kept = [k for k in range(size) if k not in gone]
    shutil.copytree(folder, out)
    rows = load_file(folder / "model.safetensors")
    for name, match in model.matches.items():
        if (axis := match.line.axis_over(VOCABULARY)) is not None:
            rows[name] = rows[name].movedim(axis, 0)[kept].movedim(0, axis).contiguous()
    save_file(rows, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps({**config_of(folder), "vocab_size": len(kept)}))
    words = {f"w{row}": k for k, row in enumerate(kept)}
    Tokenizer(WordLevel(words, unk_token=next(iter(words)))).save(str(out / "tokenizer.json"))
    return out


def three_twins(name: str, folder: Path) -> tuple[Path, Path, Path]:
    """A toy, and two twins in other bases that lack tokens: the last and the last but two; the second, the third and
    the last."""
    whole = save_toy(name, folder / "toy")
    one = knows(whole, folder / "0", set())
    size = recognise(one).spec.sizes[VOCABULARY]
    twins = [turn(name, whole, folder / f"twin{k}", k) for k in (1, 2)]
    return one, knows(twins[0], folder / "1", {size - 1, size - 3}), knows(twins[1], folder / "2", {1, 2, size - 1})


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["gpt2-untied", "qwen3"])
def test_they_are_moved_with_those_who_know_them(name: str, how: str, tmp_path: Path) -> None:
    """Twins in other bases, none of which knows all tokens but one, are that one again, with every token's row. (A
    lacking row that is moved with the model that lacks it is in no basis at all, and a match that looks at such
    rows is none: known rows were off by a tenth, others by most of their length.)"""
    one, two, three = three_twins(name, tmp_path)
    size = recognise(one).spec.sizes[VOCABULARY]
    more = dict(HOW[how])
    models = [one, two, three] if more.pop("first", 0) == 0 else [two, one, three]
    if "base_model" in more:
        more["base_model"] = models[more["base_model"]]
    report = isomerge.merge(
        models, out=tmp_path / "out", tokenizer_source="union", align=True, spaces="all", **more
    )
    assert report["distance"]["after"] < 1e-9 * report["distance"]["norm"]
    if config_of(tmp_path / "out")["vocab_size"] == size:  # some tokenizers add a token of their own
        proof = isomerge.verify(one, tmp_path / "out")
        assert proof["same"], (proof["residual"], proof["reason"])


BESIDE_DATA: dict[str, dict[str, Any]] = {
    "activations": {},
    "activations alone": {"evidence": "activations", "onto": 1},
    "learned": {"option": "learn", "steps": 4, "batch_size": 4, "learn_target": "distill"},
    "regression": {"method": "regmean", "onto": 1},
    "Fisher": {"method": "fisher", "spaces": "default", "stored": True},
    "regression as they are stored": {"method": "regmean", "align": False, "stored": True},
}
"""Twins in other bases, but where they are as they are ``stored``."""
NEARLY = 1e-5
"""Models are run in float32."""


@pytest.mark.parametrize("how", BESIDE_DATA)
@pytest.mark.parametrize("name", ["gpt2-untied", "qwen3"])
def test_data_tell_nothing_of_them(name: str, how: str, tmp_path: Path) -> None:
    """Examples with tokens that one of the models lacks are left out, and matches and statistics see none of the rows
    that were lent: the same function comes out, with every token's row."""
    more = dict(BESIDE_DATA[how])
    one, two, three = three_twins(name, tmp_path)
    size = recognise(one).spec.sizes[VOCABULARY]
    if more.pop("stored", False):
        two, three = (knows(one, tmp_path / f"as{k}", gone) for k, gone in enumerate(({size - 1}, {1, 2})))
    models = [one, two, three]
    if "onto" in more:
        more["onto"] = models[more["onto"]]
    ids = torch.randint(3, size - 3, (24, 12), generator=torch.Generator().manual_seed(0))
    ids[::3, 4] = size - 1
    option = more.pop("option", "data")
    how_merged: dict[str, Any] = {"align": True, "spaces": "all"} | more
    if not how_merged["align"]:
        del how_merged["spaces"]
    report = isomerge.merge(
        models, out=tmp_path / "out", tokenizer_source="union", **{option: {"input_ids": ids}}, **how_merged
    )
    assert any("8 of 24 examples have tokens that one of the models lacks" in note for note in report["notes"])
    residual = isomerge.verify(one, tmp_path / "out")["residual"]
    assert residual["largest"] < NEARLY, residual
    with pytest.raises(IsomergeError, match="every example has a token"):
        isomerge.merge(
            models,
            out=tmp_path / "none",
            tokenizer_source="union",
            **{option: {"input_ids": ids[::3]}},
            **how_merged,
        )

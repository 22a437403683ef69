"""Weights as torch saves them, in files of their own: read without running their code, merged as they are stored."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import isomerge as package
from isomerge.errors import IsomergeError
from isomerge.models.references import open_model_ref
from raw_files import one_sentence
from toys import tensors


def saved(path: Path, seed: int, around: str | None = None) -> dict[str, torch.Tensor]:
    """A small model of nobody's, alone or among what trainers save."""
    rng = torch.Generator().manual_seed(seed)
    weights = {"conv.weight": torch.randn(4, 3, 3, 3, generator=rng), "fc.bias": torch.randn(5, generator=rng)}
    whole: Any = weights if around is None else {around: weights, "epoch": 3, "optimizer_states": []}
    torch.save(whole, path)
    return weights


@pytest.mark.parametrize(
    ("end", "around"), [(".pt", None), (".pth", "model_state_dict"), (".ckpt", "state_dict"), (".bin", "model")]
)
def test_they_are_merged_as_stored(end: str, around: str | None, tmp_path: Path) -> None:
    """Also beside one another and beside the output, and without a config."""
    one, two = (saved(tmp_path / f"{k}{end}", k, around) for k in range(2))
    package.merge([tmp_path / f"{k}{end}" for k in range(2)], out=tmp_path / "out", align=False, allow_pickle=True)
    merged = tensors(tmp_path / "out")
    assert merged.keys() == one.keys()
    assert all(torch.equal(merged[name], (x + two[name]) / 2) for name, x in one.items())


class Hostile:
    """What runs when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_no_code_is_run(tmp_path: Path) -> None:
    """Not without being asked to read pickles, nor then."""
    torch.save({"x": torch.ones(2), "y": Hostile(tmp_path / "ran")}, tmp_path / "bad.pt")
    for allowed, words in ((False, ["--allow-pickle", "bad.pt"]), (True, ["more than plain tensors", "bad.pt"])):
        with pytest.raises(IsomergeError) as error:
            open_model_ref(tmp_path / "bad.pt", allow_pickle=allowed)
        one_sentence(error.value, *words)
    assert not (tmp_path / "ran").exists()

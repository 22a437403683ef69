"""`canon --activations`: a model's activations in the canonical frame are those of all its disguises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge as library
from isomerge.errors import IsomergeError
from solve.disguises import turn


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Tokens for the toys."""
    file = tmp_path / "ids.safetensors"
    save_file({"input_ids": torch.randint(1, 60, (20, 9), generator=torch.Generator().manual_seed(0))}, file)
    return file


def test_twins_have_one_set(stored: Callable, texts: Path, isomerge: Callable, tmp_path: Path) -> None:
    """Written by the command line for a model, by Python for its twin; a stranger has others."""
    a = stored("llama", 0)
    twin = turn("llama", a, tmp_path / "twin", 3)
    one, two, other = (tmp_path / f"{name}.safetensors" for name in ("one", "two", "other"))
    said = isomerge("canon", a, "-o", tmp_path / "out", "--activations", one, "--data", texts)
    assert said.code == 0, said.err
    assert "3 layers on 20 examples" in said.out
    batch = [load_file(texts)]
    _, report = library.canon(twin, activations=two, data=batch)
    library.canon(stored("llama", 5), activations=other, data=texts)
    assert report["activations"]["layers"] == {f"model.layers.{n}": [20, 9, 48] for n in range(3)}
    found = [load_file(file) for file in (one, two, other)]
    for name, x in found[0].items():
        assert (x - found[1][name]).norm() <= 1e-3 * x.norm()
        assert (x - found[2][name]).norm() > 0.5 * x.norm()


def test_limits(stored: Callable, texts: Path, tmp_path: Path) -> None:
    """No more examples than asked for."""
    file = tmp_path / "few.safetensors"
    library.canon(stored("llama", 0), activations=file, data=texts, limit=3)
    assert {x.shape[0] for x in load_file(file).values()} == {3}


def test_refused(stored: Callable, texts: Path, tmp_path: Path) -> None:
    """Before anything is computed."""
    a = stored("llama", 0)
    for how, words in (
        ({"activations": tmp_path / "x.safetensors"}, "add data=DATA"),
        ({"data": texts}, "add .*activations="),
        ({"activations": tmp_path / "x.bin", "data": texts}, "name it .safetensors"),
        ({"activations": texts, "data": texts}, "exists"),
        ({"activations": tmp_path / "x.safetensors", "data": texts, "limit": 0}, "at least 1"),
    ):
        with pytest.raises(IsomergeError, match=words):
            library.canon(a, **how)
    assert list(tmp_path.iterdir()) == [texts]

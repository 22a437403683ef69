"""Merging an architecture that has no spec, where nothing is aligned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge
from isomerge.errors import IsomergeError

NAMES = ("stem.weight", "stages.0.mix.0.weight", "stages.0.mix.1.bias", "stages.1.mix.0.weight", "stages.2.norm")


def write(folder: Path, seed: int, names: tuple[str, ...] = NAMES, rows: int = 3, **config: object) -> Path:
    """A model of an unknown kind; its tensors are as the seed says."""
    folder.mkdir()
    rng = torch.Generator().manual_seed(seed)
    save_file({n: torch.randn(rows, 4, generator=rng) for n in names}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "unheard_of", **config}))
    return folder


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two models of the same unknown kind."""
    return write(tmp_path / "a", 0), write(tmp_path / "b", 1)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a model."""
    return load_file(folder / "model.safetensors")


def test_the_mean(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Every tensor is averaged under its own name; the output is sound."""
    isomerge.merge(pair, out=tmp_path / "out", align=False)
    a, b, found = map(weights, (*pair, tmp_path / "out"))
    assert found.keys() == a.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, (a[name] + b[name]) / 2)
        assert not torch.equal(tensor, a[name])
    assert isomerge.fsck(tmp_path / "out")["sound"]


def test_the_first_number_is_the_layer(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """A list of values runs over the stages; a recipe that does not align needs no spec."""
    recipe = tmp_path / "recipe.yml"
    models = "".join(f"\n- model: {model}" for model in pair)
    recipe.write_text(
        f"merge_method: slerp\nbase_model: {pair[0]}\nmodels:{models}\nparameters: {{t: [0, 0.5, 1]}}"
    )
    isomerge.merge(recipe, out=tmp_path / "out")
    a, b, found = map(weights, (*pair, tmp_path / "out"))
    torch.testing.assert_close(found["stages.0.mix.1.bias"], a["stages.0.mix.1.bias"])
    torch.testing.assert_close(found["stages.2.norm"], b["stages.2.norm"])
    middle = found["stages.1.mix.0.weight"]
    assert not any(torch.allclose(middle, model["stages.1.mix.0.weight"]) for model in (a, b))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "no spec for model_type 'unheard_of'.*merge align=False needs none"),
        ({"align": False, "method": "circuits"}, "the method circuits needs to know what the layers are made of"),
        ({"align": False, "method": "fisher", "data": "x.jsonl"}, "the method fisher needs to know"),
        ({"align": False, "repair": "x.jsonl"}, "repair=.* needs to know"),
    ],
)
def test_what_needs_a_spec(pair: tuple[Path, Path], tmp_path: Path, options: dict, says: str) -> None:
    """Aligning, and what looks into layers, is refused before anything is written."""
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n')
    options = {k: str(tmp_path / v) if v == "x.jsonl" else v for k, v in options.items()}
    with pytest.raises(IsomergeError, match=says):
        isomerge.merge(pair, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"names": NAMES[:2] + NAMES[3:]}, "stages.0.mix.1.bias"),
        ({"rows": 5}, r"has shape \[3, 4\].*\[5, 4\]"),
        ({"model_type": "unheard_of_too"}, "different architectures"),
        ({"hidden_act": "relu"}, "hidden_act"),
    ],
)
def test_models_that_do_not_fit(tmp_path: Path, other: dict, says: str) -> None:
    """A lost tensor, another shape, another kind, another function."""
    a, b = write(tmp_path / "a", 0, hidden_act="gelu"), write(tmp_path / "b", 1, **{"hidden_act": "gelu", **other})
    with pytest.raises(IsomergeError, match=says):
        isomerge.merge([a, b], out=tmp_path / "out", align=False)


def test_names_that_a_line_cannot_have(tmp_path: Path) -> None:
    """Brackets would stand for other names."""
    a, b = (write(tmp_path / n, s, (*NAMES, "odd(name)")) for n, s in (("a", 0), ("b", 1)))
    with pytest.raises(IsomergeError, match="odd"):
        isomerge.merge([a, b], out=tmp_path / "out", align=False)

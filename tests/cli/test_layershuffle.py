"""``isomerge layershuffle``: what is drawn, and that what is written are the sources' layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

import isomerge as library


def drawn(recipe: Path) -> list[tuple[str, int]]:
    """Of every layer the model and the number there."""
    sources = [one for part in yaml.safe_load(recipe.read_text())["slices"] for one in part["sources"]]
    return [(one["model"], layer) for one in sources for layer in range(*one["layer_range"])]


@pytest.mark.parametrize("full", [False, True])
def test_layers_are_those_of_the_recipe(full: bool, stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """By both doors and a dry run the same seed draws the same; another one draws otherwise."""
    pair, yml = [str(stored("gpt2", seed)) for seed in (0, 5)], tmp_path / "r.yml"
    words = ["layershuffle", *pair, "-o", tmp_path / "out", "--weights", "0.6,0.4", *["--full-random"] * full]
    said = isomerge(*words, "--seed", 1, "--dry-run", "--write-yaml", yml)
    assert (said.code, (tmp_path / "out").exists()) == (0, False), said.err
    assert yml.read_text() in said.out
    said = isomerge(*words, "--seed", 1)
    assert said.code == 0, said.err
    layers = drawn(yml)
    assert layers == drawn(tmp_path / "out" / "isomerge_recipe.yml")
    assert {model for model, _ in layers} == {*pair}
    assert ([layer for _, layer in layers] == [0, 1, 2]) != full
    given = {model: load_file(f"{model}/model.safetensors") for model in pair}
    names = {name.split(".h.0.")[1] for name in given[pair[0]] if ".h.0." in name}
    written = load_file(tmp_path / "out" / "model.safetensors")
    for number, (model, layer) in enumerate(layers):
        for name in names:
            assert written[f"transformer.h.{number}.{name}"].equal(given[model][f"transformer.h.{layer}.{name}"])
    again, other = tmp_path / "again.yml", tmp_path / "other.yml"
    how = {"weights": [0.6, 0.4], "full_random": full}
    library.layershuffle(pair, out=tmp_path / "again", seed=1, write_yaml=again, **how)
    assert again.read_bytes() == yml.read_bytes()
    library.layershuffle(pair, out=tmp_path / "other", seed=2, write_yaml=other, **how)
    assert drawn(other) != layers


def test_what_does_not_fit_is_refused(stored: Callable, refuses: Callable, tmp_path: Path) -> None:
    """Shares that are none, a recipe that is there, and models of other depths."""
    pair, out = (stored("gpt2", 0), stored("gpt2", 5)), ["-o", tmp_path / "out"]
    for shares in ("1", "0,0", "1,-1", "1,nan"):
        refuses("layershuffle", *pair, *out, "--weights", shares, words=["--weights: give 2 shares"])
    (tmp_path / "r.yml").write_text("")
    refuses("layershuffle", *pair, *out, "--write-yaml", tmp_path / "r.yml", words=["r.yml exists"])
    short, one = tmp_path / "short", {"model": str(pair[0]), "layer_range": [0, 1]}
    (tmp_path / "r.yml").write_text(yaml.safe_dump({"merge_method": "passthrough", "slices": [{"sources": [one]}]}))
    library.merge(tmp_path / "r.yml", out=short)
    refuses("layershuffle", pair[0], short, *out, words=["numbers of layers", "add --full-random"])

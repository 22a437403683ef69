"""What of a recipe is searched for: where it says so, what is said beside it, and what is natural."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isomerge.errors import IsomergeError
from isomerge.fusion.method_options import is_chosen_by, natural_range
from isomerge.fusion.registry import methods
from isomerge.merging.recipe.dimensions import Dimension, with_values
from isomerge.merging.recipe.searched import searched_recipe

TWO = "models: [{model: a, parameters: {weight: 0.3}}, {model: b}]\nmerge_method: linear\n"
TIES = "base_model: a\nmodels: [{model: a}, {model: b}, {model: c}]\nmerge_method: ties\n"


def read(folder: Path, text: str, **how: Any) -> Any:
    (folder / "r.yml").write_text(text)
    return searched_recipe(folder / "r.yml", **how)


def ranges(found: Any) -> dict[str, Any]:
    return {d.name: list(d.choices) or [d.low, d.high] for d in found.dimensions}


def test_a_recipe_says_it_anywhere(tmp_path: Path) -> None:
    """With the parameters of all, of a model, in a gradient, behind a filter."""
    text = (
        "base_model: a\nmerge_method: ties\nmodels:\n- {model: b, parameters: {weight: {search: [0, 2], start: 0.5}}}\n"
        "- {model: c, parameters: {density: [0.5, {search: [0.1, 0.9]}]}}\nparameters:\n"
        "  density: [{filter: mlp, value: {search: [0.2, 0.8], layers: 3}}, {value: 1}]\n"
        "  normalize: {choices: [true, false]}\n"
    )
    found = read(tmp_path, text)
    assert ranges(found) == {
        "density.0.0": [0.2, 0.8], "density.0.1": [0.2, 0.8], "density.0.2": [0.2, 0.8], "normalize": [True, False],
        "models.0.weight": [0, 2], "models.1.density.1": [0.1, 0.9],
    }  # fmt: skip
    assert found.start == {
        "density.0.0": 0.5, "density.0.1": 0.5, "density.0.2": 0.5, "normalize": True, "models.0.weight": 0.5,
        "models.1.density.1": 0.5,
    }  # fmt: skip
    content = found.filled({name: False if name == "normalize" else 0.25 for name in found.start}).content
    assert content["parameters"]["density"] == [{"filter": "mlp", "value": [0.25, 0.25, 0.25]}, {"value": 1}]
    assert content["models"][1]["parameters"]["density"] == [0.5, 0.25]
    assert content["parameters"]["normalize"] is False


def test_nothing_said_is_all_numbers(tmp_path: Path) -> None:
    """Of every model its own, but of no base; from the recipe's values."""
    found = read(tmp_path, TWO)
    assert ranges(found) == {"models.0.weight": [0, 2], "models.1.weight": [0, 2]}
    assert found.start == {"models.0.weight": 0.3, "models.1.weight": 1.0}
    both = {"weight": [0, 2], "density": [0, 1]}
    wanted = {f"models.{k}.{name}": bounds for name, bounds in both.items() for k in (1, 2)}
    assert ranges(read(tmp_path, TIES)) == {**wanted, "lambda": [0, 2]}


def test_what_is_said_beside_a_recipe(tmp_path: Path) -> None:
    """A range, choices, or the natural one; over groups of layers, from a gradient of the recipe's."""
    assert ranges(read(tmp_path, TIES, said={"lambda": "0.5:1.5"})) == {"lambda": [0.5, 1.5]}
    assert ranges(read(tmp_path, TIES, said={"lambda": ""})) == {"lambda": [0, 2]}
    assert ranges(read(tmp_path, TIES, said={"consensus_method": "sum,count"})) == {
        "consensus_method": ["sum", "count"]
    }
    text = TWO.replace("weight: 0.3", "weight: [0.2, 0.6]")
    found = read(tmp_path, text, said={"weight": {"search": [0, 1]}}, groups=3)
    assert list(found.start.values()) == pytest.approx([0.2, 0.4, 0.6, 1, 1, 1])
    assert list(read(tmp_path, text, said={"weight": (0, 1)}).start) == [
        "models.0.weight.0", "models.0.weight.1", "models.1.weight",
    ]  # fmt: skip
    sliced = "merge_method: slerp\nbase_model: a\nslices:\n- sources: [{model: a, layer_range: [0, 1]}, {model: b, layer_range: [0, 1]}]\n"
    assert ranges(read(tmp_path, sliced)) == {"t": [0, 1]}


def test_refused(tmp_path: Path) -> None:
    """What has filters, and what slices say for themselves."""
    text = TWO.replace("weight: 0.3", "weight: [{filter: mlp, value: 1}, {value: 0}]")
    with pytest.raises(IsomergeError, match="`weight` has filters"):
        read(tmp_path, text, said={"weight": "0:1"})
    with pytest.raises(IsomergeError, match="karcher has no number"):
        read(tmp_path, TWO.replace("linear", "karcher").replace(", parameters: {weight: 0.3}", ""))
    with pytest.raises(IsomergeError, match="--search weight: write weight=LOW:HIGH"):
        read(tmp_path, TWO, said={"weight": 3})


def test_natural_ranges_hold_the_defaults() -> None:
    """Of every method, within its own limits; flags and words have none."""
    for method in methods().values():
        for option in method.options.values():
            found = natural_range(option)
            if option.kind not in (int, float):
                assert found is None
            elif is_chosen_by(option):
                assert found is not None
                assert found.least < found.most
                method.check_value(option.name, found.least, "x")
                method.check_value(option.name, found.most, "x")
                assert option.required or option.default is None or option.default in found


def test_numbers_are_rounded_within_their_range() -> None:
    """To what a reader can tell apart; orders of magnitude keep their own digits."""
    weight = Dimension(("parameters", "weight"), "weight", 1.0, 0.0, 2.0)
    assert weight.rounded(0.3745401188473625) == 0.3745
    assert Dimension(("x",), "x", 1.0, 0.33333333, 0.66666666).rounded(0.333333331) == 0.33333333
    assert Dimension(("x",), "x", 1e-4, 1e-6, 1.0, log=True).rounded(1.23456789e-5) == 1.2346e-05
    assert 2.5 not in weight
    assert True not in weight
    assert with_values({"models": [{"model": "a"}]}, {("models", 0, "parameters", "weight"): 1}) == {
        "models": [{"model": "a", "parameters": {"weight": 1}}]
    }

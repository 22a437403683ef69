"""Numbers that YAML leaves as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from isomerge.errors import IsomergeError
from isomerge.fusion.fusion import fusion_of
from isomerge.fusion.method_parameters import as_number
from isomerge.merging.recipe.recipe_request import request_of_recipe

MODELS = "models: [{model: a}, {model: b}]\nbase_model: a\n"


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e-9", 1e-9), ("+.5", 0.5), ("-2.", -2.0), (" 12 ", 12), ("1E3", 1000.0), ("9" * 5000, float("inf"))],
)
def test_numbers(text: str, number: float) -> None:
    """Also inside gradients and filters; whole numbers stay whole."""
    found = as_number([text, {"filter": text, "value": [text]}])
    assert found == [number, {"filter": text, "value": [number]}]
    assert type(found[0]) is type(number)


@pytest.mark.parametrize("text", ["nan", ".inf", "1_000", "half", "", "1e", "0x10", "1 2", "١"])
def test_no_numbers(text: str) -> None:
    """They stay, to be refused where a number is wanted."""
    assert as_number(text) == text


@pytest.mark.parametrize(
    ("method", "name", "text", "value"),
    [
        ("karcher", "tol", "1e-9", 1e-9),
        ("karcher", "max_iter", "'20'", 20),
        ("ram", "epsilon", "1e-5", 1e-5),
        ("ties", "weight", "'0.5'", [0.5]),
        ("ties", "weight", "['0.5', {value: 1e-1}]", None),
        ("ties", "density", "[1e-1, '0.3']", [0.2]),
        ("ties", "density", "[{filter: x, value: 1e-2}, {value: '.25'}]", [0.25]),
    ],
)
def test_in_recipes(method: str, name: str, text: str, value: object, tmp_path: Path) -> None:
    """As mergekit reads them."""
    (tmp_path / "r.yml").write_text(f"{MODELS}merge_method: {method}\nparameters: {{{name}: {text}}}\n")
    if value is None:
        with pytest.raises(IsomergeError, match=f"`parameters.{name}`: a filtered value"):
            request_of_recipe(tmp_path / "r.yml")
        return
    fusion = request_of_recipe(tmp_path / "r.yml").fusion
    assert fusion.parameters.at(fusion.method, "", 1, depth=3)[name] == value


def test_in_slices_and_of_models(tmp_path: Path) -> None:
    """Wherever parameters stand."""
    sources = (
        "sources: [{model: a, layer_range: [0, 1], parameters: {weight: '2'}}, {model: b, layer_range: [0, 1]}]"
    )
    text = f"slices: [{{{sources}, parameters: {{weight: 3e-1}}}}]\nmerge_method: linear\n"
    (tmp_path / "r.yml").write_text(text)
    fusion = request_of_recipe(tmp_path / "r.yml").fusion
    assert fusion.weights(2) == [2.0, 0.3]
    given = fusion_of(2, method="ties", base=True, parameters={"density": ["1e-1", "0.5"], "lambda": "2e0"})
    assert given.parameters.at(given.method, "", 1, depth=3)["density"] == [0.1, 0.5]


@pytest.mark.parametrize("text", ["'nan'", ".nan", ".inf", "'inf'", "1e999", "'-1e999'", "half"])
def test_what_is_not_finite(text: str, tmp_path: Path) -> None:
    """The sentence names file and key, and what is wanted."""
    (tmp_path / "r.yml").write_text(f"{MODELS}merge_method: karcher\nparameters: {{tol: {text}}}\n")
    with pytest.raises(IsomergeError, match=r"r\.yml: `parameters\.tol` is .*: give a finite number"):
        request_of_recipe(tmp_path / "r.yml")

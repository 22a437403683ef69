"""Which values the options of merge methods take, alone and together, and how many models a method merges: refused
before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from isomerge.errors import IsomergeError
from isomerge.fusion.fusion import fusion_of
from isomerge.fusion.method_options import Range, limited
from isomerge.fusion.registry import describe, methods
from isomerge.merging.merge_request import request_of_models
from isomerge.merging.recipe.recipe_request import request_of_recipe

WRONG = [
    ("ties", "density", 2, "from 0 to 1"),
    ("ties", "density", [0.5, -0.1], "from 0 to 1"),
    ("ties", "consensus_method", "foo", "one of sum, count"),
    ("dare_linear", "density", 1.5, "from 0 to 1"),
    ("dare_ties", "consensus_method", "foo", "one of sum, count"),
    ("breadcrumbs", "gamma", 1.5, "from 0 to 1"),
    ("breadcrumbs_ties", "density", -1, "from 0 to 1"),
    ("della", "density", 0.9, "choose a smaller epsilon"),
    ("della_linear", "density", 0.1, "choose a smaller epsilon"),
    ("sce", "select_topk", 3, "from 0 to 1"),
    ("fisher", "weight", [1, -1], "of at least 0"),
    ("fisher_kfac", "damping", 2, "from 0 to 1"),
    ("fisher_kfac", "iterations", 0, "of at least 1"),
    ("regmean", "alpha", 1.1, "from 0 to 1"),
    ("regression", "ridge", -1, "of at least 0"),
    ("greedy_soup", "metric", "beauty", "one of loss, accuracy"),
]


@pytest.mark.parametrize(("method", "name", "value", "words"), WRONG)
def test_values(method: str, name: str, value: object, words: str) -> None:
    """From the command line and Python."""
    base = methods()[method].base != "none"
    with pytest.raises(IsomergeError, match=rf"^--parameter: `.*parameters\.{name}`.*{words}"):
        fusion_of(2, method=method, base=base, parameters={name: value})


RECIPE = "models: [{{model: a}}, {{model: b, parameters: {{{own}}}}}]\nbase_model: base\nmerge_method: {method}\nparameters: {{{common}}}\n"
IN_RECIPES = [
    ("ties", "density: [0.1, 2]", "", "`models.1.parameters.density` is 2"),
    ("ties", "", "density: [{filter: mlp, value: [0, 1.5]}, {value: 1}]", "`parameters.density` is 1.5"),
    (
        "ties",
        "",
        "consensus_method: [{filter: mlp, value: foo}, {value: sum}]",
        "`parameters.consensus_method` is foo",
    ),
    ("della", "", "density: [0.5, 0.9, 0.5]", "`parameters.density`: `epsilon` is 0.15 with a density of 0.9"),
    ("della", "density: 0.9", "epsilon: 0.2", "`models.1.parameters.density`: `epsilon` is 0.2"),
    ("della", "epsilon: 0.6", "density: 0.5", "`models.1.parameters.epsilon`|`parameters.density`"),
    ("della", "", "density: [{filter: mlp, value: 0.95}, {value: 1}]", "`parameters.density`: `epsilon` is 0.15"),
    (
        "della",
        "",
        "density: [{value: 0.95}]\n, epsilon: [{filter: x, value: 0.01}]",
        "`parameters.density`: `epsilon` is 0.15",
    ),
]


@pytest.mark.parametrize(("method", "own", "common", "words"), IN_RECIPES)
def test_values_in_recipes(method: str, own: str, common: str, words: str, tmp_path: Path) -> None:
    """At every value of gradients and filters; the sentence names file and key."""
    path = tmp_path / "r.yml"
    path.write_text(RECIPE.format(method=method, own=own, common=common))
    with pytest.raises(IsomergeError, match=words) as error:
        request_of_recipe(path)
    assert str(error.value).startswith(f"{path}: ")


FINE = [
    ("ties", {"density": 0, "consensus_method": "count"}),
    ("della", {"density": 1}),
    ("della", {"density": [0, 1]}),
    ("della", {"density": 0.9, "epsilon": 0.05}),
    ("della", {"density": {"filter": "mlp", "value": 0.95}, "epsilon": {"filter": "mlp", "value": 0.01}}),
    # which tensors have which values is known once there are tensors
    ("della", {"density": {"filter": "down", "value": 0.95}, "epsilon": {"filter": "mlp", "value": 0.01}}),
    ("fisher", {"weight": [0, 1]}),
    ("regression", {"ridge": None}),
]


@pytest.mark.parametrize(("method", "parameters"), FINE)
def test_values_that_are_taken(method: str, parameters: dict) -> None:
    """The ends of ranges, densities that draw nothing, windows that fit."""
    fusion = fusion_of(2, method=method, base=methods()[method].base == "required", parameters=parameters)
    assert fusion.method is methods()[method]
    assert parameters.keys() <= fusion.parameters.at(fusion.method, "mlp.down.weight", None, depth=2).keys()


ARITY = [
    ("slerp", 2),
    ("nearswap", 2),
    ("arcee_fusion", 3),
    ("passthrough", 2),
    ("nuslerp", 1),
    ("nuslerp", 3),
    ("model_stock", 1),
]


@pytest.mark.parametrize(("method", "count"), ARITY)
def test_number_of_models(method: str, count: int, tmp_path: Path) -> None:
    """Wherever the models are listed."""
    base = methods()[method].base != "none"
    with pytest.raises(IsomergeError, match=rf"^--method {method} merges .* but {count} were given"):
        fusion_of(count, method=method, base=base, parameters={"t": 0.5})
    models = ", ".join(f"{{model: m{k}, layer_range: [0, 1]}}" for k in range(count))
    tail = f"merge_method: {method}\nparameters: {{t: 0.5}}\n" + ("base_model: base\n" if base else "")
    for text, where in (
        (f"slices: [{{sources: [{models}]}}]\n", r"`slices\.0`"),
        (f"models: [{models.replace(', layer_range: [0, 1]', '')}]\n", "`models`"),
    ):
        (tmp_path / "r.yml").write_text(text + tail)
        with pytest.raises(IsomergeError, match=rf"r\.yml: {where}: the method {method} merges"):
            request_of_recipe(tmp_path / "r.yml")


def test_lists_that_are_no_value_per_model() -> None:
    """A gradient of a parameter that all models share, and filters, are as long as the list of models by chance."""
    given = {"t": [0, 1]}
    job = request_of_models(["a", "b"], method="slerp", base_model="a", parameters=given)
    assert job.fusion.parameters.common == given
    given = {"weight": [{"filter": "mlp", "value": 3}, {"value": 1}], "density": [0.2, 0.4, 0.6]}
    job = request_of_models(["a", "base", "b"], method="ties", base_model="base", parameters=given)
    assert job.fusion.parameters.common == {"weight": given["weight"]}
    assert job.fusion.parameters.slices[0].sources == ({"density": 0.2}, {"density": 0.6})


def test_limits_of_no_option() -> None:
    """A misspelt limit is told to whoever writes the method."""

    @limited(wieght=Range(0, 1))
    def mine(tensors: list, *, weight: float = 1.0) -> None:
        """Mine."""

    with pytest.raises(TypeError, match="limits of wieght"):
        describe(mine)


def test_the_seed_that_is_given_comes_before_the_recipes(tmp_path: Path) -> None:
    """Of random methods too."""
    path = tmp_path / "r.yml"
    path.write_text(RECIPE.format(method="dare_ties", own="", common="") + "align: {enabled: false, seed: 3}\n")
    assert [request_of_recipe(path, seed=seed).fusion.seed for seed in (None, 5, 0)] == [3, 5, 0]

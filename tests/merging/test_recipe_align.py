"""The block ``align`` of a recipe: it runs no code."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

import isomerge
from isomerge.errors import IsomergeError
from isomerge.merging.experts.expert_checks import experts_recipe_text
from isomerge.merging.merge_request import MergeRequest, request_of_models
from isomerge.merging.recipe.merge_recipe import FUNCTIONS, OBJECTS, recipe_text
from isomerge.merging.recipe.recipe_components import kept_recipe
from isomerge.merging.recipe.recipe_request import request_of_recipe
from isomerge.merging.recipe.schema import AlignBlock, ExpertsRecipe
from isomerge.observe.data.examples import Examples
from solve.disguises import single

MODELS = "models: [{model: a}, {model: b}]\nmerge_method: linear\n"
EVIL = "from pathlib import Path\nPath('ran').touch()\ndef examples():\n    return [{'input_ids': [1, 2, 3, 4]}]\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, the current one, with a module and a package that leave a file when they are imported."""
    (tmp_path / "evil_module.py").write_text(EVIL)
    (tmp_path / "evil_package").mkdir()
    (tmp_path / "evil_package" / "__init__.py").write_text(EVIL)
    (tmp_path / "evil_package" / "inner.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    for name in ("evil_module", "evil_package", "evil_package.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize("key", ["data", "learn", "repair"])
@pytest.mark.parametrize("module", ["evil_module", "evil_package.inner", "no_module"])
def test_a_recipe_names_no_function(key: str, module: str, here: Path) -> None:
    """Nor is its module looked for, which may import a package."""
    (here / "r.yml").write_text(f"{MODELS}align: {{{key}: '{module}:examples'}}\n")
    with pytest.raises(IsomergeError) as error:
        request_of_recipe(here / "r.yml")
    assert str(error.value).startswith(f"{here / 'r.yml'}: `align.{key}` is {module}:examples")
    assert f"--{key} {module}:examples on the command line" in str(error.value)
    assert not (here / "ran").exists()


def test_other_data_of_a_recipe(here: Path) -> None:
    """Files, folders, and data sets with their owner are no functions."""
    for ref in ("texts", "./a:b", "owner/name:test", "name", "a b:c", "x.jsonl"):
        (here / "r.yml").write_text(f"{MODELS}align: {{data: '{ref}'}}\n")
        assert request_of_recipe(here / "r.yml").said["data"] == ref


def test_functions_beside_a_recipe(here: Path) -> None:
    """From Python (and the command line) they are run; the recipe that is kept says how, and does not name them."""
    for name, seed in (("a", 0), ("b", 5)):
        single("gpt2", here / name, seed)
    (here / "r.yml").write_text(f"{MODELS}align: true\n")
    isomerge.merge(here / "r.yml", out=here / "out", data="evil_module:examples")
    assert (here / "ran").exists()
    kept = (here / "out" / "isomerge_recipe.yml").read_text()
    assert kept.startswith("# Data were given by Python functions")
    assert "--data evil_module:examples" in kept
    assert request_of_recipe(here / "out" / "isomerge_recipe.yml").said == {}


def test_a_kept_recipe_names_no_function_for_repair() -> None:
    """The same where it is not data of the match."""
    text = recipe_text(replace(request_of_models(["a", "b"]), align=True, repair="m:f"), ["a", "b"])
    assert "run this one with --repair m:f." in text
    assert "\nalign: true" in text


def test_a_kept_recipe_says_how_many_rows_were_asked_for() -> None:
    """As it says every option of a match that is not its default."""
    request = replace(request_of_models(["a", "b"]), said={"data": "x.jsonl", "rows": 7})
    text = recipe_text(request, ["a", "b"])
    assert "rows: 7" in text


@pytest.mark.parametrize("name", MergeRequest.recipe_keys())
def test_an_option_that_a_request_has_as_it_is_said_is_a_key(name: str, tmp_path: Path) -> None:
    """What a recipe says of it the request has, and the recipe that is kept says it again: an option without its
    `Key` is none, and one that is left out of the request or of what is kept is lost."""
    default = getattr(MergeRequest, name)
    value = not default if isinstance(default, bool) else "none"
    (tmp_path / "r.yml").write_text(f"{MODELS}align: {{{name}: {str(value).lower()}}}\n")
    request = request_of_recipe(tmp_path / "r.yml")
    assert getattr(request, name) == value
    kept = yaml.safe_load(recipe_text(request, ["a", "b"], request.spaces, firm=True))
    assert kept["align"][name] == value


@pytest.mark.parametrize(
    ("data", "heading"),
    [
        ("evil_module:examples", FUNCTIONS.format("--data evil_module:examples")),
        (Examples({"input_ids": torch.ones(1, 3, dtype=torch.int64)}, labelled=False), OBJECTS),
    ],
    ids=["function", "object"],
)
@pytest.mark.parametrize("kind", ["experts", "pipelines"])
def test_recipes_of_other_kinds_name_no_function_and_no_object(
    kind: str, data: object, heading: str, here: Path
) -> None:
    """They say how they can be run again: one that named the function would be refused, and YAML has no objects."""
    (here / "r.yml").write_text(MODELS)
    said = {"data": data, "rows": 7}
    experts = ExpertsRecipe(base_model="a", experts=[{"source_model": "b"}], align=AlignBlock(enabled=True))  # pyright: ignore[reportArgumentType]
    text = experts_recipe_text(experts, said, 0, None) if kind == "experts" else kept_recipe(here / "r.yml", said)
    assert text.startswith(heading)
    align = yaml.safe_load(text)["align"]
    assert align["rows"] == 7
    assert "data" not in align
    assert not (here / "ran").exists()

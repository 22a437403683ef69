"""Recipes of several documents: their order, the folders in the place of names, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from isomerge.errors import IsomergeError
from isomerge.merging.recipe.recipe_request import request_of_recipe
from isomerge.merging.recipe.recipe_steps import steps_of
from isomerge.merging.recipe.schema import read_recipe

LAST = """
merge_method: ties
base_model: second@main
models: [{model: first}, {model: {model: {path: second, revision: v2}}}, {model: first+lora}, {model: firstborn}]
tokenizer: {source: first, tokens: {x: {source: {kind: model_token, model: second, token: x}}}}
align: {onto: first, heads: "keep:first"}
"""
SECOND = "name: second\nmerge_method: slerp\nbase_model: first\nmodels: [{model: first}, {model: c}]\nparameters: {t: 0.5}\n"
FIRST = "name: first\nmerge_method: linear\nmodels: [{model: a}, {model: b}]\n"


def write(folder: Path, *documents: str) -> Path:
    """A recipe of documents."""
    (folder / "r.yml").write_text("---\n".join(documents))
    return folder / "r.yml"


def test_steps_come_after_what_they_need(tmp_path: Path) -> None:
    """However they are listed; one document is no recipe of steps."""
    for documents in ([FIRST, SECOND, LAST], [LAST, SECOND, FIRST]):
        steps = steps_of(write(tmp_path, *documents)) or []
        assert [(step.name, step.needs) for step in steps][:2] == [("first", ()), ("second", ("first",))]
        assert (steps[2].name, set(steps[2].needs)) == (None, {"first", "second"})
    named = steps_of(write(tmp_path, SECOND, FIRST)) or []
    assert [step.name for step in named] == ["first", "second"]
    assert steps_of(write(tmp_path, FIRST, "")) is None


def test_names_become_folders(tmp_path: Path) -> None:
    """Wherever a recipe names a model, with its revision and adapters; and nowhere else."""
    last = (steps_of(write(tmp_path, FIRST, SECOND, LAST)) or [])[-1]
    recipe = read_recipe(last.reading({"first": Path("/x/first"), "second": Path("/x/second")}))
    assert recipe.model_names() == ["/x/first", "/x/second@v2", "/x/first+lora", "firstborn"]
    assert recipe.base_model == "/x/second@main"
    assert (recipe.align.onto, recipe.align.heads) == ("/x/first", "keep:/x/first")
    assert recipe.tokenizer is not None
    assert recipe.tokenizer.source == "/x/first"
    assert recipe.tokenizer.tokens["x"].source["model"] == "/x/second"


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ([FIRST, FIRST, LAST], "two steps have the `name` first"),
        ([FIRST, LAST, LAST], "two steps have no `name`"),
        ([FIRST.replace("first", "../first"), LAST], "document 1 has the `name` '../first': give letters"),
        ([FIRST.replace("first", ".first"), LAST], "give letters"),
        ([FIRST.replace("first", "union"), LAST], "none of union, base"),
        ([FIRST.replace("name: first", "name: 3"), LAST], "document 1 has the `name` 3"),
        ([FIRST, "[1]\n"], "document 2 is no mapping"),
        ([FIRST, FIRST.replace("first", "other")], "first, other are all needed by no other step"),
        ([FIRST.replace("model: a", "model: second"), SECOND, LAST], "steps wait for one another: first, second"),
        ([FIRST.replace("model: a", "model: second"), SECOND], "they wait for one another"),
    ],
)
def test_wrong_steps(documents: list[str], words: str, tmp_path: Path) -> None:
    """One sentence with the file."""
    with pytest.raises(IsomergeError) as error:
        steps_of(write(tmp_path, *documents))
    assert words in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "r.yml"))


def test_mistakes_name_the_step(tmp_path: Path) -> None:
    """And its key."""
    steps = steps_of(write(tmp_path, FIRST.replace("linear", "lineal"), SECOND)) or []
    with pytest.raises(IsomergeError, match=r"r.yml \(step first\): `merge_method` lineal"):
        request_of_recipe(steps[0])
    steps = steps_of(write(tmp_path, FIRST, SECOND + "zzz: 1\n")) or []
    with pytest.raises(IsomergeError, match=r"r.yml \(step second\): unknown key `zzz`"):
        request_of_recipe(steps[1])

"""Errors about what stands in a recipe name its keys."""

from __future__ import annotations

import pytest

from isomerge.errors import IsomergeError, UnfinishedError
from isomerge.merging.recipe.recipe_words import in_keys, told_in_keys
from isomerge.merging.recipe.schema import AlignBlock, Recipe

BLOCK = AlignBlock(data="x", search=1.0, learn_permutations=True, stats=["a", "b"])


@pytest.mark.parametrize(
    ("sentence", "wanted"),
    [
        ("--search nan: give a time", "`align.search` nan: give a time"),
        ("--max-memory 1: more is needed", "--max-memory 1: more is needed"),  # of the command line alone
        ("add --learn DATA, or say --spaces all", "add `align: {learn: DATA}`, or say `align: {spaces: all}`"),
        ("left as they are (--align matches them)", "left as they are (`align.enabled: true` matches them)"),
        ("--no-merge-base takes its config", "`align: {merge_base: false}` takes its config"),
        ("leave --no-align out, or say --method ties", "say `align.enabled: true`, or say `merge_method: ties`"),
        ("--learn-permutations is for learning", "`align.learn_permutations` is for learning"),
        ("--stats-src and --data: choose one", "`align.stats` and `align.data`: choose one"),
        (
            "make it by isomerge stats A --data DATA: it is none",
            "make it by isomerge stats A --data DATA: it is none",
        ),
        ("--database: no", "--database: no"),
        ("merge makes them so with --tokenizer-source union", "merge makes them so with `tokenizer_source: union`"),
        ("--untie gives a head of its own", "`align: {untie: true}` gives a head of its own"),
    ],
)
def test_keys(sentence: str, wanted: str) -> None:
    """Of options that a recipe says, and of those that it may say; commands stay as they are."""
    assert in_keys(sentence, BLOCK, {}) == wanted


def test_a_recipe_that_aligns_nothing() -> None:
    """What it is told to add does not make it align."""
    wanted = "`align: {enabled: false, untie: true}` gives a head of its own"
    assert in_keys("--untie gives a head of its own", AlignBlock(enabled=False), {}) == wanted
    assert in_keys("nothing is aligned (--no-align)", AlignBlock(), {}) == "nothing is aligned (`align: false`)"


def test_options_that_count() -> None:
    """What the command line says otherwise keeps its name."""
    assert in_keys("--data y: lost", BLOCK, {"data": "y"}) == "--data y: lost"
    assert in_keys("--steps -1: too few", BLOCK, {"steps": -1}) == "--steps -1: too few"
    assert in_keys("--data x: lost", BLOCK, {"data": "x"}) == "`align.data` x: lost"


def test_errors() -> None:
    """They name the file, once, and keep their type; without a recipe they stay."""
    recipe = Recipe(merge_method="linear", align=BLOCK)
    for given, wanted in (
        ("--data x", "r.yml: `align.data` x"),
        ("r.yml: --data x", "r.yml: `align.data` x"),
        ("x", "x"),
    ):
        with pytest.raises(UnfinishedError) as error, told_in_keys("r.yml", recipe, {}):
            raise UnfinishedError(given)
        assert error.value.sentence == wanted
    with pytest.raises(IsomergeError, match=r"^--data x$"), told_in_keys("r.yml", None, {}):
        raise IsomergeError("--data x")

"""Texts that are like others, and lines of modules: what they stand for."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from isomerge import archs
from isomerge.archs import expanded_texts, spec_texts
from isomerge.errors import IsomergeError
from isomerge.symmetry.language.expansion import conditioned, expanded, expanded_text
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.language.spec_text import parse_spec
from isomerge.symmetry.language.words import WORDS

BASE = """
# what it is
model base
prefix model.
size res = width
size h = heads
size ov = res // h
space h: Perm[l]
space ov: GL[l, h]
embed.weight vocab res
layers.{l}.v.*  (h ov) res'
layers.{l}.o.*  res (h ov')
layers.{l}.norm.*  diag(res n1) - 1 if normed
head.weight vocab res' = embed.weight
"""
TEXTS = {"base": ("base.spec", BASE)}


def lines(text: str) -> list[str]:
    """A text with everything written out, its `model` statement left out."""
    return [line for line in expanded_text(text, "mine.spec", TEXTS).splitlines() if not line.startswith("model ")]


BASE_LINES = lines(BASE)


def test_a_module_is_weight_and_bias() -> None:
    """A bias has the rows of its weight; that of a norm is a vector, stored as it is."""
    assert "layers.{l}.v.weight (h ov) res'" in BASE_LINES
    assert "layers.{l}.v.bias (h ov)" in BASE_LINES
    assert "layers.{l}.o.bias res" in BASE_LINES
    assert "layers.{l}.norm.weight diag(res n1) - 1 if normed" in BASE_LINES
    assert "layers.{l}.norm.bias (res n1) if normed" in BASE_LINES
    assert lines("? x.* diag(res)") == ["? x.weight diag(res)", "? x.bias res"]
    assert lines("x.* [a b | c] res'") == ["x.weight [a b | c] res'", "x.bias [a b | c]"]


def test_like() -> None:
    """Another text with what differs: in its place, behind what stands before it, or gone."""
    text = "like base\nmodel mine\nsize h = heads + 1\nsize more = 3\nlayers.{l}.v.bias rows\nlayers.{l}.extra.weight res res'"
    mine = lines(text)
    assert [line for line in mine if line not in BASE_LINES] == [
        "size h = heads + 1",
        "size more = 3",
        "layers.{l}.v.bias rows",
        "layers.{l}.extra.weight res res'",
    ]
    assert (
        mine.index("size more = 3")
        == mine.index("size h = heads + 1") + 1
        == BASE_LINES.index("size h = heads") + 1
    )
    assert mine.index("layers.{l}.extra.weight res res'") == mine.index("layers.{l}.v.bias rows") + 1
    assert "model mine" in expanded_text(text, "mine.spec", TEXTS)
    assert "model base" not in expanded_text(text, "mine.spec", TEXTS)


def test_drop() -> None:
    """By name, by word and name, by a star, by word alone."""
    assert lines("like base\ndrop h")[:] == [
        x for x in BASE_LINES if x not in ("size h = heads", "space h: Perm[l]")
    ]
    assert lines("like base\ndrop space h") == [x for x in BASE_LINES if x != "space h: Perm[l]"]
    assert lines("like base\ndrop layers.{l}.norm.*") == [x for x in BASE_LINES if ".norm." not in x]
    assert lines("like base\ndrop prefix") == [x for x in BASE_LINES if not x.startswith("prefix")]


def test_after() -> None:
    """Where a new line stands that follows nothing of its text."""
    mine = lines("like base\nafter embed.weight\npositions.weight pos res\ntypes.weight types res")
    at = mine.index("embed.weight vocab res")
    assert mine[at + 1 : at + 3] == ["positions.weight pos res", "types.weight types res"]
    assert lines("like base\npositions.weight pos res")[-1] == "positions.weight pos res"


def test_several_lines_of_one_name_take_the_place_of_one() -> None:
    """A line under two conditions where the other text has it once."""
    two = ["head.weight vocab res' if tied", "head.weight vocab other if not tied"]
    assert lines("like base\n" + "\n".join(two))[-2:] == two


NAMED = {
    "carry": "x: a.bias -> b.bias",
    "probe": "x: a through b by c -> d by e along h",
    "reached": "x: a over b -> c by d",
    "unheard": "x: a by b through c",
    "basis": "x: a along h -> b",
    "centred": "x: a over h",
    "length": "x: a above 0.1",
    "shift": "x: a.bias",
}


@pytest.mark.parametrize("word", NAMED)
def test_what_has_a_name_is_dropped_and_written_anew_by_it(word: str) -> None:
    """Statements of few tensors, as spaces are: another one of the same name takes the first one's place."""
    texts = {"base": ("base.spec", f"{BASE}{word} {NAMED[word]}")}
    assert expanded("like base\ndrop x", "mine.spec", texts) == expanded("like base", "mine.spec", TEXTS)
    assert expanded(f"like base\ndrop {word} x", "mine.spec", texts) == expanded("like base", "mine.spec", TEXTS)
    anew = [str(each) for each in expanded(f"like base\n{word} {NAMED[word]} if more", "mine.spec", texts)]
    assert [line for line in anew if line.startswith(f"{word} ")] == [f"{word} {NAMED[word]} if more"]


def test_likes_follow_each_other() -> None:
    """A text that is like one that is like another."""
    texts = {**TEXTS, "middle": ("middle.spec", "like base\nmodel middle\nsize h = 2 * heads")}
    mine = expanded_text("like middle\nmodel mine\ndrop space ov", "mine.spec", texts)
    assert "size h = 2 * heads" in mine
    assert "space ov" not in mine
    spec = parse_spec("like middle\nmodel mine", {"width": 12, "heads": 3}, "mine.spec", texts)
    assert (spec.sizes["h"], spec.origin, spec.lines[0].place) == (6, "mine.spec", "base.spec, line 10")


def test_every_word_is_declared_whole() -> None:
    """What it reads is kept by a field of specs, and the page of the language has a row of it."""
    kept = {field.name for field in fields(Spec)} | {"models", ""}
    assert [word for word, each in WORDS.items() if each.field not in kept] == []
    page = (Path(__file__).parents[2] / "docs/lab/spec-language.md").read_text()
    assert [word for word in WORDS if not re.search(rf"^\| .*`{word} ", page, re.MULTILINE)] == []


WRONG = {
    "like nothing": r"mine\.spec, line 1: like nothing: there is no spec",
    "size a = 1\nlike base": r"mine\.spec, line 2: `like` comes first",
    "like base\ndrop more": r"mine\.spec, line 2: drop more: nothing before it",
    "like base\ndrop require": r"mine\.spec, line 2: drop require: there is no such statement",
    "like base\nafter more": r"mine\.spec, line 2: after more: nothing before it",
    "x.* res res' = y.weight": r"mine\.spec, line 1: x\.\*: write the lines of weight and bias apart",
    "x.*": r"mine\.spec, line 1: x\.\*: write the lines",
}


@pytest.mark.parametrize("text", WRONG)
def test_refusals(text: str) -> None:
    """One sentence with file and line."""
    with pytest.raises(IsomergeError, match=WRONG[text]):
        expanded(text, "mine.spec", TEXTS)


def test_a_text_is_not_like_itself() -> None:
    """Neither at once nor over others."""
    texts = {"a": ("a.spec", "like b\nmodel a"), "b": ("b.spec", "like a\nmodel b")}
    with pytest.raises(IsomergeError, match="this text is like itself"):
        expanded(texts["a"][1], "a.spec", texts)


CONDITIONS = {
    "x res": ("x res", None),
    "x res if a": ("x res", "a"),
    "size = a if b else c": ("size = a if b else c", None),
    "size = (a if b else c) if d": ("size = (a if b else c)", "d"),
    "x (h ov') if a == ' if '": ("x (h ov')", "a == ' if '"),
    'x [a | b\'] if "a if b" in tensors': ("x [a | b']", '"a if b" in tensors'),
    "key = 3 if (a if b else c)": ("key = 3", "(a if b else c)"),
}


@pytest.mark.parametrize("body", CONDITIONS)
def test_conditions(body: str) -> None:
    """One grammar: a last `if` that has no `else`, outside of brackets and quotes."""
    assert conditioned(body) == CONDITIONS[body]


def test_no_text_asks_for_its_own_type() -> None:
    """A text is of one model type: whatever depends on it is said or left out."""
    for name, text in spec_texts().values():
        for line in text.splitlines():
            assert line.startswith("#") or not re.search(r"(?<![\w.])model_type\b", line), (name, line)


def test_every_text_begins_with_what_it_is() -> None:
    """A comment for people."""
    assert [name for name, text in spec_texts().values() if not text.startswith("# ")] == []
    assert all(
        "*" not in line.partition(" ")[0] for _, text in expanded_texts().values() for line in text.splitlines()
    )


def test_file_names_of_texts_are_unique() -> None:
    """Messages name a text by its file alone."""
    files = [path.name for path in Path(archs.__file__).parent.rglob("*.spec")]
    assert sorted(files) == sorted(set(files))

"""Expressions over a config: arithmetic and conditions, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from isomerge.errors import IsomergeError
from isomerge.symmetry.language.expressions import evaluate

CONFIG: dict[str, Any] = {
    "d": 48, "n": 6, "none": None, "act": "relu", "terms": ["c2p", "p2c"], "tie": False, "text": "gated-gelu",
    "rope": {"factor": 0.4, "type": "default", "inner": {"n": 3}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("d", 48),
        (" d + n - 2 * 3 ", 48),
        ("-n", -6),
        ('"layers." + (n + 1) + ".norm"', "layers.7.norm"),
        ('act + "6"', "relu6"),
        ("d // n", 8),
        ("4 * d", 192),
        ("missing", None),
        ("missing or d", 48),
        ("none or missing or n", 6),
        ("0 or tie", False),
        ("d and n", 6),
        ("tie and d", False),
        ("tie and missing + 1", False),
        ("d or missing + 1", 48),
        ("not tie", True),
        ("not missing", True),
        ('act == "relu"', True),
        ('act != "relu"', False),
        ("d > n", True),
        ("d < n", False),
        ("d >= 48", True),
        ("n <= 5", False),
        ('"p2c" in terms', True),
        ('"p2c" not in terms', False),
        ('"p2c" in missing', False),
        ('"p2c" not in missing', True),
        ('"gated" in text', True),
        ("act in (None, 'relu')", True),
        ("none in [None, 'relu']", True),
        ("d if tie else n", 6),
        ("d if act == 'relu' else missing + 1", 48),
        ("(missing or 1) == 1", True),
        ("rope.type", "default"),
        ("rope.inner.n + 1", 4),
        ("rope.missing", None),
        ("missing.factor", None),
        ("missing.factor or rope.factor or 0.25", 0.4),
        ("d * rope.factor", 19),  # cut, as int() does
        ("n * 0.5", 3),
        ("d * 1.0", 48),
    ],
)
def test_values(text: str, value: Any) -> None:
    """The language does what Python does, with None for missing keys."""
    found = evaluate(text, CONFIG)
    assert found == value
    assert type(found) is type(value)


def test_entries() -> None:
    """Shapes of stored tensors: a name of the group, a place of the list; what is missing is None."""
    names = {"tensors": {"head.weight": (5, 48)}}
    assert evaluate('tensors["head.weight"][1] // 6', names) == 8
    assert evaluate('tensors["head.weight"][2] or 7', names) == 7
    assert evaluate('tensors["tail.weight"][0]', names) is None
    assert evaluate("layers[n][0] + layers[-1][0]", {"layers": [(5,), (6,)], "n": 0}) == 11
    assert evaluate("layers[2]", {"layers": [5, 6]}) is evaluate("layers[n]", {"layers": [5, 6]}) is None
    assert (
        evaluate("heads[0] + heads[-2]", {"heads": 4}) == evaluate("heads[0] + heads[-2]", {"heads": (4, 4)}) == 8
    )
    assert evaluate("by_layer[5].width", {"by_layer": {"05": {"width": 3}}}) == 3
    assert evaluate("by_layer[4].width", {"by_layer": {"05": {"width": 3}}}) is None
    assert evaluate('"head.weight" in tensors and "tail.weight" not in tensors', names) is True


@given(st.integers(-50, 50), st.integers(-50, 50), st.sampled_from("+-*%"))
def test_arithmetic_is_python(a: int, b: int, sign: str) -> None:
    """Whole numbers, as Python computes them."""
    assume(sign != "%" or b)
    assert evaluate(f"a {sign} b", {"a": a, "b": b}) == eval(f"a {sign} b", {"a": a, "b": b})


@given(st.integers(1, 200), st.integers(1, 20))
def test_divisions_are_whole(a: int, b: int) -> None:
    """A remainder is a config that does not fit."""
    if a % b == 0:
        assert evaluate("a // b", {"a": a, "b": b}) == a // b
    else:
        with pytest.raises(IsomergeError, match=rf"config.json: a // b = {a} // {b} is not a whole number"):
            evaluate("a // b", {"a": a, "b": b})


@pytest.mark.parametrize(
    "text",
    [
        "len(terms)", "__import__('os')", "act.upper", "act[0]", "terms['0']", "terms[0:1]", "terms[act]", "lambda: 1", "{1: 2}", "[x for x in terms]",
        "rope.type.upper", "d / n", "2 ** d", "1 < d < 50", "act is None", "f'{d}'", "d := 3", "~d",
    ],
)  # fmt: skip
def test_refuses_everything_else(text: str) -> None:
    """No calls, no attributes of anything but groups of keys, no subscripts but names and numbers: a spec is
    data."""
    with pytest.raises(IsomergeError, match="expression"):
        evaluate(text, CONFIG)


@pytest.mark.parametrize("text", ["", "d +", "d n", "size = 3", "\0"])
def test_refuses_what_is_no_expression(text: str) -> None:
    """Syntax errors quote the text."""
    with pytest.raises(IsomergeError, match="in the spec is not valid"):
        evaluate(text, CONFIG)


@pytest.mark.parametrize(
    ("text", "blames"),
    [("d // heads", "heads is missing"), ("act * d", "act is 'relu'"), ("d + 0.5", "d is 48"), ("act + none", "none is missing"), ("act + tie", "act is 'relu' and tie is False"), ("d // 0.5", "d is 48"), ("none + 1", "none is missing"), ("heads > 3", "heads is missing"), ("d // 0", "d is 48")],
)  # fmt: skip
def test_missing_and_mistyped_keys_are_named(text: str, blames: str) -> None:
    """The message quotes the expression and the key."""
    with pytest.raises(IsomergeError) as caught:
        evaluate(text, CONFIG)
    assert f"config.json: the spec needs {text!r}, but {blames}; correct it" in str(caught.value)

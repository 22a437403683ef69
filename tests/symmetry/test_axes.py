"""The language of typed axes: grammar, sizes, views and messages."""

from __future__ import annotations

import re
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isomerge.errors import IsomergeError
from isomerge.symmetry.axes import (
    Atom,
    Axis,
    Concat,
    Product,
    atoms,
    dual,
    leaf_atoms,
    length,
    parse,
    shape,
    show,
    size,
    views,
)

SIZES = {"a": 2, "b": 3, "c": 1, "head": 4}
NAMED = st.builds(Atom, st.sampled_from([*SIZES]), st.booleans())
ATOMS = st.one_of(NAMED, st.sampled_from([Atom("1"), Atom("2")]))


def nested(inner: st.SearchStrategy[Axis]) -> st.SearchStrategy[Axis]:
    """Products of two or more, and concatenations."""
    parts = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(parts.map(Product), parts.map(Concat))


AXES = st.recursive(ATOMS, nested, max_leaves=5)
PATTERNS = st.lists(AXES, max_size=3).map(tuple)


@given(PATTERNS)
def test_show_is_the_inverse_of_parse(axes: tuple[Axis, ...]) -> None:
    """What is shown parses to the same axes."""
    assert parse(" ".join(map(show, axes))) == axes


@given(AXES)
def test_duals_distribute(axis: Axis) -> None:
    """A mark on a bracket is a mark on every atom; twice is none."""
    assert dual(dual(axis)) == axis
    assert [(a.name, a.dual) for a in atoms((dual(axis),))] == [
        (a.name, not a.dual and not a.name.isdigit()) for a in atoms((axis,))
    ]
    if not isinstance(axis, Atom):
        assert parse(show(axis) + "'") == (dual(axis),)


@given(PATTERNS)
def test_views_are_writable_and_cover_once(axes: tuple[Axis, ...]) -> None:
    """Adding one to every view adds one to every number of the tensor."""
    tensor = torch.zeros([length(axis, SIZES) for axis in axes])
    for (view,), found in views((tensor,), axes, SIZES):
        assert list(view.shape) == [length(a, SIZES) for a in found]
        view += 1
    assert tensor.eq(1).all()
    assert tensor.numel() == prod(n for n in shape(axes, SIZES) if n is not None)


@given(PATTERNS)
def test_views_agree_between_tensors(axes: tuple[Axis, ...]) -> None:
    """The same numbers are seen in the same places of every tensor."""
    one = torch.arange(prod(length(a, SIZES) for a in axes)).reshape([length(a, SIZES) for a in axes])
    for (left, right), _ in views((one, one.clone()), axes, SIZES):
        assert torch.equal(left, right)


def test_slow_is_written_first() -> None:
    """``(a b)`` is C order: a slow, b fast."""
    axes = parse("(a b) head'")
    assert axes is not None
    tensor = torch.arange(24).reshape(6, 4)
    [((view,), found)] = views((tensor,), axes, SIZES)
    assert torch.equal(view, tensor.reshape(2, 3, 4))
    assert found == (Atom("a"), Atom("b"), Atom("head", True))


def test_concatenations_are_in_order() -> None:
    """``[a b | b']`` are the first six numbers, then three."""
    axes = parse("[a b | b']")
    assert axes is not None
    tensor = torch.arange(9)
    (((first,), x), ((second,), y)) = views((tensor,), axes, SIZES)
    assert torch.equal(first, tensor[:6].reshape(2, 3))
    assert torch.equal(second, tensor[6:])
    assert [x, y] == [(Atom("a"), Atom("b")), (Atom("b", True),)]


def test_heads_of_fused_blocks() -> None:
    """``(a [b | head])`` interleaves the blocks head by head."""
    axes = parse("(a [b | head])")
    assert axes is not None
    tensor = torch.arange(14)
    parts = [view for (view,), _ in views((tensor,), axes, SIZES)]
    assert torch.equal(parts[0], tensor.reshape(2, 7)[:, :3])
    assert torch.equal(parts[1], tensor.reshape(2, 7)[:, 3:])


def test_sizes() -> None:
    """Products multiply, concatenations add, numbers are themselves, single atoms may be free."""
    axes = parse("(a b) [a | b head | 5] 7 vocab")
    assert axes is not None
    assert shape(axes, SIZES) == (6, 2 + 12 + 5, 7, None)


def test_star_is_any_shape() -> None:
    """``*`` alone stands for a tensor that nothing touches."""
    assert parse(" * ") is None


def test_a_group_of_one_is_no_group() -> None:
    """Brackets around one axis mean nothing; around a block they do not either."""
    assert parse("((a))' b") == (Atom("a", True), Atom("b"))


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("a - b", "'-' is not in the language"),
        ("a b.weight", "'.weight' is not in the language"),
        ("a''", '"\'" is not in the language'),
        ("(a b", "expected ')'"),
        ("[a | b", "expected ']'"),
        ("(a | b)", "expected ')'"),
        ("(a]", "expected ')'"),
        ("a )", "unexpected ')'"),
        ("a | b", "unexpected '|'"),
        ("a *", "unexpected '*'"),
        ("()", "an empty group or block"),
        ("[a | ]", "an empty group or block"),
    ],
)
def test_messages_name_the_part(pattern: str, says: str) -> None:
    """Errors quote the pattern and the part that is wrong."""
    with pytest.raises(IsomergeError, match=re.escape(f"axis pattern {pattern!r}")) as caught:
        parse(pattern)
    assert says in str(caught.value)


def test_unknown_sizes_are_named() -> None:
    """A free atom inside a product has no length."""
    (axis,) = parse("(a lost)") or ()
    with pytest.raises(IsomergeError, match=r"axis lost is not known: add a `size` line"):
        size(axis, SIZES)
    with pytest.raises(IsomergeError, match="axis vocab' is not known"):
        length(Atom("vocab", True), SIZES)


@given(PATTERNS)
def test_leaf_atoms_are_those_of_views(axes: tuple[Axis, ...]) -> None:
    """Block by block, in the order of the views, without a tensor."""
    tensor = torch.empty([length(axis, SIZES) for axis in axes])
    assert list(leaf_atoms(axes)) == [found for _, found in views((tensor,), axes, SIZES)]

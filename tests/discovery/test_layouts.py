"""Layouts are recognised from whose chunk is whose, and nothing else is."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isomerge.discovery.attention_spaces import Chunk, Names, layout, leaf_number

PARTS = {"q": "c pair", "k": "c' pair", "v": "ov", "o": "ov'"}
sizes = st.tuples(st.integers(2, 5), st.integers(1, 3))


def names(count: int, sharing: int) -> Names:
    """Names for a number of key-value heads and of queries that share one."""
    return Names("kv" if sharing > 1 else "h", "g", count, sharing)


def queries(count: int, sharing: int) -> list[Chunk]:
    """All queries, those of one key-value head side by side."""
    return [("q", head) for head in range(count) for _ in range(sharing)]


def one_each(role: str, count: int) -> list[Chunk]:
    """One chunk for every key-value head."""
    return [(role, head) for head in range(count)]


@given(sizes)
def test_known_layouts(size: tuple[int, int]) -> None:
    """Separate, one block after the other, and head by head."""
    count, sharing = size
    n = names(count, sharing)
    group = "g " if sharing > 1 else ""
    blocks = queries(count, sharing) + one_each("k", count) + one_each("v", count)
    turns = [chunk for h in range(count) for chunk in [*[("q", h)] * sharing, ("k", h), ("v", h)]]
    assert layout(queries(count, sharing), PARTS, n) == f"({n.heads} {group}c pair)"
    assert layout(one_each("v", count), PARTS, n) == f"({n.heads} ov)"
    assert layout(blocks, PARTS, n) == f"[{n.heads} {group}c pair | {n.heads} c' pair | {n.heads} ov]"
    assert layout(turns, PARTS, n) == f"({n.heads} [{group}c pair | c' pair | ov])"


@given(st.integers(2, 4), st.integers(2, 3))
def test_groups_that_alternate(count: int, sharing: int) -> None:
    """Query heads that share a key are as far apart as there are keys: the group is the slow index."""
    chunks = [("q", head) for _ in range(sharing) for head in range(count)]
    assert layout(chunks, PARTS, names(count, sharing)) == "(g kv c pair)"


@pytest.mark.parametrize("order", [o for o in permutations(range(3)) if o != (0, 1, 2)])
def test_heads_out_of_order_are_not_guessed(order: tuple[int, ...]) -> None:
    """Heads in any other order have no pattern."""
    assert layout([("q", head) for head in order], PARTS, names(3, 1)) is None


def test_incomplete_layouts_are_not_guessed() -> None:
    """A missing head, or roles that change their order on the way, have no pattern."""
    assert layout(one_each("q", 2), PARTS, names(3, 1)) is None
    assert layout([("q", 0), ("k", 0), ("k", 1), ("q", 1)], PARTS, names(2, 1)) is None


def test_number_of_a_fused_part() -> None:
    """Shifts name parts by their place; a partly rotated head has two."""
    chunks = [*one_each("q", 2), *one_each("k", 2), *one_each("v", 2)]
    assert leaf_number(chunks, "v", PARTS) == (2, 3)
    partial = {**PARTS, "q": "[c pair | rest]", "k": "[c' pair | rest']"}
    assert leaf_number(chunks, "v", partial) == (4, 5)

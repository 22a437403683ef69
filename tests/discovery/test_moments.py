"""Moments: relations planted among rows of numbers are found, and rotations are told from them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isomerge.discovery.moments import combination, relations
from isomerge.discovery.queries import Rotation, pair_expressions, rotation_of

seeds = st.integers(0, 1000)


def noise(*shape: int, seed: int) -> torch.Tensor:
    """Independent rows."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seeds, st.integers(1, 4), st.integers(1, 3))
def test_planted_sums_are_found(seed: int, heads: int, sharing: int) -> None:
    """Every key is the sum of its queries; rows of nobody stay out."""
    queries = noise(heads, sharing, 40, seed=seed)
    others = noise(3, 40, seed=seed + 1)
    rows = torch.cat([queries.flatten(0, 1), queries.sum(1), others])
    found = relations(rows)
    wanted = {frozenset([*range(h * sharing, (h + 1) * sharing), heads * sharing + h]) for h in range(heads)}
    assert {frozenset(relation) for relation in found} == wanted
    for relation in found:
        signs = {i < heads * sharing: c for i, c in relation.items()}
        assert signs[True] == pytest.approx(-signs[False])


@given(seeds)
def test_independent_rows_have_no_relations(seed: int) -> None:
    """Nothing is found where nothing is."""
    assert relations(noise(6, 40, seed=seed)) == []
    _, gap = combination(noise(40, seed=seed), noise(5, 40, seed=seed + 1))
    assert gap > 0.1


@given(seeds, st.sampled_from([2, 4, 8]), st.booleans(), st.booleans())
def test_rotations(seed: int, turned: int, interleaved: bool, last: bool) -> None:
    """What is not turned agrees coordinate by coordinate, pairs agree in sum."""
    queries, keys = noise(8, 20, seed=seed), noise(8, 20, seed=seed + 1)
    start = 8 - turned if last and turned < 8 else 0
    rest = [i for i in range(8) if not start <= i < start + turned]
    keys[rest] = queries[rest]
    half = turned // 2
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + half) for i in range(half)]
    for a, b in pairs:
        keys[start + b] = queries[start + a] + queries[start + b] - keys[start + a]
    found = rotation_of(queries, keys)
    assert found is not None
    assert (found.turned, found.last) == (turned, start > 0)
    assert found.interleaved == (interleaved and turned > 2)  # a single pair is in both orders at once


def test_other_relations_are_no_rotation() -> None:
    """Coordinates that agree in nothing are not explained."""
    assert rotation_of(noise(8, 20, seed=1), noise(8, 20, seed=2)) is None
    assert rotation_of(noise(8, 20, seed=1), noise(8, 20, seed=1)) == Rotation(0)


def test_axes_of_a_rotated_head() -> None:
    """As specs write them."""
    assert Rotation(8).axes("pair", "", "c") == "c pair"
    assert Rotation(8, interleaved=True).axes("pair", "", "c", dual=True) == "pair c'"
    assert Rotation(4).axes("pair", "rest", "c", dual=True) == "[c' pair | rest']"
    assert Rotation(4, last=True).axes("pair", "rest", "c") == "[rest | c pair]"


def test_numbers_of_pairs_come_from_the_config() -> None:
    """Only expressions that give the number measured."""
    assert "rotary_dim // 2" in pair_expressions(8, 16, {"rotary_dim": 8})
    assert pair_expressions(8, 16, {"rope_parameters": {"partial_rotary_factor": 0.5}}) == [
        "head * rope_parameters.partial_rotary_factor // 2",
        "head // 4",
    ]
    assert pair_expressions(6, 16, {}) == []

"""The distance between orbits is a metric: zero on one orbit only, symmetric, with the triangle inequality."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
import torch

import isomerge
from depth import more
from solve.disguises import disguise, perturb, turn
from toys import save_toy

KINDS = ["gpt2", "qwen3", "mixtral", *more("llama-mha", "vit", "bert", "t5-gated")]


def between(a: Path, b: Path, *, streams: bool = False) -> float:
    """The distance of two folders."""
    return isomerge.orbit_distance(a, b, streams=streams)["distance"]


@pytest.mark.parametrize("name", KINDS)
def test_it_is_a_metric(name: str, tmp_path: Path) -> None:
    """Three models near enough for matchings to matter, one further; every order of them."""
    a = save_toy(name, tmp_path / "a", dtype=torch.float64)
    near = [disguise(name, perturb(a, tmp_path / f"near-{s}", 0.3, seed=s), tmp_path / f"n-{s}", s) for s in (1, 2)]
    models = [a, *near, save_toy(name, tmp_path / "far", seed=9, dtype=torch.float64)]
    d = {(i, j): between(models[i], models[j]) for i in range(4) for j in range(4) if i != j}
    for i, j in d:
        assert d[i, j] > 0.01
        assert d[i, j] == pytest.approx(d[j, i], rel=1e-9)
    for i, j, k in permutations(range(4), 3):
        assert d[i, k] <= (d[i, j] + d[j, k]) * (1 + 1e-9)


@pytest.mark.parametrize("name", KINDS)
def test_it_is_a_function_of_orbits(name: str, tmp_path: Path) -> None:
    """Disguises change nothing: zero to the model itself, the same to another."""
    a = save_toy(name, tmp_path / "a", dtype=torch.float64)
    b = save_toy(name, tmp_path / "b", seed=5, dtype=torch.float64)
    twin = disguise(name, a, tmp_path / "twin", 3)
    report = isomerge.orbit_distance(a, twin)
    assert report["distance"] < 1e-9 * report["norm"]
    assert between(twin, b) == pytest.approx(between(a, b), rel=1e-9)
    assert between(a, b) > 0.1 * report["norm"]


def test_streams_are_matched_when_asked(tmp_path: Path) -> None:
    """A rotated stream is another orbit of the block-local group, and the same one of the whole."""
    a = save_toy("llama", tmp_path / "a", dtype=torch.float64)
    twin = turn("llama", a, tmp_path / "twin", 3)
    assert between(a, twin) > 1
    assert between(a, twin, streams=True) < 1e-8


def test_parts_add_up(tmp_path: Path) -> None:
    """Layers are disjoint: their squares sum to the whole."""
    a = save_toy("gpt2", tmp_path / "a", dtype=torch.float64)
    report = isomerge.orbit_distance(a, perturb(a, tmp_path / "b", 0.2))
    layers = sum(cell["distance"] ** 2 for cell in report["layers"].values())
    assert layers == pytest.approx(report["distance"] ** 2)
    assert report["spaces"]["qk"]["distance"] > 0
    assert report["dead"] == []

"""Factors over the channels of a stream that are no norm's gains: a filter for each channel before a map that mixes
them (ConvBERT's separable convolutions). Twins, near-twins and wrong texts: `symmetry.test_statements`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import isomerge
from isomerge.matching.balance import canonical_gauge
from symmetry.twins import turned
from toys import Toy, outputs, overwrite, relative, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

ToyMaker = Callable[..., Toy]
FILTERS = "depthwise.weight"


@pytest.mark.parametrize("how", [{"anchor": "none"}, {"anchor": "none", "spaces": "all"}])
def test_many_twins_merge_into_themselves(how: dict[str, str], toy: ToyMaker, tmp_path: Path) -> None:
    """Three points of one orbit, whatever they are merged in the coordinates of."""
    model = toy("convbert")
    streams = "spaces" in how
    twins = [turned(streams=streams, seed=seed)(model, tmp_path / str(seed)) for seed in (1, 2)]
    isomerge.merge([model.folder, *twins], out=tmp_path / "merged", **how)
    assert relative(outputs(tmp_path / "merged"), model.reference) < 1e3 * model.tolerance


def test_a_merge_is_a_function_of_orbits(toy: ToyMaker, tmp_path: Path) -> None:
    """Signs in which filters happen to be stored say nothing of which channels go together."""
    a, b = toy("convbert"), toy("convbert", 5)
    ga, hb = (turned(streams=True, seed=n)(model, tmp_path / str(n)) for n, model in ((1, a), (2, b)))
    for tag, pair in (("stored", (a.folder, b.folder)), ("moved", (ga, hb))):
        isomerge.merge(pair, out=tmp_path / tag, spaces="all")
    assert relative(outputs(tmp_path / "moved"), outputs(tmp_path / "stored")) <= 1e-8


def test_both_sides_are_balanced(toy: ToyMaker) -> None:
    """The gauge of a factor: a filter is as long as the column that reads it."""
    model = toy("convbert")
    blocks = {b: t for b, t in model.fresh().items() if b.scope == (("l", 1),)}
    canonical_gauge(model.spec.without(model.spec.residual_names), blocks)
    named = {b.line.name.rpartition("layer.")[2].split(".")[0] + b.line.name[-17:]: t for b, t in blocks.items()}
    filters, columns = (
        next(t for n, t in named.items() if n.endswith(end)) for end in (FILTERS, "pointwise.weight")
    )
    assert torch.allclose(filters.flatten(1).norm(dim=1), columns[..., 0].norm(dim=0), rtol=1e-5)


def test_a_fine_tune_keeps_its_bytes(toy: ToyMaker, tmp_path: Path) -> None:
    """Where factors are what they were, none is moved by more than noise makes of a best one, and never away."""
    model, tuned = toy("convbert"), tmp_path / "tuned"
    rng, stored = torch.Generator().manual_seed(3), tensors(model.folder)
    shutil.copytree(model.folder, tuned)
    noisy = {n: t + 0.02 * t.std() * torch.randn(t.shape, generator=rng, dtype=t.dtype) for n, t in stored.items()
             if t.is_floating_point() and t.numel() > 1}  # fmt: skip
    overwrite(tuned, stored | noisy)
    moved, report = isomerge.align(tuned, onto=model.folder)
    assert report["distance"]["after"] <= report["distance"]["before"]
    factors = [g for key, g in moved.items() if key.startswith("f[")]
    assert all(float((g - 1).abs().max()) < 0.1 for g in factors)

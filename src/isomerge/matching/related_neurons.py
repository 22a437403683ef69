"""Neurons of related models and their factors at once, in the anchor's own coordinates: the optimum, proven.

The cost of a pair of neurons of a gated MLP is ``|g_j - g_i|^2`` of what no factor reaches (the gate's rows), and
what the best factor leaves of the rest, which is not negative. So a distance of the gates alone, or of a sketch of
them (`isomerge.matching.sketch`), is a bound of the whole: where every neuron's exact cost with its nearest is
below the bound for all others, and the nearest ones are different, they are the optimum over permutations and
factors together. All else is left to the gauges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from isomerge.matching.factors import Factors
from isomerge.matching.neuron_scale import Neurons, neurons_of, scaled_pairs
from isomerge.matching.points import Points, evenly, exact_distances, paired
from isomerge.matching.sketch import DIRECTIONS, MARGIN, SAMPLE, SMALLEST, Sketch, directions_for
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Blocks
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stage import find_shifts
from isomerge.symmetry.units import elements_of


def related_neurons(spec: Spec, anchor: Blocks, source: Blocks) -> Alignment | None:
    """The proven optimum of a unit that one permutation and a factor per neuron act on.

    Args:
        spec: the spec with the matched spaces active.
        anchor, source: the unit's blocks, float32 or float64; not changed.

    Returns:
        None where the unit is another, small, or has dead neurons, which gauges name, and where the proof fails:
        unrelated models cost a sketch of their gates and the search of 32 neurons.
    """
    keys = {key for block in anchor for key in elements_of(spec, block)}
    pairs = scaled_pairs(spec, source)
    if len(pairs) != 1 or keys != set(pairs[0]) or find_shifts(spec, list(anchor)):
        return None
    base_key, fibre_key = pairs[0]
    fibre = spec.space_of(fibre_key)
    batch = spec.batch(fibre)
    if len(batch) != 1 or spec.sizes[batch[0]] < SMALLEST:
        return None
    rows = neurons_of(spec, fibre.name, anchor, source)
    found = _nearest(rows, Factors.of(fibre.group_name)) if rows.free else None
    if found is None:
        return None
    best, factors = found
    return Alignment(spec, {base_key: best.argsort(), fibre_key: factors.unsqueeze(-1)})


def _nearest(rows: Neurons, kind: Factors) -> tuple[Tensor, Tensor] | None:
    """For every neuron of the source its place, int64 [n], and its factor, float64 [n]; None if not proven."""

    anchor, source = (Points(tuple(pair[side][0] for pair in rows.free)) for side in (0, 1))
    n, width = len(anchor.fixed[0]), sum(x.shape[1] for x in anchor.fixed)
    sketch = Sketch.of(anchor, source, min(DIRECTIONS, width))
    some = evenly(n, min(SAMPLE, n), anchor.fixed[0].device)
    best, _ = sketch.two_nearest(some)
    if len(best.unique()) < len(some):
        return None
    apart, _ = exact_distances(anchor, source.take(some), best.roll(1))
    directions = directions_for(_costs(rows, best, some, kind).cost, apart, width)
    if directions is None:
        return None
    if directions != DIRECTIONS:
        sketch = Sketch.of(anchor, source, directions)
    best, other = sketch.two_nearest(torch.arange(n))
    if len(best.unique()) < n:
        return None
    found = _costs(rows, best, None, kind)
    margin = MARGIN * (sketch.squares[0].max() + sketch.squares[1] + found.size)
    return (best, found.factor) if bool((other > found.cost + margin).all()) else None


class Costs(NamedTuple):
    """Of pairs of neurons [count], float64."""

    cost: Tensor
    size: Tensor
    """The anchor's squares, of which rounding is a share."""
    factor: Tensor
    """What the source's plain side is multiplied by (Eq. 12)."""


def _costs(rows: Neurons, places: Tensor, some: Tensor | None, kind: Factors) -> Costs:
    """The exact costs of neurons of the source (all, or ``some``) in places; NaN where one is dead."""

    def summed(side: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Squares of the anchor's and the source's neurons, and their products [3, count]; pieces are summed in
        their own dtype."""
        total = torch.zeros(3, len(places), dtype=torch.float64)
        for x, y in side:
            (own,) = (Points((y[0],)) if some is None else Points((y[0],)).take(some)).fixed
            for which, a, b in paired(x[0], own, places):
                for row, product in zip(total, ((a, a), (b, b), (a, b)), strict=True):
                    row[which] += torch.linalg.vecdot(*product)
        return total

    gate, up, down = (summed(side) for side in (rows.free, rows.plain, rows.dual))
    traces, size = (up[1], down[1], up[2], down[2]), gate[0] + up[0] + down[0]
    cost = size + gate[1] - 2 * gate[2] + kind.value(*traces)
    tiny = torch.finfo(torch.float32).tiny  # smaller squares are zeros, as `Scale.balance` has it
    dead = ((up[:2] <= tiny) | (down[:2] <= tiny)).any(0)
    return Costs(cost.masked_fill(dead, torch.nan), size, kind.best(*traces))

"""Neurons matched with their scales: the factor of every pair is optimised inside the assignment's cost.

A neuron of a gated MLP may be scaled by any factor (its up row by s, its down column by 1 / s), one of a ReLU MLP
by a positive one. In the anchor's own coordinates the cost of sending neuron j to place i is then
``min_s |s u_j - u_i|^2 + |w_j / s - w_i|^2 + |g_j - g_i|^2`` (g: gate rows and whatever else no factor reaches;
biases count on the side that they belong to). It separates over pairs, so one linear assignment over the exact
minima is the exact optimum over permutations and factors together.

Related models need no assignment. With a factor of its own for each side a pair costs no more than with one for
both, and that cost is ``|u_i|^2 (1 - cos^2) + |w_i|^2 (1 - cos^2) + |g_j - g_i|^2``. Where every place has one
neuron whose exact cost is below this bound for all others, and no two places have the same, these are the optimum.

Neurons of related models and their factors at once, in the anchor's own coordinates: the optimum, proven.

The cost of a pair of neurons of a gated MLP is ``|g_j - g_i|^2`` of what no factor reaches (the gate's rows), and
what the best factor leaves of the rest, which is not negative. So a distance of the gates alone, or of a sketch of
them (`isomerge.matching.sketch`), is a bound of the whole: where every neuron's exact cost with its nearest is
below the bound for all others, and the nearest ones are different, they are the optimum over permutations and
factors together. All else is left to the gauges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from isomerge.matching.factors import Factors
from isomerge.matching.gram import signature
from isomerge.matching.points import Points, paired
from isomerge.matching.sketch import MARGIN, SMALLEST, telling_sketch
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Blocks, leaves, whole_leaves
from isomerge.symmetry.groups import SCALES
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stage import find_shifts
from isomerge.symmetry.units import elements_of

# Flops that one unit may cost, and what the factor of one pair counts for (about ten Newton steps of memory-bound
# arithmetic; under a square a search): seconds on one core. Larger units keep the assignment without factors.
BUDGET, PAIR, SEARCHED = 6e10, 1e3, 3e4
# Numbers of one chunk of pairs; a dozen such arrays of float64 are alive at once.
CHUNK = 1 << 17


@dataclass
class Neurons:
    """The rows of one unit's neurons, anchor and moved: [blocks, n, features] each."""

    plain: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    dual: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    free: list[tuple[Tensor, Tensor]] = field(default_factory=list)


def scaled_pairs(spec: Spec, blocks: Blocks) -> list[tuple[str, str]]:
    """The element keys (of neurons, of their scales) of a unit in which scales sit over permuted neurons.

    Nothing else may act on these tensors but bases that number their blocks (experts).
    """
    keys = {space.name: key for block in blocks for key, space in elements_of(spec, block).items()}
    pairs = []
    for name in keys:
        fibre = spec.spaces[name]
        batch = spec.batch(fibre)
        base = spec.spaces.get(batch[-1]) if batch else None
        if fibre.group_name not in SCALES or base is None or base.group_name != "Perm":
            continue
        allowed = {name, *batch}
        touching = [signature(spec, a) for b, t in blocks.items() for _, a, _ in leaves(spec, b, t)]
        alone = all(set(sig) <= allowed for sig in touching if base.name in sig)
        if spec.sizes[name] == 1 and spec.batch(base) == batch[:-1] and base.name in keys and alone:
            pairs.append((keys[base.name], keys[name]))
    return pairs


def neuron_candidate(spec: Spec, anchor: Blocks, source: Blocks, match: Alignment) -> Alignment | None:
    """A solution with its neurons and their scales replaced by the exact optimum; None where there is none.

    Args:
        spec: the spec with the matched spaces active.
        anchor, source: one unit's blocks; not changed.
        match: a solution of the unit; what it says of experts is kept.
    """
    inner = {key for pair in scaled_pairs(spec, source) for key in pair}
    if not inner:
        return None
    outer = Alignment(spec, {key: g for key, g in match.items() if key not in inner})
    moved = {block: tensor.clone() for block, tensor in source.items()}
    outer.act(moved)
    step = neuron_optimum(spec, anchor, moved)
    return None if step is None else step @ outer


def neuron_optimum(spec: Spec, anchor: Blocks, moved: Blocks, *, budget: float = BUDGET) -> Alignment | None:
    """The exact permutation of neurons together with their factors, in the anchor's own coordinates.

    Args:
        spec: the spec with the matched spaces active.
        anchor: the anchor's blocks of one unit, float32 or float64.
        moved: the source's, with the blocks that hold neurons (experts) already in place.
        budget: flops above which the unit is left out: ``2 n^2 features + 1000 n^2`` for each block of n neurons.

    Returns:
        The elements of neurons and scales, labelled by the moved blocks; None where no scales sit over neurons or
        where all of them are too large. Memory: one profit [n, n] in float64, and chunks of pairs.
    """

    elements: dict[str, Tensor] = {}
    for base_key, fibre_key in scaled_pairs(spec, moved):
        base, fibre = (spec.space_of(key) for key in (base_key, fibre_key))
        if _flops(spec, fibre.name, moved) > budget:
            continue
        rows = neurons_of(spec, fibre.name, anchor, moved)
        kind, solved = Factors.of(fibre.group_name), []
        for at in range(len((rows.plain or rows.dual or rows.free)[0][0])):
            p = _proven(rows, at, kind)
            if p is None:
                p, _ = base.group.solve(_profit(rows, at, kind))
            solved.append((p, _factors(rows, at, p, kind)))
        shape = tuple(spec.sizes[i] for i in spec.batch(fibre))
        elements[base_key] = torch.stack([p for p, _ in solved]).reshape(shape)
        elements[fibre_key] = torch.stack([s for _, s in solved]).reshape(*shape, 1)
    return Alignment(spec, elements) if elements else None


def _flops(spec: Spec, fibre: str, blocks: Blocks) -> float:
    """What all blocks of neurons cost."""
    base = spec.batch(spec.spaces[fibre])[-1]
    n, held = spec.sizes[base], 0
    for block, tensor in blocks.items():
        for (view,), atoms, _ in leaves(spec, block, tensor):
            held += view.numel() if base in [a.name for a in atoms] else 0
    count = 1
    for name in spec.batch(spec.spaces[fibre])[:-1]:
        count *= spec.sizes[name]
    pair = PAIR if Factors.of(spec.spaces[fibre].group_name).power == 1 else SEARCHED
    return 2.0 * n * held + pair * n * n * count


def neurons_of(spec: Spec, fibre: str, anchor: Blocks, moved: Blocks) -> Neurons:
    """Sort the leaves of a unit by what a factor does to them."""
    batch = spec.batch(spec.spaces[fibre])
    neurons = Neurons()
    for block, a in anchor.items():
        for (x, y), atoms, _ in whole_leaves(spec, block, a, moved[block]):
            names = [atom.name for atom in atoms]
            if batch[-1] not in names:
                continue
            order = [names.index(i) for i in batch]
            rest = [k for k in range(x.ndim) if k not in order]
            n = x.shape[order[-1]]
            x, y = (t.permute(*order, *rest).reshape(-1, n, t.numel() // _block(t, order)) for t in (x, y))
            dual = next((atom.dual for atom in atoms if atom.name == fibre), None)
            side = neurons.free if dual is None else neurons.dual if dual else neurons.plain
            side.append((x, y))
    return neurons


def _block(tensor: Tensor, order: list[int]) -> int:
    """How many neurons a leaf has, over all of its blocks."""
    count = 1
    for axis in order:
        count *= tensor.shape[axis]
    return count


def _squares(side: list[tuple[Tensor, Tensor]], at: int, n: int) -> Tensor:
    """The moved neurons' squares [n], float64."""
    return _lengths((y[at] for _, y in side), n)


def _lengths(parts: Iterable[Tensor], n: int) -> Tensor:
    """The squares [n] of neurons [n, features] in parts, float64."""

    return sum((x.double().square().sum(-1) for x in parts), torch.zeros(n, dtype=torch.float64))


def _overlaps(side: list[tuple[Tensor, Tensor]], at: int, chunk: slice, n: int) -> Tensor:
    """Inner products [rows, n] of some of the anchor's neurons with all moved ones, float64.

    Products are summed in the dtype of the weights: a copy of all moved neurons in float64 for every chunk took
    longer than all else, and float32 leaves 1e-7 of what is compared.
    """

    total = torch.zeros(len(range(n)[chunk]), n, dtype=torch.float64)
    for x, y in side:
        total += x[at, chunk] @ y[at].mT
    return total


def _count(rows: Neurons) -> int:
    """How many neurons a block has."""
    return (rows.plain or rows.dual or rows.free)[0][0].shape[1]


def _chunks(n: int) -> Iterator[slice]:
    """Some rows at a time of all pairs [n, n]."""
    step = max(1, CHUNK // n)
    return (slice(low, min(n, low + step)) for low in range(0, n, step))


def _profit(rows: Neurons, at: int, kind: Factors) -> Tensor:
    """What the assignment maximises [n, n]: minus half the cost, up to terms of one neuron each."""

    n = _count(rows)
    alpha, beta = _squares(rows.plain, at, n), _squares(rows.dual, at, n)
    profit = torch.empty(n, n, dtype=torch.float64)
    for chunk in _chunks(n):
        plus, minus, free = (_overlaps(side, at, chunk, n) for side in (rows.plain, rows.dual, rows.free))
        profit[chunk] = free - kind.value(alpha, beta, plus, minus) / 2
    return profit


def _proven(rows: Neurons, at: int, kind: Factors) -> Tensor | None:
    """For every place the neuron that the optimum has there, int64 [n], where bounds prove it; None as soon as they
    do not."""

    n = _count(rows)
    alpha, beta, gamma = (_squares(side, at, n) for side in (rows.plain, rows.dual, rows.free))
    lengths = _lengths((x[at] for side in (rows.plain, rows.dual, rows.free) for x, _ in side), n)
    tiny = torch.finfo(torch.float32).tiny
    places = torch.empty(n, dtype=torch.int64)
    for chunk in _chunks(n):
        plus, minus, free = (_overlaps(side, at, chunk, n) for side in (rows.plain, rows.dual, rows.free))
        bound = gamma - 2 * free - plus.square() / alpha.clamp_min(tiny) - minus.square() / beta.clamp_min(tiny)
        best = bound.argmin(1)
        up, down, rest = (t.gather(1, best[:, None]).squeeze(1) for t in (plus, minus, free))
        cost = gamma[best] - 2 * rest + kind.value(alpha[best], beta[best], up, down)
        others = bound.scatter(1, best[:, None], torch.inf).amin(1)
        margin = MARGIN * (lengths[chunk] + (alpha + beta + gamma).max())
        if not bool((others > cost + margin).all()):
            return None
        places[chunk] = best
    return places if len(places.unique()) == n else None


def _factors(rows: Neurons, at: int, p: Tensor, kind: Factors) -> Tensor:
    """The best factor of every moved neuron [n], given where it goes."""

    n = len(p)
    alpha, beta = (_squares(side, at, n)[p] for side in (rows.plain, rows.dual))
    traces = []
    for side in (rows.plain, rows.dual):
        parts = ((x[at].double() * y[at].double()[p]).sum(-1) for x, y in side)
        traces.append(sum(parts, torch.zeros(n, dtype=torch.float64)))
    return kind.best(alpha, beta, *traces)[p.argsort()]


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
    nearest = _nearest(rows, Factors.of(fibre.group_name)) if rows.free else None
    if nearest is None:
        return None
    best, factors = nearest
    return Alignment(spec, {base_key: best.argsort(), fibre_key: factors.unsqueeze(-1)})


def _nearest(rows: Neurons, kind: Factors) -> tuple[Tensor, Tensor] | None:
    """For every neuron of the source its place, int64 [n], and its factor, float64 [n]; None if not proven."""

    anchor, source = (Points(tuple(pair[side][0] for pair in rows.free)) for side in (0, 1))
    sketch, n = telling_sketch(anchor, source, lambda best, some: _costs(rows, best, some, kind).cost), _count(rows)
    if sketch is None:
        return None
    best, other = sketch.two_nearest(torch.arange(n))
    if len(best.unique()) < n:
        return None
    costs = _costs(rows, best, None, kind)
    margin = MARGIN * (sketch.squares[0].max() + sketch.squares[1] + costs.size)
    return (best, costs.factor) if bool((other > costs.cost + margin).all()) else None


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

"""The functional cost of neurons: what averaging a pair of them does to what the layer gives out.

A neuron is a function of the layer's input times a vector that it writes. Averaging neuron i of one model with
neuron j of another gives a neuron whose function is not the mean of the two; the error of that pair,

    c_ij = E | act((a_i + b_j) / 2) (o_i + o_j) / 2  -  (act(a_i) o_i + act(b_j) o_j) / 2 |^2,

is a cost for one linear assignment. The averaged neuron reads what the merged model gives it there, the two others
read what their own models do, so that errors of the layers before are seen. In a gated layer ``act(a)`` is
``act(gate) up``, and up with down may change sign together: the better sign counts.

``docs/lab/experiments.md`` compares it with matching by weights and by correlation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.groups.discrete import assign
from isomerge.symmetry.language.spec import Spec

Activation = Callable[["Tensor"], "Tensor"]
# Numbers in a temporary while pairs are scored: what stays in the cache, and is not mapped afresh
# (`isomerge.pieces`).
CHUNK = 1 << 17
# Neurons of a layer up to which every pair is tried, and the partners that each is tried with beyond.
ALL_PAIRS, PROMISING = 512, 64
# How much weights count beside what neurons compute, on average.
TIE = 1e-3


@dataclass(frozen=True)
class Layer:
    """Where a feed-forward layer's neurons are in the blocks of one unit."""

    space: str
    """The space of its neurons."""
    scale: str | None
    """The space whose signs go with up and down, where there is one."""
    readers: tuple[tuple[Block, int], ...]
    """The activated reader and, in a gated layer, the one that multiplies it: block and number of the leaf."""
    biases: tuple[tuple[Block, int] | None, ...]
    """Their biases."""
    writer: tuple[Block, int]


def feed_forward(spec: Spec, blocks: Sequence[Block]) -> Layer | None:
    """The layer that a unit's blocks are, by their axes alone; None when they are none, or one of experts.

    Args:
        spec: the full spec, its streams and local spaces active.
        blocks: the blocks of one unit.
    """
    spaces = {n for n, s in spec.spaces.items() if s.role == "ff" and not spec.batch(s)}
    by_space: dict[str, dict[str, list[tuple[bool, Block, int]]]] = {}
    for block in blocks:
        for number, atoms in enumerate(block.parts):
            names = [a.name for a in atoms]
            acting = spaces & set(names)
            if len(acting) != 1:
                continue
            (space,) = acting
            streams = [n for n in names if n in spec.streams]
            extra = [n for n in names if n != space and n not in spec.residual_names]
            kind = "bias" if not streams else "reader" if atoms[names.index(streams[0])].dual else "writer"
            by_space.setdefault(space, {}).setdefault(kind, []).append((bool(extra), block, number))
    if len(by_space) != 1:
        return None
    ((space, parts),) = by_space.items()
    # in a gated layer the scale acts on the multiplying reader alone
    readers = sorted(parts.get("reader", []), key=lambda part: part[0])
    gated = len(readers) == 2
    if (
        len(parts.get("writer", [])) != 1
        or not 1 <= len(readers) <= 2
        or (gated and readers[0][0] == readers[1][0])
    ):
        return None
    biases = {extra if gated else True: (block, number) for extra, block, number in parts.get("bias", [])}
    if len(biases) != len(parts.get("bias", [])):
        return None
    wanted = (False, True) if gated else (True,)
    scale = next((n for n, s in spec.spaces.items() if space in s.index and s.group.compact == "Sign"), None)
    return Layer(
        space,
        scale if gated else None,
        tuple((block, number) for _, block, number in readers),
        tuple(biases.get(extra) for extra in wanted),
        parts["writer"][0][1:],
    )


def neurons_of(spec: Spec, layer: Layer, place: tuple[Block, int], tensors: Mapping[Block, Tensor]) -> Tensor:
    """One of a layer's leaves as a matrix [neurons, others]."""
    block, number = place
    for (view,), atoms, at in leaves(spec, block, tensors[block]):
        if at == number:
            axis = [a.name for a in atoms].index(layer.space)
            return view.movedim(axis, 0).flatten(1) if view.ndim > 1 else view.reshape(-1, 1)
    raise AssertionError(f"{block.key} has no leaf {number}")


def branches(spec: Spec, layer: Layer, tensors: Mapping[Block, Tensor], x: Tensor) -> tuple[Tensor, ...]:
    """What a layer's readers give for inputs [n, d]: the one that is activated and, if gated, the one that
    multiplies."""
    outputs = []
    for reader, bias in zip(layer.readers, layer.biases, strict=True):
        a = x.to(tensors[reader[0]].dtype) @ neurons_of(spec, layer, reader, tensors).mT
        outputs.append(a if bias is None else a + neurons_of(spec, layer, bias, tensors).reshape(-1))
    return tuple(outputs)


def hidden(parts: Sequence[Tensor], act: Activation) -> Tensor:
    """The neurons' values [n, neurons] from what their readers give."""
    values = [act(parts[0]), *parts[1:]]
    return values[0] if len(values) == 1 else values[0] * values[1]


def likeness(spec: Spec, layer: Layer, a: Mapping[Block, Tensor], b: Mapping[Block, Tensor]) -> Tensor:
    """Inner products of the weights of every pair of neurons, [neurons, neurons]; without the sign that up and down
    share."""
    gated = layer.scale is not None
    parts = {}
    for place in (*layer.readers, *layer.biases, layer.writer):
        if place is not None:
            parts[place] = neurons_of(spec, layer, place, a) @ neurons_of(spec, layer, place, b).mT
    fixed = sum(parts.pop(place) for place in (layer.readers[0], layer.biases[0]) if place in parts and gated)
    rest = sum(parts.values())
    return fixed + (rest.abs() if gated else rest)  # type: ignore[union-attr]


@dataclass(frozen=True)
class Neurons:
    """One model's neurons of a layer, as functions on examples."""

    merged: Sequence[Tensor]
    """What the readers give for the merged model's inputs, [n, neurons] each."""
    own: Tensor
    """The neurons' values for the model's own inputs, [n, neurons]."""
    out: Tensor
    """What they write, [neurons, d]."""


def functional_costs(
    a: Neurons, b: Neurons, act: Activation, *, signs: bool = False, columns: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The cost of every pair of neurons, and the sign of b's neuron at which it is reached.

    Args:
        a, b: the two models' neurons in one frame, on the same examples.
        act: the activation function.
        signs: try both signs of the multiplying reader with the writer (gated layers with a free scale).
        columns: int64 [neurons, k], the neurons of b that each of a's is tried with; None: all of them.

    Returns:
        Costs float64 [neurons, k], rows are a's, and signs of the same shape (ones without ``signs``).
    """

    n, size = len(a.own), a.out.shape[0]
    if columns is None:
        columns = torch.arange(b.out.shape[0]).expand(size, -1)
    dots, like = a.out @ b.out.mT, a.own.mT @ b.own / n
    norms_a, norms_b = a.out.square().sum(1), b.out.square().sum(1)
    squares_a, squares_b = a.own.square().mean(0) * norms_a, b.own.square().mean(0) * norms_b
    # neuron by neuron: a pair's values lie side by side
    (reads_a, values_a), (reads_b, values_b) = (
        ([m.mT.contiguous() for m in x.merged], x.own.mT.contiguous()) for x in (a, b)
    )
    first = torch.arange(size).unsqueeze(1).expand_as(columns).reshape(-1)
    second = columns.reshape(-1)
    # made at once: what is kept from piece to piece would lie between the pieces' temporaries, and the heap would
    # grow by these
    costs, best = torch.empty(2, len(second), dtype=torch.float64)
    step = max(1, CHUNK // max(1, n))
    places = (t.split(step) for t in (first, second, costs, best))
    for i, j, cost, chosen in zip(*places, strict=True):
        # by index_select, which takes a quarter of the time of indexing
        own_a, own_b = values_a.index_select(0, i), values_b.index_select(0, j)
        sides = [(x.index_select(0, i), y.index_select(0, j)) for x, y in zip(reads_a, reads_b, strict=True)]
        value = act((sides[0][0] + sides[0][1]) / 2)
        dot, norm_a, norm_b = dots[i, j], norms_a[i], norms_b[j]
        # E |own_i o_i + own_j o_j|^2, which no sign changes
        target = squares_a[i] + squares_b[j] + 2 * like[i, j] * dot
        trials = []
        for sign in (1.0, -1.0) if signs else (1.0,):
            h = value
            if len(a.merged) > 1:
                h = value * (sides[1][0].add(sides[1][1], alpha=sign) / 2)
            d = dot * sign
            with_a, with_b, square = (torch.linalg.vecdot(h, x) / n for x in (own_a, own_b, h))
            trials.append(_error(square, with_a, with_b * sign, norm_a, norm_b, d, target))
        least = torch.stack(trials).min(0)
        cost.copy_(least.values)
        chosen.copy_(1.0 - 2.0 * least.indices)
    return costs.view_as(columns), best.view_as(columns)


def linear_costs(a: Neurons, b: Neurons, *, signs: bool = False) -> Tensor:
    """What `functional_costs` would be if the averaged neuron's value were the mean of both: matrix products alone.

    Float64 [neurons, neurons]; a way to find pairs that are worth the exact cost.
    """

    n = len(a.own)
    dots, like = (a.out @ b.out.mT).double(), (a.own.mT @ b.own / n).double()
    squares_a, squares_b = (x.own.square().mean(0).double() for x in (a, b))
    norms_a, norms_b = (x.out.square().sum(1).double() for x in (a, b))
    squares_a, norms_a = squares_a[:, None], norms_a[:, None]
    target = squares_a * norms_a + squares_b * norms_b + 2 * like * dots
    trials = []
    for sign in (1.0, -1.0) if signs else (1.0,):
        c, d = like * sign, dots * sign
        square, with_a, with_b = (squares_a + squares_b + 2 * c) / 4, (squares_a + c) / 2, (squares_b + c) / 2
        trials.append(_error(square, with_a, with_b, norms_a, norms_b, d, target))
    return torch.stack(trials).min(0).values


def _error(
    square: Tensor, with_a: Tensor, with_b: Tensor, norm_a: Tensor, norm_b: Tensor, dot: Tensor, target: Tensor
) -> Tensor:
    """The error of averaging pairs, float64: from means of the averaged neuron's value squared, and times either
    neuron's own, the squared norms and inner products of what they write, and what the sum of both writes,
    squared."""
    cross = with_a * (norm_a + dot) + with_b * (norm_b + dot)
    return (square * (norm_a + norm_b + 2 * dot) - 2 * cross + target).double() / 4


def promising_costs(a: Neurons, b: Neurons, act: Activation, *, signs: bool, count: int) -> tuple[Tensor, Tensor]:
    """`functional_costs` of all pairs, exact for the ``count`` most promising partners of every neuron of both
    models.

    Other pairs cost as much as the dearest pair that either neuron was tried with, plus what they cost by
    `linear_costs`: they are taken where nothing better is left.
    """

    guess = linear_costs(a, b, signs=signs)
    rows = guess.topk(count, 1, largest=False).indices
    columns = guess.topk(count, 0, largest=False).indices.mT  # of b's neurons, those of a
    exact = torch.full_like(guess, float("inf"))
    best = torch.ones_like(guess)
    for mine, theirs, tried, flip in ((a, b, rows, False), (b, a, columns, True)):
        errors, sign = functional_costs(mine, theirs, act, signs=signs, columns=tried)
        (exact.mT if flip else exact).scatter_(1, tried, errors)
        (best.mT if flip else best).scatter_(1, tried, sign)
    known = exact.isfinite()
    dearest = torch.where(known, exact, -torch.inf)
    floor = torch.maximum(dearest.amax(1, keepdim=True), dearest.amax(0, keepdim=True))
    return torch.where(known, exact, floor + guess.clamp_min(0)), best


def match_neurons(
    a: Neurons, b: Neurons, act: Activation, *, signs: bool = False, likeness: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The assignment with the smallest summed cost; of large layers, over the most promising pairs.

    Args:
        a, b, act, signs: see `functional_costs`.
        likeness: [neurons, neurons], how alike the weights of two neurons are: decides where costs leave a choice,
            as they do for neurons that no example wakes.

    Returns:
        int64 [neurons]: which of b's neurons goes to every place of a's; float64 [neurons]: signs of b's own
        neurons.
    """
    if len(a.out) > ALL_PAIRS:
        costs, best = promising_costs(a, b, act, signs=signs, count=PROMISING)
    else:
        costs, best = functional_costs(a, b, act, signs=signs)
    profit = -costs
    if likeness is not None:
        profit = profit + TIE * costs.mean() * likeness.double() / likeness.abs().double().mean().clamp_min(1e-300)
    p = assign(profit)
    chosen = best.gather(1, p[:, None]).squeeze(1)
    return p, chosen[p.argsort()]

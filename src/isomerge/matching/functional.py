"""The functional cost of neurons: what averaging a pair of them does to what the layer gives out.

A neuron is a function of the layer's input times a vector that it writes. Averaging neuron i of one model with neuron j
of another gives a neuron whose function is not the mean of the two; the error of that pair,

    c_ij = E | act((a_i + b_j) / 2) (o_i + o_j) / 2  -  (act(a_i) o_i + act(b_j) o_j) / 2 |^2,

is a cost for one linear assignment. The averaged neuron reads what the merged model gives it there, the two others read
what their own models do, so that errors of the layers before are seen. In a gated layer ``act(a)`` is
``act(gate) up``, and up with down may change sign together: the better sign counts.

``docs/experiments.md`` compares it with matching by weights and by correlation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.groups.discrete import assign
from isomerge.symmetry.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor

Activation = Callable[["Tensor"], "Tensor"]
# Numbers that may be in memory at once while pairs are scored: 64 MB of float32 each.
CHUNK = 1 << 24
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
    found: dict[str, dict[str, list[tuple[bool, Block, int]]]] = {}
    for block in blocks:
        for number, names, duals in _leaves(spec, block):
            here = spaces & set(names)
            if len(here) != 1:
                continue
            (space,) = here
            streams = [n for n in names if n in spec.streams]
            extra = [n for n in names if n != space and n not in spec.residual_names]
            kind = "bias" if not streams else "reader" if duals[names.index(streams[0])] else "writer"
            found.setdefault(space, {}).setdefault(kind, []).append((bool(extra), block, number))
    if len(found) != 1:
        return None
    ((space, parts),) = found.items()
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


def _leaves(spec: Spec, block: Block):
    """The numbers of a block's leaves with the names of their atoms and whether these are dual; no tensor is needed."""
    from isomerge.symmetry.axes import Atom, Concat, Product

    def parts(axis) -> list[list[Atom]]:
        if isinstance(axis, Atom):
            return [[axis]]
        if isinstance(axis, Concat):
            return [found for part in axis.parts for found in parts(part)]
        assert isinstance(axis, Product)
        lists: list[list[Atom]] = [[]]
        for part in axis.parts:
            lists = [[*x, *y] for x in lists for y in parts(part)]
        return lists

    rows: list[list[Atom]] = [[]]
    for axis in block.axes or ():
        rows = [[*x, *y] for x in rows for y in parts(axis)]
    for number, here in enumerate(rows):
        yield number, [a.name for a in here], [a.dual for a in here]


def neurons_of(spec: Spec, layer: Layer, place: tuple[Block, int], tensors: Mapping[Block, Tensor]) -> Tensor:
    """One of a layer's leaves as a matrix [neurons, others]."""
    block, number = place
    for (view,), here, at in leaves(spec, block, tensors[block]):
        if at == number:
            axis = [a.name for a in here].index(layer.space)
            return view.movedim(axis, 0).flatten(1) if view.ndim > 1 else view.reshape(-1, 1)
    raise AssertionError(f"{block.key} has no leaf {number}")


def branches(spec: Spec, layer: Layer, tensors: Mapping[Block, Tensor], x: Tensor) -> tuple[Tensor, ...]:
    """What a layer's readers give for inputs [n, d]: the one that is activated and, if gated, the one that multiplies."""
    found = []
    for reader, bias in zip(layer.readers, layer.biases, strict=True):
        a = x.to(tensors[reader[0]].dtype) @ neurons_of(spec, layer, reader, tensors).mT
        found.append(a if bias is None else a + neurons_of(spec, layer, bias, tensors).reshape(-1))
    return tuple(found)


def hidden(parts: Sequence[Tensor], act: Activation) -> Tensor:
    """The neurons' values [n, neurons] from what their readers give."""
    values = [act(parts[0]), *parts[1:]]
    return values[0] if len(values) == 1 else values[0] * values[1]


def likeness(spec: Spec, layer: Layer, a: Mapping[Block, Tensor], b: Mapping[Block, Tensor]) -> Tensor:
    """Inner products of the weights of every pair of neurons, [neurons, neurons]; without the sign that up and down share."""
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


def functional_costs(a: Neurons, b: Neurons, act: Activation, *, signs: bool = False) -> tuple[Tensor, Tensor]:
    """The cost of every pair of neurons, and the sign of b's neuron at which it is reached.

    Args:
        a, b: the two models' neurons in one frame, on the same examples.
        act: the activation function.
        signs: try both signs of the multiplying reader with the writer (gated layers with a free scale).

    Returns:
        Costs float64 [neurons, neurons], rows are a's, and signs of the same shape (ones without ``signs``).
    """
    import torch

    n = len(a.own)
    dots, norms_a, norms_b = a.out @ b.out.mT, a.out.square().sum(1), b.out.square().sum(1)
    squares_a, squares_b = a.own.square().mean(0) * norms_a, b.own.square().mean(0) * norms_b
    # E |own_i o_i + own_j o_j|^2, which no sign changes
    target = squares_a[:, None] + squares_b[None] + 2 * (a.own.mT @ b.own) / n * dots
    costs, best = [], []
    step = max(1, CHUNK // max(1, n * b.out.shape[0]))
    for start in range(0, a.out.shape[0], step):
        rows = slice(start, start + step)
        value = act((a.merged[0][:, rows, None] + b.merged[0][:, None, :]) / 2)
        trials = []
        for sign in (1.0, -1.0) if signs else (1.0,):
            h = value
            if len(a.merged) > 1:
                h = value * ((a.merged[1][:, rows, None] + sign * b.merged[1][:, None, :]) / 2)
            square = h.square().mean(0)
            with_a = torch.einsum("nij,ni->ij", h, a.own[:, rows]) / n
            with_b = torch.einsum("nij,nj->ij", h, b.own) / n * sign
            d = dots[rows] * sign
            length = norms_a[rows, None] + norms_b[None] + 2 * d
            cross = with_a * (norms_a[rows, None] + d) + with_b * (norms_b[None] + d)
            trials.append((square * length - 2 * cross + target[rows]).double() / 4)
        found = torch.stack(trials).min(0)
        costs.append(found.values)
        best.append(1.0 - 2.0 * found.indices.double())
    return torch.cat(costs), torch.cat(best)


def match_neurons(
    a: Neurons, b: Neurons, act: Activation, *, signs: bool = False, likeness: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The assignment with the smallest summed cost.

    Args:
        a, b, act, signs: see `functional_costs`.
        likeness: [neurons, neurons], how alike the weights of two neurons are: decides where costs leave a choice, as
            they do for neurons that no example wakes.

    Returns:
        int64 [neurons]: which of b's neurons goes to every place of a's; float64 [neurons]: signs of b's own neurons.
    """
    costs, best = functional_costs(a, b, act, signs=signs)
    profit = -costs
    if likeness is not None:
        profit = profit + TIE * costs.mean() * likeness.double() / likeness.abs().double().mean().clamp_min(1e-300)
    p = assign(profit)
    chosen = best.gather(1, p[:, None]).squeeze(1)
    return p, chosen[p.argsort()]

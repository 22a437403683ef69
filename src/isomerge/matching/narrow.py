"""General linear spaces of which a side is no wider than the axis is long and lacks rank: no basis is balanced.

With x [n, p] of rank below n, and y [n, q], the function depends on ``x^T y`` alone. ``(A x, A^-T y)`` is least
where y has nothing but what meets x, and no element leads there. But a form that is unique up to rotations exists
all the same: where x lies it is balanced with what of y meets it; the rest of y is made orthogonal to that, with
rows of one length, the root of the mean square of those that are balanced. Where both sides lack rank, nothing
stands in what is left.

Rows of one length have no eigenbasis. For canonical forms `spread` makes them of several, by the entries of the
rest along axes that are no more than permuted, each weighed by what the balanced part has there.

A side that is wider than the axis and lacks rank does so by chance: it has no such form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod

import torch
from torch import Tensor

from isomerge.matching.gram import acted_on, self_grams, side_widths
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.groups import GROUPS
from isomerge.symmetry.groups.general_linear import DEAD, spectral_power
from isomerge.symmetry.language.spec import Space, Spec
from isomerge.symmetry.units import elements_of

TURNED = ("O", "OFixingOnes", "Complex", "Turn")
"""Compact groups that mix the coordinates of their axis."""
UNKNOWN = 1 << 20
"""How long an axis is taken to be of which the spec does not know it: of words, or of places."""
Widths = tuple[int, int]
"""How many numbers the plain and the dual side of an element have for each of its coordinates."""


def narrow_widths(spec: Spec, space: Space, tensors: Mapping[Block, Tensor]) -> Widths | None:
    """The widths of both sides of a general linear space; None where both are wider than the axis is long."""
    if space.group_name != "GL":
        return None
    widths = side_widths(spec, space.name, tensors)
    return widths if 0 < min(widths) <= spec.sizes[space.name] else None


def may_be_narrow(spec: Spec, space: Space, blocks: Iterable[Block]) -> bool:
    """Whether a side of a general linear space is no wider than the axis is long, by sizes that the spec knows."""
    if space.group_name != "GL":
        return False
    widths = {False: 0, True: 0}
    for part in (part for block in blocks for part in block.parts):
        for atom in (atom for atom in part if atom.name == space.name):
            beside = (a.name for a in part if a.name != space.name and a.name not in space.index)
            widths[atom.dual] += prod(1 if name.isdigit() else spec.sizes.get(name, UNKNOWN) for name in beside)
    return 0 < min(widths.values()) <= spec.sizes[space.name]


def narrow_form(plus: Tensor, minus: Tensor, widths: Widths) -> tuple[Tensor, Tensor]:
    """The element that balances, and where that is for want of width, the one that moves to the form above.

    Args:
        plus, minus: self-Grams of both sides, float64 [*b, n, n].
        widths: of both sides.

    Returns:
        The element [*b, n, n], and where there is none [*b]: there it is the identity.
    """
    balancing = GROUPS["GL"].balance(plus, minus)
    assert balancing is not None
    n = plus.shape[-1]
    g, dead = balancing[0].reshape(-1, n, n), balancing[1].reshape(-1)
    for at in dead.nonzero().flatten().tolist():
        form = _form(plus.reshape(-1, n, n)[at], minus.reshape(-1, n, n)[at], widths)
        if form is not None:
            g[at], dead[at] = form, False
    return g.reshape(plus.shape), dead.reshape(plus.shape[:-2])


def _mirrored(widths: Widths) -> Widths:
    return widths[1], widths[0]


def ranks(gram: Tensor) -> Tensor:
    """The ranks [*b] of Grams [*b, n, n]."""
    values = torch.linalg.eigvalsh(gram)
    return (values > DEAD * values[..., -1:]).sum(-1)


def lacks_rank(plus: Tensor, minus: Tensor, widths: Widths) -> Tensor:
    """Whether a side has less rank than an axis of its width has by chance alone [*b]: the axis' length where it is
    wider, and any but none where it is not."""
    n = plus.shape[-1]
    lacking = [ranks(gram) < (n if width > n else 1) for gram, width in zip((plus, minus), widths, strict=True)]
    return lacking[0] | lacking[1]


def clearing(plus: Tensor, minus: Tensor, widths: Widths) -> tuple[Tensor, Tensor, Tensor]:
    """A basis in which it is plain where sides that lack rank have nothing.

    Args:
        plus, minus, widths: see `narrow_form`.

    Returns:
        The element that moves to it [*b, n, n], and the coordinates [*b, n] in which the plain and the dual side
        have something there. Of entries that need none, or have none, the identity, and all coordinates.
    """
    n, shape = plus.shape[-1], plus.shape[:-2]
    g = torch.eye(n).to(plus).repeat(*shape, 1, 1).reshape(-1, n, n)
    there = torch.ones(2, len(g), n, dtype=torch.bool, device=plus.device)
    for at, grams in enumerate(zip(plus.reshape(-1, n, n), minus.reshape(-1, n, n), strict=True)):
        rank = [int(ranks(gram)) for gram in grams]
        parts = _parts(*grams, widths) if min(rank) < n else None
        if parts is not None:
            g[at] = parts[1].mT @ parts[0]
            there[:, at] = torch.arange(n) < torch.tensor(rank)[:, None]
    plain, dual = there.reshape(2, *shape, n)
    return g.reshape(plus.shape), plain, dual


def _form(plus: Tensor, minus: Tensor, widths: Widths) -> Tensor | None:
    """The element [n, n] that moves to the form, from Grams [n, n]; None where there is none."""
    parts = _parts(plus, minus, widths)
    return None if parts is None else parts[0]


def _parts(plus: Tensor, minus: Tensor, widths: Widths) -> tuple[Tensor, Tensor] | None:
    """`_form`, and an orthonormal basis [n, n], as columns, of what there is in it: first where both sides lie,
    then what one has alone, then where nothing stands."""
    if bool(lacks_rank(plus, minus, widths)):
        return None
    n, (rank, other) = len(plus), (int(ranks(gram)) for gram in (plus, minus))
    if other < rank:
        mirrored = _parts(minus, plus, _mirrored(widths))
        return None if mirrored is None else (torch.linalg.inv(mirrored[0]).mT, mirrored[1])
    low, high = torch.linalg.eigh(plus).eigenvectors.tensor_split((n - rank,), dim=-1)
    lying, meeting = (high.mT @ gram @ high for gram in (plus, minus))
    balancing = GROUPS["GL"].balance(lying, meeting)
    if balancing is None or bool(balancing[1]):
        return None  # part of what x has meets nothing
    inner = balancing[0]
    met = torch.linalg.solve(meeting, high.mT @ minus @ low)
    alone = low.mT @ minus @ low - low.mT @ minus @ high @ met
    sizes, turns = torch.linalg.eigh((alone + alone.mT) / 2)
    sizes, turns = sizes.flip(-1), low @ turns.flip(-1)
    full = other - rank
    if full and float(sizes[full - 1]) <= DEAD * float(sizes[0]):
        return None
    factors = sizes.clamp_min(0).sqrt() / (inner @ lying @ inner.mT).diagonal().mean().sqrt()
    factors[full:] = 1  # nothing stands there
    g = high @ inner @ (high.mT + met @ low.mT) + (turns * factors) @ turns.mT
    return g, torch.cat([high, turns], -1)


def spread(spec: Spec, frame: Spec, tensors: Mapping[Block, Tensor]) -> Alignment:
    """What makes rows of one length in `narrow_form` rows of several, so that they have an eigenbasis; not applied.

    Args:
        spec: its spaces are the block-local ones.
        frame: of all groups that act on the tensors.
        tensors: one unit in that form, float64.
    """
    elements = {}
    keys = {key: space for block in tensors for key, space in elements_of(spec, block).items()}
    for key, space in keys.items():
        widths = narrow_widths(spec, space, tensors)
        grams = self_grams(spec, space.name, tensors) if widths is not None else None
        if widths is None or grams is None or not bool((ranks(grams[0]) != ranks(grams[1])).any()):
            continue
        sides = [list(_leaves(spec, frame, space, tensors, dual=dual)) for dual in (False, True)]
        plus, minus = (gram.reshape(-1, *gram.shape[-2:]) for gram in grams)
        entries = (
            _spread(plus[at], minus[at], widths, [[(x[at], turned) for x, turned in side] for side in sides])
            for at in range(len(plus))
        )
        elements[key] = torch.stack(list(entries)).reshape(grams[0].shape)
    return Alignment(spec, elements)


Leaves = list[tuple[Tensor, list[int]]]
"""Leaves [n, *others], with the numbers of their axes that are turned."""


def _spread(plus: Tensor, minus: Tensor, widths: Widths, sides: list[Leaves]) -> Tensor:
    """`spread` of one element, from Grams [n, n] and leaves of both sides; the identity where there is no form."""
    n, (rank, other) = len(plus), (int(ranks(gram)) for gram in (plus, minus))
    eye = torch.eye(n).to(plus)
    if rank == other or _form(plus, minus, widths) is None:
        return eye
    if other < rank:
        return torch.linalg.inv(_spread(minus, plus, _mirrored(widths), sides[::-1])).mT
    low, high = torch.linalg.eigh(plus).eigenvectors.tensor_split((n - rank,), dim=-1)
    alone = low.mT @ minus @ low
    size = alone.diagonal().sum() / (other - rank)
    rest = torch.eye(n - rank).to(alone) - alone / size  # where nothing stands
    outer = spectral_power(_weighed(sides[1], low, high), 0.5) / size.sqrt() + rest
    return torch.linalg.inv(high @ high.mT + low @ outer @ low.mT)


def _weighed(parts: Leaves, low: Tensor, high: Tensor) -> Tensor:
    """The self-Gram [l, l] of what some leaves have along ``low`` [n, l], their entries weighed half by one and
    half by the squares of what they have along ``high``, relative to the mean of all."""
    entries, weights = [], []
    for x, turned in parts:
        square = torch.tensordot(high.mT, x, 1).square().sum(0)
        for axis in turned:
            square = square.mean(axis, keepdim=True).expand_as(square)
        entries.append(low.mT @ x.reshape(len(x), -1))
        weights.append(square.flatten())
    rows, weight = torch.cat(entries, -1), torch.cat(weights)
    return (rows * (1 + weight / weight.mean()) / 2) @ rows.mT


def _leaves(
    spec: Spec, frame: Spec, space: Space, tensors: Mapping[Block, Tensor], *, dual: bool
) -> Iterator[tuple[Tensor, list[int]]]:
    """The leaves of one side of a space, [batch, n, *others], with the numbers among the others of axes that are
    turned."""

    def is_turned(atom: Atom) -> bool:
        return atom.name in frame.spaces and frame.spaces[atom.name].group.compact in TURNED

    depth = len(spec.batch(space))
    for _, (view,), atoms, order in acted_on(spec, space, tensors):
        if atoms[order[depth]].dual == dual:
            x = view.double().permute(order)
            turned = [at for at, k in enumerate(order[depth + 1 :]) if is_turned(atoms[k])]
            yield x.reshape(-1, *x.shape[depth:]), turned

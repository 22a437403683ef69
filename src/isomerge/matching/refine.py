"""Exact coordinate steps in the anchor's own coordinates, after permutations are settled.

Every step minimises ``|A - g B|^2`` over one space (or one shift) with the rest fixed and is never worse than the
identity, so the distance never rises. docs/lab/optima.md says which of these minima are global.

Constants that tensors trade, such as a vector that all words have more and all types less: how much brings them
closest to an anchor's.

Which trades are worth it is found one after the other; those that are, are solved together, as several may trade
with one table, or with some of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isomerge.matching.balance import fold_biases
from isomerge.matching.factors import Factors
from isomerge.matching.general_linear_orbit import Sides, linear_optimum, sequential, space_sides
from isomerge.matching.gram import side_widths
from isomerge.matching.joint import joint_optimum
from isomerge.matching.narrow import Widths
from isomerge.matching.rescale import complex_scale
from isomerge.matching.worth import least
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.language.spec import Shift, Space, Spec
from isomerge.symmetry.stage import (
    as_traded,
    bias_view,
    find_shifts,
    free_part,
    paid_through,
    shift_atoms,
    shift_shape,
)
from isomerge.symmetry.units import elements_of


def refine(
    spec: Spec,
    anchor: Blocks,
    moved: Blocks,
    *,
    rotate: bool = True,
    shift: bool = True,
    linear: bool = True,
    joint: bool = False,
) -> Alignment:
    """Improve a moved source, in place; returns what was applied.

    Args:
        spec: the spec with the matched spaces active.
        anchor: the anchor's blocks of one unit.
        moved: the source's, already permuted into place; overwritten.
        rotate: whether rotations are solved again, or scales alone (the paper's last step).
        shift: whether the additive gauges are used.
        linear: with ``rotate``, solve general linear spaces as such; else a rotation, then its factor.
        joint: without ``rotate``, solve the rotation of a general linear space and its factor together (certified
            global) in place of the factor alone.
    """
    applied = Alignment(spec)
    if shift:  # what is moved for nothing is brought close whatever the spaces do, so they need not keep it close
        dropped, target = spec.restrict([shift.name for shift in spec.shifts if shift.into is None]), dict(anchor)
        applied = Alignment(spec, fold_biases(dropped, moved).elements)
        fold_biases(dropped, target)
    else:
        target = anchor
    keys = {key: space for block in anchor for key, space in elements_of(spec, block).items()}
    for key, space in keys.items():
        if space.group.dimension(spec.sizes[space.name]) == 0:
            continue
        widths = side_widths(spec, space.name, moved) if space.group_name == "GL" else None
        g = _step(space, space_sides(spec, space, target, moved), rotate, linear, joint, widths)
        if g is None:
            continue
        step = Alignment(spec, {key: g})
        for block, tensor in moved.items():
            step.act_linearly(block, tensor)
        applied = step @ applied
    if shift:
        for step in matched_shifts(spec, anchor, moved):
            step.act(moved)
            applied = step @ applied
    return applied


def _step(
    space: Space, sides: Sides, rotate: bool, linear: bool, joint: bool, widths: Widths | None
) -> Tensor | None:
    """The best element of one space; None where scales alone are wanted and it has none."""
    name, group = space.group_name, space.group
    if name == "GL" and rotate:
        return linear_optimum(sides, widths=widths).element if linear else sequential(sides)
    if name in ("O", "OFixingOnes", "Turn") and rotate:
        return group.solve(sides.plus + sides.minus)[0]
    alpha, beta = (g.diagonal(dim1=-2, dim2=-1).sum(-1) for g in (sides.moved_plus, sides.moved_minus))
    return scaling_step(space, alpha, beta, sides.plus, sides.minus, joint)


def scaling_step(
    space: Space, alpha: Tensor, beta: Tensor, plus: Tensor, minus: Tensor, joint: bool
) -> Tensor | None:
    """The best factor of one space (Eq. 12), of a rotary pair with its phase; None where it has none.

    Args:
        alpha, beta: squares of the moved model's plain and dual sides, float64 [*batch].
        plus, minus: cross-Grams of both sides, anchor times moved transposed, float64 [*batch, n, n].
        joint: solve the rotation of a general linear space again, together with its factor.
    """

    name, group = space.group_name, space.group
    if name in ("O", "OFixingOnes", "Turn"):
        return None
    if name == "GL" and joint:
        best = joint_optimum(group, alpha, beta, plus, minus)
        return best.element * best.scale[..., None, None]
    crosses = (plus, minus)
    if name == "Complex":
        overlap = [torch.stack([c[..., 0, 0] + c[..., 1, 1], c[..., 1, 0] - c[..., 0, 1]], -1) for c in crosses]
        return complex_scale(alpha, beta, *overlap)
    overlaps = (c.diagonal(dim1=-2, dim2=-1).sum(-1) for c in crosses)
    factor = Factors.of(name).best(alpha, beta, *overlaps)
    identity = group.identity(tuple(factor.shape), plus.shape[-1])
    return identity * factor.reshape(*factor.shape, *([1] * (identity.ndim - factor.ndim)))


def matched_shifts(spec: Spec, anchor: Blocks, moved: Blocks) -> list[Alignment]:
    """The shifts that bring a unit closest, one after the other: biases, then trades where they are worth it.

    An output that trades its bias with another one takes up what both have left, half in each, so that biases are
    solved for the sum of both; where that trade is not worth it, for the one output alone.
    """
    partners = _partners(spec, moved)
    if partners:
        biases = _match_biases(spec, anchor, moved, partners)
        trades = match_trades(spec, anchor, biases.applied(moved))
        if all(key in trades for key in {key for key, _ in partners.values()}):
            return [biases, trades]
    biases = _match_biases(spec, anchor, moved, {})
    return [biases, match_trades(spec, anchor, biases.applied(moved))]


Partners = Mapping[Block, tuple[str, Block]]
"""Of outputs that trade a whole bias with another one's: the key of the trade, and the other one's bias."""


def _partners(spec: Spec, blocks: Blocks) -> Partners:
    """The outputs that pay for a bias and trade what they have with another one's."""
    shifts = find_shifts(spec, list(blocks))
    paid = {parts[shift.into] for shift, _, parts in shifts if shift.into is not None and shift.via is not None}
    partners: dict[Block, tuple[str, Block]] = {}
    for shift, key, parts in shifts:
        whole = shift.trades and shift.along is None and shift.into_along is None
        for side in (shift, shift.swapped()) if whole else ():
            if parts[side.bias] in paid and side.into is not None:
                partners.setdefault(parts[side.bias], (key, parts[side.into]))
    return partners


def _match_biases(spec: Spec, anchor: Blocks, moved: Blocks, partners: Partners) -> Alignment:
    """The shifts that bring the biases closest: exact for free biases, and for constants along the rows of a table,
    which tell what these are; least squares where an output pays for a bias."""

    elements = {}
    for shift, key, blocks in find_shifts(spec, list(moved)):
        if shift.trades:
            continue
        bias = blocks[shift.bias]
        target, atoms = bias_view(spec, shift, bias, anchor[bias])
        current, _ = bias_view(spec, shift, bias, moved[bias])
        gap = free_part(shift, (target - current).double(), atoms)
        if shift.into is not None and shift.via is not None and shift.along is None:
            into = blocks[shift.into]
            w = paid_through(spec, shift, blocks, moved[blocks[shift.via]].double(), atoms)
            ends = [into, partners[into][1]] if into in partners else [into]
            rest = torch.stack([(moved[end] - anchor[end]).double().flatten() for end in ends]).mean(0)
            gaps = [gap.flatten()]
            if shift.beside in blocks:
                beside = blocks[shift.beside]
                gaps.append((anchor[beside] - moved[beside]).double().flatten())
            eye = torch.eye(w.shape[1], dtype=torch.float64)
            cost = len(gaps) * eye + w.mT @ w / len(ends)
            gap = torch.linalg.solve(cost, torch.stack(gaps).sum(0) + w.mT @ rest).reshape(gap.shape)
        elements[key] = gap.clone()
    return Alignment(spec, elements)


PASSES = 8
"""What a pass leaves where two tables trade with a third is the share of its rows in theirs."""


def match_trades(spec: Spec, anchor: Blocks, moved: Blocks) -> Alignment:
    """The constants that tensors trade to come closest to the anchor's, where they are worth it; not applied.

    One after the other, a few times over; then those that were worth it at once, by least squares.
    """
    trades = Alignment(spec)
    for _ in range(PASSES):
        step = Alignment(spec)
        for shift, key, blocks in find_shifts(spec, list(moved)):
            delta = _traded(spec, shift, blocks, anchor, moved) if shift.trades else None
            if delta is not None and bool(delta.any()):
                trade = Alignment(spec, {key: delta})
                moved, step = trade.applied(moved), trade @ step
        if not step:
            break
        trades = step @ trades
    worth = [each for each in find_shifts(spec, list(moved)) if each[1] in trades]
    rest = _together(spec, worth, anchor, moved)
    return rest @ trades if rest else trades


def _traded(spec: Spec, shift: Shift, blocks: Mapping[str, Block], anchor: Blocks, moved: Blocks) -> Tensor:
    """The constant that two tensors trade to come closest to the anchor's, of the shape of the shift's element: the
    mean of both gaps, by their lengths. None at all where it is not worth it."""
    gaps: list[Tensor] = []
    means: list[Tensor] = []
    for side in (shift, shift.swapped()):
        block = blocks[side.bias]
        target, atoms = bias_view(spec, side, block, anchor[block])
        gaps.append((target - bias_view(spec, side, block, moved[block])[0]).double())
        mean = free_part(side, gaps[-1], atoms)
        means.append(mean if side is shift else as_traded(side, mean, atoms, shift_atoms(spec, shift)))
    lengths = [gap.numel() / max(mean.numel(), 1) for gap, mean in zip(gaps, means, strict=True)]
    delta = (lengths[0] * means[0] - lengths[1] * means[1]) / sum(lengths)
    before = sum(float(gap.square().sum()) for gap in gaps)
    worth = sum(lengths) * float(delta.square().sum()) >= least(before, sum(lengths))
    return delta if worth else torch.zeros_like(delta)


Trade = tuple[Shift, str, dict[str, Block]]


def _together(spec: Spec, trades: list[Trade], anchor: Blocks, moved: Blocks) -> Alignment:
    """What is left of several trades, solved at once: the normal equations of least squares, the same for every
    coordinate, of which the entries are the rows that two trades have in common.

    Trades of vectors over other axes have no table in common.
    """
    axes = [tuple(a.name for a in _vector(spec, shift)) for shift, _, _ in trades]
    elements: dict[str, Tensor] = {}
    for kind in dict.fromkeys(axes):
        mine = [trade for trade, own in zip(trades, axes, strict=True) if own == kind]
        if len(mine) < 2:
            continue
        sides = [_sides(spec, trade, anchor, moved) for trade in mine]
        gram = torch.tensor([[_common(first, second) for second in sides] for first in sides], dtype=torch.float64)
        gaps = torch.stack([(side.gap - other.gap).flatten() for side, other in sides])
        constants = torch.linalg.pinv(gram, hermitian=True) @ gaps
        for (shift, key, _), constant in zip(mine, constants, strict=True):
            elements[key] = constant.reshape(shift_shape(spec, shift))
    return Alignment(spec, elements)


def _vector(spec: Spec, shift: Shift) -> list[Atom]:
    """The axes that a shift's constant lies along."""
    return [a for a in shift_atoms(spec, shift) if a.name != shift.along and not a.name.isdigit()]


@dataclass(frozen=True)
class _Side:
    """What a trade moves of one of its two tensors."""

    place: tuple[Block, int]
    """The tensor, and its part."""
    rows: range
    gap: Tensor
    """What the anchor has more, summed over the rows, along the axes of the trade's constant; float64."""


def _sides(spec: Spec, trade: Trade, anchor: Blocks, moved: Blocks) -> tuple[_Side, _Side]:
    shift, _, blocks = trade
    sides: list[_Side] = []
    for side in (shift, shift.swapped()):
        block = blocks[side.bias]
        whole, atoms = bias_view(spec, replace(side, rows=None), block, anchor[block])
        size = 1 if side.along is None else whole.shape[[a.name for a in atoms].index(side.along)]
        rows = range(size)[slice(*(side.rows or (0, None)))]
        gap = (
            bias_view(spec, side, block, anchor[block])[0] - bias_view(spec, side, block, moved[block])[0]
        ).double()
        total = free_part(side, gap, atoms) * (1 if side.along is None else len(rows))
        along = total if side is shift else as_traded(side, total, atoms, shift_atoms(spec, shift))
        sides.append(_Side((block, side.block or 0), rows, along))
    return sides[0], sides[1]


def _common(first: tuple[_Side, _Side], second: tuple[_Side, _Side]) -> int:
    """The rows that two trades move alike, less those that they move against each other."""
    signs = ((0, 0, 1), (1, 1, 1), (0, 1, -1), (1, 0, -1))
    met = ((first[i], second[j], sign) for i, j, sign in signs if first[i].place == second[j].place)
    return sum(sign * max(0, min(a.rows.stop, b.rows.stop) - max(a.rows.start, b.rows.start)) for a, b, sign in met)

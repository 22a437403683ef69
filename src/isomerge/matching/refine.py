"""Exact coordinate steps in the anchor's own coordinates, after permutations are settled.

Every step minimises ``|A - g B|^2`` over one space (or one shift) with the rest fixed and is never worse than the
identity, so the distance never rises. docs/lab/optima.md says which of these minima are global.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from isomerge.matching.factors import Factors
from isomerge.matching.general_linear_orbit import Sides, linear_optimum, sequential
from isomerge.matching.gram import add_products, side_widths, sides
from isomerge.matching.joint import joint_optimum
from isomerge.matching.narrow import Widths
from isomerge.matching.rescale import complex_scale
from isomerge.matching.trades import match_trades
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.language.spec import Space, Spec
from isomerge.symmetry.stage import bias_view, find_shifts, free_part, paid_through
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
    found = Alignment(spec)
    if shift:  # what is moved for nothing is brought close whatever the spaces do, so they need not keep it close
        step = _dropped(spec, moved)
        step.act(moved)
        found, target = step @ found, _dropped(spec, anchor).applied(anchor)
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
        found = step @ found
    if shift:
        for step in _matched_shifts(spec, anchor, moved):
            step.act(moved)
            found = step @ found
    return found


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


def space_sides(spec: Spec, space: Space, anchor: Blocks, moved: Blocks) -> Sides:
    """Cross-Grams and self-Grams [*batch, n, n] of the plain and the dual sides of a space."""

    n = spec.sizes[space.name]
    batch = spec.batch(space)
    shape = tuple(spec.sizes[i] for i in batch)
    kinds = ((0, 1), (1, 1), (0, 0))  # anchor times moved, moved, anchor
    total = {
        side: {kind: torch.zeros(*shape, n, n, dtype=torch.float64) for kind in kinds} for side in (False, True)
    }
    for dual, pair, order in sides(spec, space, anchor, moved):
        add_products(total[dual], [t.permute(order) for t in pair], len(batch))
    return Sides(*(total[side][kind] for kind in kinds for side in (False, True)))


def _dropped(spec: Spec, tensors: Blocks) -> Alignment:
    """The shifts that leave nothing of the free biases, for which no output pays."""
    elements = {}
    for shift, key, blocks in find_shifts(spec, list(tensors)):
        if shift.into is None:
            bias = blocks[shift.bias]
            elements[key] = -free_part(shift, *bias_view(spec, shift, bias, tensors[bias])).double()
    return Alignment(spec, elements)


def _matched_shifts(spec: Spec, anchor: Blocks, moved: Blocks) -> list[Alignment]:
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
    found = find_shifts(spec, list(blocks))
    paid = {parts[shift.into] for shift, _, parts in found if shift.into is not None and shift.via is not None}
    partners: dict[Block, tuple[str, Block]] = {}
    for shift, key, parts in found:
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

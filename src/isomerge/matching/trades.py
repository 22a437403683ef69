"""Constants that tensors trade, such as a vector that all words have more and all types less: how much brings them
closest to an anchor's.

Which trades are worth it is found one after the other; those that are, are solved together, as several may trade
with one table, or with some of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.language.spec import Shift, Spec
from isomerge.symmetry.stage import as_traded, bias_view, find_shifts, free_part, shift_atoms, shift_shape

PASSES = 8
"""What a pass leaves where two tables trade with a third is the share of its rows in theirs."""
TRADED, CHANCE = 0.05, 10.0
"""The least part of the squared distance of two tensors for which they trade a constant, and parts in the number of
their rows in short ones: chance makes one of it, and fine-tunes keep their bytes."""


def match_trades(spec: Spec, anchor: Blocks, moved: Blocks) -> Alignment:
    """The constants that tensors trade to come closest to the anchor's, where they are worth it; not applied.

    One after the other, a few times over; then those that were worth it at once, by least squares.
    """
    found = Alignment(spec)
    for _ in range(PASSES):
        step = Alignment(spec)
        for shift, key, blocks in find_shifts(spec, list(moved)):
            delta = _traded(spec, shift, blocks, anchor, moved) if shift.trades else None
            if delta is not None and bool(delta.any()):
                trade = Alignment(spec, {key: delta})
                moved, step = trade.applied(moved), trade @ step
        if not step:
            break
        found = step @ found
    worth = [one for one in find_shifts(spec, list(moved)) if one[1] in found]
    rest = _together(spec, worth, anchor, moved)
    return rest @ found if rest else found


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
    least = max(TRADED, min(CHANCE / sum(lengths), 0.5))
    worth = sum(lengths) * float(delta.square().sum()) >= least * before
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
        gram = torch.tensor([[_common(one, two) for two in sides] for one in sides], dtype=torch.float64)
        gaps = torch.stack([(here.gap - there.gap).flatten() for here, there in sides])
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
        here = total if side is shift else as_traded(side, total, atoms, shift_atoms(spec, shift))
        sides.append(_Side((block, side.block or 0), rows, here))
    return sides[0], sides[1]


def _common(one: tuple[_Side, _Side], two: tuple[_Side, _Side]) -> int:
    """The rows that two trades move alike, less those that they move against each other."""
    signs = ((0, 0, 1), (1, 1, 1), (0, 1, -1), (1, 0, -1))
    met = ((one[i], two[j], sign) for i, j, sign in signs if one[i].place == two[j].place)
    return sum(sign * max(0, min(a.rows.stop, b.rows.stop) - max(a.rows.start, b.rows.start)) for a, b, sign in met)

"""Whether two units differ for the most part by what may be added for nothing: biases that no output depends on,
biases that another one pays for, constants that tensors trade.

What that takes away is solved with all else where it is, shifts that meet in a tensor together.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from torch import Tensor

from isomerge.matching.distances import squared_distance
from isomerge.matching.refine import matched_shifts
from isomerge.matching.worth import SHARE, by_chance, much_of_all, takes_away
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.language.spec import Shift, Spec
from isomerge.symmetry.stage import find_shifts, shift_ends, shift_shape

ROWS = 4096
"""Rows of a table that tell the constant which all of them have."""


def are_added(spec: Spec, anchor: Blocks, source: Blocks) -> bool:
    """Whether additions take away most of what is between some tensors of a unit, and much of all that is.

    Args:
        spec: with the shifts active that may be made.
        anchor, source: the unit's blocks, float32 or float64; not changed.
    """
    shifts = find_shifts(spec, list(anchor))
    if not shifts:
        return False
    anchor, source = (_thinned([shift for shift, _, _ in shifts], blocks) for blocks in (anchor, source))
    whole = sum(squared_distance(anchor[block], t) for block, t in source.items())
    all_entries = sum(t.numel() for t in source.values())
    brought = source
    for step in matched_shifts(spec, anchor, source):
        brought = step.applied(brought)
    for blocks, dimensions in _groups(spec, shifts):
        before, after = (sum(squared_distance(anchor[b], t[b]) for b in blocks) for t in (source, brought))
        entries = sum(anchor[b].numel() for b in blocks)
        counts = dimensions < entries
        chance, share = (
            (by_chance(dimensions, entries), SHARE) if counts else (0.0, much_of_all(entries / all_entries))
        )
        if takes_away(before, after, whole, chance, share):
            return True
    return False


def added_blocks(spec: Spec, blocks: Collection[Block]) -> set[Block]:
    """The blocks that shifts change."""
    return {b for shift, _, parts in find_shifts(spec, list(blocks)) for b in shift_ends(shift, parts)}


def _groups(spec: Spec, shifts: Collection[tuple[Shift, str, dict[str, Block]]]) -> list[tuple[set[Block], int]]:
    """The blocks of shifts that meet in one, and how many dimensions they have together."""
    groups: list[tuple[set[Block], int]] = []
    for shift, _, parts in shifts:
        met = set(shift_ends(shift, parts))
        own = [group for group in groups if group[0] & met]
        groups = [group for group in groups if not group[0] & met]
        dimensions = prod(shift_shape(spec, shift)) + sum(count for _, count in own)
        groups.append((met.union(*(blocks for blocks, _ in own)), dimensions))
    return groups


def _thinned(shifts: Collection[Shift], blocks: Blocks) -> Blocks:
    """The blocks with rows of long tables left out, evenly, where a constant of all of them is what is free."""
    sides = [side for shift in shifts for side in ((shift, shift.swapped()) if shift.trades else (shift,))]
    whole = {side.bias for side in sides if side.rows is not None}
    along = {(side.bias, side.along) for side in sides if side.bias not in whole}
    return {
        block: _rows(block, t, {name for line, name in along if line == block.line.name})
        for block, t in blocks.items()
    }


def _rows(block: Block, tensor: Tensor, along: Collection[str | None]) -> Tensor:
    axes = (block.axes or ())[: tensor.ndim]
    places = tuple(
        slice(None, None, -(-n // ROWS) if isinstance(axis, Atom) and axis.name in along else 1)
        for axis, n in zip(axes, tensor.shape, strict=False)
    )
    return tensor[places]

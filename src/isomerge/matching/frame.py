"""The frame of the residual stream: norm gains folded, coordinates in the anchor's order.

Block-local matching leaves the residual stream alone. Two cheap, exact things are known about it without a pass over
the model: every gain of a norm can be folded into its readers (a gauge choice), and a permuted stream shows in
the embeddings, whose other axis (tokens, positions, pixels) has a meaning of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import atoms
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.spec import Spec
from isomerge.symmetry.units import elements_of

if TYPE_CHECKING:
    from torch import Tensor

Load = Callable[[Block], "Tensor"]


def folded_gains(spec: Spec, blocks: Sequence[Block], load: Load) -> Alignment:
    """The residual scales that make every norm's gain one; a zero stays zero.

    Args:
        spec: the full spec; its residual spaces are active.
        blocks: the model's blocks; a gain is the first vector line of its scale (its bias follows).
        load: reads one block, float32 or float64.
    """
    import torch

    elements: dict[str, Tensor] = {}
    for block in blocks:
        for key, space in elements_of(spec, block).items():
            is_scale = space.name in spec.residual_names and space.group_name == "Scale"
            if not is_scale or key in elements or len(block.axes or ()) != 1:
                continue
            gain = load(block).double()
            elements[key] = torch.where(gain == 0, torch.ones_like(gain), gain.reciprocal()).reshape(-1, 1)
    return Alignment(spec, elements)


def stream_order(spec: Spec, blocks: Sequence[Block], anchor: Load, source: Load) -> Alignment:
    """The permutation of the source's residual stream that brings its embeddings onto the anchor's."""
    streams = [s for s in spec.spaces.values() if s.residual and s.group_name == "Perm" and not s.index]
    elements: dict[str, Tensor] = {}
    for space in streams:
        profit: Tensor | None = None
        for block in blocks:
            names = [a.name for a in atoms(block.axes or ())]
            if block.scope or names.count(space.name) != 1 or len(names) < 2 or len(elements_of(spec, block)) != 1:
                continue
            for (x, y), here, _ in leaves(spec, block, anchor(block), source(block)):
                at = [a.name for a in here].index(space.name)
                cross = (t.movedim(at, 0).flatten(1) for t in (x, y))
                gram = next(cross) @ next(cross).mT
                profit = gram if profit is None else profit + gram
        if profit is not None:
            elements[space.name] = space.group.solve(profit)[0]
    return Alignment(spec, elements)

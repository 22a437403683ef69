"""Rotations and their factors from one pass over the weights: the attention of the seed paper's Algorithm 1.

Rotating keeps lengths, and ``<x2, R x1> = tr(R^T C)`` with the cross-Gram C: all four numbers of Eq. 12 follow from
what Eq. 10 needs already, so that nothing is moved in between.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from isomerge.matching.gram import sides, signature
from isomerge.matching.refine import scaling_step
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.language.spec import Space, Spec
from isomerge.symmetry.units import elements_of


def rotations_and_factors(
    spec: Spec,
    anchor: Mapping[Block, Tensor],
    source: Mapping[Block, Tensor],
    *,
    joint: bool,
    rotate: bool = True,
) -> Alignment | None:
    """Algorithm 1 on one unit where every tensor is acted on by one space at most, and no space lies over another.

    Args:
        spec: the spec with the matched spaces active.
        anchor, source: the unit's blocks, float32 or float64; not changed.
        joint: solve a rotation and its factor together (certified global) in place of one after the other.
        rotate: whether there is a rotation, or a factor alone.

    Returns:
        None where the unit is another, or nothing continuous acts.
    """
    keys = {key: space for block in anchor for key, space in elements_of(spec, block).items()}
    names = [space.name for space in keys.values()]
    together = (signature(spec, atoms) for block, t in anchor.items() for _, atoms, _ in leaves(spec, block, t))
    if (
        len(set(names)) < len(names)
        or any(set(spec.batch(space)) & set(names) for space in keys.values())
        or not all(space.group.dimension(spec.sizes[space.name]) for space in keys.values())
        or any(len(spaces) > 1 for spaces in together)
    ):
        return None
    how = {"joint": joint, "rotate": rotate}
    return Alignment(spec, {key: _element(spec, space, anchor, source, **how) for key, space in keys.items()})


def _element(
    spec: Spec,
    space: Space,
    anchor: Mapping[Block, Tensor],
    source: Mapping[Block, Tensor],
    *,
    joint: bool,
    rotate: bool,
) -> Tensor:
    """A compact element (Eq. 10) and its factor (Eq. 12), or both at once."""
    group = space.group
    alpha, beta, plus, minus = crosses_and_squares(spec, space, anchor, source)
    g = group.solve(plus + minus)[0] if rotate else group.identity(tuple(plus.shape[:-2]), plus.shape[-1])
    # the moved source's: its squares are the same, and a compact element acts on both sides alike
    step = scaling_step(space, alpha, beta, group.act(g, plus, False), group.act(g, minus, False), joint)
    return g if step is None else group.compose(step, g)


def crosses_and_squares(
    spec: Spec, space: Space, anchor: Mapping[Block, Tensor], source: Mapping[Block, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the plain and the dual sides of a space: the source's squares [*batch], and the cross-Grams [*batch, n,
    n], float64.

    Products are summed in the dtype of the weights, so that no copy of them is made: float32 leaves 1e-7 of a Gram,
    and the optimum is flat.
    """

    n, batch = spec.sizes[space.name], spec.batch(space)
    shape = tuple(spec.sizes[i] for i in batch)
    squares = [torch.zeros(shape, dtype=torch.float64) for _ in range(2)]
    crosses = [torch.zeros(*shape, n, n, dtype=torch.float64) for _ in range(2)]
    for dual, (x, y), order in sides(spec, space, anchor, source):
        u, v = (t.permute(order).reshape(*shape, n, -1) for t in (x, y))
        crosses[dual] += u @ v.mT
        # along the last axis first, which is in order in memory
        lengths = torch.linalg.vector_norm(y, dim=-1, keepdim=True).double().square()
        if y.ndim - 1 in order[: len(batch)]:
            lengths = y.double().square()
        squares[dual] += lengths.permute(order).reshape(*shape, -1).sum(-1)
    return squares[0], squares[1], crosses[0], crosses[1]

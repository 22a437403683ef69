"""Exact coordinate steps in the anchor's own coordinates, after permutations are settled.

Every step minimises ``|A - g B|^2`` over one space (or one shift) with the rest fixed, the identity included, so
the distance never rises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isomerge.matching.rescale import complex_scale, quartic_scale
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.shifts import bias_view, find_shifts, projection
from isomerge.symmetry.spec import Space, Spec
from isomerge.symmetry.units import elements_of

if TYPE_CHECKING:
    from torch import Tensor

Blocks = dict[Block, "Tensor"]


def refine(spec: Spec, anchor: Blocks, moved: Blocks, *, rotate: bool = True, shift: bool = True) -> Alignment:
    """Improve a moved source, in place; returns what was applied.

    Args:
        spec: the spec with the matched spaces active.
        anchor: the anchor's blocks of one unit.
        moved: the source's, already permuted into place; overwritten.
        rotate: whether rotations are solved again, or scales alone (the paper's last step).
        shift: whether the additive gauges are used.
    """
    found = Alignment(spec)
    keys = {key: space for block in anchor for key, space in elements_of(spec, block).items()}
    for key, space in keys.items():
        if space.group.dimension(spec.sizes[space.name]) == 0:
            continue
        for g in _steps(spec, space, anchor, moved, rotate):
            step = Alignment(spec, {key: g})
            for block, tensor in moved.items():
                step.act_linearly(block, tensor)
            found = step @ found
    if shift:
        step = _match_biases(spec, anchor, moved)
        step.act(moved)
        found = step @ found
    return found


def _steps(spec: Spec, space: Space, anchor: Blocks, moved: Blocks, rotate: bool):
    """The exact minimisers for one space, one after the other."""
    import torch

    n = spec.sizes[space.name]
    name = space.group_name
    if name in ("O", "OFixingOnes", "GL") and rotate:
        cross, _, _ = _traces(spec, space, anchor, moved)
        yield space.group.solve(cross[False] + cross[True])[0]
    if name in ("GL", "Scale", "PositiveScale", "Complex"):
        cross, alpha, beta = _traces(spec, space, anchor, moved)
        if name == "Complex":
            overlap = [
                torch.stack([c[..., 0, 0] + c[..., 1, 1], c[..., 1, 0] - c[..., 0, 1]], -1) for c in cross.values()
            ]
            yield complex_scale(alpha, beta, *overlap)
            return
        plus, minus = (c.diagonal(dim1=-2, dim2=-1).sum(-1) for c in cross.values())
        factor = quartic_scale(alpha, beta, plus, minus, signed=name in ("GL", "Scale"))
        identity = space.group.identity(tuple(factor.shape), n)
        yield identity * factor.reshape(*factor.shape, *([1] * (identity.ndim - factor.ndim)))


def _traces(spec: Spec, space: Space, anchor: Blocks, moved: Blocks) -> tuple[dict[bool, Tensor], Tensor, Tensor]:
    """Cross-Grams A B^T [*batch, n, n] of the plain (False) and dual (True) sides, and the moved sides' squares."""
    import torch

    n = spec.sizes[space.name]
    batch = spec.batch(space)
    shape = tuple(spec.sizes[i] for i in batch)
    cross = {side: torch.zeros(*shape, n, n, dtype=torch.float64) for side in (False, True)}
    square = {side: torch.zeros(shape, dtype=torch.float64) for side in (False, True)}
    for block, a in anchor.items():
        for (x, y), atoms, _ in leaves(spec, block, a, moved[block]):
            names = [atom.name for atom in atoms]
            if space.name not in names:
                continue
            at = names.index(space.name)
            order = [names.index(i) for i in batch]
            rest = [k for k in range(x.ndim) if k not in order and k != at]
            u, v = (t.permute(*order, at, *rest).double().reshape(*shape, n, -1) for t in (x, y))
            cross[atoms[at].dual] += u @ v.mT
            square[atoms[at].dual] += v.square().sum((-2, -1))
    return cross, square[False], square[True]


def _match_biases(spec: Spec, anchor: Blocks, moved: Blocks) -> Alignment:
    """The shifts that bring the biases closest: exact for free biases, least squares where an output pays for it."""
    import torch

    elements = {}
    for shift, key, blocks in find_shifts(spec, list(moved)):
        bias = blocks[shift.bias]
        target, atoms = bias_view(spec, shift, bias, anchor[bias])
        current, _ = bias_view(spec, shift, bias, moved[bias])
        gap = (target - current).double()
        if shift.into is not None and shift.via is not None:
            via, into = blocks[shift.via], blocks[shift.into]
            w = projection(spec, via, moved[via].double(), atoms, into)
            rest = (moved[into] - anchor[into]).double().flatten()
            eye = torch.eye(w.shape[1], dtype=torch.float64)
            gap = torch.linalg.solve(eye + w.mT @ w, gap.flatten() + w.mT @ rest).reshape(gap.shape)
        elements[key] = gap.clone()
    return Alignment(spec, elements)

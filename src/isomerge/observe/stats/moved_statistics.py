"""How statistics of a model move along with it: the laws by which a file is moved instead of being made again.

For a group element g that acts on weights, activations x move as x -> g x and gradients as grad -> g^-T grad. So a
Gram moves to g G g^T, exactly, for every group. A diagonal Fisher E grad_i^2 is no tensor: it stays diagonal only
where g takes every coordinate to one coordinate (permutations, signs, scales, and products of them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.observe.stats.taps import Tap
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import Atom, length
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.groups import SCALES
from isomerge.symmetry.language.spec import Shift, Space
from isomerge.symmetry.stage import MONOMIAL, Stage, shift_atoms, shift_key

# Groups whose every element takes coordinates to coordinates; of others, single elements may.
COORDINATEWISE = MONOMIAL | {*SCALES}
# Matrix entries below this count as zeros, shifts below it as none: elements carry rounding of float32 weights.
ZERO = 1e-6


def moved_moments(alignment: Alignment, tap: Tap, gram: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """E x x^T [width, width] and E x [width] at a tap of the moved model, exactly, shifts of biases included.

    A shift d of a value bias adds d to what the output projection reads (attention weights sum to one), and to what
    the biased layer gives: E (x + d)(x + d)^T = G + m d^T + d m^T + d d^T.
    """
    gram, mean = gram.clone(), mean.clone()
    for stage in alignment.stages:
        for d in _shifts_at(stage, tap):
            d = d.to(gram.dtype)
            gram = gram + mean.outer(d) + d.outer(mean) + d.outer(d)
            mean = mean + d
        gram = _act(stage, tap, _act(stage, tap, gram).mT).mT.contiguous()
        mean = _act(stage, tap, mean[None])[0]
    return gram, mean


def moved_factor(alignment: Alignment, tap: Tap, factor: Tensor) -> Tensor:
    """E g g^T [width, width] of the gradient at a tap (`isomerge.observe.stats.taps.gradient_tap`) of the
    moved model.

    A diagonal [width] belongs to an axis that nothing moves, and stays.
    """
    if factor.ndim == 1:
        return factor
    for stage in alignment.stages:
        factor = _act(stage, tap, _act(stage, tap, factor).mT).mT.contiguous()
    return factor


def moved_fisher(alignment: Alignment, block: Block, fisher: Tensor, ref: str = "") -> Tensor:
    """The diagonal Fisher of a block of the moved model, exactly: W' = s W has F' = F / s^2.

    With a monomial g, ``(g^-T grad)_i^2 = (g^-T sqrt(F))_i^2``: so the elements act on square roots as on
    gradients.

    Args:
        alignment: must take every coordinate of the block to one coordinate.
        block: whose tensor it is.
        fisher: E grad^2 in the shape of the block, before the alignment.
        ref: what the user calls the model, for the message.

    Raises:
        IsomergeError: a rotation or a shift mixes coordinates of this tensor; naming it, the space and the way out.
    """
    check_closed(alignment, block, ref)
    moved = fisher.clamp_min(0).sqrt().contiguous()
    for (view,), view_atoms, _ in leaves(alignment.spec, block, moved):
        dual = tuple(a if a.name.isdigit() else replace(a, dual=not a.dual) for a in view_atoms)
        alignment.act_on_view(view, dual, dict(block.scope))
    return moved.square_()


def check_closed(alignment: Alignment, block: Block, ref: str = "") -> None:
    """Refuse an alignment under which the diagonal Fisher of a block does not stay diagonal.

    Raises:
        IsomergeError: see `moved_fisher`.
    """
    for stage in alignment.stages:
        mixing = _mixing_space(stage, block) or _mixing_shift(stage, block)
        if mixing:
            raise IsomergeError(
                f"{ref + ': ' if ref else ''}the diagonal Fisher of {block.key} cannot follow {mixing}, which "
                "mixes its coordinates: use the method fisher_kfac (isomerge stats --kinds kfac), choose --spaces "
                "of permutations and scales alone (such as h,ff,scale), or give --data, so that it is computed on "
                "the aligned model"
            )


def _mixing_space(stage: Stage, block: Block) -> str | None:
    """The first space whose element at a block is not monomial."""
    for name in dict.fromkeys(a.name for a in block.atoms if a.name in stage.spec.spaces):
        space = stage.spec.spaces[name]
        g = stage.element(name, dict(block.scope))
        if g is not None and space.group_name not in COORDINATEWISE and not _is_monomial(space, g, stage):
            return f"the space {name} ({space.group_name})"
    return None


def _is_monomial(space: Space, g: Tensor, stage: Stage) -> bool:
    """Whether elements [*b, ...] have one entry other than zero in every row and column, as matrices."""
    n, batch = stage.spec.sizes[space.name], tuple(stage.spec.sizes[i] for i in stage.spec.batch(space))
    matrices = g.ndim == len(batch) + 2
    eye = None if matrices else torch.eye(n, dtype=torch.float64).expand(*batch, n, n)
    sizes = (g if eye is None else space.group.act(g, eye, False)).abs()
    big = sizes > ZERO * sizes.amax((-2, -1), keepdim=True)
    return bool((big.sum(-1) == 1).all() and (big.sum(-2) == 1).all())


def _mixing_shift(stage: Stage, block: Block) -> str | None:
    """A shift that changes what a block reads: its gradient then takes up the gradient of the bias."""
    for shift, key in _shifts(stage, block.scope):
        reads = shift.via is not None and _key(stage, shift.via, block.scope) == block.key
        if reads and bool((stage.elements[key].abs() > ZERO).any()):
            return f"the shift {shift.name}"
    return None


def _shifts(stage: Stage, scope: tuple[tuple[str, int], ...]) -> list[tuple[Shift, str]]:
    """The shifts of a stage at a scope, with their element keys."""
    keys = [(shift, shift_key(shift, dict(scope))) for shift in stage.spec.shifts]
    whole = [(shift, key) for shift, key in keys if shift.via is not None or not shift.constant]
    return [(shift, key) for shift, key in whole if key in stage.elements]


def _key(stage: Stage, line: str, scope: tuple[tuple[str, int], ...]) -> str | None:
    """The key of the block of a line at a scope."""
    spec_line = next((x for x in stage.spec.lines if x.name == line), None)
    return (
        spec_line.canonical(dict(scope))
        if spec_line is not None and set(spec_line.indices) == dict(scope).keys()
        else None
    )


def _shifts_at(stage: Stage, tap: Tap) -> list[Tensor]:
    """What the shifts of a stage add to every row at a tap: [width], float64."""
    shifts = []
    for shift, key in _shifts(stage, tap.scope):
        bias = _key(stage, shift.bias, tap.scope) or ""
        if tap.side == "in" and shift.via is not None and _key(stage, shift.via, tap.scope) == tap.block:
            parts = shift.reads
        elif tap.side == "out" and f"{bias.removesuffix('.bias')}.weight" == tap.block:  # of one module
            parts = (shift.block or 0,)
        else:
            continue
        row = torch.zeros(1, length(tap.axis, stage.spec.sizes), dtype=torch.float64)
        named = [a.name for a in shift_atoms(stage.spec, shift)]
        delta = stage.elements[key]
        if shift.along is not None:
            delta = delta.squeeze(named.index(shift.along))
        kept = [name for name in named if name != shift.along]
        for part in parts:
            (view,), view_atoms = list(tap.leaves(stage.spec, row))[part]
            view[0] += _spread(delta, kept, view_atoms[1:])
        shifts.append(row[0])
    return shifts


def _spread(delta: Tensor, names: list[str], tap_atoms: tuple[Atom, ...]) -> Tensor:
    """A shift with axes ``names`` along the atoms of a tap; what several query heads read, they all read."""
    order = [names.index(a.name) for a in tap_atoms if a.name in names]
    spread = delta.permute(order)
    for at, atom in enumerate(tap_atoms):
        if atom.name not in names:
            spread = spread.unsqueeze(at)
    return spread


def _act(stage: Stage, tap: Tap, x: Tensor) -> Tensor:
    """Rows [n, width] at a tap, moved by the spaces of one stage."""
    scope: Mapping[str, Any] = dict(tap.scope)
    moved = x.clone().contiguous()
    for (view,), view_atoms in tap.leaves(stage.spec, moved):
        stage.act_on_view(view, view_atoms, scope)
    return moved

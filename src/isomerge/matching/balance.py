"""The canonical gauge: biases folded, both sides of every non-compact space balanced.

Two models with the same function reach the same canonical point up to compact elements (Kempf-Ness: the
minimum-norm point of an orbit is unique up to the maximal compact subgroup), so matching there does not depend on
the gauge that training or a disguise happened to leave. Dead blocks, whose orbit is not closed, stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from isomerge.matching.gram import self_grams
from isomerge.matching.narrow import narrow_form, narrow_widths
from isomerge.matching.selection import Selection
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.groups import power_of
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stage import bias_view, canonical_part, find_shifts
from isomerge.symmetry.units import elements_of

# Where two non-compact spaces meet in one tensor they are balanced in turn; each turn lowers the norm.
# The turns are over when a sweep moves less than the last bit of float32 or 1e-12 can tell, or, near that, no
# longer less
# than it did a few sweeps before: sums over thousands of entries leave more rounding than one bit.
SWEEPS = 400
SETTLED = 1e-12
NEARLY_SETTLED = 1e-4
PATIENCE = 3


def canonical_gauge(spec: Spec, tensors: dict[Block, Tensor]) -> tuple[Alignment, list[str]]:
    """Move one unit to its canonical gauge.

    Args:
        spec: the spec with the spaces that are matched active.
        tensors: the unit's blocks, float32 or float64; those that are moved are replaced by new tensors.

    Returns:
        What was applied, and the element keys that could not be balanced (dead or rank-deficient blocks).
    """
    gauge = fold_biases(spec, tensors)
    dead: list[str] = []
    sweeps = SWEEPS if _meet(spec, tensors) else 1
    moved: list[float] = []
    for sweep in range(sweeps):
        step = _balance_once(spec, tensors, dead if sweep == 0 else [])
        gauge = step @ gauge
        moved.append(max((_moved(spec, key, g) for key, g in step.items()), default=0.0))
        if _settled(moved, tensors):
            break
    return gauge, dead


def gauge_of(selection: Selection) -> Callable[[Spec, dict[Block, Tensor]], tuple[Alignment, list[str]]]:
    """What brings models, as `canonical_gauge` does, to where their common mean is sought: to the canonical gauge;
    under the seed paper's algorithm to the gauge of what it rescales, or nowhere."""
    if selection.gauge:
        return canonical_gauge
    return balanced_factors if selection.rescale else lambda spec, tensors: (Alignment(spec), [])


def balanced_factors(spec: Spec, tensors: dict[Block, Tensor]) -> tuple[Alignment, list[str]]:
    """`canonical_gauge` by what the seed paper rescales (Eq. 12): a general linear space by one factor, at
    which both sides are of one norm."""
    dead: list[str] = []
    return _balance_once(spec, tensors, dead, factors=True), dead


def _settled(moved: list[float], tensors: Mapping[Block, Tensor]) -> bool:
    """True when what the last sweep moved is rounding."""

    last = moved[-1]
    widths = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if last < max([SETTLED, *(torch.finfo(dtype).eps for dtype in widths)]):
        return True
    return last < NEARLY_SETTLED and len(moved) > PATIENCE and last >= min(moved[-1 - PATIENCE : -1])


def fold_biases(spec: Spec, tensors: dict[Block, Tensor]) -> Alignment:
    """Zero every free bias; what it carried goes into the output bias. What is changed is replaced by new
    tensors."""
    folds = Alignment(spec)
    for shift, key, blocks in find_shifts(spec, list(tensors)):  # in order: one may take up what the next one moves
        parts = {block: tensors[block] for block in blocks.values()}
        free = canonical_part(spec, shift, *bias_view(spec, shift, blocks[shift.bias], parts[blocks[shift.bias]]))
        step = Alignment(spec, {key: -free.double().clone()})
        tensors.update(step.applied(parts))
        folds = step @ folds
    return folds


def balance_powers(spec: Spec, tensors: dict[Block, Tensor]) -> None:
    """Balance the factors whose dual sides are divided by a power of them: no product of both sides is invariant
    but at their balanced point. What is moved is replaced by new tensors."""
    powers = [n for n, space in spec.spaces.items() if power_of(space.group) > 1]
    if powers:
        _balance_once(spec.restrict(powers), tensors, [])


def _balance_once(spec: Spec, tensors: dict[Block, Tensor], dead: list[str], *, factors: bool = False) -> Alignment:
    gauge = Alignment(spec)
    keys = {key: space for block in tensors for key, space in elements_of(spec, block).items()}
    for key, space in keys.items():
        if space.keeps_lengths:
            continue
        grams = self_grams(spec, space.name, tensors)
        if grams is None:
            continue
        widths = narrow_widths(spec, space, tensors)
        if factors and space.group_name == "GL":
            moved = _factor(*grams)
        else:
            moved = space.group.balance(*grams) if widths is None else narrow_form(*grams, widths)
        if moved is None:
            continue
        g, closed = moved[0], ~moved[1]
        if not bool(closed.all()):
            dead.append(key)
        step = Alignment(spec, {key: g})
        tensors.update(step.applied(tensors))
        gauge = step @ gauge
    return gauge


def _factor(plain: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
    """The multiple of the identity that brings both sides to one norm, from their Grams [*batch, n, n]; and whether
    there is one."""
    alpha, beta = (gram.diagonal(dim1=-2, dim2=-1).sum(-1) for gram in (plain, dual))
    closed = (alpha > 0) & (beta > 0)
    factor = torch.where(closed, (beta / torch.where(closed, alpha, 1.0)) ** 0.25, 1.0)
    return factor[..., None, None] * torch.eye(plain.shape[-1], dtype=plain.dtype, device=plain.device), closed


def _meet(spec: Spec, tensors: Mapping[Block, Tensor]) -> bool:
    """True when two non-compact spaces act on one leaf."""
    loose = {n for n, s in spec.spaces.items() if not s.keeps_lengths}
    return any(
        len(loose & {a.name for a in atoms}) > 1
        for block, t in tensors.items()
        for _, atoms, _ in leaves(spec, block, t)
    )


def _moved(spec: Spec, key: str, g: Tensor) -> float:
    """How far an element is from the identity."""
    space = spec.space_of(key)
    batch = tuple(g.shape[: len(spec.batch(space))])
    return float((g - space.group.identity(batch, spec.sizes[space.name])).abs().max())

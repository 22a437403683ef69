"""Where gauges fail: a unit compared by the products of its factors, and by what rounding of the factors explains.

Two models whose canonical gauges differ need not differ: near a point without a balanced gauge, rounding moves the
gauge far. Products decide (`isomerge.matching.products`); tensors that no non-compact space acts on are compared as
they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.matching.balance import canonical_gauge
from isomerge.matching.distances import squared_norm
from isomerge.matching.local import Blocks, compact_solution
from isomerge.matching.products import ROOM, Difference, close_orbits, differences, roundings, tied
from isomerge.solve.pairs.pair import PairSolver
from isomerge.solve.pairs.residuals import peak, whole
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stage import bias_view, find_shifts, free_part, paid_through
from isomerge.symmetry.units import Unit, elements_of


@dataclass(frozen=True)
class UnitVerdict:
    """What the products of one unit say."""

    same: bool | None
    """Whether the unit is the same in both; None where rounding of what is stored leaves it open."""
    residual: float
    """The largest relative one, of what decided."""
    place: str
    """The tensor, or the element whose products they are."""
    rounding: float
    """What the rounding of the stored factors explains there."""
    beside: UnitVerdict | None = None
    """What is open beside a certain difference, where rounding explains most."""


def judge(solver: PairSolver, unit: Unit, tolerance: float, roundoff: float) -> UnitVerdict:
    """Compare one unit of both models by its products.

    Args:
        solver: loads the unit in the frames of both models.
        unit: one whose residual between canonical gauges is above the tolerance.
        tolerance: the relative difference that passes.
        roundoff: the unit roundoff of the coarsest dtype of the unit.
    """

    spec = solver.local
    a, b = (solver.load(model, unit, dtype=torch.float64) for model in (solver.anchor, solver.source))
    a, b = ({block: t for block, t in x.items() if t.is_floating_point()} for x in (a, b))
    stored_a, stored_b = ({block: t.clone() for block, t in x.items()} for x in (a, b))
    stuck: set[str] = set()
    for tensors in (a, b):
        dead = canonical_gauge(spec, tensors)[1]
        close_orbits(spec, tensors)
        stuck |= set(dead) - {sides.key for sides in tied(spec, tensors)}
    match = compact_solution(spec, a, b, {name: solver.votes[name] for name in unit.votes})
    match.act(b)
    orders = {k: g for k, g in match.elements.items() if spec.space_of(k).group_name == "Perm"}
    Alignment(spec, orders).act(stored_b)
    mean = sum(squared_norm(t) for t in stored_a.values()) / max(len(stored_a), 1)
    errors = _errors(spec, stored_a, stored_b, roundoff)
    gaps = differences(spec, a, b, errors, tolerance, 1e-6 * mean)
    gaps += _plain(spec, a, b, _bias_errors(spec, stored_a, stored_b, roundoff), tolerance, mean)
    worst = max(gaps, key=lambda d: ((True, None, False).index(d.same), d.largest))
    same = None if stuck and worst.same is False and worst.key in _touched(spec, a, stuck) else worst.same
    tensors = {block.key for block in a}

    def verdict(gap: Difference, same: bool | None, beside: UnitVerdict | None = None) -> UnitVerdict:
        place = gap.key if gap.key in tensors else f"products of {gap.key}"
        return UnitVerdict(same, gap.largest, place, gap.rounding, beside)

    left_open = max((d for d in gaps if d.same is None), key=lambda d: d.rounding, default=None)
    beside = verdict(left_open, None) if same is False and left_open is not None else None
    return verdict(worst, same, beside)


def _errors(spec: Spec, a: Blocks, b: Blocks, roundoff: float) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Squared norms of what rounding explains in the products of both models together."""

    mine, theirs = roundings(spec, a), roundings(spec, b)
    errors = {}
    for key, parts in mine.items():
        whole, *rows = (roundoff**2 * (x + y) for x, y in zip(parts, theirs[key], strict=True))
        # the rounding of a row is spread over the others where a stream is rotated
        errors[key] = (whole, *(torch.maximum(r, r.mean(-1, keepdim=True)) for r in rows))
    return errors


def _bias_errors(spec: Spec, a: Blocks, b: Blocks, roundoff: float) -> dict[Block, float]:
    """What the rounding of both models explains in biases that take on a free bias through a matrix, by block."""
    errors: dict[Block, float] = {}
    for tensors in (a, b):
        for shift, _, blocks in find_shifts(spec, list(tensors)):
            if shift.into is None or shift.via is None:
                continue
            into, bias = blocks[shift.into], blocks[shift.bias]
            view, atoms = bias_view(spec, shift, bias, tensors[bias])
            w = paid_through(spec, shift, blocks, tensors[blocks[shift.via]], atoms)
            squares = free_part(shift, view.square(), atoms).flatten()
            size = 2 * float((w.square() @ squares).sum()) + float(tensors[into].square().sum())
            errors[into] = errors.get(into, 0.0) + roundoff**2 * size
    return {block: ROOM * error**0.5 for block, error in errors.items()}


def _plain(
    spec: Spec, a: Blocks, b: Blocks, errors: dict[Block, float], tolerance: float, mean: float
) -> list[Difference]:
    """The leaves that no product covers, measured as `relative_residuals` does."""
    covered = {ElementKey.of(sides.key).name for sides in tied(spec, a)}
    gaps = []
    for block, tensor in a.items():
        floor = max(1e-6 * mean, 1e-300)
        norm = max(squared_norm(whole(block, tensor)), floor) ** 0.5
        top = max(peak(tensor), (floor / max(tensor.numel(), 1)) ** 0.5)
        pairs = [(tensor, b[block])] if block.axes is None else []
        pairs += [
            pair
            for pair, atoms, _ in leaves(spec, block, tensor, b[block])
            if not covered & {x.name for x in atoms}
        ]
        gap = sum(float((x - y).square().sum()) for x, y in pairs) ** 0.5 / norm
        local = max((peak(x - y) for x, y in pairs), default=0.0) / top
        bounds = errors.get(block, 0.0) / norm, errors.get(block, 0.0) / top
        failing = [(r, e) for r, e in zip((gap, local), bounds, strict=True) if r > tolerance]
        certain = [(r, e) for r, e in failing if r > e]
        worst, error = max(certain or failing or [(max(gap, local), max(bounds))])
        gaps.append(Difference(block.key, worst, error, False if certain else None if failing else True))
    return gaps


def _touched(spec: Spec, blocks: Blocks, keys: set[str]) -> set[str]:
    """The keys of the blocks that some elements act on, and of all elements that act there."""
    moved = [block for block in blocks if keys & elements_of(spec, block).keys()]
    return {block.key for block in moved} | {key for block in moved for key in elements_of(spec, block)}

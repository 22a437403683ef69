"""Units matched once more where they are stored: with the streams as they are, in the anchor's own
coordinates.

Streams are matched between canonical gauges, where only compact elements are left. A non-compact space has more to
give in the anchor's own coordinates (the general linear step, rescaling, shifts), and what is closest there is what
an aligned checkpoint is measured by. Every unit keeps what it had unless the distance falls, and the dtype that is
written carries it.
"""

from __future__ import annotations

from torch import Tensor

from isomerge.matching.distances import distance
from isomerge.matching.local import move_unit
from isomerge.matching.narrow import may_be_narrow
from isomerge.models.unit_plan import with_progress
from isomerge.observe.live.accelerator import CPU, computing_on, on
from isomerge.progress import Observer
from isomerge.solve.pairs.pair import PairSolver, overflow_told
from isomerge.solve.pairs.written_gains import with_common_gains
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Blocks
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.units import Unit, elements_of


def matched_in_place(solver: PairSolver, whole: Alignment, observer: Observer) -> tuple[Alignment, dict[str, int]]:
    """An alignment of a whole model, followed by what every unit still gains with the streams as they are.

    Args:
        solver: the two models and the plan; one unit of each is read at a time.
        whole: the element of the whole source.
        observer: told of progress.

    Returns:
        The alignment, and how many units were tried and how many gained.

    Raises:
        IsomergeError: weights whose products overflow, or a damaged tensor.
    """
    units = [unit for unit in solver.plan.units if solver.plan.is_matched(unit)]
    elements, gained = dict[str, Tensor](), 0
    with computing_on(solver.device, "layers with the streams as they are"):
        there = whole if solver.device == CPU else whole.to(solver.device)
        for unit in with_progress(solver.anchor, units, observer, "matching inside layers once more: "):
            more = _gained(solver, unit, there)
            elements, gained = elements | more, gained + bool(more)
    counts = {"units": len(units), "gained": gained}
    return Alignment(solver.plan.selection.spec, on(CPU, elements)) @ whole, counts


def nearest_in_place(solver: PairSolver, whole: Alignment, observer: Observer) -> tuple[Alignment, dict[str, int]]:
    """What brings a source nearest to its anchor, from an element of the whole source: with the gains that are
    best, then `matched_in_place`.

    Where no stream is turned, layers alone are matched as well, with all gains as they are stored, and the nearer
    of both counts: such an alignment never ends farther away than it began.
    """
    whole = without_stretching(solver, whole)
    best, counts = matched_in_place(solver, with_common_gains(solver, whole, observer), observer)
    if not solver.plan.selection.streams:
        stay, counts_stay = matched_in_place(solver, Alignment(whole.spec), observer)
        if _distance(solver, stay) <= _distance(solver, best):
            return stay, counts_stay
    return best, counts


def without_stretching(solver: PairSolver, whole: Alignment) -> Alignment:
    """An element of the whole source without the bases of narrow maps that bring it farther away: what is near
    between balanced forms need not be so where the anchor stands, and of a map that is narrower than its axis a
    basis may be stretched as far as rounding allows (`isomerge.matching.narrow`)."""
    spec, dropped = solver.plan.selection.spec, set[str]()

    def left() -> Alignment:
        return Alignment(
            whole.spec, {k: g for k, g in whole.elements.items() if ElementKey.of(k).in_stage not in dropped}
        )

    for unit in solver.plan.units:
        spaces = {key: space for block in unit.blocks for key, space in elements_of(spec, block).items()}
        keys = [key for key, space in spaces.items() if key in whole and may_be_narrow(spec, space, unit.blocks)]
        if not keys:
            continue
        anchor, source = (solver.load(model, unit) for model in (solver.anchor, solver.source))
        apart = distance(anchor, left().applied(source))
        for key in keys:
            dropped.add(key)
            if (without := distance(anchor, left().applied(source))) < apart:
                apart = without
            else:
                dropped.remove(key)
    return left() if dropped else whole


def _distance(solver: PairSolver, g: Alignment) -> float:
    """The squared distance of the two models, the source moved."""
    total = 0.0
    for unit in solver.plan.units:
        anchor, source = (solver.load(model, unit) for model in (solver.anchor, solver.source))
        g.act(source)
        total += distance(anchor, source)
    return total


def _gained(solver: PairSolver, unit: Unit, whole: Alignment) -> dict[str, Tensor]:
    """The elements that bring one unit closer than an alignment has, if any; what the whole stack has in common
    stays."""
    selection = solver.plan.selection
    anchor, source = (on(solver.device, solver.load(model, unit)) for model in (solver.anchor, solver.source))
    before = source
    source = whole.applied(before)
    spaces = selection.spec.spaces
    kept = {
        name: spaces[name].group.identity((), selection.spec.sizes[name]).to(solver.device) for name in unit.votes
    }

    def carries(g: Alignment, moved: Blocks) -> bool:
        return solver.rounding is None or solver.rounding.carries(solver.errors(g @ whole, before, moved))

    with overflow_told(solver, unit):
        gained = move_unit(selection, anchor, source, kept, guard=True, carries=carries).alignment
    return {key: g for key, g in gained.items() if ElementKey.of(key).name not in kept}

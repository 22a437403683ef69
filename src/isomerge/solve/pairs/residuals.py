"""What no symmetry explains between two models: their difference between canonical gauges, unit by unit.

Where norms have gains, or a residual stream may have been turned, the two are brought into one frame first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.matching.distances import BlockResidual, squared_distance, squared_norm
from isomerge.matching.frame import lonely_gains
from isomerge.matching.local import compact_solution
from isomerge.models.free_streams import free_frame, unread_gains
from isomerge.models.unit_plan import with_progress
from isomerge.progress import Observer
from isomerge.solve.canonical.canonical_frame import folding, with_gains
from isomerge.solve.pairs.pair import PairSolver, overflow_told
from isomerge.solve.pairs.stream_descent import StreamSolver
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.units import Unit

# A rotated twin is found in ten sweeps to rounding; two different models are told apart long before.
SWEEPS = 12


def comparing(solver: PairSolver) -> PairSolver:
    """The solver that `every_residual` takes: gains are folded, and the stack-wide spaces decided."""
    if solver.plan.selection.spec.gains and not solver.framed:
        blocks = [block for unit in solver.plan.units for block in unit.blocks]
        solver = _fold(solver, solver.plan.selection.spec, blocks)
    return replace(solver, votes=solver.collect_votes()) if solver.plan.votes and not solver.votes else solver


def every_residual(solver: PairSolver, observer: Observer) -> Iterator[tuple[Unit, list[BlockResidual], list[str]]]:
    """Every unit with its `residuals`."""
    for unit in with_progress(solver.anchor, solver.plan.units, observer):
        yield unit, *residuals(solver, unit)


def residuals(solver: PairSolver, unit: Unit) -> tuple[list[BlockResidual], list[str]]:
    """Per block, what no symmetry explains: squared distance and norm between canonical gauges, and their peaks.

    Both models are moved to the canonical gauge and matched there by compact elements, which keep lengths: the
    result does not depend on the gauges of the two checkpoints. The second result are the elements of dead blocks,
    which have no canonical gauge (see ``closes``): what differs there may be a symmetry after all.
    """
    spec = solver.local
    a, b = solver.load(solver.anchor, unit), solver.load(solver.source, unit)
    dead: list[str] = []
    if unit.elements or unit.votes:
        with overflow_told(solver, unit):
            dead = sorted({*solver.to_gauge(spec, a)[1], *solver.to_gauge(spec, b)[1]})
            compact_solution(spec, a, b, {name: solver.votes[name] for name in unit.votes}).act(b)
    return [residual_of(block, a[block], b[block]) for block in unit.blocks], dead


def residual_of(block: Block, a: Tensor, b: Tensor) -> BlockResidual:
    """Squared distance and norm of a block of both models, and their peaks."""
    return BlockResidual(
        block.key,
        size=max(a.numel(), 1),
        residual=squared_distance(a, b),
        norm=squared_norm(whole(block, a)),
        peak_residual=peak(numbers(a) - numbers(b)),
        peak=peak(numbers(whole(block, a))),
    )


def whole(block: Block, a: Tensor) -> Tensor:
    """What a difference is measured against: a gain that is stored less one is zero when it is folded."""
    return a + block.line.less if block.line.less else a


def numbers(a: Tensor) -> Tensor:
    """A tensor that can be subtracted from: masks are stored as truth values."""
    return a if a.is_floating_point() or a.is_complex() else a.double()


def peak(a: Tensor) -> float:
    """The largest absolute value."""
    return float(a.abs().max()) if a.numel() else 0.0


# ----------------------------------------------------------------------- frames


def with_framed_stream(solver: PairSolver, observer: Observer, turned: Collection[str] = ()) -> PairSolver:
    """A solver of both models with gains folded, the source's streams in the anchor's basis.

    Streams from embeddings and heads, then from all tensors in a few sweeps. Streams that a model gives out
    keep their bases, but for those ``turned``. Where what reads a gain is not compared, a difference there
    would be taken for a symmetry: then no stream is turned.

    Args:
        solver: one that is not `framed`.
        observer: told of progress.
        turned: see above.
    """
    models = (solver.anchor, solver.source)
    full = free_frame(solver.anchor.spec, models, turned)
    blocks = [block for unit in solver.plan.units for block in unit.blocks]
    unread = unread_gains(models[:1]) & unread_gains(models[1:])
    if full is None or lonely_gains(full, blocks) - unread:
        framed = _fold(solver, with_gains(solver.plan.selection.spec, models), blocks)  # no output shows these
    else:
        framed = _frame_both(solver, full, observer)
    return replace(framed, votes={})


def _frame_both(solver: PairSolver, full: Spec, observer: Observer) -> PairSolver:
    """Fold all gains, and find the source's streams in the anchor's basis."""
    try:
        search = _stream_search(solver, full, observer)
    except IsomergeError:  # a gain of zero, which cannot be folded: what needs no folding may still act
        search = _stream_search(solver, solver.anchor.spec.turning_latents(), observer)
    search.solve(SWEEPS)
    of_anchor, of_source = search.units.folds
    return solver.framed_by(of_anchor, search.turn @ of_source)


def _fold(solver: PairSolver, spec: Spec, blocks: Sequence[Block]) -> PairSolver:
    """Fold the gains of a spec, where what reads them is compared; the streams keep their bases."""
    models, unread = (solver.anchor, solver.source), lonely_gains(spec, blocks)
    try:
        return solver.framed_by(*(folding(model, spec, blocks, solver.dtype, unread) for model in models))
    except IsomergeError:  # a gain of zero, which cannot be folded
        return solver


def _stream_search(solver: PairSolver, frame: Spec, observer: Observer) -> StreamSolver:
    plan = replace(solver.plan, selection=replace(solver.plan.selection, frame=frame))
    pair = PairSolver(
        solver.anchor, solver.source, plan, solver.dtype, guard=False, device=solver.device, closes=solver.closes
    )
    return StreamSolver(pair, observer)


def is_turned(solver: PairSolver) -> bool:
    """Whether the source's blocks are loaded in a rotated residual stream, which rounding anywhere may have turned
    a little."""
    frames = [move.alignment.spec for move in solver.source.moves if solver.framed and not move.parts]
    return any(frame.spaces[s].group.compact in ("O", "OFixingOnes") for frame in frames for s in frame.streams)

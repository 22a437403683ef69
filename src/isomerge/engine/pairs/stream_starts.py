"""Where the search for the residual streams' elements starts: at what has a shared meaning.

That are embeddings of tokens, positions and patches, and heads; with activations, the norms' outputs as well. Streams that none of
these tell follow: permuted ones, those of a tower behind a convolution, by the norms of their coordinates; then those that turn
between linear maps, by the stream on a map's other side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from isomerge.matching.frame import (
    WeightedLeaf,
    stream_crosses,
    streams_alone,
    streams_beside,
    streams_by_grams,
    streams_by_norms,
)
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import atoms
from isomerge.symmetry.units import Unit

if TYPE_CHECKING:
    from torch import Tensor

    from isomerge.engine.pairs.streams import StreamSolver

# A direction of a stream is known from a cross-Gram where it has this much of the largest one's: far above what float32 leaves of nothing.
KNOWN = 1e-5


def shared_start(solver: StreamSolver) -> None:
    """Turn the source's streams to where the search starts; ``solver.turn`` is the identity before."""
    frame, units = solver.frame, solver.pair.plan.units
    if solver.units.activations is None:
        units = [unit for unit in units if not all(block.scope for block in unit.blocks)]
    crosses = stream_crosses(frame, _leaves(solver, units, shared=True))
    # a norm's bias helps to find a basis, and is none alone
    bare = streams_alone(frame, solver.pair.anchor.blocks) if solver.units.activations is None else set()
    solved = {name: frame.spaces[name].group.solve(c)[0] for name, c in crosses.items() if name not in bare}
    if alone := [name for name in frame.streams if name not in solved]:
        solved |= streams_by_norms(frame, _leaves(solver, solver.pair.plan.units), alone)
    solver.turn = Alignment(frame, solved)
    while found := _next_between(solver, solved):
        solved |= found
        solver.turn = Alignment(frame, solved)


def _next_between(solver: StreamSolver, solved: dict[str, Tensor]) -> dict[str, Tensor]:
    """The elements of one more stream, or of all that are left, from the streams on the other sides of their linear maps, which are
    ``solved``; none where nothing tells.

    The one comes first of which most directions are known: a map that narrows says little about where it begins. What is
    not known so, the lengths in all tensors of a stream tell.
    """
    import torch

    frame, alone = solver.frame, set(solver.frame.streams) - solved.keys()
    if not alone:
        return {}
    units = [
        unit
        for unit in solver.pair.plan.units
        if any(alone & {a.name for a in atoms(block.axes or ())} for block in unit.blocks)
    ]
    crosses = streams_beside(frame, _turned_leaves(solver, units), solved)
    unknown = {name: len(c) - int(torch.linalg.matrix_rank(c, rtol=KNOWN)) for name, c in sorted(crosses.items())}
    first = min(unknown, key=unknown.__getitem__, default=None)
    if first is not None and unknown[first] <= 1:  # rotations that keep the vector of ones have it from elsewhere
        return {first: frame.spaces[first].group.solve(crosses[first])[0]}
    names = sorted(alone) if first is None else [first]
    return streams_by_grams(frame, lambda: _turned_leaves(solver, units), names, crosses)


def _turned_leaves(solver: StreamSolver, units: Iterable[Unit]) -> Iterator[WeightedLeaf]:
    """Those of units, the source's streams turned as they stand."""
    turned = (solver.turned_unit(unit) for unit in units)
    return chain.from_iterable(solver.units.leaves(pair.anchor, pair.source) for pair in turned)


def _leaves(solver: StreamSolver, units: Iterable[Unit], *, shared: bool = False) -> Iterator[WeightedLeaf]:
    """Those of units of both models as they are."""
    canonical = solver.units.canonical
    return chain.from_iterable(solver.units.leaves(*canonical(unit), shared=shared) for unit in units)

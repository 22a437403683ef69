"""Where the search for the residual streams' elements starts: at what has a shared meaning.

That are embeddings of tokens, positions and patches, and heads; with activations, the norms' outputs as well.
Streams that none of these tell follow: permuted ones, those of a tower behind a convolution, by the norms of their
coordinates; then those that turn between linear maps, by the stream on a map's other side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from isomerge.matching.frame import (
    WeightedLeaf,
    stream_crosses,
    streams_alone,
    streams_beside,
    streams_by_grams,
    streams_by_norms,
)
from isomerge.solve.canonical.canonical_units import CanonicalUnits
from isomerge.solve.pairs.unit_pair import UnitPair
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.units import Unit

# A direction of a stream is known from a cross-Gram where it has this much of the largest one's: far above what
# float32 leaves of nothing.
KNOWN = 1e-5


def shared_start(canonical: CanonicalUnits, units: Sequence[Unit], blocks: Sequence[Block]) -> Alignment:
    """The turn of the source's streams with which the search starts.

    Args:
        canonical: the units of the anchor and of the source, in their canonical gauges.
        units: all units of the plan.
        blocks: of the anchor.
    """
    return _Start(canonical, units).alignment(blocks)


@dataclass
class _Start:
    """A start as it is made: the elements of the streams that are known so far."""

    canonical: CanonicalUnits
    units: Sequence[Unit]
    elements: dict[str, Tensor] = field(default_factory=dict)

    def alignment(self, blocks: Sequence[Block]) -> Alignment:
        """See `shared_start`."""
        frame, units = self.canonical.frame, self.units
        if self.canonical.activations is None:
            units = [unit for unit in units if not all(block.scope for block in unit.blocks)]
        crosses = stream_crosses(frame, self._leaves(units, shared=True))
        # a norm's bias helps to find a basis, and is none alone
        bare = streams_alone(frame, blocks) if self.canonical.activations is None else set()
        self.elements = {
            name: frame.spaces[name].group.solve(c)[0] for name, c in crosses.items() if name not in bare
        }
        if alone := [name for name in frame.streams if name not in self.elements]:
            self.elements |= streams_by_norms(frame, self._leaves(self.units), alone)
        while further := self._next_between():
            self.elements |= further
        return Alignment(frame, self.elements)

    def _next_between(self) -> dict[str, Tensor]:
        """The elements of one more stream, or of all that are left, from the streams on the other sides of their
        linear maps, whose elements are known; none where nothing tells.

        The one comes first of which most directions are known: a map that narrows says little about where it
        begins. What is not known so, the lengths in all tensors of a stream tell.
        """

        frame = self.canonical.frame
        alone = set(frame.streams) - self.elements.keys()
        if not alone:
            return {}
        units = [unit for unit in self.units if any(alone & block.names for block in unit.blocks)]
        crosses = streams_beside(frame, self._turned_leaves(units), self.elements)
        unknown = {
            name: len(c) - int(torch.linalg.matrix_rank(c, rtol=KNOWN)) for name, c in sorted(crosses.items())
        }
        first = min(unknown, key=unknown.__getitem__, default=None)
        if (
            first is not None and unknown[first] <= 1
        ):  # rotations that keep the vector of ones have it from elsewhere
            return {first: frame.spaces[first].group.solve(crosses[first])[0]}
        names = sorted(alone) if first is None else [first]
        return streams_by_grams(frame, lambda: self._turned_leaves(units), names, crosses)

    def _turned_leaves(self, units: Iterable[Unit]) -> Iterator[WeightedLeaf]:
        """Those of units, the source's streams turned as far as they are known."""
        turn = Alignment(self.canonical.frame, self.elements)
        turned = (UnitPair(*self.canonical.canonical(unit)).moved(turn) for unit in units)
        return chain.from_iterable(self.canonical.leaves(pair.anchor, pair.source) for pair in turned)

    def _leaves(self, units: Iterable[Unit], *, shared: bool = False) -> Iterator[WeightedLeaf]:
        """Those of units of both models as they are."""
        read = self.canonical
        return chain.from_iterable(read.leaves(*read.canonical(unit), shared=shared) for unit in units)

"""Git Re-Basin by activations (Ainsworth, Hayase & Srinivasa, ICLR 2023, section 3.1): units are matched by what
they compute of the same examples.

    maximise  <Z_A, P Z_B>  over the permutation P of every stream, of heads with their dimensions, and of neurons

where Z are activations [units, rows], centred. A residual stream is compared at its norms' outputs, heads and
neurons where linear layers give and take them. Every permutation has an optimum of its own (a linear assignment),
whatever the others are, so that nothing is iterated. What no activation tells (tables that no module gives out,
units that never change) stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from isomerge.matching.gram import Leaf, cross_grams
from isomerge.matching.local import compact_solution
from isomerge.matching.nested import NestedSolver
from isomerge.matching.permutations import in_declared_groups, permutation_spec
from isomerge.observe.stats.taps import Activations
from isomerge.progress import Observer, quiet
from isomerge.solve.pairs.pair import PairSolver
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Blocks
from isomerge.symmetry.units import Unit, plan_units, voted


class ActivationMatching:
    """The permutations of a source by its activations and the anchor's.

    Args:
        pair: the two models and the plan; spaces that are not selected, and layers that are skipped, are not moved.
        activations: of the anchor and of the source, centred, of the same examples.
        observer: told of progress.
    """

    def __init__(
        self, pair: PairSolver, activations: tuple[Activations, Activations], observer: Observer = quiet
    ) -> None:
        chosen = pair.plan.selection
        streams = chosen.frame.streams if chosen.frame is not None else ()
        self.activations, self.observer = activations, observer
        self.pair, declared = pair, pair.anchor.spec
        self.spec = permutation_spec(declared, [*chosen.spec.spaces, *streams])
        self.streams = tuple(name for name in streams if name in self.spec.spaces)
        self.local = self.spec.restrict(name for name in self.spec.spaces if name not in self.streams)
        blocks = [block for unit in pair.plan.units for block in unit.blocks]
        still = {block.key for unit in pair.plan.units if unit.key in pair.plan.skipped for block in unit.blocks}
        units = plan_units(self.local, blocks)
        self.mobile = [u for u in units if (u.elements or u.votes) and u.blocks[0].key not in still]

    def solve(self) -> tuple[Alignment, dict[str, Any]]:
        """The best permutations, and the report: ``before`` and ``after`` are <Z_A, P Z_B> over all that is
        compared, as shares of what equal activations have."""
        elements: dict[str, Tensor] = {name: self._stream(name) for name in self.streams}
        votes = {name: self._vote(name) for name in sorted(voted(self.local))}
        for number, unit in enumerate(self.mobile):
            self.observer(f"Git Re-Basin by activations: {unit.key}", number, len(self.mobile))
            heads = {name: votes[name] for name in unit.votes}
            nothing = self._nothing(unit)
            matches = compact_solution(self.local, nothing, nothing, heads, [*self._leaves(unit)])
            elements |= matches.elements
        alignment = in_declared_groups(self.pair.anchor.spec, {**elements, **votes})
        moved = self.activations[1].moved(alignment)
        before, after = self._agreement(self.activations[1]), self._agreement(moved)
        return alignment, {"method": "git-rebasin-acts", "before": before, "after": after}

    def _stream(self, name: str) -> Tensor:
        """A residual stream, at the outputs of all its norms."""
        n = self.spec.sizes[name]
        cross = torch.zeros(n, n, dtype=torch.float64)
        for key, tap in self.activations[0].taps.items():
            x, y = (a.values[key].double() for a in self.activations)
            for (u, v), atoms in tap.leaves(self.spec, x, y):
                for k, atom in enumerate(atoms):
                    if atom.name == name:
                        rows = (t.movedim(k, 0).reshape(n, -1) for t in (u, v))
                        cross += torch.mm(next(rows), next(rows).mT)
        return self.spec.spaces[name].group.solve(cross)[0]

    def _vote(self, name: str) -> Tensor:
        """The heads of a whole stack: the profits of all its layers added up."""
        total: Tensor | None = None
        for unit in (u for u in self.mobile if name in u.votes):
            crosses = cross_grams(self.local, self._leaves(unit))
            own = {signature: cross for signature, cross in crosses.items() if signature[0] == name}
            profit = NestedSolver(self.local).profit(name, own).double()
            total = profit if total is None else total + profit
        space = self.local.spaces[name]
        return space.group.identity((), self.local.sizes[name]) if total is None else space.group.solve(total)[0]

    def _nothing(self, unit: Unit) -> Blocks:
        """The unit's blocks without weights: they say what spaces act here, and count for nothing."""
        zeros = {block: torch.zeros_like(x) for block, x in self.pair.load(self.pair.anchor, unit).items()}
        return {block: x for block, x in zeros.items() if x.is_floating_point()}

    def _leaves(self, unit: Unit) -> Iterator[Leaf]:
        """The atom views of both models' activations at a unit's weights."""
        own = {block.key for block in unit.blocks}
        for key, tap in self.activations[0].taps.items():
            if tap.block in own:
                x, y = (a.values[key].double() for a in self.activations)
                for (u, v), atoms in tap.leaves(self.local, x, y):
                    yield u, v, atoms

    def _agreement(self, moved: Activations) -> float:
        total = norm = 0.0
        for key, x in self.activations[0].values.items():
            x, y = x.double(), moved.values[key].double()
            total += float((x * y).sum())
            norm += float((x.square().sum() * y.square().sum()).sqrt())
        return total / norm if norm else 0.0


def match_by_activations(
    pair: PairSolver, activations: tuple[Activations, Activations], observer: Observer = quiet
) -> tuple[Alignment, dict[str, Any]]:
    """Git Re-Basin's alignment by activations, an exact symmetry, and the report; see `ActivationMatching`."""
    return ActivationMatching(pair, activations, observer).solve()

"""Git Re-Basin: weight matching by permutations alone (Ainsworth, Hayase & Srinivasa, ICLR 2023, Algorithm 1).

    maximise  sum over tensors <A, P B>  over permutations P of streams, heads, their dimensions, and neurons

by coordinate descent from the identity: the permutations are visited in random order, each is replaced by the
optimum with all others as they are (a linear assignment), until a whole sweep changes nothing. Tensors count as
they are stored: neither gauges nor gains are fixed, and none is weighted. What shares heads is one coordinate:
heads and the dimensions inside are solved together, exactly, which the paper's plain networks do not need.

This is not what `isomerge.solve.pairs.stream_descent` does with permutations: that one starts from embeddings as
well, folds gains, weights tensors by their norms, and solves all layers before it looks at the stream again.

By activations (section 3.1), units are matched by what they compute of the same examples:

    minimise  |Z_A - P Z_B|^2, so maximise  <Z_A, P Z_B>,  over the permutation P of every layer's units

where Z are activations [units, rows] behind the nonlinearity, as they are. Every permutation has an optimum of its
own (a linear assignment), whatever the others are, so that nothing is iterated. The paper has units alone: here a
residual stream is compared at its norms' outputs, heads with their dimensions where the output layer reads them,
queries and keys where they are given. A variant compares centred activations, and units also where linear
layers give them, before the nonlinearity. What no activation shows (tables that no module gives out, units that
never change) stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from isomerge.matching.distances import squared_norm
from isomerge.matching.gram import Leaf, cross_grams
from isomerge.matching.local import compact_solution, vote
from isomerge.matching.nested import NestedSolver
from isomerge.observe.stats.taps import Activations
from isomerge.progress import Observer, quiet
from isomerge.records import Json
from isomerge.research.baselines.permutations import in_declared_groups, permutation_spec
from isomerge.solve.match_names import AS_PUBLISHED, CENTRED
from isomerge.solve.pairs.pair import PairSolver
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Blocks, leaves
from isomerge.symmetry.units import Unit, plan_units, voted

# Coordinate descent over assignments ends by itself, after ten sweeps or so; this is a bound for pathologies.
SWEEPS = 100
# A step must gain this fraction of the two models' norms: float64 sums of float32 products round at 1e-12.
GAIN = 1e-11


@dataclass
class _Step:
    """A trial: the new elements of the units it touches (or a stream's), and what <A, P B> gains by it."""

    units: dict[str, dict[str, Tensor]]
    shared: dict[str, Tensor]
    gain: float


class _Matching:
    """The permutations of two models.

    Args:
        pair: the two models and the plan; spaces that are not selected, and layers that are skipped, are not moved.
        observer: told of progress.
    """

    def __init__(self, pair: PairSolver, observer: Observer) -> None:
        chosen = pair.plan.selection
        streams = chosen.frame.streams if chosen.frame is not None else ()
        self.pair, self.observer = pair, observer
        self.spec = permutation_spec(pair.anchor.spec, [*chosen.spec.spaces, *streams])
        self.streams = tuple(n for n in streams if n in self.spec.spaces)
        self.local = self.spec.restrict(n for n in self.spec.spaces if n not in self.streams)
        blocks = [block for unit in pair.plan.units for block in unit.blocks]
        still = {b.key for u in pair.plan.units if u.key in pair.plan.skipped for b in u.blocks}
        self.units = plan_units(self.local, blocks)
        self.mobile = [u for u in self.units if (u.elements or u.votes) and u.blocks[0].key not in still]

    def _identity(self, name: str) -> Tensor:
        return self.local.spaces[name].group.identity((), self.local.sizes[name])


class WeightMatching(_Matching):
    """Git Re-Basin's alignment, an exact symmetry: coordinate descent over the permutations of two models.

    Args:
        pair, observer: see `_Matching`.
        seed: of the order in which permutations are visited.
    """

    def __init__(self, pair: PairSolver, observer: Observer = quiet, *, seed: int = 0) -> None:
        super().__init__(pair, observer)
        self.seed = seed
        self.inner: dict[str, dict[str, Tensor]] = {}
        """Elements inside every unit, without those of a whole stack."""
        self.shared: dict[str, Tensor] = {}
        """Elements of streams and of whole stacks."""
        self._cache: dict[str, tuple[Blocks, Blocks]] = {}
        self._room = pair.room

    def solve(self, sweeps: int = SWEEPS) -> tuple[Alignment, Json]:
        """Descend until a sweep changes nothing; returns the alignment and the report.

        The report's ``distances`` are squared distances of the two models, before the first sweep and after each
        one.
        """
        norms = [squared_norm(t) for unit in self.units for t in self._floats(unit)]
        score, total = sum(self._score(unit) for unit in self.units), sum(norms)
        distances, rng = [total - 2 * score], torch.Generator().manual_seed(self.seed)
        places: list[Callable[[], _Step]] = [partial(self._unit, u) for u in self.mobile]
        places += [partial(self._vote, name) for name in sorted(voted(self.local))]
        places += [partial(self._stream, name) for name in self.streams]
        for number in range(sweeps):
            self.observer(f"Git Re-Basin, sweep {number + 1}, squared distance {distances[-1]:.5g}", number, sweeps)
            changed = False
            for k in torch.randperm(len(places), generator=rng).tolist():
                step = places[k]()
                if step.gain > GAIN * total:
                    self.inner |= step.units
                    self.shared |= step.shared
                    score, changed = score + step.gain, True
            distances.append(total - 2 * score)
            if not changed:
                break
        elements = {k: g for inner in self.inner.values() for k, g in inner.items()} | self.shared
        alignment = in_declared_groups(self.pair.anchor.spec, elements)
        return alignment, {
            "method": "git-rebasin",
            "seed": self.seed,
            "sweeps": len(distances) - 1,
            "distances": distances,
        }

    # --------------------------------------------------------------- coordinates

    def _unit(self, unit: Unit) -> _Step:
        """Everything inside one unit, with streams and stack-wide heads as they are."""
        a, b = self._turned(unit)
        votes = {n: self.shared[n] if n in self.shared else self._identity(n) for n in unit.votes}
        elements = compact_solution(self.local, a, b, votes).elements
        own = {k: g for k, g in elements.items() if k not in votes}
        return _Step({unit.key: own}, {}, self._score(unit, own) - self._score(unit))

    def _vote(self, name: str) -> _Step:
        """The heads of a whole stack, with the best inside of every layer for each assignment."""
        units = [u for u in self.mobile if name in u.votes]
        profits = [vote(self.local, *self._turned(u), name) for u in units]
        if not profits:
            return _Step({}, {}, 0.0)
        p = self.local.spaces[name].group.solve(sum(profits[1:], profits[0]))[0]
        before, gain, inner = self.shared.get(name), 0.0, {}
        for unit in units:
            votes = {n: self.shared.get(n, self._identity(n)) for n in unit.votes} | {name: p}
            elements = compact_solution(self.local, *self._turned(unit), votes).elements
            inner[unit.key] = {k: g for k, g in elements.items() if k not in votes}
            stay = self._score(unit)
            self.shared[name] = p
            gain += self._score(unit, inner[unit.key]) - stay
            self._restore(name, before)
        return _Step(inner, {name: p}, gain)

    def _stream(self, name: str) -> _Step:
        """A residual stream, with everything else as it is.

        A tensor that lies in the stream on both sides is linear in each: every side is counted with the other as it
        is, and the step is judged by what it really gains.
        """
        n = self.spec.sizes[name]
        cross, both = torch.zeros(n, n, dtype=torch.float64), []
        for x, y, atoms in self._leaves():
            at = [k for k, a in enumerate(atoms) if a.name == name]
            for k in at:
                u, v = (t.double().movedim(k, 0).reshape(n, -1) for t in (x, y))
                cross += u @ v.mT
            if len(at) > 1:
                both.append((x.double(), y.double(), at))
        group = self.spec.spaces[name].group
        p = group.solve(cross)[0]
        gain = float(cross.gather(1, p[:, None]).sum() - cross.diagonal().sum())
        for x, y, at in both:
            stay, moved = float((x * y).sum()), y
            for k in at:
                gain -= float((x * y.index_select(k, p)).sum()) - stay
                moved = moved.index_select(k, p)
            gain += float((x * moved).sum()) - stay
        before = self.shared.get(name)
        return _Step({}, {name: p if before is None else group.compose(p, before)}, gain)

    # --------------------------------------------------------------------- data

    def _restore(self, name: str, before: Tensor | None) -> None:
        if before is None:
            del self.shared[name]
        else:
            self.shared[name] = before

    def _loaded(self, unit: Unit) -> tuple[Blocks, Blocks]:
        """Both models' blocks of a unit, kept while they fit; not to be changed."""
        if unit.key in self._cache:
            return self._cache[unit.key]
        a, b = (self.pair.load(m, unit) for m in (self.pair.anchor, self.pair.source))
        size = sum(t.nbytes for t in (*a.values(), *b.values()))
        if size <= self._room:
            self._room -= size
            self._cache[unit.key] = (a, b)
        return a, b

    def _floats(self, unit: Unit) -> Iterator[Tensor]:
        for blocks in self._loaded(unit):
            yield from (t for t in blocks.values() if t.is_floating_point())

    def _turned(self, unit: Unit) -> tuple[Blocks, Blocks]:
        """A unit with the source's streams permuted, and nothing inside."""
        a, b = self._loaded(unit)
        g = Alignment(self.spec, {n: self.shared[n] for n in self.streams if n in self.shared})
        return self._floating(a), g.applied(self._floating(b))

    def _floating(self, blocks: Blocks) -> Blocks:
        return {block: t for block, t in blocks.items() if t.is_floating_point()}

    def _placed(self, unit: Unit, inner: dict[str, Tensor] | None = None) -> tuple[Blocks, Blocks]:
        """A unit with the source moved by all elements so far, or by other elements inside."""
        a, b = self._loaded(unit)
        own = self.inner.get(unit.key, {}) if inner is None else inner
        return self._floating(a), Alignment(self.spec, {**own, **self.shared}).applied(self._floating(b))

    def _score(self, unit: Unit, inner: dict[str, Tensor] | None = None) -> float:
        """<A, P B> of a unit."""
        a, b = self._placed(unit, inner)
        return sum(float((t.double() * b[block].double()).sum()) for block, t in a.items())

    def _leaves(self) -> Iterator[tuple[Tensor, Tensor, Sequence[Atom]]]:
        """The atom views of both models as they stand."""
        for unit in self.units:
            a, b = self._placed(unit)
            for block, t in a.items():
                for (x, y), atoms, _ in leaves(self.spec, block, t, b[block]):
                    yield x, y, atoms


class ActivationMatching(_Matching):
    """Git Re-Basin's alignment by activations, an exact symmetry.

    Args:
        pair, observer: see `_Matching`.
        activations: of the anchor and of the source, of the same examples; ``centred`` ones for the variant.
        centred: the variant: units are compared where they are given as well as where they are read.
    """

    def __init__(
        self,
        pair: PairSolver,
        activations: tuple[Activations, Activations],
        observer: Observer = quiet,
        *,
        centred: bool = False,
    ) -> None:
        super().__init__(pair, observer)
        self.activations, self.centred = activations, centred

    def solve(self) -> tuple[Alignment, Json]:
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
        method = CENTRED if self.centred else AS_PUBLISHED
        return alignment, {"method": method, "before": before, "after": after}

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
        return self._identity(name) if total is None else self.local.spaces[name].group.solve(total)[0]

    def _nothing(self, unit: Unit) -> Blocks:
        """The unit's blocks without weights: they say what spaces act here, and count for nothing."""
        zeros = {block: torch.zeros_like(x) for block, x in self.pair.load(self.pair.anchor, unit).items()}
        return {block: x for block, x in zeros.items() if x.is_floating_point()}

    def _leaves(self, unit: Unit) -> Iterator[Leaf]:
        """The atom views of both models' activations at a unit's weights."""
        own = {block.key for block in unit.blocks}
        sides: dict[str, list[Leaf]] = {"in": [], "out": []}
        for key, tap in self.activations[0].taps.items():
            if tap.block in own:
                x, y = (a.values[key].double() for a in self.activations)
                sides[tap.side] += [(u, v, atoms) for (u, v), atoms in tap.leaves(self.local, x, y)]
        yield from sides["in"]
        read = {atom.name for _, _, atoms in sides["in"] for atom in atoms}
        for u, v, atoms in sides["out"]:
            if self.centred or not {atom.name for atom in atoms} <= read:
                yield u, v, atoms

    def _agreement(self, moved: Activations) -> float:
        total = norm = 0.0
        for key, x in self.activations[0].values.items():
            x, y = x.double(), moved.values[key].double()
            total += float((x * y).sum())
            norm += float((x.square().sum() * y.square().sum()).sqrt())
        return total / norm if norm else 0.0

"""The canonical representative of a model's orbit: the same function, and the same weights whatever disguise it
wore.

A dressing field in the sense of Francois and Ravera (2026): an element u of the symmetry group that depends on the
weights with ``u(g theta) = u(theta) g^-1``, so that ``u(theta) theta`` is the same on the whole orbit. Here ``u``
is built in this order, each step by what the steps before have fixed and the later ones leave alone: fold the
norms' gains, move biases that are free, balance every pair of maps, turn the residual streams to the eigenbasis of
what reads and writes them, then eigenbases, signs and phases inside the layers, and orders. Everything comes from
the spec; passes hold one unit at a time.

How sure the form is: its report names the choices that another rounding would have made otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.matching.alternation import trees
from isomerge.matching.balance import canonical_gauge
from isomerge.matching.distances import squared_norm
from isomerge.matching.frame import has_shared_meaning, is_folded_bias, lonely_gains, streams_alone
from isomerge.matching.gram import along
from isomerge.matching.local import Blocks, unit_keys
from isomerge.matching.narrow import spread
from isomerge.models.free_streams import free_frame, unread_gains
from isomerge.models.layer_norm_form import forming, in_layer_norm_form
from isomerge.models.recognised import Model, Moved, coarsest_dtype
from isomerge.models.unit_plan import make_plan
from isomerge.progress import Observer, quiet
from isomerge.quotient.representative import (
    CHOSEN,
    ORIENTED,
    Gap,
    basis,
    coordinates,
    element,
    second_moment,
    third_moment,
)
from isomerge.records import Record, optional
from isomerge.run.alignment_runs import ApplyReport, run_apply
from isomerge.run.writing_run import Output
from isomerge.solve.canonical.canonical_frame import (
    behind,
    folding,
    whole_alignment,
    with_gains,
)
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.element_key import SHIFT, ElementKey
from isomerge.symmetry.language.spec import Space, Spec
from isomerge.symmetry.moves import SCALE
from isomerge.symmetry.norm_stage import is_norm_key
from isomerge.symmetry.units import Unit, elements_of

Basis = tuple["Tensor | None", "Tensor"]
"""See `basis`."""
Only = Callable[[tuple[Atom, ...]], bool] | None
"""Which leaves count, by their atoms; None: all of them."""
SETTLED = {"F64": 1e-11, "F32": 2e-5}
"""A model that its own element moves by less is its representative already: what is left is the rounding of the
stored dtype over the gaps, and a second run gives the same bytes. (Gaps of halves are wider than their forms are
apart.)"""
CARD = (
    "Canonical form",
    "The same function as the model below, in the one set of weights that stands for all of its disguises: norms' "
    "gains folded, maps balanced, axes in their eigenbases, signs and orders fixed. Made by isomerge.",
)
CLOSE = 1e-6
"""A gap below this is told of: float32 weights carry about a tenth of it as rounding."""
NOTHING = 1e-9
"""A choice that moves the weights by no more of their norm is none."""


class Canonicaliser:
    """Finds the representative of one model in three passes over its units."""

    def __init__(self, model: Model, observer: Observer = quiet) -> None:

        self.form = forming(model)
        model = in_layer_norm_form(model)
        self.model, self.observer = model, observer
        self.dtype = torch.float64  # gaps of a millionth are decided
        self.plan = make_plan(model, [], "all")
        self.local = self.plan.selection.inner
        self.blocks = [block for unit in self.plan.units for block in unit.blocks]
        self.notes = self.plan.selection.notes
        free = free_frame(model.spec, [model])
        if free is not None:
            self.frame = free
            self.fold = folding(model, free, self.blocks, self.dtype, unread_gains([model]))
        else:
            self.frame = with_gains(self.plan.selection.spec, [model])
            unread = lonely_gains(self.frame, self.blocks)
            self.fold = folding(model, self.frame, self.blocks, self.dtype, unread)
        self.streams = self.frame.restrict(list(self.frame.streams))
        self.gauges: dict[str, Alignment] = {}
        self.turn = Alignment(self.frame)
        self.gaps: list[Gap] = []
        self.dead: list[str] = []
        self.norm = 0.0
        self.alone = streams_alone(self.frame, self.blocks)

    def solve(self) -> Canonical:
        """The representative's element."""
        bases = self._bases()
        self._turn_streams(bases)
        elements = self._inside(bases)
        units = [
            (
                unit,
                Alignment(self.local, {k: elements[k] for k in (*unit.elements, *unit.votes) if k in elements}),
                (Alignment(self.local), self.gauges[unit.key]),
            )
            for unit in self.plan.units
        ]
        moved = whole_alignment(self.frame, self.local, units, self.turn, (Alignment(self.frame), self.fold))
        moved = Alignment.of([*self.form.stages, *moved.stages], moved.spec) if self.form else moved
        if is_settled(moved, SETTLED.get(coarsest_dtype(self.model), 0.0)):
            moved = Alignment(moved.spec)
        return Canonical(moved, self.gaps, self.dead, self.norm**0.5, self.notes)

    def _turn_streams(self, bases: dict[str, Basis]) -> None:
        """Decide the elements of the residual streams: first of those that have tensors to themselves, then of
        those that begin as maps of the others. Third moments along one stream do not know the signs and rotations
        of another."""
        shared = [unit for unit in self.plan.units if any(self._is_seen(b) for b in unit.blocks)]
        blocks = [b for unit in shared for b in unit.blocks if self._is_seen(b)]
        telling = (leaf for b in blocks for leaf in b.parts if self._tells_signs(leaf))
        seen = [{a.name for a in leaf} for leaf in telling]
        spaces = self.streams.spaces
        left = [name for name in spaces if name in self.frame.streams]
        while left:
            still = {name for name in left if spaces[name].group.compact in ORIENTED}
            clear = [names for names in seen if len(names & still) < 2]
            ready = [s for s in left if s not in still or any(s in names for names in clear)]

            def own(leaf: tuple[Atom, ...], still: set[str] = still) -> bool:
                return len({a.name for a in leaf} & still) < 2

            spec = self.streams.restrict(ready or left)
            elements = self._elements(spec, bases, shared, self._shared, own if ready else None)
            self.turn = Alignment(self.frame, {**self.turn.elements, **elements})
            left = [s for s in left if ready and s not in ready]

    def _inside(self, bases: dict[str, Basis]) -> dict[str, Tensor]:
        """The elements inside layers. Where bases or signs meet in one tensor (heads and latents, a norm between
        neurons' scales), signs that a space can read from tensors of its own come first: third moments along the
        others' axes know them."""
        local, units = self.local, self.plan.units
        met = _joined(tree for unit in units for tree in trees(local, unit.blocks).values())
        seen = {leaf for block in self.blocks for leaf in block.parts}
        signed = {name for name, space in local.spaces.items() if space.group.compact in ORIENTED}

        def own(leaf: tuple[Atom, ...]) -> bool:
            return len({a.name for a in leaf} & signed) < 2  # sums over what is only permuted are what they are

        telling = {a.name for leaf in seen if own(leaf) for a in leaf}
        present = signed & {a.name for leaf in seen for a in leaf}
        late = {name for tree in met if tree & signed - telling for name in tree} | (present - telling)
        # a head's sign that its own scaling tells, before the bases in the head whose tensors it turns as well
        plain = {name for name in late & telling if local.spaces[name].group.compact == "Sign"}
        elements: dict[str, Tensor] = {}
        for names, only in ((local.spaces.keys() - late, own), (plain, own), (late - plain, None)):
            turn = Alignment(
                local.restrict([name for name in local.spaces if name not in late - plain]), dict(elements)
            )

            def turned(tensors: Blocks, turn: Alignment = turn) -> Blocks:
                for block, tensor in tensors.items():
                    turn.act_linearly(block, tensor)
                return tensors

            if names:
                elements |= self._elements(local.restrict(list(names)), bases, units, turned, only)
        return elements

    def _counts(self, leaf: tuple[Atom, ...]) -> bool:
        """Whether a leaf has a say in bases and signs: a norm's bias, divided by the gain that is folded, has none.
        Near a gain of zero it would be all that they see, and rounding would decide the rest."""
        return not is_folded_bias(self.model.spec, leaf)

    def _tells_signs(self, leaf: tuple[Atom, ...]) -> bool:
        """Whether third moments along a leaf's axes tell signs: gains stand for two sides at once."""
        return self._counts(leaf) and not any(a.diag for a in leaf)

    def _shared(self, tensors: Blocks) -> Blocks:
        """The blocks that nothing inside layers acts on."""
        return {block: t for block, t in tensors.items() if self._is_seen(block)}

    def _is_seen(self, block: Block) -> bool:
        """Whether a block's third moments tell signs of streams: embeddings and heads, and of streams that have
        none, all that nothing inside layers acts on (biases, and maps of other streams in layers)."""
        acting = {space.name for space in elements_of(self.frame, block).values()}
        said = any(map(self._tells_signs, block.parts))
        alone = said and acting & self.alone and acting <= self.frame.residual_names
        return has_shared_meaning(self.frame, block) or bool(alone)

    # ------------------------------------------------------------------ passes

    def _units(self, what: str, units: Sequence[Unit]) -> Iterator[Blocks]:
        """The weights of units with gains folded and streams turned, balanced."""
        seen = self.model.seen(Moved(self.turn @ self.fold))
        for number, unit in enumerate(units):
            self.observer(what, number, len(units))
            tensors = seen.unit(unit.blocks, self.dtype)
            floats = {block: t for block, t in tensors.items() if t.is_floating_point()}
            if unit.key in self.gauges:
                behind(self.turn, self.gauges[unit.key]).act(floats)
            else:
                self.gauges[unit.key], dead = canonical_gauge(self.local, floats)
                self.dead += dead
                if spreading := spread(self.local, self.frame, floats):
                    floats = spreading.applied(floats)
                    self.gauges[unit.key] = spreading @ self.gauges[unit.key]
            yield floats

    def _bases(self) -> dict[str, Basis]:
        """The eigenbasis and the second moments of every element, local ones and streams."""
        spaces: dict[str, Space] = {}
        sums: dict[str, Tensor] = {}
        for tensors in self._units("bases and orders", self.plan.units):
            self.norm += sum(squared_norm(t) for t in tensors.values())
            for spec in (self.local, self.streams):
                for key, space, x in _axes(spec, tensors, CHOSEN, self._counts):
                    moment = second_moment(space, x)
                    sums[key] = sums[key] + moment if key in sums else moment
                    spaces[key] = space
        return {key: basis(spaces[key], moment) for key, moment in sums.items()}

    def _elements(
        self,
        spec: Spec,
        bases: dict[str, Basis],
        units: Sequence[Unit],
        seen: Callable[[Blocks], Blocks],
        only: Only = None,
    ) -> dict[str, Tensor]:
        """The element of every key of a spec, from third moments of what is ``seen`` of units, in the
        eigenbases."""

        def counts(leaf: tuple[Atom, ...]) -> bool:
            return self._counts(leaf) and (only is None or only(leaf))

        sums: dict[str, tuple[Tensor, Tensor]] = {}
        oriented = any(space.group.compact in ORIENTED for space in spec.spaces.values())
        for tensors in self._units("signs and phases", units if oriented else ()):
            for key, space, x in _axes(spec, seen(tensors), ORIENTED, counts):
                third, size = third_moment(space, coordinates(space, bases[key][0], x))
                before = sums.get(key)
                sums[key] = (third, size) if before is None else (before[0] + third, before[1] + size)
        elements: dict[str, Tensor] = {}
        for key, (turn, second) in bases.items():
            space = spec.spaces.get(ElementKey.of(key).name)
            if space is not None:
                elements[key], gaps = element(key, space, turn, second, *sums.get(key, (None, None)))
                self.gaps += gaps
        return elements


def _joined(trees_of_units: Iterable[frozenset[str]]) -> set[frozenset[str]]:
    """Trees of spaces by name: layers of several kinds may have a space in common, and are then one tree."""
    joined: set[frozenset[str]] = set()
    for tree in trees_of_units:
        same = {other for other in joined if other & tree}
        joined = joined - same | {tree.union(*same)}
    return joined


def is_settled(g: Alignment, tolerance: float) -> bool:
    """Whether every element is the identity: orders and whole biases exactly, all else to a tolerance on its
    entries."""
    # their rounding is in every bias behind them
    norms = any(is_norm_key(ElementKey.of(key).name) for key in g)
    constant = {SHIFT + shift.name for shift in g.spec.shifts if shift.constant}
    for key, x in g.items():
        name = ElementKey.of(key).name
        space = g.spec.spaces.get(name)
        if space is None:
            still = x.new_ones(()) if name.startswith(SCALE) else x.new_zeros(())
            near = tolerance if norms or name in constant else 0.0
        else:
            still = space.group.identity(tuple(x.shape[: len(g.spec.batch(space))]), g.spec.sizes[space.name])
            near = tolerance if x.is_floating_point() else 0.0
        if x.numel() and float((x - still).abs().max()) > near:
            return False
    return True


def _axes(
    spec: Spec, tensors: Blocks, kinds: Sequence[str], only: Only = None
) -> Iterator[tuple[str, Space, Tensor]]:
    """The leaves along every axis whose compact group is one of these, with element keys and spaces; gains, which
    stand for two sides at once, are left out."""
    for name, key in unit_keys(spec, tensors).items():
        space = spec.spaces[name]
        if space.group.compact in kinds:
            yield from ((key, space, x) for x, atom in along(spec, name, tensors, only) if not atom.diag)


def canonical(model: Model, observer: Observer = quiet) -> Canonical:
    """The element that moves a model to the representative of its orbit, with the degeneracy report.

    Raises:
        IsomergeError: a gain of zero, which cannot be folded.
    """
    return Canonicaliser(model, observer).solve()


class ShownGap(Record):
    """How clear a choice was, for a report."""

    element: str
    kind: str
    gap: float
    moves: float
    """By how much the other choice moves the weights, as a share of their norm."""


class Degeneracy(Record):
    """How clear all choices were."""

    gaps: Sequence[ShownGap]
    """The smallest per space and kind."""
    ambiguous: Sequence[ShownGap]
    """The choices that rounding may make."""
    dead: Sequence[str]
    """Elements of blocks that have no balanced point (dead or rank-deficient)."""
    unique: bool


class Activations(Record):
    """What was written of a model's layers in the canonical frame."""

    file: str
    layers: Mapping[str, Sequence[int]]
    examples: int


class Canonicity(Record):
    """What is said of a model that was moved to its canonical form."""

    degeneracy: Degeneracy
    activations: Activations | None = optional()


def run_canon(model: Model, output: Output) -> tuple[Alignment, ApplyReport[Canonicity]]:
    """Write a model's representative; returns what moved it there, and the report."""
    representative = canonical(model, output.observer)
    report = run_apply(
        representative.alignment,
        model,
        output,
        name="to the canonical form",
        command="canon",
        card=CARD,
        about=Canonicity(representative.degeneracy),
        notes=representative.notes,
    )
    return representative.alignment, report


@dataclass
class Canonical:
    """The element that moves a model to its representative, and how sure every choice was."""

    alignment: Alignment
    gaps: list[Gap]
    dead: list[str]
    """Elements of blocks that have no balanced point (dead or rank-deficient)."""
    norm: float
    """The Frobenius norm of the representative."""
    notes: tuple[str, ...] = ()

    @property
    def degeneracy(self) -> Degeneracy:
        """How clear every choice was."""
        worst: dict[tuple[str, str], Gap] = {}
        for gap in sorted(self.gaps, key=lambda gap: gap.value):
            worst.setdefault((ElementKey.of(gap.element).name, gap.kind), gap)
        shown = [self._shown(gap) for gap in worst.values()]
        close = [self._shown(gap) for gap in sorted(self.gaps, key=lambda g: g.value) if gap.value < CLOSE]
        close = [
            choice for choice in close if choice.moves > NOTHING
        ]  # a direction that no weight has is no choice
        return Degeneracy(shown, close, sorted(self.dead), unique=not close and not self.dead)

    def _shown(self, gap: Gap) -> ShownGap:
        moves = (max(gap.weight, 0.0) ** 0.5) / max(self.norm, 1e-300)
        return ShownGap(gap.element, gap.kind, gap.value, moves)

"""One anchor, one source: solving a unit and measuring what it gained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from isomerge.errors import IsomergeError, is_overflow_error
from isomerge.matching.balance import canonical_gauge
from isomerge.matching.distances import TensorGap, squared_distance, squared_distance_and_norm
from isomerge.matching.norm_parts import brought_onto, is_disguised
from isomerge.models.layer_norm_form import LayerNormForm, form_of, in_layer_norm_form
from isomerge.models.peak_memory import CACHE
from isomerge.models.recognised import Model, Moved
from isomerge.models.unit_plan import Plan, unit_layer
from isomerge.models.zero_gains import open_zero_gains
from isomerge.observe.live.accelerator import CPU, at_home, computing_on, on
from isomerge.records import Json
from isomerge.solve.rounding import RoundingOf
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.layer_norms import NORMS, norm_spec
from isomerge.symmetry.norm_stage import is_norm_key, norm_stages
from isomerge.symmetry.norms import LayerNorms
from isomerge.symmetry.stage import find_shifts
from isomerge.symmetry.units import Unit, elements_of


@dataclass
class UnitResult:
    """The solution of one unit."""

    unit: str
    blocks: list[TensorGap] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    elements: dict[str, Tensor] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    """What the method of a merge says of tensors: their names, and its words."""

    def record(self) -> Json:
        """The JSON form, without the elements."""
        blocks = [gap.document() for gap in self.blocks]
        return {"unit": self.unit, "blocks": blocks, "dead": self.dead, "notes": self.notes}

    @classmethod
    def restored(cls, record: Json, elements: dict[str, Tensor] | None = None) -> UnitResult:
        """What `record` was made from; without the elements, those of the whole model are kept elsewhere."""
        blocks = [TensorGap(**gap) for gap in record["blocks"]]
        notes = [(name, words) for name, words in record["notes"]]
        return cls(record["unit"], blocks, record["dead"], elements or {}, notes)


@dataclass(frozen=True, eq=False)
class PairSolver:
    """Matches the units of a source to those of an anchor.

    What passes over both models find is given to another solver (`dataclasses.replace`).
    """

    anchor: Model
    source: Model
    plan: Plan
    """Over the blocks that both have."""
    dtype: torch.dtype
    """The working dtype."""
    _: KW_ONLY
    guard: bool
    """See `isomerge.matching.local.move_unit`."""
    device: str = CPU
    """Where units are matched; inputs and solutions are in main memory."""
    room: int = CACHE
    """Bytes of units that passes over both models may keep (`isomerge.run.cost.room_for_units`)."""
    votes: Mapping[str, Tensor] = field(default_factory=dict)
    """The stack-wide spaces, where they are decided (`collect_votes`)."""
    given: Alignment | None = None
    """The element of the whole source, where global passes have found it already; `alignment` then ignores its
    argument."""
    rounding: RoundingOf | None = None
    """What rounding does to the moved source, where it is written: no element is taken that its dtype cannot
    carry."""
    gains: CommonGains | None = None
    """The gains in which a merge measures and writes, where streams were turned; what is solved comes with the
    anchor's."""
    left: bool = False
    """Whether the source is left as it is, because it is aligned already."""
    norms_stay: bool = False
    """Whether what LayerNorm leaves free stays: where what was found is learned for the weights as they are."""
    closes: bool = False
    """Whether rank-deficient blocks, which have no gauge, are replaced by the balanced factors of their products:
    to compare functions; no alignment follows."""

    def __post_init__(self) -> None:
        """Both models are read without gains of zero from now on, where gains are folded."""
        if gains := (self.plan.selection.frame or self.plan.selection.spec).gains:
            open_zero_gains([self.anchor, self.source], gains)

    def load(self, model: Model, unit: Unit, *, dtype: torch.dtype | None = None, mapped: bool = False) -> Blocks:
        """A unit's blocks of one model in the working dtype, or another (integers as they are). With ``mapped``, in
        pages of their files where that can be: the caller must call `Model.check_unchanged` after its last use."""
        return model.unit(unit.blocks, dtype or self.dtype, mapped=mapped)

    def to_gauge(self, spec: Spec, tensors: Blocks) -> tuple[Alignment, list[str]]:
        """`canonical_gauge` in place, and where that fails the balanced factors, if this solver ``closes``
        orbits."""
        gauge, dead = canonical_gauge(spec, tensors)
        if dead and self.closes:
            from isomerge.matching.products import close_orbits

            close_orbits(spec, tensors, dead)
        return gauge, dead

    def moves(self, unit: Unit) -> bool:
        """Whether a unit's blocks are changed, on loading or by solving."""
        moved = self.given is not None or self.plan.is_matched(unit)
        moved = moved or any(move.changes(block) for move in self.source.moves for block in unit.blocks)
        free = self.plan.free(unit)  # a merge may average what writers write along the ones
        return (moved or bool(free.norms) or (self.guard and bool(free))) and not self.left

    def collect_votes(self) -> dict[str, Tensor]:
        """Decide the stack-wide spaces: every unit's profits added up, one assignment for all layers."""
        from isomerge.matching.local import vote

        spec = self.plan.selection.spec
        profits: dict[str, Tensor] = {}
        for unit in self.plan.units:
            if not unit.votes:
                continue
            a, b = (on(self.device, self.load(model, unit)) for model in (self.anchor, self.source))
            with computing_on(self.device, unit.key):
                if self.plan.selection.gauge:
                    self.to_gauge(spec, a)
                    self.to_gauge(spec, b)
                for name in unit.votes:
                    profit = vote(spec, a, b, name).to(CPU)
                    profits[name] = profits.get(name, 0) + profit
        return {name: spec.spaces[name].group.solve(p)[0] for name, p in profits.items()}

    def solve(self, unit: Unit, anchor: Blocks, source: Blocks) -> tuple[UnitResult, Blocks]:
        """Match one unit; the source's blocks come back moved, and the given ones are let go."""
        if self.device == CPU or not self.moves(unit):
            return self._solved(unit, anchor, source)
        with computing_on(self.device, unit.key):
            there = on(self.device, source)
            source.clear()
            result, moved = self._solved(unit, on(self.device, anchor), there)
            result.elements = on(CPU, result.elements)
            return result, on(CPU, moved)

    def _solved(self, unit: Unit, anchor: Blocks, source: Blocks) -> tuple[UnitResult, Blocks]:
        squares = {block: squared_distance_and_norm(anchor[block], source[block]) for block in unit.blocks}
        result = self.still(unit, squares | self._as_stored(unit, anchor))
        if self.left:
            return result, source
        there = _There(source)
        if self.given is not None:
            there = self._given_moved(self._given_there, source)
        elif self.plan.is_matched(unit):
            apart = sum(before for before, _ in squares.values())
            with overflow_told(self, unit):
                there = self._matched(unit, anchor, source, apart)
            result.elements, result.dead = there.elements, there.dead
        there = self._with_norms(unit, anchor, source, there, result)
        moved = there.blocks
        if moved is not source:
            source.clear()  # the caller holds the dictionary: two copies of a unit would stay
        if self.moves(unit):
            a, b = self._as_written(anchor), self._as_written(moved)
            gaps = there.gaps or {block: squared_distance(a[block], b[block]) for block in unit.blocks}
            result.blocks = [
                replace(
                    gap,
                    after=gaps[block],
                    rounding=there.errors.get(block),
                    tolerance=self._tolerance(block) if block in there.errors else None,
                )
                for block, gap in zip(unit.blocks, result.blocks, strict=True)
            ]
        return result, moved

    def _as_stored(self, unit: Unit, anchor: Blocks) -> dict[Block, tuple[float, float]]:
        """Squared distances, and the anchor's squared norms, of the blocks of which the source is seen moved."""
        if not self.source.moves:
            return {}
        changed = [block for block in unit.blocks if any(move.changes(block) for move in self.source.moves)]
        still = self.source.without(Moved)
        stored = {block: still.assemble(block, self.dtype).to(anchor[block].device) for block in changed}
        return {block: squared_distance_and_norm(anchor[block], t) for block, t in stored.items()}

    def _given_moved(self, alignment: Alignment, source: Blocks) -> _There:
        """A unit moved by the alignment of the passes over whole models."""
        if self.rounding is None:
            alignment.act(source)
            return _There(source)
        moved = alignment.applied(source)
        return _There(moved, errors=self.errors(alignment, source, moved))

    def _matched(self, unit: Unit, anchor: Blocks, source: Blocks, apart: float) -> _There:
        """A unit matched and moved; without what LayerNorm leaves free where that is much of what is between them,
        and nothing ends farther."""
        from isomerge.matching.local import move_unit

        votes, guard = on(self.device, {name: self.votes[name] for name in unit.votes}), self.guard
        free = self._free(unit, anchor, source)
        if free and is_disguised(free, anchor, source):
            spec = norm_spec(self.source.declared)
            a, b = map(LayerNormForm(free).of_unit, (anchor, source))
            match = move_unit(self.plan.selection, a, b, votes, guard=guard)
            moved = match.alignment.applied(source)
            nearest = brought_onto(spec, free, anchor, moved).applied(moved)
            errors = self.errors(match.alignment, source, moved)
            near = sum(squared_distance(anchor[block], t) for block, t in nearest.items()) <= apart
            if not guard or (near and (self.rounding is None or self.rounding.carries(errors))):
                return _There(moved, None, errors, dict(match.alignment.elements), match.dead)
        carried = _Carried(self, source)
        carries = None if self.rounding is None else carried
        match = move_unit(self.plan.selection, anchor, source, votes, guard=guard, apart=apart, carries=carries)
        errors = carried.errors(match.alignment, match.blocks)
        return _There(match.blocks, match.gaps, errors, dict(match.alignment.elements), match.dead)

    def _with_norms(self, unit: Unit, anchor: Blocks, source: Blocks, there: _There, result: UnitResult) -> _There:
        """A moved unit with what LayerNorm leaves free brought onto the anchor's, where that is worth it and the
        dtype that is written carries it."""
        free = self._free(unit, anchor, there.blocks)
        if not free or self.norms_stay:
            return there
        gaps = there.gaps or {block: squared_distance(anchor[block], t) for block, t in there.blocks.items()}
        norms = brought_onto(norm_spec(self.source.declared), free, anchor, there.blocks, gaps)
        if not norms:
            return replace(there, gaps=gaps if self.gains is None else None)
        g = Alignment.of([*self.alignment_as_read(result.elements).stages, *norms.stages], norms.spec)
        nearer = norms.applied(there.blocks)
        errors = self.errors(g, source, nearer)
        if self.rounding is not None and not self.rounding.carries(errors):
            return there
        result.elements |= {ElementKey.of(key).in_stage: c for key, c in norms.items()}
        result.blocks = [
            gap if nearer[block] is there.blocks[block] else replace(gap, spaces=[*gap.spaces, NORMS])
            for block, gap in zip(unit.blocks, result.blocks, strict=True)
        ]
        return _There(nearer, None, errors)

    def _free(self, unit: Unit, *models: Blocks) -> LayerNorms:
        """What LayerNorm leaves free in a unit of what all models identify (`Norm.identifiable`)."""
        free = self.plan.free(unit)
        for blocks in models:
            free = free.identifiable(lambda _, blocks=blocks: blocks)
        return free

    @property
    def local(self) -> Spec:
        """The spec of the elements inside layers between the models as they are seen."""
        selection = self.plan.selection
        return selection.inner if self.framed else selection.unfolded

    @property
    def framed(self) -> bool:
        """Whether both models are seen in one frame, with gains folded (`framed_by`)."""
        return any(not move.parts for move in self.anchor.moves)  # else it has an anchor's constants itself

    def framed_by(self, of_anchor: Alignment, of_source: Alignment) -> PairSolver:
        """A solver of the same models, seen in the frame to which these bring them."""
        return replace(self, anchor=self.anchor.seen(Moved(of_anchor)), source=self.source.seen(Moved(of_source)))

    def in_form(self) -> PairSolver | None:
        """A solver of the same models read without what LayerNorm leaves free, which has solved nothing yet; None
        where it leaves nothing free in one of them."""
        a, b = in_layer_norm_form(self.anchor), in_layer_norm_form(self.source)
        if not (form_of(a) and form_of(b)):
            return None
        return PairSolver(
            a,
            b,
            self.plan,
            self.dtype,
            guard=self.guard,
            device=self.device,
            room=self.room,
            rounding=self.rounding,
        )

    def undisguised(self) -> PairSolver:
        """The solver that passes over both models are made with: `in_form` where some unit differs by much of what
        LayerNorm leaves free."""
        for unit in self.plan.units if self.plan.norms else ():
            anchor, source = (self.load(model, unit) for model in (self.anchor, self.source))
            free = self._free(unit, anchor, source)
            if free and is_disguised(free, anchor, source):
                return self.in_form() or self
        return self

    def _as_written(self, blocks: Blocks) -> Blocks:
        """Blocks in the anchor's coordinates, with the gains in which a merge is written."""
        if self.gains is None:
            return blocks
        return (self.gains.written if self.device == CPU else self.gains.written.to(self.device)).applied(blocks)

    def errors(self, g: Alignment, source: Blocks, moved: Blocks) -> dict[Block, float]:
        """See `isomerge.solve.rounding.RoundingOf.errors`; of nothing where the source is not written."""
        if self.rounding is None:
            return {}
        with at_home(self.device):
            return self.rounding.errors(g if self.device == CPU else g.to(CPU), on(CPU, source), on(CPU, moved))

    def _tolerance(self, block: Block) -> float:
        """Of the rounding of a block."""
        assert self.rounding is not None
        return self.rounding.tolerance(block)

    def still(self, unit: Unit, squares: Mapping[Block, tuple[float, float]]) -> UnitResult:
        """What is told of a unit that nothing moves, from its blocks' squared distances and the anchor's squared
        norms."""
        shown = self.given.spec if self.given is not None else self.plan.selection.spec
        shifts = find_shifts(self.plan.selection.spec, list(unit.blocks))
        result = UnitResult(unit.key)
        for block in unit.blocks:
            spaces = [space.name for space in elements_of(shown, block).values()]
            spaces += [shift.name for shift, _, parts in shifts if block in parts.values()]
            before, norm = squares[block]
            matrix = len(self.anchor.checkpoint.tensors[self.anchor.stored_names(block)[0]].shape) > 1
            result.blocks.append(TensorGap(block.key, spaces, unit_layer(unit), norm, before, before, matrix))
        return result

    @cached_property
    def _given_there(self) -> Alignment:
        """The given element where units are moved; it is sent to a device once."""
        assert self.given is not None
        return self.given if self.device == CPU else self.given.to(self.device)

    def alignment(self, elements: dict[str, Tensor]) -> Alignment:
        """The group element of the whole model, as it is stored."""
        g, moves = self.alignment_as_read(elements), self.source.moves
        before = [stage for move in moves for stage in move.alignment.stages]
        return Alignment.of([*before, *g.stages], g.spec) if moves else g

    def alignment_as_read(self, elements: dict[str, Tensor]) -> Alignment:
        """The same of the model as it is seen."""
        spaces = {key: g for key, g in elements.items() if not is_norm_key(key)}
        alignment = self.given or Alignment(self.plan.selection.spec, spaces)
        norms = norm_stages(norm_spec(self.source.declared), elements) if len(spaces) < len(elements) else []
        return Alignment.of([*alignment.stages, *norms], alignment.spec) if norms else alignment


@dataclass
class _There:
    """A unit of the source where it was moved to."""

    blocks: Blocks
    gaps: dict[Block, float] | None = None
    """Squared distances to the anchor by block, where they were measured."""
    errors: dict[Block, float] = field(default_factory=dict)
    """What rounding does to its blocks."""
    elements: dict[str, Tensor] = field(default_factory=dict)
    dead: list[str] = field(default_factory=list)


class _Carried:
    """Whether the stored dtype carries what an element makes of one unit; remembers what was asked last."""

    def __init__(self, solver: PairSolver, source: Blocks) -> None:
        self.solver, self.source = solver, source
        self._last: tuple[Alignment, dict[Block, float]] | None = None

    def errors(self, g: Alignment, moved: Blocks) -> dict[Block, float]:
        """What rounding does to the unit's blocks."""
        if self._last is None or self._last[0] is not g:
            self._last = g, self.solver.errors(g, self.source, moved)
        return self._last[1]

    def __call__(self, g: Alignment, moved: Blocks) -> bool:
        assert self.solver.rounding is not None
        return self.solver.rounding.carries(self.errors(g, moved))


@contextmanager
def overflow_told(solver: PairSolver, unit: Unit) -> Iterator[None]:
    """Factorisations fail on finite weights alone where products of them overflow: a sentence then."""
    try:
        yield
    except Exception as error:
        if not is_overflow_error(error):
            raise
        refs = f"{solver.anchor.ref} and {solver.source.ref}"
        raise IsomergeError(
            f"{refs}: weights of {unit.key} are so large that their products overflow, so they cannot be matched; "
            "check that both checkpoints are undamaged"
        ) from None


def gaps_of(results: Iterable[UnitResult]) -> list[TensorGap]:
    """Of all blocks."""
    return [gap for result in results for gap in result.blocks]


@dataclass(frozen=True)
class CommonGains:
    """The gains that models are written with."""

    fold: Alignment
    """From the anchor's coordinates to those in which its gains are one."""
    take: Alignment
    """From there to the coordinates that are written."""

    @property
    def written(self) -> Alignment:
        """From the anchor's coordinates to those that are written."""
        return self.take @ self.fold

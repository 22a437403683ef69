"""What the commands do, on recognised models: align and apply (`isomerge.merging.merge_run` has merge)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from isomerge.errors import IsomergeError
from isomerge.evidence.card import model_card
from isomerge.evidence.distance import Spread, summarise, why_risen
from isomerge.evidence.parents import parents_of
from isomerge.evidence.report.spaces import plain_names
from isomerge.matching.distances import TensorGap, squared_distance, squared_norm
from isomerge.models.compatible import check_compatible
from isomerge.models.free_streams import given_out, has_no_head, turned_outputs
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.onto_anchor import read_onto
from isomerge.models.recognised import Model, working_dtype
from isomerge.models.row_meanings import InOrder, in_order
from isomerge.models.unit_plan import make_plan, unit_layer
from isomerge.models.zero_gains import units_moved_by
from isomerge.records import Json, Record, inline, optional
from isomerge.run.cost import Needs, estimate, room_for_units
from isomerge.run.first_reading import FirstReadings
from isomerge.run.run_report import Match, Moves, RunReport, moves_of, run_notes, run_of
from isomerge.run.run_verdict import RunVerdict, measured, noted, pairs_of, planned_facts, verdict_on
from isomerge.run.streaming import elements_of_results, prepare_votes, stream_units, write_alone
from isomerge.run.writing_run import Output, StreamWriter, run_key
from isomerge.solve.match_checks import check_matching, check_statistics_files
from isomerge.solve.match_inputs import check_data, inputs_key, with_generated
from isomerge.solve.match_names import SOFT
from isomerge.solve.match_options import OURS, Matching
from isomerge.solve.pairs.pair import Blocks, PairSolver, gaps_of
from isomerge.solve.pairs.solutions import prepare_solutions
from isomerge.solve.pairs.written_gains import with_storable_gains
from isomerge.solve.rounding import Rounded, RoundingOf, check_rounding
from isomerge.solve.standing import Kinship, Standing, chosen_spaces, leaves_alone, none_matched, standings
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.norm_stage import norm_keys
from isomerge.symmetry.stage import find_shifts
from isomerge.symmetry.units import Unit, elements_of

A = TypeVar("A", bound=Record)


class AlignReport(RunReport, kw_only=True):
    """What is said of an alignment."""

    moves: Moves = inline()
    streams: Sequence[Json]
    """Of passes over whole models."""
    match: Match | None = optional()
    """Where a published way matched."""
    spaces: str
    layers: str | None
    rounding: Rounded | None
    turned: Sequence[str]
    """Sentences on streams that moved and that the model returns."""
    verdict: RunVerdict | None = None


class ApplyReport(RunReport, Generic[A], kw_only=True):
    """What is said of a model that was moved by an alignment that was there."""

    distance: Spread
    rounding: Rounded | None
    about: A | None = inline(None)
    """What this command says beside."""


MATCHED = (
    "The same function as the second model, in other weights: moved along its symmetry orbit to where it was "
    "matched to the first. Made by isomerge."
)
AS_IT_IS = "The second model below as it is: it stands in the coordinates of the first already. Made by isomerge."
"""What a model card says of the two."""


@dataclass
class AlignPlan:
    """One alignment, checked and planned: what solves it, and what is known of the two models."""

    stored: Model
    """The source as it is stored, and as it is written."""
    rows: InOrder
    """The anchor and the source with rows that stand for the same things, as they are matched."""
    solver: PairSolver
    spaces: str
    standing: Standing
    layers: str | None
    matching: Matching
    output: Output

    @property
    def matches(self) -> bool:
        """Whether anything is matched: a source that is aligned already is left as it is."""
        return not self.solver.left

    def cost(self) -> dict[str, float]:
        """What it will take in memory and time; output and data are looked at.

        Raises:
            IsomergeError: what a run would refuse.
        """
        models = [self.solver.source, self.solver.anchor]
        self.output.check(models)
        check_data(self.matching, self.solver.anchor)
        needs = Needs(True, matching=self.matching)
        return estimate(self.solver.plan, models, needs, limit=self.output.max_memory)

    def run(self) -> tuple[Alignment, AlignReport]:
        """Match and write; the alignment and the report."""
        solver, matching, output = self.solver, self.matching, self.output
        source, anchor = solver.source, solver.anchor
        plan, dtype = solver.plan, solver.dtype
        if plan.norms and not solver.left and matching.match == OURS and matching.learn is None:
            read_onto(anchor, source)
        key = run_key(
            "align",
            [source, anchor],
            self.spaces,
            self.layers,
            output.dtype,
            output.out_shard_size,
            plan.selection.spec.origin,
            inputs_key(matching, anchor),
            solver.left,
        )
        with StreamWriter(self.stored, output, key, others=[anchor]) as stream:
            matching = with_generated(matching, [anchor, source], stream)
            solver = replace(solver, rounding=RoundingOf(source, stream.form, dtype))
            (solver,), streams = prepare_solutions(stream, [solver], matching)
            if not streams:
                (solver,) = prepare_votes(stream, [solver])
            results = stream_units(stream, [solver], plan, self.as_stored, anchor, guard=True)
            write_alone(stream, plan, self.stored, dtype, solver.given)
            alignment = solver.alignment(elements_of_results(results[0]))
            models, ours = [anchor, source], matching.match == OURS
            moves = moves_of(models, results)
            risen = moves.risen(why_risen(streams, "" if ours else matching.match))
            report = AlignReport(
                run=run_of("align", models, results),
                moves=moves,
                streams=streams if ours else [],
                match=None if ours else Match(matching.match, streams),
                spaces=self.spaces,
                layers=self.layers,
                notes=run_notes(plan.selection.notes, risen),
                rounding=Rounded.of(gaps_of(results[0])),
                turned=_turned(source, {*plan.selection.streams}),
            )
            verdict = self.verdict(report)
            report = replace(report, verdict=verdict, notes=[*report.notes, *noted(verdict)])
            if not output.dropped:
                check_rounding(report.rounding, source.ref, chosen=True)
            text = AS_IT_IS if solver.left else MATCHED
            parents = parents_of([anchor.checkpoint, source.checkpoint])
            card = model_card(
                "Aligned checkpoint", [anchor.ref, source.ref], text, report.document(), parents=parents
            )
            report = stream.finish(report, {"alignment.safetensors": alignment}, card)
        return alignment, report

    def as_stored(
        self, unit: Unit, blocks: list[Blocks], by: list[Alignment | None], first: FirstReadings
    ) -> Blocks:
        """The moved blocks of the source, with their rows where they are stored."""
        return {block: self.rows.as_stored(1, block, x) for block, x in blocks[1].items()}

    def verdict(self, report: AlignReport | None = None) -> RunVerdict | None:
        """What came out, or will, without a report: see `verdict_on`."""
        models = [self.solver.anchor, self.solver.source]
        pairs = pairs_of([self.standing], models, left=[self.solver.left])
        if report is None:
            return verdict_on(pairs, planned_facts("align", [m.ref for m in models]), models)
        return verdict_on(measured(pairs, report.moves.spreads), report.facts, models)


def plan_align(
    source: Model,
    anchor: Model,
    output: Output,
    *,
    spaces: str | None,
    layers: str | None = None,
    matching: Matching,
    align: bool | str = True,
    kinship: Kinship | None = None,
) -> AlignPlan:
    """What will align a source: all that can be checked and planned before a byte is written.

    Args:
        spaces: what may move; None: what the models need (`isomerge.solve.standing`).
        align: True, or ``auto``: a source that is aligned already is left as it is.
        kinship: asked whether models in other coordinates have a common base.

    Raises:
        IsomergeError: models or options that do not fit together.
    """
    check_compatible(anchor, [source])
    stored, rows = source, in_order([anchor, source])
    anchor, source = rows.models
    check_matching(matching, 1, spaces or "", models=[anchor, source])
    if matching.match in SOFT:
        raise IsomergeError(
            f"--match {matching.match} does not preserve the function, so that it aligns nothing: merge with it"
        )
    check_statistics_files(matching, [anchor, source])
    dtype = working_dtype([anchor, source], output.dtype)
    plain = matching.match == OURS and not matching.needs_models
    asked = spaces if spaces is not None or plain else matching.spaces(None)
    if asked is not None:  # a choice that does not exist is told before a weight is read
        make_plan(source, [anchor], asked, layers)
    standing = standings(anchor, [source], dtype, kinship=kinship, observer=output.observer)
    fixed = "only some layers are matched" if layers is not None else ""
    chosen, notes = chosen_spaces(asked, standing, source, [anchor], fixed=fixed)
    (left,) = leaves_alone(align, standing, plain=plain)
    plan = make_plan(source, [anchor], chosen, layers)
    plan = replace(plan, selection=replace(plan.selection, notes=(*plan.selection.notes, *rows.notes, *notes)))
    plan = none_matched(plan) if left else plan
    room = room_for_units(plan, [source, anchor], output.max_memory, Needs(True, matching=matching))
    how = {"device": matching.matching_device, "room": room, "left": left}
    solver = PairSolver(anchor, source, plan, dtype, guard=True, **how)
    return AlignPlan(stored, rows, solver, chosen, standing[0], layers, matching, output)


REPLAYED = "The same function as the model below, in other weights: an alignment was replayed. Made by isomerge."


def run_apply(
    alignment: Alignment,
    model: Model,
    output: Output,
    *,
    name: str = "given",
    command: str = "apply",
    card: tuple[str, str] = ("Moved checkpoint", REPLAYED),
    about: A | None = None,
    notes: Sequence[str] | None = None,
) -> ApplyReport[A]:
    """Replay an alignment on a model and write it.

    Args:
        name: what messages call the alignment.
        command, about, notes: of the report; None: notes on streams that the model gives out.
        card: title and text of the model card.
    """
    spec = alignment.spec
    movable = {key for block in model.blocks for key in elements_of(spec, block)}
    movable |= {key for _, key, _ in find_shifts(spec, model.blocks)}
    movable |= norm_keys(free_under_layer_norm(model))
    if strange := sorted({ElementKey.of(key).in_stage for key in alignment} - movable):
        raise IsomergeError(
            f"{model.ref}: the alignment {name} moves {strange[0]}, which this model does not have: it was made "
            f"for another one"
        )
    on_outputs = _check_moves(alignment, model, name)
    gaps: list[TensorGap] = []
    units = units_moved_by(alignment, model)
    total = model.checkpoint.nbytes
    key = run_key(command, [model], output.dtype, output.out_shard_size, alignment.digest())
    with StreamWriter(model, output, key) as stream:
        rounding = RoundingOf(model, stream.form, working_dtype([model], output.dtype))
        with _for_other_gains(model, name):
            alignment = with_storable_gains(alignment, model, stream.form, rounding.dtype)
        for number, unit in enumerate(units):
            output.observer(unit.key, number * total // len(units), total)
            record = stream.done(unit.key)
            if record is None:
                moved = _apply_unit(alignment, model, unit, stream, rounding, name)
                stream.writer.commit(unit.key, {"gaps": [gap.document() for gap in moved]})
            else:
                moved = [TensorGap(**gap) for gap in record["gaps"]]
            gaps += moved
        rounded = Rounded.of(gaps)
        if not output.dropped:
            check_rounding(rounded, model.ref)
        spread = summarise(gaps, plain_names(model.declared))
        said = on_outputs if notes is None else notes
        run = run_of(command, [model])
        report = ApplyReport(run=run, distance=spread, rounding=rounded, notes=said, about=about)
        title, text = card
        parents = parents_of([model.checkpoint])
        readme = model_card(title, [model.ref], text, report.document(), parents=parents)
        return stream.finish(report, {"alignment.safetensors": alignment}, readme)


def _check_moves(alignment: Alignment, model: Model, name: str) -> list[str]:
    """Refuse an alignment that would change the function: of a tied head, or of the stream that is all that a model
    gives out.

    Returns what is to be said of streams that it gives out beside its predictions.
    """
    moved = {ElementKey.of(key).name for key in alignment}
    if lost := sorted((moved & model.declared.spaces.keys()) - model.spec.spaces.keys()):
        raise IsomergeError(
            f"{model.ref}: the alignment {name} moves {lost[0]}, which the head's tie to the embeddings does not "
            "allow: apply it with --untie"
        )
    if moved & given_out(model) and has_no_head(model):
        raise IsomergeError(
            f"{model.ref}: the alignment {name} turns the residual stream, which this model has no head to read: "
            "its outputs would change; apply it to a model with a head"
        )
    return [f"{model.ref}: {sentence}" for sentence in _turned(model, moved)]


def _turned(model: Model, moved: Collection[str]) -> list[str]:
    """Sentences on the streams among those that moved which a model returns beside its predictions."""
    return [turned_outputs(model, stream) for stream in sorted(given_out(model).intersection(moved))]


@contextmanager
def _for_other_gains(model: Model, name: str) -> Iterator[None]:
    """Says what it means that a gain is not constant where a stream is turned."""
    try:
        yield
    except IsomergeError as error:  # of a gain that its folds did not make constant
        raise IsomergeError(
            f"{model.ref}: the alignment {name} turns the residual stream between norms' gains of the model that "
            f"it was made for, and this model has others ({error.sentence.partition(':')[0]}): align it by itself, "
            "or make an alignment that leaves the stream alone (--spaces default)"
        ) from None


def _apply_unit(
    alignment: Alignment, model: Model, unit: Unit, stream: StreamWriter, rounding: RoundingOf, name: str
) -> list[TensorGap]:
    """Move and write one unit; returns how far every tensor moved."""
    old = model.unit(unit.blocks, rounding.dtype)
    with _for_other_gains(model, name):
        moved = alignment.applied(old)
        errors = rounding.errors(alignment, old, moved)
    gaps = []
    for block, tensor in moved.items():
        stream.put(block, tensor)
        norm, after = squared_norm(tensor), squared_distance(tensor, old[block])
        tolerance = rounding.tolerance(block) if block in errors else None
        gap = TensorGap(
            block.key, [], unit_layer(unit), norm, 0.0, after, rounding=errors.get(block), tolerance=tolerance
        )
        gaps.append(gap)
    return gaps

"""Experts brought to the frame of the model whose stream they will read, one model after the other."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from isomerge.commands.opening import destination
from isomerge.errors import IsomergeError
from isomerge.merging.recipe.schema import AlignBlock
from isomerge.models.recognised import Model, recognise, working_dtype
from isomerge.models.row_meanings import in_order
from isomerge.options import OutputOptions, RunningOptions
from isomerge.progress import Observer
from isomerge.quotient.kinship import kinship
from isomerge.records import Change, Record, optional
from isomerge.run.alignment_runs import AlignPlan, plan_align
from isomerge.run.writing_run import StreamWriter
from isomerge.solve.match_options import Matching
from isomerge.solve.standing import Standing, standings
from isomerge.symmetry.alignment import Alignment


class Frame(Record):
    """In which coordinates a model's MLPs are read."""

    frame: str
    """``base``, ``stored``, ``same`` or ``aligned``."""
    spaces: str | None = optional()
    distance: Change | None = optional()


@dataclass
class ExpertAlignment:
    """How one model is brought to the base."""

    model: Model
    plan: AlignPlan | None
    """None: it is the base itself, in other words."""
    moved: Change | None = None
    """How far it was from the base, once that is known."""

    def moves(self, stream: StreamWriter, number: int) -> Alignment | None:
        """What brings it there, sought once and kept in the folder of the unfinished output; None where it is there
        already."""
        if self.plan is None or not self.plan.matches:
            return None
        step, path = f"alignment {number}", stream.blob(f"expert-{number}.safetensors")
        if (record := stream.done(step)) is not None:
            self.moved = Change(**record["distance"])
            return Alignment.load(path, self.plan.solver.source.declared)
        alignment, report = self.plan.run()
        total = report.moves.distance.total
        self.moved = Change(total.before, total.after)
        alignment.save(path)
        stream.commit(step, {"distance": self.moved.document()})
        return alignment

    @property
    def source(self) -> Model:
        """The model as it is matched and moved."""
        return self.model if self.plan is None else self.plan.solver.source

    @property
    def frame(self) -> Frame:
        """What is known of it."""
        if self.plan is None or not self.plan.matches:
            return Frame("same")
        return Frame("aligned", spaces=self.plan.spaces, distance=self.moved)


def planned_alignments(
    base: Model,
    others: Mapping[str, Model],
    matching: Matching,
    block: AlignBlock,
    *,
    stack: ExitStack,
    running: RunningOptions,
    observer: Observer,
) -> tuple[dict[str, ExpertAlignment], list[str]]:
    """The alignments of a recipe, by the models' names in it, and notes.

    A head that is tied to the embeddings is untied for the match: experts have none, and the tie would hold the
    stream.

    Args:
        base: the model that all are brought to.
        others: the experts' models.
        matching, block: how.
        stack: closes what is opened for it.
        running, observer: of the run.

    Raises:
        IsomergeError: models or options that do not fit together.
    """
    if block.enabled is False:
        notes = []
        for model in others.values():
            rows = in_order([base, model])
            notes += [*rows.notes, *_note_elsewhere(base, rows.models[1])]
        return {}, notes
    alignments: dict[str, ExpertAlignment] = {}
    anchor = _untied(base)
    for name, model in others.items():
        if model.checkpoint.identity() == base.checkpoint.identity():
            alignments[name] = ExpertAlignment(model, None)
            continue
        source = _untied(model)
        output = stack.enter_context(
            destination(None, OutputOptions(), [base, model], running=running, observer=observer)
        )
        plan = plan_align(
            source, anchor, output, spaces=block.spaces, layers=block.layers, matching=matching,
            align=block.enabled, kinship=kinship,
        )  # fmt: skip
        alignments[name] = ExpertAlignment(model, plan)
    plans = [each.plan for each in alignments.values() if each.plan is not None]
    return alignments, [note for plan in plans for note in plan.solver.plan.selection.notes]


def _untied(model: Model) -> Model:
    return recognise(model.checkpoint, spec_file=model.spec_file, untie=True)


def _note_elsewhere(base: Model, model: Model) -> list[str]:
    """What is to be said of a model that is not aligned, and whose stream is, or may be, another one."""
    standing: Standing | None = None
    with suppress(IsomergeError):  # of models that cannot be compared
        (standing,) = standings(base, [model], working_dtype([base, model]))
    if standing is None or not standing.elsewhere:
        return []
    return [
        f"{model.ref} is not in the coordinates of {base.ref}, whose stream it will read as an expert, and nothing "
        f"is aligned: add `align: true`"
    ]

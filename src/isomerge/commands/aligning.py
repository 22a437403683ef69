"""Models moved along their orbits: aligned, by an alignment that is given, to their canonical form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from isomerge.commands.dressing import check_dressing, write_dressed
from isomerge.commands.opening import destination, recognised
from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model
from isomerge.options.requests.moving import Align, Apply, Canon, DressingOptions
from isomerge.progress import Observer, quiet
from isomerge.quotient.canonical import run_canon
from isomerge.quotient.kinship import kinship
from isomerge.run.alignment_runs import AlignPlan, plan_align, run_apply, run_planned
from isomerge.run.cost import estimate
from isomerge.run.writing_run import Output
from isomerge.solve.match_checks import files_of_matching, matching_of
from isomerge.solve.match_inputs import check_data
from isomerge.solve.standing import check_align
from isomerge.symmetry.alignment import Alignment


@dataclass(frozen=True)
class Aligning:
    """An alignment, planned."""

    plan: AlignPlan

    def cost(self) -> dict[str, float]:
        """What it will take in memory and time; output and data are looked at.

        Raises:
            IsomergeError: what a run would refuse.
        """
        solver, output, matching = self.plan.solver, self.plan.output, self.plan.matching
        models = [solver.source, solver.anchor]
        output.check(models)
        check_data(matching, solver.anchor)
        return estimate(solver.plan, models, guard=True, limit=output.max_memory, matching=matching)

    def run(self) -> tuple[Alignment, dict[str, Any]]:
        """Match and write; the alignment and the report."""
        return run_planned(self.plan)


@contextmanager
def planned_align(asked: Align, observer: Observer = quiet) -> Iterator[Aligning]:
    """`isomerge.align` up to where something is matched: opened, checked, nothing written.

    Raises:
        IsomergeError: the models do not fit together, or an option is wrong.
    """
    check_align(asked.align)
    if asked.align is False:
        raise IsomergeError("align=False leaves nothing to do: give True or 'auto'")
    opening, moving, match = asked.opening, asked.moving, matching_of(asked.matching)
    reads = (opening.spec, *files_of_matching(match))
    with (
        recognised([asked.source, asked.onto], opening, moving.untie) as (a, b),
        destination(asked.out, asked.writing, [a, b], *reads, running=asked.running, observer=observer) as output,
    ):
        how: dict[str, Any] = {"matching": match, "align": asked.align, "kinship": kinship}
        yield Aligning(plan_align(a, b, output, spaces=moving.spaces, layers=moving.layers, **how))


@dataclass(frozen=True)
class Applying:
    """An alignment that will be replayed."""

    alignment: Alignment
    model: Model
    output: Output
    name: str

    def run(self) -> dict[str, Any]:
        """Move and write; the report."""
        return run_apply(self.alignment, self.model, self.output, name=self.name)


@contextmanager
def planned_apply(asked: Apply, observer: Observer = quiet) -> Iterator[Applying]:
    """`isomerge.apply` up to where something is written.

    Raises:
        IsomergeError: the alignment cannot be read, or is of another architecture.
    """
    alignment, reads = asked.alignment, (asked.opening.spec, asked.alignment)
    with (
        recognised([asked.model], asked.opening, asked.tie.untie) as (one,),
        destination(asked.out, asked.writing, [one], *reads, observer=observer) as output,
    ):
        name = "given" if isinstance(alignment, Alignment) else str(alignment)
        patch = alignment if isinstance(alignment, Alignment) else Alignment.load(alignment, one.declared)
        yield Applying(patch.inverse() if asked.inverse else patch, one, output, name)


@dataclass(frozen=True)
class Canonical:
    """A model that will be written in its canonical form."""

    model: Model
    output: Output
    dressing: DressingOptions = field(default_factory=DressingOptions)

    def run(self) -> tuple[Alignment, dict[str, Any]]:
        """Find and write it, and its activations where they are asked for; the alignment and the report."""
        alignment, report = run_canon(self.model, self.output)
        if self.dressing.activations is not None:
            report["activations"] = write_dressed(self.model, alignment, self.dressing)
        return alignment, report


@contextmanager
def planned_canon(asked: Canon, observer: Observer = quiet) -> Iterator[Canonical]:
    """`isomerge.canon` up to where something is computed.

    Raises:
        IsomergeError: the model cannot be read.
    """
    check_dressing(asked.dressing, overwrite=asked.writing.overwrite)
    with (
        recognised([asked.model], asked.opening, asked.tie.untie) as (one,),
        destination(asked.out, asked.writing, [one], asked.opening.spec, observer=observer) as output,
    ):
        yield Canonical(one, output, asked.dressing)

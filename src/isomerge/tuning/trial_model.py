"""A merge as a module in memory: each trial merges what its parameters change, and leaves the rest."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from isomerge.errors import IsomergeError
from isomerge.fusion.fusion import Fusion
from isomerge.merging.merge_plan import MergePlan
from isomerge.merging.merge_run import donor_moved
from isomerge.models.recognised import recognise
from isomerge.models.stored_form import StoredForm
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.parameter_places import every_weight, places_of
from isomerge.observe.live.substitution import module_as_told
from isomerge.observe.losses import Measure
from isomerge.run.streaming import stream_units, write_alone
from isomerge.run.writing_run import Output, StreamWriter, run_key
from isomerge.tuning.objective import LOSS, descent, measured
from isomerge.tuning.operands import Operands
from isomerge.tuning.slopes import Slopes, parameters_of
from isomerge.tuning.task_documents import TaskDocuments


class TrialModel:
    """The merge with the plan's own fusion, loaded as whoever uses the output would load it: in float32, after
    rounding to what is written.

    Args:
        plan: of the merge, its models aligned.
        stream: the run's.
        operands: the aligned models.
        device: where the module runs.
        batch_size: examples that it reads at a time.

    Raises:
        IsomergeError: the merge cannot be made or run.
    """

    def __init__(
        self, plan: MergePlan, stream: StreamWriter, operands: Operands, *, device: str, batch_size: int
    ) -> None:
        self.plan, self.operands, self.batch_size = plan, operands, batch_size
        self.form = StoredForm(stream.form.donor, stream.form.dtype)
        with tempfile.TemporaryDirectory(prefix="start-", dir=stream.writer.folder) as scratch:
            model = recognise(self._written(stream, Path(scratch) / "model"), spec_file=plan.donor.spec_file)
            self.module = module_as_told(model, device)
        self._places = places_of(self.module, model)
        self._weights = every_weight(self.module)
        self._canonical = {stored: match.canonical for stored, match in model.matches.items()}
        self._made = {unit: parameters_of(plan.fuser, unit) for unit in plan.plan.units}

    def _written(self, stream: StreamWriter, folder: Path) -> Path:
        """The merge with the plan's own fusion, as a checkpoint."""
        plan, settings = self.plan, stream.output
        output = Output(
            folder,
            dtype=settings.dtype,
            observer=settings.observer,
            jobs=settings.jobs,
            max_memory=settings.max_memory,
        )
        with StreamWriter(plan.template, output, run_key("trial", [plan.template])) as own:
            fuse = partial(plan.fuser.fuse, form=own.form)
            pieces = plan.fusion.method.elementwise
            results = stream_units(own, self.operands.solvers(), plan.plan, fuse, plan.target, piecewise=pieces)
            write_alone(own, plan.plan, plan.donor, plan.dtype, donor_moved(plan, results))
            own.finish_unreported()
        return folder

    def merge(self, fusion: Fusion) -> int:
        """Give the module the weights of another fusion; how many units were merged for it.

        Raises:
            IsomergeError: the method does not take the parameters, or its result is no number or does not fit.
        """
        fuser, count = self.plan.fuser_of(fusion), 0
        for unit in self.plan.plan.units:
            wanted = parameters_of(fuser, unit)
            if wanted == self._made[unit]:
                continue
            with torch.no_grad():
                fused = fuser.fuse(
                    unit, self.operands.blocks(unit), self.operands.moved_by(unit), {}, form=self.form
                )
                for name, tensor in self.form.named(self.form.donor, dict(fused)).items():  # pyright: ignore[reportArgumentType]
                    self._places.write(self._weights, self._canonical[name], tensor)
            self._made[unit] = wanted
            count += 1
        return count

    def measure(self, examples: Examples | TaskDocuments, objective: str = LOSS) -> Measure:
        """The module's loss, or what is measured in its place (of tasks `isomerge.tuning.task_documents.Score`).

        Raises:
            IsomergeError: it gives no numbers, or the examples are not made for it.
        """
        return measured(self.module, examples, self.batch_size, objective)

    def descent(
        self, examples: Examples, objective: str, slopes: Slopes, values: Mapping[str, Any]
    ) -> tuple[Measure, dict[str, float]]:
        """The same, and its derivatives by the dimensions of a search at the values that are merged now.

        Raises:
            IsomergeError: as of `measure`, or a value near these is refused.
        """
        measure, gradients = descent(self.module, examples, self.batch_size, objective)
        return measure, slopes(values, self._weights, gradients, self._places)


def check_tunable(plan: MergePlan, searched: set[str]) -> None:
    """Refuse merges whose trials would need more than the aligned models' weights.

    Args:
        plan: of the merge.
        searched: the method's parameters that are searched for.

    Raises:
        IsomergeError: saying what to leave out.
    """
    method = plan.fusion.method
    if method.forward or plan.gathers:
        raise IsomergeError(
            f"the method {method.name} runs the models on data in every trial, which tune does not: name another "
            f"method{', or give statistics files' if plan.gathers else ''}"
        )
    if plan.request.repair is not None:
        raise IsomergeError("`align.repair` runs the models in every trial, which tune does not: leave it out")
    if plan.heads.how in ("keep", "separate", "agreed"):
        how = (
            f"heads: {plan.heads.how}" if plan.heads.how != "agreed" else f"{plan.donor.ref} has no head: the merge"
        )
        raise IsomergeError(f"{how} writes other heads than those that a trial would run: take average or copy")
    if plan.matches and plan.request.anchor == "none" and "weight" in searched:
        raise IsomergeError(
            "anchor: none aligns onto a mean that depends on `weight`, and tune aligns once: search for other "
            "parameters, or take anchor: first"
        )

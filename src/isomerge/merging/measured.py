"""What a merge has come to, on the data that it was given: the losses of the models that went in, of the merge, and
of the models' ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import nn

from isomerge.errors import IsomergeError
from isomerge.evidence.barrier import ensemble
from isomerge.evidence.report.facts import short_names
from isomerge.merging.merge_plan import MergePlan
from isomerge.models.peak_memory import free_memory
from isomerge.models.recognised import Model
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.modules import load_module
from isomerge.observe.live.substitution import module_as_told
from isomerge.observe.losses import Figures, Measure, evaluate
from isomerge.observe.read_files import shown
from isomerge.records import Record, inline
from isomerge.run.writing_run import StreamWriter
from isomerge.solve.learn.settings import LearnSettings, batch_size_of, held_out
from isomerge.solve.match_inputs import open_given
from isomerge.solve.match_options import GENERATE

MOST = 512
"""Examples that models are measured on, where more are given: a loss is then known to a few per cent."""
ROOM = 0.7
"""The share of the free memory that the models of an ensemble may take."""


class ModelFigures(Record):
    """Of a model that went in."""

    model: str
    figures: Figures = inline()


class Measured(Record):
    """Losses of the models that were fused, of the output, and of the models' ensemble."""

    data: str | None
    examples: int
    held_out: bool
    """Whether they were held out of what the match was learned on."""
    unit: str
    models: Sequence[ModelFigures]
    merged: Figures
    ensemble: Figures | None
    """None where the models do not fit in memory together."""

    @property
    def line(self) -> str:
        """All of them in one line."""
        names = short_names([each.model for each in self.models])
        rows = [*zip(names, (each.figures for each in self.models), strict=True), ("merged", self.merged)]
        rows += [] if self.ensemble is None else [("their ensemble", self.ensemble)]
        which = "held-out examples" if self.held_out else "examples"
        measures = ", ".join(f"{name} {figures.sentence}" for name, figures in rows)
        return f"Loss on {self.examples} {which} ({self.unit}): {measures}."


def measured(plan: MergePlan, stream: StreamWriter, *, learned: bool) -> tuple[Measured | None, list[str]]:
    """The losses of a merge; and why not, where there are none.

    Args:
        plan: of the merge.
        stream: where all tensors are written.
        learned: whether the match was learned: then on the examples that were held out.
    """
    matching, device = plan.matching, plan.matching.device
    data = matching.learn if learned else matching.data or matching.learn
    if data is None or plan.output.dropped:
        return None, []
    plan.output.observer("measuring the models and the merge", 0, 1)
    models = plan.models[plan.fusion.start :]
    examples = _judging(open_given(data, plan.donor, matching), matching.settings, learned=learned)
    try:
        if not examples.labelled:
            return None, ["the loss of the models and of the merge was not measured, as the data have no labels"]
        if not plan.request.parents:
            models = []
        parents, together = _parents(models, examples, device, plan.output.max_memory)
        with stream.as_checkpoint() as folder:
            module = load_module(folder, device=device, own=plan.donor.checkpoint.own)
            merged = evaluate(module, examples, batch_size_of(examples))
    except IsomergeError as error:
        return None, [f"the loss of the models and of the merge was not measured: {error}"]
    asked = plan.request.matching
    report = Measured(
        GENERATE if GENERATE in (asked.data, asked.learn) else shown(data),
        examples=len(examples),
        held_out=learned,
        unit=merged.unit,
        models=[ModelFigures(model.ref, figures=each.figures) for model, each in zip(models, parents, strict=True)],
        merged=merged.figures,
        ensemble=None if together is None else together.figures,
    )
    apart = ["the models' ensemble was not measured, as they do not fit in memory together"]
    return report, apart if together is None and models else []


def _judging(examples: Examples, settings: LearnSettings | None, *, learned: bool) -> Examples:
    """The examples that models are measured on."""
    if learned:
        return held_out(examples, settings or LearnSettings())[0]
    return examples if len(examples) <= MOST else examples.split(MOST / len(examples))[0]


def _parents(
    models: Sequence[Model], examples: Examples, device: str, limit: int | None
) -> tuple[list[Measure], Measure | None]:
    """The measures of models, and of their ensemble; of one model at a time where memory is too small for all."""
    size = batch_size_of(examples)
    if not models:
        return [], None
    weights = sum(prod(info.shape) for model in models for info in model.checkpoint.tensors.values())
    if 4.0 * weights > min(ROOM * free_memory(), limit or float("inf")):
        return [evaluate(module_as_told(model, device), examples, size) for model in models], None
    modules: list[nn.Module] = [module_as_told(model, device) for model in models]
    return [evaluate(module, examples, size) for module in modules], ensemble(modules, examples, size)

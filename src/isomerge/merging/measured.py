"""What a merge has come to, on the data that it was given: the losses of the models that went in, of the merge, and
of the models' ensemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

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
from isomerge.observe.losses import Measure, evaluate
from isomerge.observe.read_files import shown
from isomerge.run.writing_run import StreamWriter
from isomerge.solve.learn.settings import LearnSettings, batch_size_of, held_out
from isomerge.solve.match_inputs import open_given
from isomerge.solve.match_options import GENERATE

MOST = 512
"""Examples that models are measured on, where more are given: a loss is then known to a few per cent."""
ROOM = 0.7
"""The share of the free memory that the models of an ensemble may take."""


def measured(plan: MergePlan, stream: StreamWriter, *, learned: bool) -> tuple[dict[str, Any] | None, list[str]]:
    """The losses of the models that were fused, of the output as it stands, and of their ensemble; and why not,
    where there are none.

    Args:
        plan: of the merge.
        stream: where all tensors are written.
        learned: whether the match was learned: then on the examples that were held out.

    Returns:
        ``unit``, ``examples``, ``held_out``, ``data``, ``models`` (rows of ``model``, ``loss``, ``accuracy``),
        ``merged`` and ``ensemble`` (None where the models do not fit in memory together); or None.
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
        rows, together = _parents(models, examples, device, plan.output.max_memory)
        with stream.as_checkpoint() as folder:
            module = load_module(folder, device=device, own=plan.donor.checkpoint.own)
            merged = evaluate(module, examples, batch_size_of(examples))
    except IsomergeError as error:
        return None, [f"the loss of the models and of the merge was not measured: {error}"]
    asked = plan.request.matching
    report: dict[str, Any] = {
        "data": GENERATE if GENERATE in (asked.data, asked.learn) else shown(data),
        "examples": len(examples),
        "held_out": learned,
        "unit": merged.unit,
        "models": [{"model": model.ref, **_row(row)} for model, row in zip(models, rows, strict=True)],
        "merged": _row(merged),
        "ensemble": None if together is None else _row(together),
    }
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


def _row(measure: Measure) -> dict[str, float | None]:
    return {"loss": measure.loss, "accuracy": measure.accuracy}


def measured_line(report: Mapping[str, Any]) -> str:
    """The measures of a report in one line."""
    names = short_names([row["model"] for row in report["models"]])
    rows = [*zip(names, report["models"], strict=True), ("merged", report["merged"])]
    if report["ensemble"] is not None:
        rows.append(("their ensemble", report["ensemble"]))
    which = "held-out examples" if report["held_out"] else "examples"
    measures = ", ".join(f"{name} {figures(row)}" for name, row in rows)
    return f"Loss on {report['examples']} {which} ({report['unit']}): {measures}."


def figures(row: Mapping[str, Any]) -> str:
    """The loss, and the accuracy where there is one."""
    accuracy = "" if row["accuracy"] is None else f" ({100 * row['accuracy']:.1f} %)"
    return f"{row['loss']:.3f}{accuracy}"

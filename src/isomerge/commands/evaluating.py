"""Models evaluated side by side: their losses on data, and the tasks of lm-evaluation-harness."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isomerge.commands.opening import recognised
from isomerge.errors import IsomergeError, own_code
from isomerge.models.recognised import Model
from isomerge.observe.data.live_data import as_data
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import Losses, evaluate
from isomerge.options.requests.measuring import Evaluate
from isomerge.progress import Observer, quiet
from isomerge.records import Record, inline, optional
from isomerge.run.connectivity import DataReport, check_labelled
from isomerge.solve.match_inputs import data_for

HARNESS = "lm_eval"
"""The module of lm-evaluation-harness (pip install 'lm-eval[hf]')."""


class ModelReport(Record):
    """What a model was evaluated to be worth."""

    model: str
    losses: Losses | None = inline(None)
    tasks: Mapping[str, Mapping[str, float]] | None = optional()


class EvaluateReport(Record):
    """Models evaluated side by side."""

    models: Sequence[ModelReport]
    tasks: Sequence[str]
    unit: str | None = optional()
    """Of losses."""
    data: DataReport | None = inline(None)
    command: str = "eval"


def evaluate_models(asked: Evaluate, observer: Observer = quiet) -> EvaluateReport:
    """Losses on data and results of tasks, model by model; see `isomerge.evaluate`.

    Raises:
        IsomergeError: nothing to evaluate on, a model that cannot be run, or no harness.
    """
    models, tasks, examples = asked.models, asked.tasks, asked.examples
    if not models:
        raise IsomergeError("no model is given: name those that shall be evaluated")
    if asked.data is None and not tasks:
        raise IsomergeError("nothing says what models are evaluated on: add --data DATA, or --tasks TASK")
    harness = _harness(models, tasks) if tasks else None
    reports, unit, data = [ModelReport(str(model)) for model in models], None, None
    if asked.data is not None:
        with recognised(list(models), asked.opening, proven=False) as opened:
            reports, unit, data = _losses(opened, asked, observer)
    if harness is not None:
        for number, model in enumerate(models):
            observer(f"{HARNESS}: {model}", 0, 1)
            how = {"tasks": list(tasks), "batch_size": asked.batch_size, "limit": examples.limit}
            settings = {"model": "hf", "model_args": f"pretrained={model},dtype=auto", "device": examples.device}
            what = f"--tasks {','.join(tasks)}: lm-evaluation-harness cannot run them on {model}"
            with own_code(what, "name tasks that fit the model"):
                results = harness(**settings, **how)["results"]
            numbers = {task: _numbers(results.get(task, {})) for task in tasks}
            reports[number] = replace(reports[number], tasks=numbers)
    return EvaluateReport(reports, list(tasks), unit=unit, data=data)


def _losses(
    models: Sequence[Model], asked: Evaluate, observer: Observer
) -> tuple[list[ModelReport], str, DataReport]:
    """Losses of models on examples that the first one's tokenizer or processor reads, one module at a time."""
    source, how = as_data(asked.data, "--data"), asked.examples
    assert source is not None
    examples = data_for(models[0].checkpoint, source, limit=how.limit, length=how.length)
    check_labelled(examples)
    unit, reports = "", []
    for number, model in enumerate(models):
        observer(f"evaluating {model.ref}", number, len(models))
        measure = evaluate(load_module(model, device=how.device), examples, asked.batch_size)
        reports.append(ModelReport(model.ref, losses=measure.losses))
        unit = measure.unit
    return reports, unit, DataReport(len(examples), examples.fingerprint)


def _harness(models: Sequence[Any], tasks: Sequence[str]) -> Callable[..., Any]:
    """The function that evaluates one model.

    Raises:
        IsomergeError: the harness is not installed, or a model is no folder and no hub id.
    """
    if other := next((model for model in models if not isinstance(model, (str, Path))), None):
        kind = type(other).__name__
        raise IsomergeError(f"--tasks: {kind} is in memory, and the harness reads folders: write it to one")
    try:
        return importlib.import_module(HARNESS).simple_evaluate
    except ImportError:
        runs = "; ".join(
            f"lm_eval --model hf --model_args pretrained={model} --tasks {','.join(tasks)}" for model in models
        )
        raise IsomergeError(
            f"--tasks needs lm-evaluation-harness: pip install 'lm-eval[hf]'; or run it elsewhere: {runs}"
        ) from None


def _numbers(result: Any) -> dict[str, float]:
    """The numbers of a task, without what is beside them; ``acc,none`` is ``acc``."""
    numbers = {
        str(k): v for k, v in dict(result).items() if isinstance(v, (int, float)) and not isinstance(v, bool)
    }
    return {key.removesuffix(",none"): float(value) for key, value in numbers.items()}

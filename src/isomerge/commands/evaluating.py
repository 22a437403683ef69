"""Models evaluated side by side: their losses on data, and the tasks of lm-evaluation-harness."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isomerge.commands.opening import recognised
from isomerge.errors import IsomergeError, own_code
from isomerge.models.recognised import Model
from isomerge.observe.data.live_data import as_data
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import evaluate
from isomerge.options import ExamplesOptions, OpeningOptions
from isomerge.progress import Observer, quiet
from isomerge.run.connectivity import check_labelled
from isomerge.solve.match_inputs import data_for

HARNESS = "lm_eval"
"""The module of lm-evaluation-harness (pip install 'lm-eval[hf]')."""


def evaluate_models(
    models: Sequence[Any],
    *,
    data: Any,
    tasks: Sequence[str],
    batch_size: int,
    examples: ExamplesOptions,
    opening: OpeningOptions,
    observer: Observer = quiet,
) -> dict[str, Any]:
    """Losses on ``data`` and results of ``tasks``, model by model; see `isomerge.evaluate`.

    Raises:
        IsomergeError: nothing to evaluate on, a model that cannot be run, or no harness.
    """
    if not models:
        raise IsomergeError("no model is given: name those that shall be evaluated")
    if data is None and not tasks:
        raise IsomergeError("nothing says what models are evaluated on: add --data DATA, or --tasks TASK")
    harness = _harness(models, tasks) if tasks else None
    rows: list[dict[str, Any]] = [{"model": str(model)} for model in models]
    report: dict[str, Any] = {"command": "eval", "models": rows, "tasks": list(tasks)}
    if data is not None:
        with recognised(list(models), opening.spec, opening.allow_pickle, proven=False) as opened:
            report |= _losses(opened, rows, data, batch_size, examples, observer)
    if harness is not None:
        for row, model in zip(rows, models, strict=True):
            observer(f"{HARNESS}: {model}", 0, 1)
            how = {"tasks": list(tasks), "batch_size": batch_size, "limit": examples.limit}
            settings = {"model": "hf", "model_args": f"pretrained={model},dtype=auto", "device": examples.device}
            what = f"--tasks {','.join(tasks)}: lm-evaluation-harness cannot run them on {model}"
            with own_code(what, "name tasks that fit the model"):
                results = harness(**settings, **how)["results"]
            row["tasks"] = {task: _numbers(results.get(task, {})) for task in tasks}
    return report


def _losses(
    models: Sequence[Model],
    rows: Sequence[dict[str, Any]],
    data: Any,
    batch_size: int,
    how: ExamplesOptions,
    observer: Observer,
) -> dict[str, Any]:
    """Losses of models on examples that the first one's tokenizer or processor reads, one module at a time."""
    source = as_data(data, "--data")
    assert source is not None
    examples = data_for(models[0].checkpoint, source, limit=how.limit, length=how.length)
    check_labelled(examples)
    unit = ""
    for number, (row, model) in enumerate(zip(rows, models, strict=True)):
        observer(f"evaluating {model.ref}", number, len(rows))
        row["model"] = model.ref
        measure = evaluate(load_module(model, device=how.device), examples, batch_size)
        row |= {key: value for key, value in asdict(measure).items() if key in ("loss", "accuracy", "perplexity")}
        unit = measure.unit
    return {"unit": unit, "examples": len(examples), "fingerprint": examples.fingerprint}


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

"""lm-evaluation-harness from inside: tasks are loaded once, modules in memory run on some of their documents.

`lm_eval.evaluate` is what its `simple_evaluate` calls; the latter would look at the machine and load the tasks
anew for every trial. What that sets before is set here: no examples where a task does not say how many, and seeds.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

from isomerge.errors import IsomergeError, first_line, own_code
from isomerge.tuning.wanted_tasks import WantedTask

HARNESS = "lm_eval"
NEEDED = (
    "--task needs lm-evaluation-harness and what it runs models with: pip install 'lm-eval[hf]', or measure on "
    "examples by --data DATA"
)
SEED, OTHER_SEED = 0, 1234
"""Of Python, and of numpy, torch and few-shot examples: those of the harness's `simple_evaluate`."""


def load_tasks(wanted: Sequence[WantedTask], path: str | Path | None) -> Mapping[str, Any]:
    """Tasks and groups with their documents, as the harness's `evaluate` takes them.

    Args:
        wanted: by names.
        path: a folder with tasks of one's own, which are looked for first.

    Raises:
        IsomergeError: no harness, no such folder or task, or documents that cannot be read.
    """
    _imported("models.huggingface")  # without which no model could be run, told before anything is loaded
    manager = _imported("tasks").TaskManager
    if path is not None and not Path(path).is_dir():
        raise IsomergeError(f"--task-path {path}: there is no such folder")
    names = list(dict.fromkeys(task.name for task in wanted))
    with quiet_harness():
        index = manager(include_path=str(path), include_defaults=False) if path is not None else None
        if index is None or not set(names) <= set(index.all_tasks):
            index = manager(include_path=None if path is None else str(path))  # thousands of files
        _check_names(names, index)
        what = f"--task {', '.join(names)}: lm-evaluation-harness cannot load it"
        with own_code(what, "mend the task's files"):  # and whatever its library of data raises
            loaded = index.load(names)
    for name, task in loaded["tasks"].items():
        _check_runnable(name, task)
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
    return dict(loaded)


def _check_names(names: Sequence[str], index: Any) -> None:
    """Refuse names that are none of a task or a group."""
    tags = set(index.all_tags) - set(index.all_subtasks) - set(index.all_groups)
    for name in names:
        if name not in index.all_tasks:
            near = get_close_matches(name, index.all_tasks, n=1)
            hint = f"did you mean {near[0]}" if near else "lm_eval ls tasks lists them"
            raise IsomergeError(
                f"--task {name}: lm-evaluation-harness has no such task; {hint}, --task-path FOLDER has your own, "
                f"and --data DATA measures on examples"
            )
        if name in tags:
            raise IsomergeError(f"--task {name} is a tag of several tasks, which has no metric: name the tasks")


def _check_runnable(name: str, task: Any) -> None:
    """Refuse tasks that run code of a model, or that show it images."""
    if getattr(task, "UNSAFE_CODE", False):
        raise IsomergeError(f"--task {name} runs code that a model has written, which tune does not: leave it out")
    if getattr(task, "MULTIMODAL", False):
        raise IsomergeError(f"--task {name} shows images, and tune runs models on text: leave it out")


def metrics_of(name: str, loaded: Mapping[str, Any]) -> dict[str, bool | None]:
    """The metrics of a task or a group by the harness's names, and whether a higher one is better, as far as the
    task says."""
    if name in loaded["tasks"]:
        task = loaded["tasks"][name]
        better = task.higher_is_better()
        return {f"{m},{f.name}": better.get(m) for m in task.aggregation() for f in task._filters}
    group = loaded["groups"][name]
    inside = [metrics_of(task.task_name, loaded) for task in group.get_all_tasks()]
    directions: dict[str, bool | None] = {}
    for said in group.aggregate_metric_list or ():
        for key in dict.fromkeys(key for metrics in inside for key in metrics):
            metric, _, way = key.partition(",")
            if metric == said.metric and (said.filter_list is None or way in said.filter_list):
                words = {metrics[key] for metrics in inside if key in metrics}
                directions[key] = words.pop() if len(words) == 1 else None
    return directions


def check_metrics(wanted: Sequence[WantedTask], loaded: Mapping[str, Any]) -> None:
    """Refuse metrics that a task does not have, and those that a search would make worse.

    Raises:
        IsomergeError: naming those that it has.
    """
    for task in wanted:
        metrics = metrics_of(task.name, loaded)
        if task.metric not in metrics:
            some = f"it has {'; '.join(metrics)}" if metrics else "it has none of its own: name its tasks"
            raise IsomergeError(f"--task {task.name} has no metric {task.metric}: {some}")
        if metrics[task.metric] is False and task.weight > 0:
            raise IsomergeError(
                f"--task {task}: less of {task.metric} is better, and a search raises the score: give it a weight "
                f"below 0, as in {task.name}:{task.metric}@-{task.weight:g}"
            )


def run_tasks(
    module: nn.Module,
    tokenizer: Any,
    loaded: Mapping[str, Any],
    documents: Mapping[str, list[int]],
    batch_size: int,
) -> Mapping[str, Mapping[str, Any]]:
    """The harness's results on some documents, by the names of tasks and groups.

    Args:
        module: a transformers model that writes text, in eval mode; its weights stay as they are.
        tokenizer: its own.
        loaded: see `load_tasks`.
        documents: which of them, by the names of all tasks (not groups), sorted.
        batch_size: requests that are run at a time.

    Raises:
        IsomergeError: logits that are no numbers.
    """
    evaluate = _imported("evaluator").evaluate
    with quiet_harness(), _seeded(loaded):
        runner = _runner(module, tokenizer, batch_size)
        outcome = evaluate(runner, dict(loaded), samples=dict(documents), bootstrap_iters=0, log_samples=False)
    return outcome["results"]


def _runner(module: nn.Module, tokenizer: Any, batch_size: int) -> Any:
    """The harness's model around a module in memory."""
    # it ties weights, which would take the head of a module away that has one of its own (`module_as_told`)
    module.tie_weights = lambda *_, **__: None  # pyright: ignore[reportArgumentType]
    try:
        return _runner_class()(pretrained=module, tokenizer=tokenizer, batch_size=batch_size)
    finally:
        del module.tie_weights


def requests_of(
    loaded: Mapping[str, Any], documents: Mapping[str, list[int]]
) -> Iterator[tuple[str, Sequence[Any]]]:
    """Every task's name, and what it asks a model about some of its documents (the harness's ``Instance``: a kind,
    arguments, a document), as `run_tasks` asks it.

    Raises:
        IsomergeError: a document is not as the task's text wants it.
    """
    with quiet_harness(), _seeded(loaded):
        for name, task in loaded["tasks"].items():
            what = f"--task {name}: lm-evaluation-harness cannot ask about its documents"
            with own_code(what, "mend the task's templates and functions"):
                task.build_all_requests(samples=documents[name], rank=0, world_size=1)
            yield name, task.instances


def version() -> str:
    """Of the harness, on which scores depend."""
    return metadata.version(HARNESS)


@cache
def _runner_class() -> Any:
    """The harness's class for models of transformers, which refuses logits that are no numbers: the likeliest of
    several NaN would be the first answer."""

    class Runner(_imported("models.huggingface").HFLM):
        def _model_call(self, *args: Any, **named: Any) -> Any:
            logits = super()._model_call(*args, **named)
            if not bool(torch.isfinite(logits).all()):
                raise IsomergeError("the model's logits are no numbers in this dtype")
            return logits

    return Runner


def _imported(part: str) -> Any:
    """A module of the harness.

    Raises:
        IsomergeError: it is not installed, or not whole.
    """
    try:
        return import_module(f"{HARNESS}.{part}")
    except ImportError as error:
        lacking = "" if (error.name or "").partition(".")[0] == HARNESS else f" ({first_line(error)})"
        raise IsomergeError(NEEDED + lacking) from None


@contextmanager
def _seeded(loaded: Mapping[str, Any]) -> Iterator[None]:
    """With the harness's seeds, so that a task draws the same few-shot examples for every trial; what others draw
    goes on behind it as if nothing had been drawn."""
    for task in loaded["tasks"].values():
        task.set_fewshot_seed(seed=OTHER_SEED)
    python, arrays = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng():
            random.seed(SEED)
            numpy.random.seed(OTHER_SEED)
            torch.manual_seed(OTHER_SEED)
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)


@contextmanager
def quiet_harness() -> Iterator[None]:
    """Without its lines and bars on stderr."""
    from datasets.utils import logging as bars
    from tqdm import tqdm

    log = logging.getLogger(HARNESS)
    level, made, shown = log.level, tqdm.__init__, bars.is_progress_bar_enabled()
    log.setLevel(logging.CRITICAL)
    tqdm.__init__ = lambda self, *a, **how: made(self, *a, **{**how, "disable": True})
    bars.disable_progress_bar()
    try:
        yield
    finally:
        log.setLevel(level)
        tqdm.__init__ = made
        if shown:
            bars.enable_progress_bar()

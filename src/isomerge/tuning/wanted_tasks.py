"""Tasks of lm-evaluation-harness as a search is told of them: a name, a metric, a weight.

The words are those of mergekit-evolve (``tasks: [{name, weight, metric}]``): the score that a search raises is the
sum of metrics times weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.records import Record

HOW = "write NAME, NAME:METRIC or NAME:METRIC@WEIGHT, as in gsm8k:exact_match,strict-match@0.5"
NO_FILTER = "none"
"""What the harness calls it where a task has no filter of its own."""


class WantedTask(Record):
    """One summand of the score."""

    name: str
    metric: str = f"acc,{NO_FILTER}"
    """As the harness writes it: the metric, and the filter of answers behind a comma."""
    weight: float = 1.0

    def __str__(self) -> str:
        weight = "" if self.weight == 1 else f"@{self.weight:g}"
        return f"{self.name}:{self.metric}{weight}"


def wanted_tasks(given: Sequence[str | Mapping[str, Any]]) -> tuple[WantedTask, ...]:
    """What was asked for, in order.

    Args:
        given: texts (`HOW`), or mappings with ``name``, ``metric`` and ``weight``.

    Raises:
        IsomergeError: one that cannot be read, or the same metric of a task twice.
    """
    wanted = tuple(_of_text(task) if isinstance(task, str) else _of_mapping(task) for task in given)
    seen: set[tuple[str, str]] = set()
    for task in wanted:
        if (task.name, task.metric) in seen:
            raise IsomergeError(f"--task {task}: this metric is said twice; give it one weight")
        seen.add((task.name, task.metric))
    return wanted


def _of_text(text: str) -> WantedTask:
    front, at, weight = text.rpartition("@")
    name, _, metric = (front if at else text).partition(":")
    return _made(text, name, metric if ":" in (front if at else text) else None, weight if at else 1.0)


def _of_mapping(entry: Mapping[str, Any]) -> WantedTask:
    if more := sorted(set(entry) - {"name", "metric", "weight"}):
        raise IsomergeError(f"--task: unknown key `{more[0]}`; there are name, metric and weight")
    return _made(dict(entry), entry.get("name"), entry.get("metric"), entry.get("weight", 1.0))


def _made(said: Any, name: Any, metric: Any, weight: Any) -> WantedTask:
    """One task of its parts; a metric without a filter has the one that is called none.

    Raises:
        IsomergeError: a part is missing or of the wrong kind.
    """
    try:
        number = float(weight)
    except (TypeError, ValueError):
        number = float("nan")
    if not isfinite(number) or not number or isinstance(weight, bool):
        raise IsomergeError(f"--task {said}: the weight is a number other than 0; {HOW}")
    if not isinstance(name, str) or not name or not isinstance(metric, str | None) or metric == "":
        raise IsomergeError(f"--task {said}: {HOW}")
    if metric is None:
        return WantedTask(name, weight=number)
    return WantedTask(name, metric if "," in metric else f"{metric},{NO_FILTER}", number)

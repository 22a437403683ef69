"""Labels as targets: the class, the several labels or the values of one example, and whether tensors of them
fit."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.models.model_inputs import Inputs
from isomerge.observe.data.examples import IGNORED, first_not_finite


def target_of(label: Any, inputs: Inputs, where: str) -> int | float | list[float]:
    """The label of one example of a classifier or regressor: a class id, a value, or a number per output.

    Raises:
        IsomergeError: no class of the checkpoint, no number, or another count of numbers than it has outputs.
    """
    label = plain(label)
    kind, several = inputs.kind(), isinstance(label, Sequence) and not isinstance(label, str)
    if kind == "classes":
        if not several:
            return inputs.class_id(label, where)
        if inputs.config.get("problem_type") is not None or not any(isinstance(x, float) for x in label):
            raise IsomergeError(
                f"{where}: label {str(label)[:60]!r} is a list, but must be one class id; for several labels at "
                "once write 0.0 and 1.0, or set problem_type to multi_label_classification in config.json"
            )
    numbers = [_number(x, where) for x in (label if several else [label])]
    if len(numbers) != inputs.outputs:
        raise IsomergeError(
            f"{where}: the label has {len(numbers)} numbers, but the checkpoint has {inputs.outputs} outputs: give "
            "a number for each"
        )
    return numbers[0] if inputs.outputs == 1 else numbers


def plain(label: Any) -> Any:
    """A tensor or array as a number or a list; anything else as it is."""
    return label.tolist() if hasattr(label, "tolist") else label


def _number(x: Any, where: str) -> float:
    try:
        number = float(x)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not isfinite(number):
        raise IsomergeError(f"{where}: label {str(x)[:60]!r} is no number, which this checkpoint predicts")
    return number


def check_targets(labels: Tensor, inputs: Inputs, where: str) -> None:
    """Whether labels fit a classifier or regressor, or a head with an answer per token of its own kind.

    Raises:
        IsomergeError: a shape or a number that does not fit.
    """
    kind, shape = inputs.kind(labels), list(labels.shape)
    if inputs.task == "classes":
        one = labels.ndim == 1 and (kind == "classes" or inputs.outputs == 1)
        if not one and (kind == "classes" or shape[1:] != [inputs.outputs]):
            wanted = (
                "one class id each (several labels at once are floating point, or need problem_type "
                "multi_label_classification in config.json)"
                if kind == "classes"
                else f"{inputs.outputs} numbers for each example"
            )
            raise IsomergeError(f"{where}: labels have shape {shape}, but must be {wanted}")
    if kind == "classes":
        for label in set(labels.tolist()) - set(inputs.class_ids.values()):
            inputs.class_id(label, where)
        return
    if (example := first_not_finite(labels)) is not None:
        raise IsomergeError(
            f"{where}: labels of example {example} have NaN or infinite numbers: make the data again"
        )
    if kind == "labels" and not bool((((labels >= 0) & (labels <= 1)) | (labels == IGNORED)).all()):
        raise IsomergeError(
            f"{where}: labels must be from 0 (does not hold) to 1 (holds), or {IGNORED} where it is not known"
        )

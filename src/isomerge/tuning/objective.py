"""What a search lowers: the loss, or without labels the entropy of predictions; as a number, and with its gradient.

Entropy: AdaMerging (Yang et al. 2024, AdaMerging: Adaptive Model Merging for Multi-Task Learning, equation 5): a
merge whose predictions are undecided is seldom right, so that the mean entropy of predictions on examples without
labels stands for their loss.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.observe.data.examples import Examples
from isomerge.observe.losses import Measure, check_own_loss, evaluate, logits_of, targets_of
from isomerge.observe.predictions import Prediction, prediction_of
from isomerge.solve.learn.settings import backward
from isomerge.tuning.task_documents import TaskDocuments

LOSS, ENTROPY, TASKS = "loss", "entropy", "tasks"
NATS = "nats of entropy"
CHANCE = (
    "an entropy says how sure predictions are, and not whether they are right: --judge-data with labels would tell"
)


def measured(module: nn.Module, examples: Examples | TaskDocuments, batch_size: int, objective: str) -> Measure:
    """The objective on all examples, without gradients; of tasks their score.

    Raises:
        IsomergeError: examples without labels where these are needed, or a model without classes.
    """
    if isinstance(examples, TaskDocuments):
        return examples.measured(module, batch_size)
    if objective == LOSS:
        return evaluate(module, examples, batch_size)
    kind, total, rows = prediction_of(module, examples.tensors.get("labels")), 0.0, 0
    with torch.no_grad():
        for batch in examples.batches(batch_size):
            part, count = _entropy(module, kind, batch)
            total, rows = total + float(part), rows + count
    return _checked(Measure(total / rows, None, None, len(examples), NATS))


def descent(
    module: nn.Module, examples: Examples, batch_size: int, objective: str
) -> tuple[Measure, dict[int, Tensor]]:
    """The objective on all examples, and its gradient.

    Args:
        module: in eval mode; its gradients are taken, and cleared.
        examples: all count; batches only bound the memory.
        batch_size: examples of a pass.
        objective: `LOSS` or `ENTROPY`.

    Returns:
        The mean, and by the identity of every parameter that predictions depend on the gradient of the mean.

    Raises:
        IsomergeError: as of `measured`.
    """
    parameters = [p for p in module.parameters() if p.is_floating_point()]
    kind, total, rows, right, unit = prediction_of(module, examples.tensors.get("labels")), 0.0, 0, None, NATS
    for parameter in parameters:
        parameter.requires_grad_(True).grad = None
    for number, batch in enumerate(examples.batches(batch_size)):
        if objective == ENTROPY:
            value, count = _entropy(module, kind, batch)
        else:
            if number == 0:
                check_own_loss(module, batch, kind)
            logits = logits_of(module, batch)
            value, count, correct = kind.loss(logits, targets_of(batch, logits, kind))
            right = None if correct is None else (right or 0) + correct
            unit = kind.unit(tokens=logits.ndim == 3)
        backward(value)
        total, rows = total + float(value.detach()), rows + count
    if not rows:
        raise IsomergeError("the data leave nothing to predict: give longer texts, or labels")
    gradients = {id(p): p.grad.div_(rows) for p in parameters if p.grad is not None}
    for parameter in parameters:
        parameter.grad = None
    accuracy = None if right is None else right / rows
    return _checked(Measure(total / rows, accuracy, None, len(examples), unit)), gradients


def _entropy(module: nn.Module, kind: Prediction, batch: Mapping[str, Tensor]) -> tuple[Tensor, int]:
    """The sum of the entropies of a batch's predictions, and how many there are.

    Raises:
        IsomergeError: the model is no classifier of whole examples.
    """
    logits = logits_of(module, batch)
    entropies = kind.entropy(logits) if logits.ndim == 2 else None
    if entropies is None:
        what = "numbers" if logits.ndim == 2 else "tokens"
        raise IsomergeError(
            f"--objective entropy is for classifiers, and {type(module).__name__} predicts {what}: take "
            f"--objective loss"
        )
    return entropies.sum(), len(entropies)


def _checked(measure: Measure) -> Measure:
    """Raise an IsomergeError where it is no number."""
    if not torch.isfinite(torch.tensor(measure.loss)):
        raise IsomergeError(f"the loss is {measure.loss}: the model's outputs are no numbers in this dtype")
    return measure

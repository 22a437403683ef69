"""Losses of a module on examples, in nats: classes, next tokens, masked tokens, what a decoder writes.

Which of them is decided by the keys of the batch and the shape of the logits, never by the architecture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite
from typing import TYPE_CHECKING, Any

from isomerge.data.examples import IGNORED
from isomerge.errors import IsomergeError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from isomerge.data.examples import Examples


@dataclass(frozen=True)
class Measure:
    """How well a module predicts."""

    loss: float
    """Mean negative log-likelihood in nats, per example or, for language models, per predicted token."""
    accuracy: float | None
    """The share of classes, or of predicted tokens, that are the likeliest one."""
    perplexity: float | None
    """The exponential of the loss of a language model; None for classes. Infinite when it is beyond floats."""
    examples: int


def logits_of(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The logits of a batch: [n, classes] or [n, length, vocabulary], at least float32, on the module's device.

    ``labels`` are not given to the module. Gradients are kept when they are on.

    Raises:
        IsomergeError: the module cannot read this batch, or has no head that predicts.
    """
    import torch

    found = outputs_of(module, batch)
    logits = getattr(found, "logits", None)
    logits = getattr(found, "prediction_logits", None) if logits is None else logits
    if logits is None:
        raise IsomergeError(
            f"{type(module).__name__} predicts nothing, so it has no loss: give a checkpoint with a head"
        )
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def outputs_of(module: nn.Module, batch: Mapping[str, Tensor]) -> Any:
    """What a module gives for a batch, with a head or without; ``labels`` are not given to it.

    Raises:
        IsomergeError: the module cannot read this batch, or the device has too little memory.
    """
    import torch

    device = next(module.parameters()).device
    given = {name: tensor.to(device) for name, tensor in batch.items() if name != "labels"}
    try:
        return module(**given)
    except (IndexError, ValueError, TypeError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise IsomergeError("the device has too little memory: give a smaller --batch-size") from error
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise IsomergeError(
            f"{type(module).__name__} cannot read these examples ({first[:160].rstrip('.')}): "
            "check that they are made for this checkpoint, or give shorter ones"
        ) from error


def targets_of(batch: Mapping[str, Tensor], logits: Tensor) -> Tensor:
    """What logits shall predict: class ids [n], or tokens [n, length] with -100 where nothing is predicted.

    Logits [n, length, vocabulary] without labels are those of a causal model: position i predicts token i + 1, where
    both are tokens and no padding.

    Raises:
        IsomergeError: there are no targets, or they do not fit the logits.
    """
    import torch

    labels = batch.get("labels")
    if labels is None and logits.ndim == 3 and "input_ids" in batch:
        ids = batch["input_ids"]
        seen = batch.get("attention_mask", torch.ones_like(ids)) == 1
        labels = torch.full_like(ids, IGNORED)
        labels[:, :-1] = torch.where(seen[:, :-1] & seen[:, 1:], ids[:, 1:], IGNORED)
    if labels is None:
        raise IsomergeError("the data have no labels, so there is no loss: give a label with every example")
    if labels.shape != logits.shape[:-1]:
        raise IsomergeError(
            f"labels of shape {list(labels.shape)} do not fit logits of shape {list(logits.shape)}: "
            "check that the data are made for this checkpoint"
        )
    return labels.to(logits.device)


def batch_loss(module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, int, int]:
    """The loss of one batch.

    Args:
        module: a Hugging Face module with a head.
        batch: what `Examples.batches` yields.

    Returns:
        The sum of negative log-likelihoods in nats (a scalar, with gradients when they are on), how many predictions
        it is summed over, and how many of them are right.

    Raises:
        IsomergeError: see `logits_of` and `targets_of`.
    """
    logits = logits_of(module, batch)
    return loss_of_logits(logits, targets_of(batch, logits))


def loss_of_logits(logits: Tensor, targets: Tensor) -> tuple[Tensor, int, int]:
    """As `batch_loss`, from logits [..., k] and targets [...] with -100 where nothing is predicted."""
    import torch

    kept = targets != IGNORED
    logits, targets = logits[kept], targets[kept]
    loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    return loss, len(targets), int((logits.argmax(-1) == targets).sum())


def evaluate(module: nn.Module, examples: Examples, batch_size: int = 32) -> Measure:
    """The loss of a module on all examples, without gradients; batches do not change it but for rounding.

    Raises:
        IsomergeError: examples without labels, or a module that does not give numbers.
    """
    import torch

    total, count, correct, tokens = 0.0, 0, 0, False
    with torch.no_grad():
        for batch in examples.batches(batch_size):
            logits = logits_of(module, batch)
            loss, seen, right = loss_of_logits(logits, targets_of(batch, logits))
            total, count, correct, tokens = total + float(loss), count + seen, correct + right, logits.ndim == 3
    return measure(total, count, correct, len(examples), tokens=tokens)


def measure(total: float, count: int, correct: int, examples: int, *, tokens: bool) -> Measure:
    """A `Measure` from sums over ``count`` predictions.

    Raises:
        IsomergeError: nothing was predicted, or the loss is no number.
    """
    if count == 0:
        raise IsomergeError("the data leave nothing to predict: give longer texts, or labels")
    loss = total / count
    if not isfinite(loss):
        raise IsomergeError(f"the loss is {loss}: the model's outputs are no numbers in this dtype")
    perplexity = (exp(loss) if loss < 700 else float("inf")) if tokens else None
    return Measure(loss, correct / count, perplexity, examples)


def mean_log_probability(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of several models' distributions: [..., k], normalised."""
    from math import log

    import torch

    stacked = torch.stack([x.log_softmax(-1) for x in logits])
    return stacked.logsumexp(0) - log(len(logits))


def divergence(ends: Sequence[Tensor], logits: Tensor, kept: Tensor | None = None) -> Tensor:
    """KL(mean of the ends' distributions || the model's) in nats: how far a model is from its parents, without labels.

    Args:
        ends: logits of the parents on a batch, each of the shape of ``logits``.
        logits: the model's, [n, k] or [n, length, k]; gradients flow into them.
        kept: bool [n, length], the positions that count (no padding); all by default.

    Returns:
        [n]: per example, averaged over its positions.
    """
    import torch

    target = mean_log_probability(ends)
    terms = (target.exp() * (target - logits.log_softmax(-1))).sum(-1)
    if terms.ndim == 1:
        return terms
    weights = torch.ones_like(terms) if kept is None else kept.to(terms.dtype)
    return (terms * weights).sum(-1) / weights.sum(-1).clamp_min(1)

"""Losses of a module on examples: classes, labels, values, next tokens, masked tokens, what a decoder writes.

What the outputs mean is decided by `isomerge.observe.predictions.prediction_of`; what they shall be, by the keys of
the batch and the shape of the logits, never by the architecture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from math import exp, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.checkpoint.own_class import own_class_of
from isomerge.errors import IsomergeError, first_line
from isomerge.models.model_inputs import DISCRIMINATORS
from isomerge.observe.data.examples import IGNORED, Examples
from isomerge.observe.live.own_modules import LABELS, called_with, first_output, own_loss_of
from isomerge.observe.predictions import CLASSES, OwnLoss, Prediction, prediction_of
from isomerge.records import Record, hidden


class Figures(Record):
    """What a model is worth."""

    loss: float
    """Mean negative log-likelihood in nats, per example, label or predicted token; of values the mean squared
    error."""
    accuracy: float | None
    """The share of classes, labels or predicted tokens that are the likeliest one; None for values."""

    @property
    def sentence(self) -> str:
        """The loss, and the accuracy where there is one."""
        accuracy = "" if self.accuracy is None else f" ({100 * self.accuracy:.1f} %)"
        return f"{self.loss:.3f}{accuracy}"


class Losses(Figures):
    """With the perplexity of a language model."""

    perplexity: float | None
    """The exponential of the loss of a language model; None for others. Infinite when it is beyond floats."""


class Measure(Losses):
    """How well a module predicts."""

    examples: int
    unit: str = "nats"
    """Of the loss: ``nats``, ``nats per token``, ``nats per label``, ``squared units``, ``squared units per
    token``."""
    chance: float | None = hidden(None)
    """Of several models together (`isomerge.evidence.barrier.ensemble`) the loss of a guess that takes all outcomes
    for equally likely; None where none is right or wrong, and of one model."""

    @property
    def figures(self) -> Figures:
        """Loss and accuracy alone."""
        return Figures(self.loss, self.accuracy)

    @property
    def losses(self) -> Losses:
        """Without what they are of."""
        return Losses(self.loss, self.accuracy, self.perplexity)


def logits_of(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The logits of a batch: [n, classes] or [n, length, vocabulary], at least float32, on the module's device.

    Of a head with one logit per token they are [n, length, 1]. ``labels`` are not given to the module. Gradients
    are kept when they are on.

    Raises:
        IsomergeError: the module cannot read this batch, or has no head that predicts.
    """
    outputs = outputs_of(module, batch)
    if own_class_of(module) is not None:
        logits = first_output(module, outputs)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))
    logits = getattr(outputs, "logits", None)
    logits = getattr(outputs, "prediction_logits", None) if logits is None else logits
    if logits is None and getattr(outputs, "start_logits", None) is not None:
        raise IsomergeError(
            f"{type(module).__name__} tells where an answer starts and ends, and its head has no loss here: match "
            "it by its weights, or by activations with --data"
        )
    if logits is None:
        raise IsomergeError(
            f"{type(module).__name__} predicts nothing, so it has no loss: give a checkpoint with a head"
        )
    return by_position(module, logits.to(torch.promote_types(logits.dtype, torch.float32)))


def by_position(module: nn.Module, logits: Tensor) -> Tensor:
    """A module's logits with an axis of outputs: those of one logit per token become [n, length, 1]."""
    return logits.unsqueeze(-1) if type(module).__name__ in DISCRIMINATORS and logits.ndim == 2 else logits


def outputs_of(module: nn.Module, batch: Mapping[str, Tensor]) -> Any:
    """What a module gives for a batch, with a head or without; ``labels`` are not given to it.

    Raises:
        IsomergeError: the module cannot read this batch, or the device has too little memory.
    """
    _check_reads(module, batch)
    inputs = _brought_to(module, {name: x for name, x in batch.items() if name != "labels"})
    try:
        return module(**inputs) if own_class_of(module) is None else called_with(module, {**batch, **inputs})
    except (IndexError, KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise IsomergeError("the device has too little memory: give a smaller --batch-size") from error
        raise IsomergeError(
            f"{type(module).__name__} cannot read these examples ({first_line(error)}): "
            "check that they are made for this checkpoint, or give shorter ones"
        ) from error


def _brought_to(module: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A batch on a module's device, floating point in float64 where that computes in it: examples are float32."""
    first = next(module.parameters())
    wide = torch.float64 if first.dtype == torch.float64 else None
    return {name: x.to(first.device, wide if x.is_floating_point() else None) for name, x in batch.items()}


def _check_reads(module: nn.Module, batch: Mapping[str, Tensor]) -> None:
    """Raise an IsomergeError where a batch lacks what a module reads first."""
    needed = getattr(module, "main_input_name", None)
    if needed and needed not in batch and needed in signature(module.forward).parameters:
        names = ", ".join(name for name in batch if name != "labels")
        raise IsomergeError(
            f"{type(module).__name__} reads {needed}, and the examples have {names}: give data that are made "
            f"for this checkpoint"
        )


def targets_of(batch: Mapping[str, Tensor], logits: Tensor, kind: Prediction = CLASSES) -> Tensor:
    """What logits shall predict: class ids [n], or tokens [n, length] with -100 where nothing is predicted.

    Of several labels and of values: floats of the shape of the logits, with -100 where a token is padding.

    Logits [n, length, vocabulary] without labels are those of a causal model: position i predicts token i + 1,
    where both are tokens and no padding.

    Raises:
        IsomergeError: there are no targets, or they do not fit the logits.
    """
    labels = batch.get("labels")
    if labels is None and kind is CLASSES and logits.ndim == 3 and "input_ids" in batch:
        ids = batch["input_ids"]
        seen = batch.get("attention_mask", torch.ones_like(ids)) == 1
        labels = torch.full_like(ids, IGNORED)
        labels[:, :-1] = torch.where(seen[:, :-1] & seen[:, 1:], ids[:, 1:], IGNORED)
    if isinstance(kind, OwnLoss):
        return kind.targets(batch, logits)
    if kind is not CLASSES and labels is not None:
        return _numbers_of(batch, labels, logits)
    if labels is None:
        raise IsomergeError("the data have no labels, so there is no loss: give a label with every example")
    if labels.shape != logits.shape[:-1]:
        raise _unfit(labels, logits)
    outside = (labels != IGNORED) & ((labels < 0) | (labels >= logits.shape[-1]))
    if bool(outside.any()):
        raise IsomergeError(
            f"label {int(labels[outside][0])} is none of the {logits.shape[-1]} classes that the model predicts (0 "
            f"to {logits.shape[-1] - 1}): check that the data are made for this checkpoint"
        )
    return labels.to(logits.device)


def _numbers_of(batch: Mapping[str, Tensor], labels: Tensor, logits: Tensor) -> Tensor:
    """Labels as floats of the shape of the logits."""
    if logits.shape[-1] == 1 and labels.shape == logits.shape[:-1]:
        labels = labels.unsqueeze(-1)
    if labels.shape != logits.shape:
        raise _unfit(labels, logits)
    mask = batch.get("attention_mask")
    if logits.ndim == 3 and mask is not None and mask.shape == logits.shape[:-1]:
        labels = labels.masked_fill(mask.unsqueeze(-1) == 0, IGNORED)
    return labels.to(logits)


def _unfit(labels: Tensor, logits: Tensor) -> IsomergeError:
    return IsomergeError(
        f"labels of shape {list(labels.shape)} do not fit logits of shape {list(logits.shape)}: "
        "check that the data are made for this checkpoint"
    )


@dataclass
class Tally:
    """Sums over batches."""

    kind: Prediction
    total: float = 0.0
    count: int = 0
    right: list[int] = field(default_factory=list)
    tokens: bool = False

    def add(self, logits: Tensor, batch: Mapping[str, Tensor]) -> None:
        """Add a batch.

        Raises:
            IsomergeError: see `targets_of`.
        """
        loss, seen, right = self.kind.loss(logits, targets_of(batch, logits, self.kind))
        self.total, self.count, self.tokens = self.total + float(loss), self.count + seen, logits.ndim == 3
        self.right += [] if right is None else [right]

    def measure(self, examples: int) -> Measure:
        """The means, of so many examples.

        Raises:
            IsomergeError: nothing was predicted, or the loss is no number.
        """
        if self.count == 0:
            raise IsomergeError("the data leave nothing to predict: give longer texts, or labels")
        loss = self.total / self.count
        if not isfinite(loss):
            raise IsomergeError(f"the loss is {loss}: the model's outputs are no numbers in this dtype")
        accuracy = sum(self.right) / self.count if self.right else None
        language = self.tokens and self.kind is CLASSES
        perplexity = (exp(loss) if loss < 700 else float("inf")) if language else None
        return Measure(loss, accuracy, perplexity, examples, self.kind.unit(tokens=self.tokens))


def evaluate(module: nn.Module, examples: Examples, batch_size: int = 32) -> Measure:
    """The loss of a module on all examples, without gradients; batches do not change it but for rounding.

    Raises:
        IsomergeError: examples without labels, or a module that does not give numbers.
    """
    tally = Tally(prediction_of(module, examples.tensors.get("labels")))
    with torch.no_grad():
        for number, batch in enumerate(examples.batches(batch_size)):
            if number == 0:
                check_own_loss(module, batch, tally.kind)
            tally.add(logits_of(module, batch), batch)
    return tally.measure(len(examples))


def check_own_loss(module: nn.Module, batch: Mapping[str, Tensor], kind: Prediction) -> None:
    """Refuse a module of one's own that gives another loss than that of its outputs and labels, where no function
    says how it is computed: nobody knows then what its labels are.

    Raises:
        IsomergeError: naming both losses.
    """
    own = own_class_of(module)
    taken = LABELS in signature(module.forward).parameters
    if own is None or own.loss is not None or not taken or LABELS not in batch:
        return
    with torch.no_grad():
        outputs = called_with(module, _brought_to(module, batch), labels=True)
        theirs, logits = own_loss_of(outputs), logits_of(module, batch)
        total, count, _ = kind.loss(logits, targets_of(batch, logits, kind))
    ours = float(total) / max(count, 1)
    if theirs is not None and abs(float(theirs) - ours) > 1e-3 * max(1.0, abs(ours)):
        raise IsomergeError(
            f"{type(module).__name__} gives a loss of {float(theirs):.4g}, and its outputs and labels make one of "
            f"{ours:.4g}: give loss=, a function of outputs and labels, as it computes its loss"
        )


def divergence(
    ends: Sequence[Tensor], logits: Tensor, kept: Tensor | None = None, kind: Prediction = CLASSES
) -> Tensor:
    """How far a model is from its parents, without labels: KL(mean of the ends' distributions || the model's) in
    nats, or the squared difference of values.

    Args:
        ends: logits of the parents on a batch, each of the shape of ``logits``.
        logits: the model's, [n, k] or [n, length, k]; gradients flow into them.
        kept: bool [n, length], the positions that count (no padding); all by default.
        kind: what the logits mean.

    Returns:
        [n]: per example, averaged over its positions.
    """
    terms = kind.divergence(kind.mean(ends), logits)
    if terms.ndim == 1:
        return terms
    weights = torch.ones_like(terms) if kept is None else kept.to(terms.dtype)
    return (terms * weights).sum(-1) / weights.sum(-1).clamp_min(1)

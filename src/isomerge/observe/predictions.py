"""What a model's outputs mean: their loss, their mean over models, and how far two of them are apart.

`CLASSES` (or tokens): one of several, by softmax and cross-entropy. `LABELS`: several that may hold at once, by
binary cross-entropy per label. `VALUES`: numbers, by the squared error. Which of them is decided once, by
`prediction_of`, from the config of a module and the labels of the data, as the heads of transformers decide it.

Logits are [n, k], or [n, length, k] where every token has an answer; a *position* is what all but the last axis
count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from isomerge.checkpoint.own_class import own_class_of
from isomerge.errors import IsomergeError, own_code
from isomerge.models.model_inputs import Inputs
from isomerge.observe.data.examples import IGNORED


class Prediction(ABC):
    """One meaning of outputs; see `CLASSES`, `LABELS` and `VALUES`."""

    measure: ClassVar[str] = "nats"
    """What losses are measured in."""

    def unit(self, *, tokens: bool) -> str:
        """What a mean loss is measured in, for answers per example or per token."""
        return f"{self.measure} per token" if tokens else self.measure

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, int, int | None]:
        """The loss against labels.

        Args:
            logits: [n, k] or [n, length, k].
            targets: as `isomerge.observe.losses.targets_of` gives them; -100 where nothing is predicted.

        Returns:
            Its sum (a scalar with gradients), how many predictions it is summed over, and how many of them are
            right; None where no prediction is right or wrong.
        """

    @abstractmethod
    def mean(self, logits: Sequence[Tensor]) -> Tensor:
        """The logits of the mean of several models' predictions, of the shape of one of them."""

    @abstractmethod
    def outcome(self, logits: Tensor) -> Tensor:
        """The predictions themselves, whose weighted sums are predictions: probabilities, or values; of the same
        shape."""

    @abstractmethod
    def gap(self, logits: Tensor, wanted: Tensor) -> Tensor:
        """The loss against other predictions (of `outcome`), per position: [n] or [n, length]."""

    @abstractmethod
    def divergence(self, target: Tensor, logits: Tensor) -> Tensor:
        """How far logits are from those of a target (of `mean`), per position: [n] or [n, length]; 0 where they are
        equal."""

    def entropy(self, logits: Tensor) -> Tensor | None:
        """How undecided predictions are in nats, per position, with gradients; None where predictions are numbers,
        which do not say how sure they are."""
        return None

    def rounding(self, target: Tensor) -> float:
        """What a float32 `divergence` from a target may be, of either sign, where there is none: the terms of a KL
        cancel, and each is as large as a probability."""
        return torch.finfo(torch.float32).eps


class Classes(Prediction):
    """One class or token of several."""

    def loss(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, int, int | None]:
        """See `Prediction`; targets are ids [n] or [n, length]."""
        kept = targets != IGNORED
        logits, targets = logits[kept], targets[kept]
        loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
        return loss, len(targets), int((logits.argmax(-1) == targets).sum())

    def mean(self, logits: Sequence[Tensor]) -> Tensor:
        """The logarithms of the mean probabilities, normalised."""
        return torch.stack([x.log_softmax(-1) for x in logits]).logsumexp(0) - log(len(logits))

    def outcome(self, logits: Tensor) -> Tensor:
        """Probabilities of the classes."""
        return logits.softmax(-1)

    def gap(self, logits: Tensor, wanted: Tensor) -> Tensor:
        """The cross-entropy."""
        return -(wanted * logits.log_softmax(-1)).sum(-1)

    def entropy(self, logits: Tensor) -> Tensor:
        """Shannon's, of the classes."""
        return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)

    def divergence(self, target: Tensor, logits: Tensor) -> Tensor:
        """KL(target || model)."""
        return (target.exp() * (target - logits.log_softmax(-1))).sum(-1)


class Labels(Prediction):
    """Several labels, each of which holds or does not."""

    def unit(self, *, tokens: bool) -> str:
        """Per label, or per token with one."""
        return "nats per token" if tokens else "nats per label"

    def loss(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, int, int | None]:
        """See `Prediction`; targets are floats of the shape of the logits, and every label counts as a
        prediction."""
        kept = targets != IGNORED
        logits, targets = logits[kept], targets[kept]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
        return loss, len(targets), int(((logits > 0) == (targets > 0.5)).sum())

    def mean(self, logits: Sequence[Tensor]) -> Tensor:
        """The logits of every label's mean probability."""
        stacked = torch.stack(list(logits))
        holds, fails = (torch.nn.functional.logsigmoid(x).logsumexp(0) for x in (stacked, -stacked))
        return holds - fails

    def outcome(self, logits: Tensor) -> Tensor:
        """The probability of every label."""
        return logits.sigmoid()

    def gap(self, logits: Tensor, wanted: Tensor) -> Tensor:
        """The binary cross-entropy, the mean over labels."""
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(-1)

    def entropy(self, logits: Tensor) -> Tensor:
        """Shannon's of whether a label holds, the mean over labels."""
        holds = logits.sigmoid()
        return -(holds * logsigmoid(logits) + (1 - holds) * logsigmoid(-logits)).mean(-1)

    def divergence(self, target: Tensor, logits: Tensor) -> Tensor:
        """KL(target || model), the mean over labels."""
        terms = target.sigmoid() * (logsigmoid(target) - logsigmoid(logits))
        return (terms + (-target).sigmoid() * (logsigmoid(-target) - logsigmoid(-logits))).mean(-1)


class Values(Prediction):
    """Numbers, such as a reward."""

    measure = "squared units"

    def loss(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, int, int | None]:
        """See `Prediction`; targets are floats of the shape of the logits, -100 is left out of tokens only."""
        if logits.ndim == 3:
            kept = targets != IGNORED
            logits, targets = logits[kept], targets[kept]
        return (logits - targets).square().sum(), targets.numel(), None

    def mean(self, logits: Sequence[Tensor]) -> Tensor:
        """The mean of the values."""
        return torch.stack(list(logits)).mean(0)

    def outcome(self, logits: Tensor) -> Tensor:
        """The values."""
        return logits

    def gap(self, logits: Tensor, wanted: Tensor) -> Tensor:
        """The squared error, the mean over outputs."""
        return (logits - wanted).square().mean(-1)

    def divergence(self, target: Tensor, logits: Tensor) -> Tensor:
        """The squared difference, the mean over outputs."""
        return self.gap(logits, target)

    def rounding(self, target: Tensor) -> float:
        """That of the largest value, squared: nothing cancels."""
        return (torch.finfo(torch.float32).eps * float(target.abs().max())) ** 2


CLASSES, LABELS, VALUES = Classes(), Labels(), Values()


@dataclass(frozen=True)
class OwnLoss(Prediction):
    """Predictions of a module of one's own, with a loss of one's own; distances between models are as of those
    without."""

    function: Callable[[Any, Any], Any]
    """From outputs and labels to the mean loss of a batch."""

    def unit(self, *, tokens: bool) -> str:
        """Whatever the function measures in."""
        return "units of loss="

    def targets(self, batch: Mapping[str, Tensor], logits: Tensor) -> Any:
        """What the function is given beside outputs: the labels, or the batch where it has none, on the device of
        the outputs."""
        labels = batch.get("labels")
        if labels is not None:
            return labels.to(logits.device)
        return {name: x.to(logits.device) for name, x in batch.items()}

    def loss(self, logits: Tensor, targets: Any) -> tuple[Tensor, int, int | None]:
        """See `Prediction`; the mean loss of the batch, times its examples.

        Raises:
            IsomergeError: the function does not run on these, or gives no number.
        """
        what = f"loss= does not run on outputs {list(logits.shape)} and labels"
        with own_code(what, "give a function of outputs and labels"):
            loss = self.function(logits, targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise IsomergeError("loss= gives no single number: give a function whose result is the mean of a batch")
        right = None
        if (
            isinstance(self, Classes)
            and isinstance(targets, Tensor)
            and targets.shape == logits.shape[:1]
            and logits.ndim == 2
        ):
            right = int((logits.argmax(-1) == targets).sum())
        return loss.reshape(()) * len(logits), len(logits), right


class OwnLossOfClasses(OwnLoss, Classes):
    """Where one class of several is predicted."""


class OwnLossOfValues(OwnLoss, Values):
    """Where numbers are predicted."""


KINDS: dict[str, Prediction] = {"classes": CLASSES, "labels": LABELS, "values": VALUES}


def prediction_of(module: nn.Module, labels: Tensor | None = None) -> Prediction:
    """What the outputs of a module mean.

    Args:
        module: a Hugging Face module, or one of one's own, which predicts values where the labels are floating
            point, else classes; one without a config predicts classes.
        labels: those of the data, [n] or more axes, where there are some: floating-point labels of several outputs
            are several at once.
    """
    own = own_class_of(module)
    if own is not None:
        values = labels is not None and labels.is_floating_point()
        if own.loss is None:
            return VALUES if values else CLASSES
        return OwnLossOfValues(own.loss) if values else OwnLossOfClasses(own.loss)
    config = getattr(module, "config", None)
    if not hasattr(config, "to_dict"):
        return CLASSES
    settings: Any = config
    about = {**settings.to_dict(), "architectures": [type(module).__name__]}
    return KINDS[Inputs(about).kind(labels)]

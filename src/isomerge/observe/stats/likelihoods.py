"""Log-likelihoods of examples: what is differentiated for the Fisher information.

A *sample* is one example: an image with its class, or a whole sequence. Its log-likelihood is log p(y | x) for a
class, and the mean of log p(y_t | x, y_<t) over the predicted tokens for sequences, so that long texts count as
much as short ones.

Which y: those of the data (``given``: the empirical Fisher), one drawn from the model's own prediction
(``sampled``), or all classes, by their probability (``expected``: the Fisher itself).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.observe.data.examples import IGNORED, Examples
from isomerge.observe.losses import targets_of

LABELS = ("sampled", "given", "expected")


def labels_for(examples: Examples, labels: str | None) -> str:
    """The choice of labels: ``sampled`` by default where the data have none, ``given`` where they have.

    Raises:
        IsomergeError: no such choice, or given labels where there are none.
    """
    choice = labels or ("given" if examples.labelled else "sampled")
    if choice not in LABELS:
        raise IsomergeError(f"--fisher-labels {labels}: choose from {', '.join(LABELS)}")
    if choice == "given" and not examples.labelled:
        raise IsomergeError("--fisher-labels given: the data have no labels; choose --fisher-labels sampled")
    return choice


def log_likelihoods(
    logits: Tensor, example: Mapping[str, Tensor], labelled: bool, labels: str, seed: int
) -> Iterator[tuple[float, Tensor]]:
    """The log-likelihoods (scalars) whose squared gradients count, with their shares, of one example.

    Args:
        logits: [1, classes] or [1, length, classes].
        example: a batch of one.
        labelled: whether it says what is predicted.
    """

    if logits.shape[-1] == 1:
        raise IsomergeError(
            "a model with a single output predicts no distribution, so it has no Fisher information"
        )
    logs = logits.log_softmax(-1)
    if labels == "expected":
        if logits.ndim != 2:
            raise IsomergeError(
                "--fisher-labels expected: this model predicts tokens, too many to sum over; choose sampled"
            )
        yield from zip(logs[0].detach().exp().tolist(), logs[0], strict=True)
        return
    targets = _targets(logits, example, labelled)
    kept = targets != IGNORED
    if not bool(kept.any()):
        return
    if labels == "sampled":
        rng = torch.Generator().manual_seed(seed)
        u = torch.rand(targets.shape, generator=rng, dtype=torch.float64)[..., None]
        below = logs.detach().double().exp().cumsum(-1).cpu() < u
        targets = below.sum(-1).clamp_max(logits.shape[-1] - 1).to(logits.device)
    chosen = logs.gather(-1, targets.clamp_min(0)[..., None])[..., 0]
    yield 1.0, chosen[kept].mean()


def _targets(logits: Tensor, example: Mapping[str, Tensor], labelled: bool) -> Tensor:
    """What is predicted where; without labels every position that is no padding counts, and is given class 0."""

    if labelled:
        return targets_of(example, logits)
    targets = torch.zeros(logits.shape[:-1], dtype=torch.int64, device=logits.device)
    mask = example.get("attention_mask")
    if mask is not None and mask.shape == targets.shape:
        targets[mask.to(targets.device) == 0] = IGNORED
    return targets

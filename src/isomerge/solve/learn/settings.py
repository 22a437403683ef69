"""How a matching is learned: settings, what is done to examples, and which predictions count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Generator, Tensor

from isomerge.errors import IsomergeError
from isomerge.observe.data.examples import IGNORED, Examples

NO_EFFORT = "none"
"""Nothing is learned, also where a merge would."""
JUDGED_TOKENS = 8192
"""About as many held-out tokens judge a path: every look costs as much as a few steps, and candidates see the same
tokens."""
EFFORTS = {"quick": 300, "thorough": 3000}


@dataclass(frozen=True)
class LearnSettings:
    """How a matching is learned; the defaults are the measured recipe (docs/lab/experiments.md)."""

    steps: int = EFFORTS["quick"]
    batch_size: int | None = None
    """Examples per step; by default as many as make about 2048 tokens, or 128 images."""
    target: str = "auto"
    """``labels``, ``distill`` (the mean of the endpoints' predictions), or ``auto``: the next token for text, else
    ``distill``."""
    rotation_rate: float = 2e-2
    gauge_rate: float = 1e-1
    permutations: bool = False
    device: str = "cpu"
    precision: str = "float32"
    """``bfloat16`` runs the model in mixed precision; the elements stay in float32."""
    shifts: bool = True
    """Shift images at random by up to an eighth of their side."""
    checkpointing: bool = False
    """Trade time for memory: recompute activations in the backward pass."""
    held_out: float = 0.1
    """The share of the examples on which paths are judged."""
    judged: int = 256
    """The largest number of held-out examples."""
    temperature: float = 4.0
    """Predictions of examples that are learned from are softened by it (logits are divided), the mean's and the
    point's. A model that is sure says of what it has seen little more than a label; what it holds of the other
    classes is all that a few images can tell. Tokens are not softened. Source: Hinton et al. 2015."""
    seed: int = 0


def steps_of(effort: str, steps: int | None) -> int:
    """How long to learn, by the words of the command line.

    Raises:
        IsomergeError: an unknown effort.
    """
    if effort not in (*EFFORTS, NO_EFFORT):
        raise IsomergeError(f"--learn-effort {effort}: choose from {', '.join((*EFFORTS, NO_EFFORT))}")
    return EFFORTS.get(effort, EFFORTS["quick"]) if steps is None else steps


def check_settings(settings: LearnSettings) -> None:
    """Raise an IsomergeError for an unknown target or precision, or a number out of range."""
    if settings.steps < 1:
        raise IsomergeError(f"--steps {settings.steps}: at least one step is needed")
    if settings.target not in ("auto", "labels", "distill"):
        raise IsomergeError(f"--learn-target {settings.target}: choose labels or distill")
    if settings.batch_size is not None and settings.batch_size < 1:
        raise IsomergeError(f"--batch-size {settings.batch_size}: at least one example is needed")
    if not isinstance(settings.seed, Integral) or not 0 <= settings.seed < 1 << 32:
        raise IsomergeError(f"--seed {settings.seed}: give a whole number from 0 to 4294967295")
    if settings.precision not in ("float32", "bfloat16"):
        raise IsomergeError(f"--precision {settings.precision}: choose float32 or bfloat16")


def held_out(examples: Examples, settings: LearnSettings) -> tuple[Examples, Examples]:
    """Examples that judge, and those that are learned from; which is which is drawn by the seed.

    Args:
        examples: two or more.
        settings: the share that is held out, and how many judge at most.
    """
    held, rest = examples.split(max(settings.held_out, 0.6 / len(examples)), seed=settings.seed)
    return held.head(min(settings.judged, batch_size_of(held, settings.judged, JUDGED_TOKENS))), rest


def shifted(batch: Mapping[str, Tensor], rng: Generator) -> dict[str, Tensor]:
    """Images [n, c, height, width] shifted at random by up to an eighth of their side, edges repeated; other inputs
    as they are. A few hundred images are soon known by heart: endpoints that have seen them say nothing new about
    them."""
    pixels = batch.get("pixel_values")
    if pixels is None or pixels.ndim != 4:
        return dict(batch)
    n, channels, height, width = pixels.shape
    reach = max(1, min(height, width) // 8)
    down, right = (torch.randint(0, 2 * reach + 1, (n,), generator=rng) for _ in range(2))
    padded = torch.nn.functional.pad(pixels, (reach, reach, reach, reach), mode="replicate")
    rows = (down[:, None] + torch.arange(height)).to(pixels.device)[:, None, :, None]
    columns = (right[:, None] + torch.arange(width)).to(pixels.device)[:, None, None, :]
    moved_rows = padded.gather(2, rows.expand(n, channels, height, width + 2 * reach))
    return {**batch, "pixel_values": moved_rows.gather(3, columns.expand(n, channels, height, width))}


def softened(logits: Tensor, temperature: float) -> Tensor:
    """Logits of whole examples [n, k] divided by a temperature; those of tokens [n, length, k] as they are."""
    return logits / temperature if logits.ndim == 2 else logits


def backward(loss: Tensor) -> None:
    """The backward pass.

    Raises:
        IsomergeError: the device has too little memory for it.
    """
    try:
        loss.backward()
    except torch.OutOfMemoryError as error:
        raise IsomergeError(
            "the device has too little memory: give a smaller --batch-size, or --gradient-checkpointing"
        ) from error


def counted(batch: Mapping[str, Tensor], logits: Tensor) -> Tensor:
    """The predictions that count: all of a classifier, the tokens of a text that are no padding."""
    read, written = batch.get("attention_mask"), batch.get("labels")
    if "decoder_input_ids" in batch:  # the mask is of what the encoder reads
        read = None if written is None else (written != IGNORED).long()
    if logits.ndim == 3 and read is not None and read.shape == logits.shape[:-1]:
        return read.to(logits.device) == 1
    return torch.ones(logits.shape[:-1], dtype=torch.bool, device=logits.device)


# About as much as fits one step: tokens, or images.
TOKENS, IMAGES = 2048, 128


def batch_size_of(examples: Examples, images: int = IMAGES, tokens: int = TOKENS) -> int:
    """How many examples make about so many ``tokens`` of text, at least one; ``images`` where there are no
    tokens."""
    ids = examples.tensors.get("input_ids")
    return images if ids is None else max(1, tokens // ids.shape[1])

"""What every arm of the comparison learns: Fashion-MNIST in patches of 4x4 pixels, and bytes of real English.

Images and text are those of the barrier benchmark (`benchmarks.barrier.data`). The order of the examples depends
on the seed alone, so that all arms see the same batches. Learning rates are chosen on a part of their own,
*validation*; what is reported comes from *test*, which takes part in nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.barrier.data import WINDOW, held_out_windows, load_images, load_text, windows

PATCH = 4
SIDE = 28
PATCHES = (SIDE // PATCH) ** 2
CLASSES = 10
BYTES = 256
VALIDATION_IMAGES, TEST_IMAGES = 1000, 4000
VALIDATION_WINDOWS = 256
PART = 250
"""Examples that are scored at once."""


@dataclass(frozen=True)
class Scores:
    """Means over a part of the data."""

    loss: float
    """Cross-entropy in nats: per image, or per byte that follows the first of its window."""
    accuracy: float
    """Share of images, or of bytes, whose most probable class is right."""


class Fashion:
    """Ten classes of grey images 28x28: float32 [n, 1, 28, 28] in -1..1, labels int64 [n].

    The last 1000 training images are kept for validation; the first 4000 test images are the test.
    """

    name = "fashion"
    title = "Fashion-MNIST"
    batch = 32

    def __init__(self) -> None:
        images, labels = load_images("fashion", "train")
        test, test_labels = load_images("fashion", "test")
        self.train = images[:-VALIDATION_IMAGES], labels[:-VALIDATION_IMAGES]
        self.parts = {
            "validation": (images[-VALIDATION_IMAGES:], labels[-VALIDATION_IMAGES:]),
            "test": (test[:TEST_IMAGES], test_labels[:TEST_IMAGES]),
        }

    def batches(self, seed: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The training batches of a seed: passes over all images, each in an order of its own."""
        generator = torch.Generator().manual_seed(1000 + seed)
        images, labels = self.train
        rows = torch.empty(0, dtype=torch.long)
        for _ in range(steps):
            if len(rows) < self.batch:
                rows = torch.randperm(len(labels), generator=generator)
            now, rows = rows[: self.batch], rows[self.batch :]
            yield images[now], labels[now]

    def part(self, name: str) -> tuple[Tensor, Tensor]:
        """Inputs and targets of ``validation`` or ``test``."""
        return self.parts[name]

    def known(self) -> float:
        """The test loss of who knows only how frequent each class is."""
        return constant_loss(self.train[1], self.parts["test"][1], CLASSES)


class Text:
    """The next byte of addresses on the State of the Union: windows int64 [n, 128]; targets are the inputs, one
    later.

    Validation is every fourth of the held-out windows of the barrier benchmark, test every second, no window in
    both.
    """

    name = "text"
    title = "text, byte by byte"
    batch = 8

    def __init__(self) -> None:
        self.text = load_text("train")
        held_out = held_out_windows()
        self.parts = {"validation": held_out[0::4], "test": held_out[1::2]}

    def batches(self, seed: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The training batches of a seed: windows that begin anywhere."""
        generator = torch.Generator().manual_seed(1000 + seed)
        for _ in range(steps):
            starts = torch.randint(len(self.text) - WINDOW + 1, (self.batch,), generator=generator)
            yield split_window(windows(self.text, starts))

    def part(self, name: str) -> tuple[Tensor, Tensor]:
        """Inputs and targets of ``validation`` or ``test``."""
        return split_window(self.parts[name])

    def known(self) -> float:
        """The test loss of who knows only how frequent each byte is."""
        return constant_loss(self.text.long(), self.part("test")[1].flatten(), BYTES)


Task = Fashion | Text
TASKS: dict[str, type[Fashion] | type[Text]] = {"fashion": Fashion, "text": Text}


def split_window(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs [n, 128] and targets [n, 127]: what is read, and the bytes that follow all but the last."""
    return tokens, tokens[:, 1:]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy in nats.

    Args:
        logits: [n, classes] for labels [n], or [n, t, bytes] for the bytes [n, t - 1] that follow.
        targets: int64.
    """
    if logits.ndim == 3:
        logits = logits[:, : targets.shape[1]]
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def constant_loss(seen: Tensor, targets: Tensor, count: int) -> float:
    """The cross-entropy in nats on targets of the frequencies among what was seen, each counted once more."""
    frequency = torch.bincount(seen, minlength=count).double() + 1
    return float(-(frequency / frequency.sum()).log()[targets].mean())


@torch.no_grad()
def score(model: torch.nn.Module, inputs: Tensor, targets: Tensor) -> Scores:
    """Loss and accuracy of a model on a part; not finite where its outputs are not."""
    loss, right = 0.0, 0
    for x, y in zip(inputs.split(PART), targets.split(PART), strict=True):
        logits = model(x)
        loss += float(cross_entropy(logits.double(), y)) * y.numel()
        chosen = logits.argmax(-1)
        right += int(((chosen[:, : y.shape[1]] if chosen.ndim == 2 else chosen) == y).sum())
    return Scores(loss / targets.numel(), right / targets.numel())

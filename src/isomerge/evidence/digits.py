"""The demo's real data: scikit-learn's scanned digits, and how well a classifier reads those it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.evidence.barrier import evaluator
from isomerge.observe.data.examples import Examples

PIXEL_MAX = 16.0


def example_models() -> tuple[Path, Path]:
    """The folders of the two digit classifiers that ship with isomerge, trained from different seeds.

    Raises:
        IsomergeError: they are not installed.
    """
    package = Path(__file__).resolve().parents[1]
    for root in (package / "examples" / "digits", package.parents[1] / "examples" / "digits"):
        if (root / "vit-a" / "model.safetensors").is_file():
            return root / "vit-a", root / "vit-b"
    raise IsomergeError(f"{package}/examples/digits: the demo's models are missing; install isomerge again")


def held_out_digits() -> tuple[Tensor, Tensor]:
    """The 450 test images float32 [n, 1, 8, 8] in -1..1 and their labels int64 [n]; never trained on.

    Raises:
        IsomergeError: scikit-learn is not installed.
    """
    return _digits()[1]


def training_digits() -> list[dict[str, Tensor]]:
    """The 1347 training images and labels, as ``--learn isomerge.evidence.digits:training_digits`` reads them.

    Raises:
        IsomergeError: scikit-learn is not installed.
    """
    images, labels = _digits()[0]
    return [{"pixel_values": images, "labels": labels}]


def labelled_test_digits() -> list[dict[str, Tensor]]:
    """The 450 test images and labels, as ``--data isomerge.evidence.digits:labelled_test_digits`` reads them.

    Raises:
        IsomergeError: scikit-learn is not installed.
    """
    images, labels = held_out_digits()
    return [{"pixel_values": images, "labels": labels}]


def _digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The training and the test part, split as in ``examples/train_digits.py``."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError:
        raise IsomergeError("the demo needs scikit-learn for its data: pip install 'isomerge[demo]'") from None
    digits: Any = load_digits()
    parts = train_test_split(range(len(digits.target)), test_size=0.25, random_state=0, stratify=digits.target)
    images = ((torch.tensor(digits.images, dtype=torch.float32) / PIXEL_MAX - 0.5) / 0.5).unsqueeze(1)
    labels = torch.tensor(digits.target, dtype=torch.int64)
    train, test = ((images[part].contiguous(), labels[part]) for part in parts)
    return train, test


def digit_evaluator() -> Callable[[nn.Module], tuple[float, float]]:
    """A function from a classifier to its test cross-entropy (nats) and accuracy (0..1)."""
    (test,) = labelled_test_digits()
    return evaluator(Examples(test, True), len(test["labels"]))

"""Fine-tunes of the small models of the barrier benchmark: other text, other pictures, at the rate that they were
trained with.

They go into benchmarks/data/fingerprints, a minute or two each; what is there is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import transformers as tf
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.barrier.data import BARRIER, WINDOW, load_images, load_text, windows
from benchmarks.fetch import DATA
from benchmarks.paper.trained import descend

TUNED = DATA / "fingerprints"
STEPS, BATCH, RATE = 150, 16, 1e-3
TEXT, IMAGES = ("gpt2", "llama"), {"vit-digits": "digits", "vit-fashion": "fashion"}


def trained(family: str, seed: int) -> Path:
    """The root of a family and a seed: trained to the end, or for fewer steps where this is what is there."""
    usual = BARRIER / family / f"seed-{seed}"
    return usual if usual.is_dir() else next(iter(sorted((BARRIER / family).glob(f"steps-*-seed-{seed}"))), usual)


def _reading(model: nn.Module) -> Callable[[], Tensor]:
    """The loss on a random batch of windows of another text."""
    text = load_text("moby-dick")

    def loss() -> Tensor:
        batch = windows(text, torch.randint(len(text) - WINDOW, (BATCH,)))
        return F.cross_entropy(model(batch).logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())

    return loss


def _looking(model: nn.Module, images: str) -> Callable[[], Tensor]:
    """The loss on a random batch of pictures upside down, with labels counted backwards."""
    x, y = load_images(images, "train")
    x, y = x.flip(-2), 9 - y

    def loss() -> Tensor:
        rows = torch.randint(len(x), (4 * BATCH,))
        return F.cross_entropy(model(x[rows]).logits, y[rows])

    return loss


def tune(family: str, seed: int) -> None:
    """Language models go on with Moby Dick, image models with their pictures upside down and labels counted
    backwards."""
    out = TUNED / f"{family}-{seed}"
    if (out / "config.json").is_file():
        return
    torch.manual_seed(seed)
    source = trained(family, seed)
    if not source.is_dir():
        return
    kind = tf.AutoModelForCausalLM if family in TEXT else tf.AutoModelForImageClassification
    model = kind.from_pretrained(source)
    loss = _reading(model) if family in TEXT else _looking(model, IMAGES[family])
    descend(model, loss, [RATE] * STEPS, clip=1.0, weight_decay=0.05)
    model.save_pretrained(out)


def tune_all() -> None:
    for name in (*TEXT, *IMAGES):
        for number in range(3):
            tune(name, number)

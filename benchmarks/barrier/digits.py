"""Digit classifiers trained quickly and scored: what the deep models of the paper's Figure 6 are made with."""

from __future__ import annotations

import torch
from torch.nn import functional as F
from transformers import ViTForImageClassification

from benchmarks.barrier.data import load_images
from examples import train_digits

BATCH, WARMUP, DECAY = 64, 50, 0.05


def fitted(model: ViTForImageClassification, steps: int, rate: float, seed: int) -> ViTForImageClassification:
    """A model after so many steps on training images, each moved and turned a little, by labels."""
    rng = torch.Generator().manual_seed(seed)
    images, labels = load_images("digits", "train")
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=rate, weight_decay=DECAY)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / WARMUP) * (1 - step / steps)
        rows = torch.randint(len(labels), (BATCH,), generator=rng)
        logits = model(pixel_values=train_digits.augment(images[rows], rng)).logits
        loss = F.cross_entropy(logits, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def scored(*models: ViTForImageClassification) -> dict[str, float]:
    """Loss in nats and accuracy of the mean of the models' probabilities on test images; the digits 0 to 4 and 5 to 9
    count alike."""
    images, labels = load_images("digits", "test")
    losses, accuracies = [], []
    for rows in (labels < 5, labels >= 5):
        logits = [model(pixel_values=images[rows]).logits for model in models]
        mean = torch.stack([part.double().softmax(-1) for part in logits]).mean(0).log()
        losses.append(float(F.cross_entropy(mean, labels[rows])))
        accuracies.append(float((mean.argmax(-1) == labels[rows]).double().mean()))
    return {"loss": sum(losses) / 2, "accuracy": sum(accuracies) / 2}

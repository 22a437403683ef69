"""Two fine-tunes of one digit classifier, for the guide "Merge two fine-tunes": seconds on one core.

    python demo-out/fine_tunes.py     # trains `mirrored` and `upside-down` from vit-a, which stands beside it

Each sees half of its images as they are, and half flipped in its own way.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import ViTForImageClassification
from transformers.utils import logging

from isomerge.evidence.digits import training_digits

BASE = "vit-a"
AXES = {"mirrored": -1, "upside-down": -2}
EPOCHS, BATCH, RATE = 3, 32, 1e-3


def fine_tune(images: Tensor, labels: Tensor, axis: int) -> ViTForImageClassification:
    """The base, trained a little further; every second image of a batch is flipped along ``axis``."""
    torch.manual_seed(0)
    model = ViTForImageClassification.from_pretrained(BASE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(labels)).split(BATCH):
            seen = torch.cat([images[batch[::2]], images[batch[1::2]].flip(axis)])
            wanted = torch.cat([labels[batch[::2]], labels[batch[1::2]]])
            optimizer.zero_grad()
            cross_entropy(model(pixel_values=seen).logits, wanted).backward()
            optimizer.step()
    return model.eval()


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    digits = training_digits()[0]
    for name, axis in AXES.items():
        fine_tune(digits["pixel_values"], digits["labels"], axis).save_pretrained(name)
        print(f"Trained {name} from {BASE}.")

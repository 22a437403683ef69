"""How well digit classifiers read 450 digits that none of them has seen.

python demo-out/score.py [--flipped] MODEL ...     # --flipped: mirrored and upside down as well
"""

from __future__ import annotations

import sys

import torch
from transformers import ViTForImageClassification
from transformers.utils import logging

from isomerge.evidence.digits import held_out_digits

FLIPS = {"as they are": (), "mirrored": (-1,), "upside down": (-2,)}


@torch.no_grad()
def score(folder: str, axes: tuple[int, ...]) -> float:
    """The share of digits, flipped along these axes, that are read right."""
    model = ViTForImageClassification.from_pretrained(folder).eval()
    images, labels = held_out_digits()
    return float((model(pixel_values=images.flip(axes)).logits.argmax(-1) == labels).double().mean())


if __name__ == "__main__":
    logging.disable_progress_bar()
    flipped = "--flipped" in sys.argv
    folders = [word for word in sys.argv[1:] if word != "--flipped"]
    columns = FLIPS if flipped else {"as they are": ()}
    width = max(map(len, [*folders, "digits"]))
    print(f"{'digits':{width}}", *(f"{name:>12}" for name in columns))
    for folder in folders:
        print(f"{folder:{width}}", *(f"{score(folder, axes):>12.1%}" for axes in columns.values()))

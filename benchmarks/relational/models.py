"""The two kinds of model that are compared, of one width, depth and number of heads.

*Standard*: the pre-norm transformers of the barrier benchmark, Hugging Face's ViT and GPT-2. *Relational*:
attention whose scores are forms of the inner products with anchors (`isomerge.relational`); with factors of the
rank that a standard head has, or with one full form per head, in which no gauge is left.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.barrier.data import WINDOW
from benchmarks.barrier.train import Run, gpt2, vit
from benchmarks.relational.data import BYTES, CLASSES, PATCH, PATCHES, SIDE

WIDTH, LAYERS, HEADS, MLP = 64, 4, 4, 256
ANCHORS = WIDTH
RANK = WIDTH // HEADS


class Standard(nn.Module):
    """A Hugging Face model that gives logits; ``model`` is the model itself, which a spec describes."""

    def __init__(self, task: str, seed: int) -> None:
        super().__init__()
        self.task = task
        if task == "fashion":
            self.model = vit(SIDE, PATCH, MLP, 0.05, Run("vit-fashion", seed, WIDTH, 1))
        else:
            self.model = gpt2(Run("gpt2", seed, WIDTH, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [n, 10] of images [n, 1, 28, 28], or [n, t, 256] of bytes [n, t]."""
        if self.task == "fashion":
            return self.model(pixel_values=inputs).logits
        return self.model(input_ids=inputs, use_cache=False).logits


class Relational(nn.Module):
    """A relational transformer that gives logits; ``rank`` None: one full form per head."""

    def __init__(self, task: str, seed: int, rank: int | None) -> None:
        from isomerge.relational import RelationalConfig, RelationalTransformer

        super().__init__()
        self.task = task
        images = task == "fashion"
        torch.manual_seed(seed)
        self.model = RelationalTransformer(
            RelationalConfig(
                width=WIDTH,
                layers=LAYERS,
                heads=HEADS,
                anchors=ANCHORS,
                mlp=MLP,
                rank=rank,
                vocab=None if images else BYTES,
                patch=PATCH * PATCH if images else None,
                channels=1,
                length=PATCHES if images else WINDOW,
                classes=CLASSES if images else None,
                causal=not images,
            )
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [n, 10] of images [n, 1, 28, 28], or [n, t, 256] of bytes [n, t]."""
        from isomerge.relational import patches_of

        return self.model(patches_of(inputs, PATCH) if self.task == "fashion" else inputs)


def count_parameters(model: nn.Module) -> int:
    """Trained numbers; what is used in two places counts once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)

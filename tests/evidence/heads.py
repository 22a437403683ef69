"""Tiny BERTs with heads of every kind of prediction, and data for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as tf

from toy_settings import BODY_OF_THREE
from toys import randomise

IDS = torch.randint(4, 60, (12, 7), generator=torch.Generator().manual_seed(1))
REWARDS = torch.linspace(-2, 3, 12)
SEVERAL = (torch.arange(36).reshape(12, 3) % 2).float()
REPLACED = (IDS % 3 == 0).long()


def head(folder: Path, seed: int, kind: str = "BertForSequenceClassification", **config: Any) -> Path:
    """A randomised model of one layer with a head, saved; ``config`` has ``num_labels``, ``problem_type``."""
    made = tf.ElectraConfig if kind.startswith("Electra") else tf.BertConfig
    about = {
        **BODY_OF_THREE,
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 12,
    }
    model = getattr(tf, kind)(made(**about, **config)).eval()
    randomise(model, seed)
    model.save_pretrained(folder)
    return folder

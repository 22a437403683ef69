"""Constructors of tiny models that choose the keys they see, with experts, and their inputs (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

from toy_experts import LATENT
from toy_languages import KNOWN
from toy_seeing import IMAGE, TOWER

Inputs = dict[str, torch.Tensor]
CHOOSING: dict[str, Any] = {"index_topk": 4, "index_head_dim": 10, "index_n_heads": 3}
LARGE: dict[str, Any] = {
    **{k: v for k, v in LATENT.items() if k not in ("q_lora_rank", "n_group", "topk_group")}, **KNOWN, **CHOOSING, "num_hidden_layers": 4,
    "no_rope_layers": [1, 0, 1, 1], "indexer_types": ["full", "full", "shared", "full"], "n_routed_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
LARGE_WHOLE: dict[str, Any] = {
    "text_config": LARGE, "vision_config": {**TOWER, "model_type": "pixtral", "num_hidden_layers": 2}, "image_token_index": IMAGE, "multimodal_projector_bias": True,
}  # fmt: skip


def _large(**changes: Any) -> Any:
    config = tf.MistralLarge4Config(**{**LARGE_WHOLE, "text_config": {**LARGE, **changes}})
    return tf.MistralLarge4ForConditionalGeneration(config)


# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm, or softmax, is computed in float32.
SPARSE: dict[str, tuple[Callable[[], Any], float]] = {
    "mistral_large4": (_large, 1e-5),
}


def _random(rng: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def _words(rng: torch.Generator, pieces: int) -> torch.Tensor:
    """Three texts; behind the first token stand so many that stand for what is seen."""
    ids = torch.randint(4, 60, (3, pieces + 9), generator=rng)
    ids[:, 1 : 1 + pieces] = IMAGE
    return ids


def _sized(_: Any, rng: torch.Generator) -> Inputs:
    """Images whose sizes are told, of which four patches at once are merged."""
    return {
        "input_ids": _words(rng, 4), "pixel_values": _random(rng, 3, 3, 8, 8), "image_sizes": torch.tensor([[8, 8]] * 3),
    }  # fmt: skip


SPARSE_INPUTS: dict[str, Callable[[Any, torch.Generator], Inputs]] = {"mistral_large4": _sized}
"""By model type: how its inputs are made."""

CONVERTED_SPARSE = [*SPARSE]
"""Those that transformers stores otherwise than it computes with them."""

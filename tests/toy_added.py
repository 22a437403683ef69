"""Constructors of tiny models of the types that were described last, and their inputs (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

from toy_languages import KNOWN
from toy_seeing import IMAGE, TEXT, TOWER

Inputs = dict[str, torch.Tensor]
HEARD = 62
"""The id of the token that stands for a piece of sound."""
PHI_PATCHES: dict[str, Any] = {**TOWER, "num_hidden_layers": 3, "crop_size": 8, "image_token_id": IMAGE}
PHI_SOUND: dict[str, Any] = {
    "hidden_size": 40, "intermediate_size": 36, "num_blocks": 2, "num_attention_heads": 5, "ext_pw_out_channel": 40, "depthwise_separable_out_channel": 40,
    "input_size": 20, "nemo_conv_channels": 12, "bias_max_distance": 4, "audio_token_id": HEARD,
}  # fmt: skip
PHI4: dict[str, Any] = {
    **{k: v for k, v in TEXT.items() if k != "head_dim"}, **KNOWN, "vision_config": PHI_PATCHES, "audio_config": PHI_SOUND,
}  # fmt: skip


def _phi4(**sound: Any) -> Any:
    config = {**PHI4, "audio_config": {**PHI_SOUND, **sound}}
    return tf.Phi4MultimodalForCausalLM(tf.Phi4MultimodalConfig(**config))


# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm, or softmax, is computed in float32.
ADDED: dict[str, tuple[Callable[[], Any], float]] = {
    "phi4_multimodal": (_phi4, 1e-5),
    "phi4_multimodal-sound": (
        lambda: _phi4(time_reduction=4, conv_activation="relu", depthwise_multiplier=2, nemo_activation="gelu"),
        1e-5,
    ),
}


def _random(rng: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def _words(rng: torch.Generator, pieces: int, token: int = IMAGE) -> torch.Tensor:
    """Three texts; behind the first token stand so many that stand for what is seen or heard."""
    ids = torch.randint(4, 60, (3, pieces + 9), generator=rng)
    ids[:, 1 : 1 + pieces] = token
    return ids


def _seen_and_heard(config: Any, rng: torch.Generator) -> Inputs:
    """Images of one tile and as a whole, and sounds; only sounds where these keep every fourth moment."""
    sound = {"audio_input_features": _random(rng, 3, 24, 20)}
    if config.audio_config.time_reduction == 4:
        return {"input_ids": _words(rng, 6, HEARD), **sound, "audio_embed_sizes": torch.tensor([6] * 3)}
    ids = _words(rng, 13)
    ids[:, 15:18] = HEARD
    return {
        "input_ids": ids, "image_pixel_values": _random(rng, 3, 2, 3, 8, 8), "image_sizes": torch.tensor([[8, 8]] * 3),
        "image_attention_mask": torch.ones((3, 2, 4, 4)), **sound, "audio_embed_sizes": torch.tensor([3] * 3),
    }  # fmt: skip


ADDED_INPUTS: dict[str, Callable[[Any, torch.Generator], Inputs]] = {"phi4_multimodal": _seen_and_heard}
"""Inputs by ``model_type``."""

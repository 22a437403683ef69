"""Constructors of tiny models with a switch of their config turned that published checkpoints turn (see
`toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as tf

from toy_encoders import SPARSE, WORDS
from toy_hybrids import ZAMBA2
from toy_models import GROUPED, _falcon
from toy_pictures import DEEP, WINDOWS
from toy_reading import POOLED
from toy_senses import SENSE_CONFIGS
from toy_texts import PROPHET

FLORENCE = SENSE_CONFIGS["florence2"][1]


def in_stages(settings: dict[str, Any], count: int) -> dict[str, Any]:
    """The settings of fewer stages."""
    return {
        key: value[:count] if isinstance(value, list) and len(value) == 4 else value
        for key, value in settings.items()
    }


ALONE: dict[str, Any] = {"is_encoder_decoder": False, "is_decoder": True}

# name -> (constructor, largest relative change of outputs that rounding explains).
SWITCHED: dict[str, tuple[Callable[[], Any], float]] = {
    "phi-normed": (lambda: tf.PhiForCausalLM(tf.PhiConfig(**GROUPED, qk_layernorm=True)), 1e-9),
    "falcon-slopes": (
        lambda: _falcon(new_decoder_architecture=True, num_kv_heads=2, alibi=True, bias=True, tie_word_embeddings=False), 1e-9,
    ),
    "roformer-turned": (lambda: tf.RoFormerForMaskedLM(tf.RoFormerConfig(**WORDS, rotary_value=True)), 1e-9),
    "zamba2-adapted": (
        lambda: tf.Zamba2ForCausalLM(
            tf.Zamba2Config(**{**ZAMBA2, "use_shared_attention_adapter": True, "num_key_value_heads": ZAMBA2["num_attention_heads"]})
        ),
        1e-5,
    ),
    "prophetnet-decoder": (
        lambda: tf.ProphetNetForCausalLM(tf.ProphetNetConfig(**PROPHET, **ALONE, add_cross_attention=False)), 1e-6,
    ),
    "bigbird_pegasus-decoder": (lambda: tf.BigBirdPegasusForCausalLM(tf.BigBirdPegasusConfig(**{**SPARSE, **ALONE})), 1e-9),
    "dpt-labels": (lambda: tf.DPTForSemanticSegmentation(tf.DPTConfig(**DEEP)), 1e-9),
    "swin-three": (lambda: tf.SwinForImageClassification(tf.SwinConfig(**in_stages(WINDOWS, 3))), 1e-9),
    "swin-one": (lambda: tf.SwinForImageClassification(tf.SwinConfig(**in_stages(WINDOWS, 1))), 1e-9),
    "swinv2-three": (lambda: tf.Swinv2ForImageClassification(tf.Swinv2Config(**in_stages(WINDOWS, 3))), 1e-9),
    "hiera-three": (lambda: tf.HieraForImageClassification(tf.HieraConfig(**in_stages(POOLED, 3), num_query_pool=2)), 1e-9),
    "florence2-three": (
        lambda: tf.Florence2ForConditionalGeneration(
            tf.Florence2Config(**{**FLORENCE, "vision_config": in_stages(FLORENCE["vision_config"], 3)})
        ),
        1e-9,
    ),
}  # fmt: skip

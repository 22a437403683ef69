"""Constructors of tiny models of the types that were described last, and their inputs (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as tf

from toy_languages import KNOWN
from toy_models import EXPERTS, SHARED
from toy_seeing import GRID, IMAGE, SECTIONS, TEXT, TOWER
from toy_sense_inputs import seen_and_heard

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
LISTENER: dict[str, Any] = {
    "d_model": 60, "encoder_layers": 2, "encoder_attention_heads": 5, "encoder_ffn_dim": 44, "num_mel_bins": 7, "downsample_hidden_size": 12, "output_dim": 48,
}  # fmt: skip
THINKER: dict[str, Any] = {
    "text_config": {**EXPERTS, **KNOWN, "rope_parameters": SECTIONS}, "image_token_id": IMAGE, "video_token_id": 64, "audio_token_id": HEARD,
    "vision_start_token_id": 65, "audio_start_token_id": 66,
    "vision_config": {
        **GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
    },
    "audio_config": {**LISTENER, "max_source_positions": 8},
}  # fmt: skip
TALKER_TEXT: dict[str, Any] = {
    **SHARED, **KNOWN, "vocab_size": 31, "hidden_size": 40, "num_attention_heads": 4, "intermediate_size": 36, "rope_parameters": SECTIONS,
    "norm_topk_prob": True,
}  # fmt: skip
OMNI3: dict[str, Any] = {
    "thinker_config": THINKER,
    "talker_config": {
        "text_config": TALKER_TEXT, "thinker_hidden_size": 48, "accept_hidden_layer": 1, "num_code_groups": 3, "spatial_merge_size": 2, "speaker_id": {"a": 1},
        "code_predictor_config": {**TEXT, **KNOWN, "vocab_size": 29, "hidden_size": 40, "intermediate_size": 24, "num_code_groups": 3},
    },
    "code2wav_config": {
        "codebook_size": 11, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 12, "num_hidden_layers": 1,
        "num_quantizers": 2, "decoder_dim": 32, "upsample_rates": [2, 2], "upsampling_ratios": [2],
    },
}  # fmt: skip
ASR: dict[str, Any] = {
    "text_config": {**TEXT, **KNOWN, "model_type": "qwen3"}, "audio_config": LISTENER, "audio_token_id": HEARD, "pad_token_id": 0, "eos_token_id": [2],
    "tie_word_embeddings": False,
}  # fmt: skip


def says(folder: Path, config: Any, dtype: torch.dtype, given: Inputs) -> torch.Tensor | None:
    """What Qwen3-Omni writes, says and predicts of further codes: the whole has no forward pass of its own. None of others."""
    if config.model_type != "qwen3_omni_moe":
        return None
    model = tf.Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        folder, dtype=dtype, experts_implementation="eager"
    ).eval()
    with torch.no_grad():
        thought = model.thinker(**given, output_hidden_states=True)
        embedded, layer = thought.hidden_states[0], thought.hidden_states[config.talker_config.accept_hidden_layer]
        talker, codes = model.talker, given["input_ids"] % 29
        heard = (
            talker.text_projection(embedded)
            + talker.hidden_projection(layer)
            + talker.get_input_embeddings()(codes)
        )
        said = talker(inputs_embeds=heard, output_hidden_states=True)
        last = said.hidden_states[0][-1][:, -1:]
        more = talker.code_predictor(
            inputs_embeds=torch.cat([last, talker.get_input_embeddings()(codes[:, -1:])], 1)
        )
        next_code = talker.code_predictor.get_input_embeddings()[0](codes[:, :1])
        again = talker.code_predictor(inputs_embeds=torch.cat([last, last, next_code], 1))
        after = talker(inputs_embeds=heard + next_code)
    return torch.cat([found.logits.double().flatten() for found in (thought, said, more, again, after)])


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
    "qwen3_omni_moe": (lambda: tf.Qwen3OmniMoeForConditionalGeneration(tf.Qwen3OmniMoeConfig(**OMNI3)), 1e-5),
    "qwen3_omni_moe_thinker": (
        lambda: tf.Qwen3OmniMoeThinkerForConditionalGeneration(tf.Qwen3OmniMoeThinkerConfig(**THINKER)),
        1e-5,
    ),
    "qwen3_asr": (lambda: tf.Qwen3ASRForConditionalGeneration(tf.Qwen3ASRConfig(**ASR)), 1e-5),
}

CONVERTED_ADDED = ["qwen3_omni_moe", "qwen3_omni_moe_thinker"]
"""Those that transformers stores otherwise than it computes with them."""


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


def _heard(_: Any, rng: torch.Generator) -> Inputs:
    """Thirty-two moments of sound, filled up to hundred, for which four tokens stand in the text."""
    mask = (torch.arange(100) < 32).long().repeat(3, 1)
    return {
        "input_ids": _words(rng, 4, HEARD),
        "input_features": _random(rng, 3, 7, 100),
        "input_features_mask": mask,
    }


def _with_sounds(config: Any, rng: torch.Generator) -> Inputs:
    """Texts with an image each, and a sound of thirty-two moments."""
    sound = {
        "input_features": _random(rng, 3, 7, 32),
        "feature_attention_mask": torch.ones((3, 32), dtype=torch.long),
    }
    return {**seen_and_heard(config, rng), **sound}


ADDED_INPUTS: dict[str, Callable[[Any, torch.Generator], Inputs]] = {
    "phi4_multimodal": _seen_and_heard,
    "qwen3_omni_moe": _with_sounds,
    "qwen3_omni_moe_thinker": _with_sounds,
    "qwen3_asr": _heard,
}
"""Inputs by ``model_type``."""

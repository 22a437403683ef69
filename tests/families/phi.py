"""Microsoft's Phi: text, experts, images and sounds."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers, drawn_words
from toy_settings import (
    BODY_OF_THREE,
    DECODER_CLASSES,
    GROUPED,
    HEARD_TOKEN,
    IMAGE,
    KNOWN,
    LOCAL,
    TEXT,
    TOWER,
    Inputs,
)

PHI3 = {**GROUPED, "pad_token_id": 0}


def _phi3(**changes: Any) -> Any:
    return tf.Phi3ForCausalLM(tf.Phi3Config(**{**PHI3, **changes}))


PHI_PATCHES: dict[str, Any] = {**TOWER, "num_hidden_layers": 3, "crop_size": 8, "image_token_id": IMAGE}
PHI_SOUND: dict[str, Any] = {
    "hidden_size": 40, "intermediate_size": 36, "num_blocks": 2, "num_attention_heads": 5, "ext_pw_out_channel": 40, "depthwise_separable_out_channel": 40,
    "input_size": 20, "nemo_conv_channels": 12, "bias_max_distance": 4, "audio_token_id": HEARD_TOKEN,
}  # fmt: skip
PHI4: dict[str, Any] = {
    **{k: v for k, v in TEXT.items() if k != "head_dim"}, **KNOWN, "vision_config": PHI_PATCHES, "audio_config": PHI_SOUND,
}  # fmt: skip


def _phi4(**sound: Any) -> Any:
    config = {**PHI4, "audio_config": {**PHI_SOUND, **sound}}
    return tf.Phi4MultimodalForCausalLM(tf.Phi4MultimodalConfig(**config))


def _seen_and_heard(config: Any, rng: torch.Generator) -> Inputs:
    """Images of one tile and as a whole, and sounds; only sounds where these keep every fourth moment."""
    sound = {"audio_input_features": drawn_numbers(rng, 3, 24, 20)}
    if config.audio_config.time_reduction == 4:
        return {"input_ids": drawn_words(rng, 6, HEARD_TOKEN), **sound, "audio_embed_sizes": torch.tensor([6] * 3)}
    ids = drawn_words(rng, 13)
    ids[:, 15:18] = HEARD_TOKEN
    return {
        "input_ids": ids, "image_pixel_values": drawn_numbers(rng, 3, 2, 3, 8, 8), "image_sizes": torch.tensor([[8, 8]] * 3),
        "image_attention_mask": torch.ones((3, 2, 4, 4)), **sound, "audio_embed_sizes": torch.tensor([3] * 3),
    }  # fmt: skip


TOYS: dict[str, Toy] = {
    "phi": (lambda: tf.PhiForCausalLM(tf.PhiConfig(**GROUPED)), 1e-9),
    "phi3": (_phi3, 1e-5),
    "phi3-partial": (lambda: _phi3(partial_rotary_factor=0.75, tie_word_embeddings=True), 1e-5),
}

MORE_TOYS: dict[str, Toy] = {
    "phimoe": (
        lambda: tf.PhimoeForCausalLM(
            tf.PhimoeConfig(**LOCAL, attention_bias=True, lm_head_bias=True, router_jitter_noise=0.3)
        ),
        1e-5,
    ),
    "phi4_multimodal": (_phi4, 1e-5),
    "phi4_multimodal-sound": (
        lambda: _phi4(time_reduction=4, conv_activation="relu", depthwise_multiplier=2, nemo_activation="gelu"),
        1e-5,
    ),
    "phi-normed": (lambda: tf.PhiForCausalLM(tf.PhiConfig(**GROUPED, qk_layernorm=True)), 1e-9),
}

NAMES: dict[str, Saved] = {
    "Phi": (BODY_OF_THREE, DECODER_CLASSES[:-1]),
    "Phi3": (PHI3, DECODER_CLASSES[:-1]),
    "Phimoe": (LOCAL, DECODER_CLASSES[:3]),
}

MORE_NAMES: dict[str, Saved] = {
    "Phi4Multimodal": (PHI4, ["Model", "ForCausalLM"]),
    "Phi4MultimodalVision": (PHI_PATCHES, ["Model"]),
    "Phi4MultimodalAudio": (PHI_SOUND, ["Model"]),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(["phi", "phimoe"], "OFixingOnes"),
    "phi3": "O",
    "phi3-partial": "SignedPerm",
    **{
        key: {"res": "O", "vision_res": "OFixingOnes", "sound_res": "Perm"}
        for key in ["phi4_multimodal", "phi4_multimodal-sound"]
    },
    "phi-normed": {"res": "OFixingOnes"},
}

INPUTS: dict[str, Drawn] = {
    "phi4_multimodal": _seen_and_heard,
}

CONVERTED = {"phimoe"}

MUTANTS = [
    mutant("phi", "key bias free where it is rotated", "kb", "bias#1 if => bias#0 if"),
    mutant("phi", "MLP past the shared norm", "n1", "fc1.weight (ff u) (res n1)' => fc1.weight (ff u) res'"),
    mutant(
        "phi",
        "rest before the rotated part",
        "rest",
        "[c pair | rest] => [rest | c pair]",
        "[c' pair | rest'] => [rest' | c' pair]",
    ),
    mutant("phi3", "gate and up mistaken", "u", "[ff | ff u] => [ff u | ff]"),
    mutant(
        "phi3",
        "fused group by group",
        "kv",
        "[kv g [c pair | rest] | kv [c' pair | rest'] | kv ov] => (kv [g c pair | c' pair | ov])",
    ),
    mutant(
        "phi3-partial",
        "all coordinates rotated",
        "c",
        "(rope_parameters.partial_rotary_factor or partial_rotary_factor or 1) => 1",
    ),
    mutant("phimoe", "router forgotten", "e", "gate.weight e (res n2)' => gate.weight rows (res n2)'"),
    mutant(
        "phimoe",
        "norm's bias not scaled",
        "n2",
        "post_attention_layernorm.bias (res n2) => post_attention_layernorm.bias res",
    ),
    mutant(
        "phi4_multimodal", "images read in other coordinates", "vision_res", "project vision_res' => project other"
    ),
    mutant(
        "phi4_multimodal",
        "what separates rows in other coordinates",
        "vision_res",
        "sub_img_feature_extensor 1 1 1 vision_res => sub_img_feature_extensor 1 1 1 other",
    ),
    mutant("phi4_multimodal", "neurons beside images not permuted back", "beside", "res beside' => res other"),
    mutant("phi4_multimodal-sound", "neurons of speech not permuted back", "speech", "res speech' => res other"),
    mutant(
        "phi4_multimodal",
        "heads per layer under one table",
        "sound_h",
        "space h: Perm\n => space h: Perm[l]\n",
        "distance h => distance heads",
        part="phi4_multimodal_audio",
    ),
    mutant(
        "phi4_multimodal", "gates before ups", "sound_u", "[ff u | ff] => [ff | ff u]", part="phi4_multimodal_audio"
    ),
    mutant(
        "phi4_multimodal",
        "the factor of a channel not taken back",
        "sound_cu",
        "dw_conv.weight (channel m cu') => dw_conv.weight (channel m)",
        part="phi4_multimodal_audio",
    ),
    mutant(
        "phi4_multimodal",
        "the bias beside a channel forgotten",
        "sound_cu",
        "glu.b1 1 (channel cu) 1 => glu.b1 1 channel 1",
        part="phi4_multimodal_audio",
    ),
    mutant(
        "phi4_multimodal",
        "negative factors through ReLU",
        "sound_u1",
        "u1 as scale: PositiveScale => u1 as scale: Scale",
        part="phi4_multimodal_audio",
    ),
    mutant(
        "phi4_multimodal",
        "frequencies slow",
        "sound_c2",
        "res (c2 u2' frequency) => res (frequency c2 u2')",
        part="phi4_multimodal_audio",
    ),
    mutant(
        "phi4_multimodal-sound",
        "copies of a channel slow",
        "sound_m",
        "(channel m cu') 1 width => (m channel cu') 1 width",
        "(channel m) => (m channel)",
        part="phi4_multimodal_audio",
    ),
    mutant(
        "phi4_multimodal-sound",
        "a convolution's bias dropped",
        "sound_db",
        "dw_conv.bias -> encoders.{l}.conv.dw_sep_conv_1d.pw_conv.bias via encoders.{l}.conv.dw_sep_conv_1d.pw_conv.weight => dw_conv.bias",
        part="phi4_multimodal_audio",
    ),
    mutant("phi-normed", "the norms' gains not dual", "t", "[c pair t' | => [c pair t |"),
    mutant(
        "phi-normed",
        "the keys' norm forgets the rest",
        "rest",
        "k_layernorm.weight [c pair t' | rest rt'] => k_layernorm.weight [c pair t' | other]",
        "size rest => size other = head - 2 * pair\nsize rest",
    ),
]

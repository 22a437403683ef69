"""Models that write what they hear, translate and speak: Whisper, SpeechT5, SeamlessM4T."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import StreamMutant, mutant
from toy_inputs import drawn_numbers
from toy_models import composed, made
from toy_settings import BART, COMPOSED_MODELS, KNOWN, Inputs

WHISPER = {
    **{k: v for k, v in BART.items() if k not in ("max_position_embeddings", "forced_eos_token_id")},
    "num_mel_bins": 9, "max_source_positions": 10, "max_target_positions": 16,
}  # fmt: skip
HEARD = {
    **BART, "max_source_positions": 40, "max_target_positions": 16, "num_conv_layers": 2, "conv_kernel_sizes": [3, 3],
    "conv_channels": 20, "input_feat_per_channel": 8,
}  # fmt: skip
WAYS = ["Model", "ForTextToText", "ForSpeechToText", "ForTextToSpeech", "ForSpeechToSpeech"]
SPEECHT5: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "encoder_layers": 2, "encoder_attention_heads": 6, "encoder_ffn_dim": 40, "decoder_layers": 2, "decoder_attention_heads": 4,
    "decoder_ffn_dim": 36, "conv_dim": [10, 12], "conv_stride": [2, 2], "conv_kernel": [3, 2], "num_conv_pos_embeddings": 5, "num_conv_pos_embedding_groups": 4,
    "num_mel_bins": 7, "speech_decoder_prenet_units": 20, "speech_decoder_postnet_units": 14, "speaker_embedding_dim": 9, "encoder_max_relative_position": 6,
    "max_speech_positions": 64, "max_text_positions": 32, "apply_spec_augment": False, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip


def _read_or_heard(config: Any, rng: torch.Generator) -> Inputs:
    """Text to be said by someone, or sound to be written down."""
    if "ForSpeechToText" in config.architectures[0]:
        return {
            "input_values": drawn_numbers(rng, 3, 90),
            "decoder_input_ids": torch.randint(4, 60, (3, 7), generator=rng),
        }
    return {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng), "decoder_input_values": drawn_numbers(rng, 3, 8, 7), "speaker_embeddings": drawn_numbers(rng, 3, 9),
    }  # fmt: skip


def _heard(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Spectrograms and the words before."""
    return {
        "input_features": torch.randn((3, 20, config.input_feat_per_channel), generator=rng, dtype=torch.float64),
        "decoder_input_ids": torch.randint(1, 60, (3, 7), generator=rng),
    }


TRANSLATING: dict[str, Any] = {
    "vocab_size": 67, "t2u_vocab_size": 31, "hidden_size": 48, "encoder_layers": 2, "encoder_ffn_dim": 40, "encoder_attention_heads": 6, "decoder_layers": 2,
    "decoder_ffn_dim": 36, "decoder_attention_heads": 4, "speech_encoder_layers": 2, "speech_encoder_attention_heads": 3, "speech_encoder_intermediate_size": 44,
    "feature_projection_input_dim": 10, "adaptor_kernel_size": 3, "adaptor_stride": 2, "conv_depthwise_kernel_size": 3, "max_position_embeddings": 32,
    "max_source_positions": 32, "t2u_encoder_layers": 1, "t2u_encoder_ffn_dim": 28, "t2u_encoder_attention_heads": 3, "t2u_decoder_layers": 1,
    "t2u_decoder_ffn_dim": 20, "t2u_decoder_attention_heads": 4, "unit_hifi_gan_vocab_size": 31, "unit_embed_dim": 8, "lang_embed_dim": 4, "spkr_embed_dim": 4,
    "vocoder_num_langs": 3, "vocoder_num_spkrs": 2, "upsample_initial_channel": 8, "upsample_rates": [2, 2], "upsample_kernel_sizes": [4, 4],
    "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]], "variance_predictor_kernel_size": 3,
}  # fmt: skip
TRANSLATING_2: dict[str, Any] = {
    **TRANSLATING, "char_vocab_size": 23, "left_max_position_embeddings": 3, "right_max_position_embeddings": 2, "t2u_variance_predictor_embed_dim": 48,
    "t2u_variance_predictor_hidden_dim": 12,
}  # fmt: skip


def _spoken(config: Any, rng: torch.Generator) -> Inputs:
    """Sounds, and the words before; for the whole texts as well."""
    found = {
        "input_features": drawn_numbers(rng, 3, 12, 10), "decoder_input_ids": torch.randint(5, 60, (3, 7), generator=rng),
    }  # fmt: skip
    words = torch.randint(5, 60, (3, 11), generator=rng)
    return {**found, "input_ids": words} if config.architectures[0].endswith("Model") else found


def _as_long_waves(_: Any, rng: torch.Generator) -> Inputs:
    """Sounds long enough for three convolutions, and the words before."""
    return {
        "input_values": drawn_numbers(rng, 3, 2800),
        "decoder_input_ids": torch.randint(4, 60, (3, 7), generator=rng),
    }


MOONSHINE: dict[str, Any] = {
            **KNOWN, "vocab_size": 67, "hidden_size": 60, "intermediate_size": 44, "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 3, "decoder_num_attention_heads": 3, "max_position_embeddings": 32, "attention_bias": True,
        }  # fmt: skip

TOYS: dict[str, Toy] = {
    "whisper": (lambda: tf.WhisperForConditionalGeneration(tf.WhisperConfig(**WHISPER)), 1e-9),
}

MORE_TOYS: dict[str, Toy] = {
    "speech_to_text": (made("Speech2Text", "ForConditionalGeneration", **HEARD), 1e-9),
    "moonshine": (partial(composed, "Moonshine", MOONSHINE), 1e-9),
    "moonshine-untied": (partial(composed, "Moonshine", MOONSHINE, tie_word_embeddings=False), 1e-9),
    "speecht5": (lambda: tf.SpeechT5ForTextToSpeech(tf.SpeechT5Config(**SPEECHT5)), 1e-9),
    "speecht5-heard": (lambda: tf.SpeechT5ForSpeechToText(tf.SpeechT5Config(**SPEECHT5, hidden_act="relu")), 1e-9),
    "seamless_m4t": (lambda: tf.SeamlessM4TModel(tf.SeamlessM4TConfig(**TRANSLATING)), 1e-9),
    "seamless_m4t-heard": (lambda: tf.SeamlessM4TForSpeechToText(tf.SeamlessM4TConfig(**TRANSLATING)), 1e-9),
    "seamless_m4t_v2": (lambda: tf.SeamlessM4Tv2Model(tf.SeamlessM4Tv2Config(**TRANSLATING_2)), 1e-9),
}

NAMES: dict[str, Saved] = {
    "Whisper": (WHISPER, ["Model", "ForConditionalGeneration", "ForCausalLM", "ForAudioClassification"]),
}

MORE_NAMES: dict[str, Saved] = {
    "Speech2Text": (HEARD, COMPOSED_MODELS),
    "Moonshine": (MOONSHINE, COMPOSED_MODELS),
    "SpeechT5": (SPEECHT5, ["Model", "ForTextToSpeech", "ForSpeechToText", "ForSpeechToSpeech"]),
    "SeamlessM4T": (TRANSLATING, WAYS),
    "SeamlessM4Tv2": (TRANSLATING_2, WAYS),
}

HALF: dict[str, str | tuple[str, ...]] = {
    "WhisperForAudioClassification": "dx",
    "WhisperForCausalLM": "ec",
}

STREAMS: dict[str, Streams] = {
    **{key: {"res_in": "Perm", "res": "Perm"} for key in ["whisper", "moonshine"]},
    "speech_to_text": "Fixed",
    **{key: {} for key in ["speecht5", "speecht5-heard"]},
    "moonshine-untied": {"res_in": "Perm", "res": "OFixingOnes"},
    **{key: {"sres": "Perm"} for key in ["seamless_m4t", "seamless_m4t_v2"]},
    "seamless_m4t-heard": {"sres": "Perm", "mem": "Perm"},
}

INPUTS: dict[str, Drawn] = {
    "speecht5": _read_or_heard,
    **dict.fromkeys(["seamless_m4t", "seamless_m4t_v2"], _spoken),
    "speech_to_text": _heard,
    "moonshine": _as_long_waves,
}

MUTANTS = [
    mutant(
        "whisper",
        "channels of the convolutions forgotten",
        "channel",
        "res_in channel' width => res_in other width",
    ),
    mutant(
        "whisper",
        "cross-attention value not read in the encoder's stream",
        "res_in",
        "(xh xov) (res_in enf)' => (xh xov) rows",
    ),
    mutant(
        "speech_to_text",
        "gate scaled",
        "cu",
        "[channel cu | channel] mel => [channel | channel cu] mel",
        "[channel cu | channel]\n => [channel | channel cu]\n",
    ),
    mutant(
        "speech_to_text",
        "second convolution not permuted",
        "channel",
        "[res | res] (channel cu') width => [res | res] rows width",
        "space cu as scale: Scale[channel]\n => ",
        "[channel cu | channel] => [channel | channel]",
    ),
    mutant(
        "moonshine",
        "half-split pairs",
        "ec",
        "[pair ec | erest] => [ec pair | erest]",
        "[pair ec' | erest'] => [ec' pair | erest']",
    ),
    mutant("moonshine", "gate and up mistaken", "du", "[dff du | dff] => [dff | dff du]"),
    mutant(
        "moonshine", "channels of the third convolution forgotten", "c2", "res_in c2' width => res_in other width"
    ),
    mutant(
        "moonshine",
        "cross-attention past the encoder's last gain",
        "enf",
        "(xh xqk') (res_in enf)' => (xh xqk') res_in'",
    ),
    mutant(
        "speecht5",
        "a matrix per layer under one table",
        "eqk",
        "space eh as h => space eqk as qk: GL[l]\nspace eh as h",
        "distance eqk' => distance distances",
    ),
    mutant(
        "speecht5",
        "distances forgotten",
        "eqk",
        "space eh as h => residual eqk: O\nspace eh as h",
        "distance eqk' => distance distances",
    ),
    mutant(
        "speecht5",
        "means not turned with their channels",
        "s1",
        "layers.1.batch_norm.running_mean (c1 s1) => layers.1.batch_norm.running_mean c1",
    ),
    mutant(
        "speecht5",
        "variances of other channels",
        "c2",
        "layers.2.batch_norm.running_var c2 => layers.2.batch_norm.running_var rows",
    ),
    mutant("speecht5", "neurons in front not permuted back", "p1", "res (p1 u1)' => res other"),
    mutant("speecht5-heard", "negative scale under ReLU", "du", "du as scale: PositiveScale => du as scale: Scale"),
    mutant(
        "speecht5-heard",
        "permuted under computed positions",
        "res",
        "space eh as h => residual res: Perm\nspace eh as h",
    ),
    mutant(
        "seamless_m4t",
        "the adapter in coordinates of its own where texts are read as well",
        "mem",
        "residual mem: Perm if alone => residual mem: Perm if hears",
        "inner_layer_norm.weight mem if not alone => inner_layer_norm.weight diag(mem) if not alone",
    ),
    mutant(
        "seamless_m4t",
        "the factor behind the convolution past what was counted",
        "cs",
        "running_mean (channel cs) => running_mean channel",
    ),
    mutant(
        "seamless_m4t",
        "what is gated scaled with its gate",
        "au",
        "self_attn_conv.bias [am au | am] => self_attn_conv.bias [am | am]",
    ),
    mutant(
        "seamless_m4t",
        "places that heads do not take along",
        "sh",
        "linear_pos.weight (sh sqk') wave => linear_pos.weight rows wave",
    ),
    mutant(
        "seamless_m4t-heard",
        "sounds past the gain that ends the adapter",
        "nm",
        "cross_attention.v_proj.weight (xh xov) (mem nm)' => cross_attention.v_proj.weight (xh xov) mem'",
    ),
    mutant(
        "seamless_m4t_v2",
        "a matrix per head under one table",
        "sqk",
        "space sqk as qk: GL[l] if hears and later => space sqk as qk: GL[l, sh] if hears and later",
        "place sqk' => place places",
    ),
    mutant(
        "seamless_m4t_v2",
        "how long units last past the first norm's gain",
        "ls1",
        "lasts2 (lasts1 ls1)' width => lasts2 lasts1' width",
    ),
    mutant(
        "seamless_m4t_v2",
        "the bias of a convolution over units forgotten",
        "tc",
        "conv1.bias (tc tcu) => conv1.bias rows",
    ),
]

IDLE = {("whisper", "dkb"), ("whisper", "ekb"), ("whisper", "xkb")}  # keys have no biases

STREAM_MUTANTS = [
    StreamMutant(
        "whisper",
        "rotated behind GELU",
        "OFixingOnes",
        ("res_in: Perm => res_in: Perm folded OFixingOnes",),
        "res_in",
    ),
]

"""Encoders of waveforms: wav2vec 2.0 and kin."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers
from toy_models import composed, made
from toy_settings import Inputs

SOUND = {
    "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 40,
    "conv_dim": [16, 16], "conv_stride": [3, 2], "conv_kernel": [5, 3], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "num_codevectors_per_group": 6,
    "codevector_dim": 8, "proj_codevector_dim": 8,
}  # fmt: skip
STABLE = {**SOUND, "do_stable_layer_norm": True, "feat_extract_norm": "layer"}
FRAMED_SPEECH = ["Model", "ForCTC", "ForSequenceClassification", "ForAudioFrameClassification"]
SPEECH_CLASSES = ["Model", "ForCTC", "ForSequenceClassification"]


def _waves(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Waveforms."""
    return {"input_values": torch.randn((3, 70), generator=rng, dtype=torch.float64)}


def _in_features(_: Any, rng: torch.Generator) -> Inputs:
    """Moments of frequencies, of which the last sound has fewer."""
    mask = torch.ones((3, 12), dtype=torch.long)
    mask[2, 9:] = 0
    return {"input_features": drawn_numbers(rng, 3, 12, 10), "attention_mask": mask}


def _as_waves(_: Any, rng: torch.Generator) -> Inputs:
    return {"input_values": drawn_numbers(rng, 3, 70)}


CONFORMER: dict[str, Any] = {
    **SOUND, "conv_depthwise_kernel_size": 3, "feature_projection_input_dim": 10, "left_max_position_embeddings": 4, "right_max_position_embeddings": 3,
    "layerdrop": 0.0, "output_hidden_size": 48,
}  # fmt: skip
SEW: dict[str, Any] = {**SOUND, "squeeze_factor": 2, "conv_dim": (10, 12), "feat_extract_norm": "layer"}  # fmt: skip

MORE_TOYS: dict[str, Toy] = {
    "wav2vec2": (made("Wav2Vec2", "ForCTC", **SOUND), 1e-9),
    "wav2vec2-stable": (made("Wav2Vec2", "ForCTC", **STABLE, adapter_attn_dim=5, hidden_act="relu"), 1e-9),
    "hubert": (made("Hubert", "ForSequenceClassification", **STABLE), 1e-9),
    "wavlm": (made("WavLM", "ForCTC", **SOUND), 1e-9),
    "wavlm-stable": (made("WavLM", "ForCTC", **STABLE), 1e-9),
    "unispeech": (made("UniSpeech", "ForCTC", **SOUND), 1e-9),
    "unispeech-sat": (made("UniSpeechSat", "ForCTC", **STABLE), 1e-9),
    "data2vec-audio": (made("Data2VecAudio", "ForCTC", **SOUND, conv_pos_kernel_size=7), 1e-9),
    "wav2vec2-bert": (partial(composed, "Wav2Vec2Bert", CONFORMER, "ForCTC"), 1e-9),
    "wav2vec2-bert-relative": (
        partial(
            composed,
            "Wav2Vec2Bert",
            CONFORMER,
            "ForSequenceClassification",
            position_embeddings_type="relative",
            hidden_act="relu",
        ),
        1e-9,
    ),
    "wav2vec2-bert-adapted": (
        partial(
            composed,
            "Wav2Vec2Bert",
            CONFORMER,
            "ForCTC",
            add_adapter=True,
            use_intermediate_ffn_before_adapter=True,
        ),
        1e-9,
    ),
    "wav2vec2-conformer": (partial(composed, "Wav2Vec2Conformer", CONFORMER, "ForCTC"), 1e-9),
    "wav2vec2-conformer-rotary": (
        partial(
            composed, "Wav2Vec2Conformer", CONFORMER, "ForSequenceClassification", position_embeddings_type="rotary"
        ),
        1e-9,
    ),
    "sew": (partial(composed, "SEW", SEW, "ForCTC"), 1e-9),
}

MORE_NAMES: dict[str, Saved] = {
    "Wav2Vec2": ({**STABLE, "adapter_attn_dim": 5}, [*FRAMED_SPEECH, "ForPreTraining", "ForXVector"]),
    "Hubert": (SOUND, FRAMED_SPEECH[:3]),
    "WavLM": (STABLE, [*FRAMED_SPEECH, "ForXVector"]),
    "UniSpeech": (SOUND, [*FRAMED_SPEECH[:3], "ForPreTraining"]),
    "UniSpeechSat": (STABLE, [*FRAMED_SPEECH, "ForPreTraining", "ForXVector"]),
    "Data2VecAudio": (SOUND, [*FRAMED_SPEECH, "ForXVector"]),
    "Wav2Vec2Bert": (CONFORMER, [*SPEECH_CLASSES, "ForAudioFrameClassification", "ForXVector"]),
    "Wav2Vec2Conformer": (
        CONFORMER,
        [*SPEECH_CLASSES, "ForAudioFrameClassification", "ForXVector", "ForPreTraining"],
    ),
    "SEW": (SEW, SPEECH_CLASSES),
}

STREAMS: dict[str, Streams] = {
    **{
        key: {"res": "Fixed", "feat": "Fixed"}
        for key in [
            "wav2vec2",
            "wav2vec2-stable",
            "hubert",
            "wavlm",
            "wavlm-stable",
            "unispeech",
            "unispeech-sat",
            "data2vec-audio",
            "sew",
        ]
    },
    **{key: {} for key in ["wav2vec2-bert-adapted", "wav2vec2-conformer-rotary"]},
}

INPUTS: dict[str, Drawn] = {
    "wav2vec2-bert": _in_features,
    **dict.fromkeys(["wav2vec2-conformer", "sew"], _as_waves),
    **dict.fromkeys(["wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "data2vec-audio"], _waves),
}

MUTANTS = [
    mutant(
        "wav2vec2",
        "a stream that moves under the convolution of positions",
        "res",
        "residual res: Fixed => residual res: Perm",
    ),
    mutant("wav2vec2-stable", "negative scale under ReLU", "u", "PositiveScale[l, ff] => Scale[l, ff]"),
    mutant("hubert", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant("hubert", "output not dual", "ov", "(h ov') => (h ov)"),
    mutant(
        "wavlm",
        "heads leave the slice that gates them",
        "h",
        "space qk: => space h: Perm[l]\nspace qk:",
        "rel_attn_embed.weight bucket head => rel_attn_embed.weight bucket h",
        "gru_rel_pos_const 1 head 1 1 => gru_rel_pos_const 1 h 1 1",
    ),
    mutant("wavlm", "query bias forgotten", "qk", "q_proj.bias (h qk) => q_proj.bias rows"),
    mutant("unispeech", "value bias forgotten", "ov", "v_proj.bias (h ov) => v_proj.bias rows"),
    mutant(
        "unispeech-sat",
        "second layer not permuted",
        "ff",
        "output_dense.weight res (ff u') => output_dense.weight res neurons",
    ),
    mutant("data2vec-audio", "heads fast", "h", "(h ov) => (ov h)", "(h ov') => (ov' h)"),
    mutant(
        "wav2vec2-bert",
        "a matrix per head under one table",
        "qk",
        "qk: GL[l] if => qk: GL[l, h] if",
        "place qk' if => place places if",
    ),
    mutant(
        "wav2vec2-bert-relative",
        "positions' keys not dual",
        "qk",
        "linear_pos.weight (h qk') => linear_pos.weight (h qk)",
    ),
    mutant(
        "wav2vec2-bert-relative",
        "the bias of queries forgotten",
        "qk",
        "pos_bias_u h qk => pos_bias_u h coordinates",
    ),
    mutant("wav2vec2-bert-adapted", "the adapter's values not dual", "aov", "wide (ah aov') => wide (ah aov)"),
    mutant(
        "wav2vec2-conformer",
        "a moment of the batch forgotten",
        "channel",
        "running_var channel => running_var other",
    ),
    mutant(
        "wav2vec2-conformer-rotary",
        "a gain before the rotation",
        "n2",
        'n2: Scale[l, res] if position_embeddings_type != "rotary" => n2: Scale[l, res]',
    ),
    mutant("sew", "key not dual", "qk", "(h qk') => (h qk)"),
]

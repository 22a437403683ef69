"""Qwen's models that hear, and that think and talk."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers, drawn_words, heard_in_pieces, in_one_grid
from toy_models import composed
from toy_settings import (
    COMPOSED_MODELS,
    EXPERTS,
    GRID,
    HEARD_TOKEN,
    IMAGE,
    KNOWN,
    QWEN2,
    SECTIONS,
    SHARED,
    TEXT,
    WINDOWED,
    Inputs,
)

DEEP_LISTENER: dict[str, Any] = {
    "d_model": 60, "encoder_layers": 2, "encoder_attention_heads": 5, "encoder_ffn_dim": 44, "num_mel_bins": 7, "downsample_hidden_size": 12, "output_dim": 48,
}  # fmt: skip
THINKER: dict[str, Any] = {
    "text_config": {**EXPERTS, **KNOWN, "rope_parameters": SECTIONS}, "image_token_id": IMAGE, "video_token_id": 64, "audio_token_id": HEARD_TOKEN,
    "vision_start_token_id": 65, "audio_start_token_id": 66,
    "vision_config": {
        **GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
    },
    "audio_config": {**DEEP_LISTENER, "max_source_positions": 8},
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
    "text_config": {**TEXT, **KNOWN, "model_type": "qwen3"}, "audio_config": DEEP_LISTENER, "audio_token_id": HEARD_TOKEN, "pad_token_id": 0, "eos_token_id": [2],
    "tie_word_embeddings": False,
}  # fmt: skip


def _heard(_: Any, rng: torch.Generator) -> Inputs:
    """Thirty-two moments of sound, filled up to hundred, for which four tokens stand in the text."""
    mask = (torch.arange(100) < 32).long().repeat(3, 1)
    return {
        "input_ids": drawn_words(rng, 4, HEARD_TOKEN),
        "input_features": drawn_numbers(rng, 3, 7, 100),
        "input_features_mask": mask,
    }


def seen_and_heard(_: Any, rng: torch.Generator) -> Inputs:
    """Texts with an image each, as patches, and a sound, as moments of frequencies."""
    found = in_one_grid(_, rng)
    found["input_ids"] = torch.randint(4, 60, (3, 18), generator=rng)
    found["input_ids"][:, 1:6] = torch.tensor([65, *[IMAGE] * 4])
    found["input_ids"][:, 8:13] = torch.tensor([66, *[62] * 4])
    del found["mm_token_type_ids"]
    return {
        **found,
        "input_features": drawn_numbers(rng, 3, 7, 16),
        "feature_attention_mask": torch.ones((3, 16), dtype=torch.long),
    }


def _with_sounds(config: Any, rng: torch.Generator) -> Inputs:
    """Texts with an image each, and a sound of thirty-two moments."""
    sound = {
        "input_features": drawn_numbers(rng, 3, 7, 32),
        "feature_attention_mask": torch.ones((3, 32), dtype=torch.long),
    }
    return {**seen_and_heard(config, rng), **sound}


LISTENER: dict[str, Any] = {
    "d_model": 60, "encoder_layers": 2, "encoder_attention_heads": 5, "encoder_ffn_dim": 44, "num_mel_bins": 7, "max_source_positions": 8,
}  # fmt: skip
QWEN2_AUDIO: dict[str, Any] = {"text_config": QWEN2, "audio_config": {**LISTENER, "model_type": "qwen2_audio_encoder"}, "audio_token_id": IMAGE, "tie_word_embeddings": False}  # fmt: skip
QWEN2_5_OMNI_THINKER: dict[str, Any] = {
            "text_config": {**TEXT, **KNOWN, "rope_parameters": SECTIONS}, "image_token_index": IMAGE, "video_token_index": 64, "audio_token_index": 62,
            "vision_start_token_id": 65, "audio_start_token_id": 66, "tie_word_embeddings": False,
            "vision_config": {**GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44, "window_size": 8, "fullatt_block_indexes": [1]},
            "audio_config": {**LISTENER, "n_window": 4, "output_dim": 48},
        }  # fmt: skip
WAVES: dict[str, Any] = {
    "dit_config": {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8, "emb_dim": 8, "num_embeds": 11, "mel_dim": 6, "enc_emb_dim": 5,
        "enc_dim": 5, "enc_channels": [8, 8, 8, 8, 24], "enc_attention_channels": 4, "enc_se_channels": 4, "enc_res2net_scale": 2,
    },
    "bigvgan_config": {
        "mel_dim": 6, "upsample_initial_channel": 16, "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3, 5]], "upsample_rates": [2],
        "upsample_kernel_sizes": [4],
    },
}  # fmt: skip
THINKER_OMNI2: dict[str, Any] = {
    "text_config": {**TEXT, **KNOWN, "rope_parameters": SECTIONS}, "image_token_index": IMAGE, "video_token_index": 64, "audio_token_index": 62,
    "vision_start_token_id": 65, "audio_start_token_id": 66, "tie_word_embeddings": False,
    "vision_config": {**GRID, "hidden_size": 60, "out_hidden_size": 48, "intermediate_size": 44, "window_size": 8, "fullatt_block_indexes": [1]},
    "audio_config": {
        "d_model": 60, "encoder_layers": 2, "encoder_attention_heads": 5, "encoder_ffn_dim": 44, "num_mel_bins": 7, "max_source_positions": 8, "n_window": 4,
        "output_dim": 48,
    },
}  # fmt: skip
TALKER: dict[str, Any] = {
    **TEXT, "vocab_size": 31, "embedding_size": 48, "hidden_size": 40, "num_attention_heads": 4, "intermediate_size": 36, "rope_parameters": SECTIONS,
    "num_hidden_layers": 2,
}  # fmt: skip
OMNI: dict[str, Any] = {"thinker_config": THINKER_OMNI2, "talker_config": TALKER, "token2wav_config": WAVES}

MORE_TOYS: dict[str, Toy] = {
    "qwen2_audio": (partial(composed, "Qwen2Audio", QWEN2_AUDIO), 1e-5),
    "qwen2_5_omni_thinker": (partial(composed, "Qwen2_5OmniThinker", QWEN2_5_OMNI_THINKER), 1e-5),
    "qwen2_5_omni": (lambda: tf.Qwen2_5OmniForConditionalGeneration(tf.Qwen2_5OmniConfig(**OMNI)), 1e-5),
    "qwen3_omni_moe": (lambda: tf.Qwen3OmniMoeForConditionalGeneration(tf.Qwen3OmniMoeConfig(**OMNI3)), 1e-5),
    "qwen3_omni_moe_thinker": (
        lambda: tf.Qwen3OmniMoeThinkerForConditionalGeneration(tf.Qwen3OmniMoeThinkerConfig(**THINKER)),
        1e-5,
    ),
    "qwen3_asr": (lambda: tf.Qwen3ASRForConditionalGeneration(tf.Qwen3ASRConfig(**ASR)), 1e-5),
}

MORE_NAMES: dict[str, Saved] = {
    "Qwen2Audio": (QWEN2_AUDIO, COMPOSED_MODELS),
    "Qwen2_5OmniThinker": (QWEN2_5_OMNI_THINKER, COMPOSED_MODELS),
    "Qwen2AudioEncoder": (LISTENER, [""]),
    "Qwen2_5OmniAudioEncoder": (LISTENER, []),
    "Qwen2_5OmniText": (TEXT, []),
    "Qwen2_5Omni": (OMNI, ["ForConditionalGeneration"]),
    "Qwen2_5OmniTalker": (TALKER, ["ForConditionalGeneration"]),
    "Qwen3OmniMoe": (OMNI3, ["ForConditionalGeneration"]),
    "Qwen3OmniMoeThinker": (THINKER, ["ForConditionalGeneration"]),
    "Qwen3OmniMoeText": (THINKER["text_config"], []),
    "Qwen3OmniMoeTalkerText": (TALKER_TEXT, []),
    "Qwen3OmniMoeAudioEncoder": (THINKER["audio_config"], []),
    "Qwen3ASR": (ASR, ["Model", "ForConditionalGeneration", "ForTokenClassification"]),
    "Qwen3ASREncoder": (DEEP_LISTENER, []),
    "Qwen2_5OmniVisionEncoder": (WINDOWED, []),
}

STREAMS: dict[str, Streams] = {
    "qwen2_audio": {"res": "O", "sound_res": "Perm"},
    "qwen2_5_omni_thinker": {"res": "O", "vision_res": "O"},
    "qwen2_5_omni": {"res": "SignedPerm", "vision_res": "O", "talk_res": "O"},
    "qwen3_omni_moe": {"res": "O", "vres": "Perm", "talk_res": "SignedPerm"},
    "qwen3_omni_moe_thinker": {"res": "O", "vres": "Perm"},
    "qwen3_asr": {"res": "O"},
}

IDLE = {
    ("qwen2_5_omni", "talk_vb"),
    ("qwen2_5_omni", "vb"),
    ("qwen2_5_omni_thinker", "vb"),
    ("qwen2_audio", "sound_kb"),
    ("qwen2_audio", "vb"),
    ("qwen3_asr", "vb"),
    ("qwen3_omni_moe", "talk_cvb"),
    ("qwen3_omni_moe", "talk_vb"),
    ("qwen3_omni_moe", "vb"),
    ("qwen3_omni_moe_thinker", "vb"),
}

INPUTS: dict[str, Drawn] = {
    **dict.fromkeys(["qwen3_omni_moe", "qwen3_omni_moe_thinker"], _with_sounds),
    "qwen3_asr": _heard,
    "qwen2_audio": heard_in_pieces(4, "feature_attention_mask"),
    **dict.fromkeys(["qwen2_5_omni_thinker", "qwen2_5_omni"], seen_and_heard),
}

CONVERTED = {"qwen3_omni_moe", "qwen3_omni_moe_thinker"}

MUTANTS = [
    mutant("qwen2_audio", "key not dual", "sound_qk", "(h qk') => (h qk)", part="qwen2_audio_encoder"),
    mutant(
        "qwen2_audio", "past the tower's last gain", "sound_nf", "res (sound_res sound_nf)' if => res sound_res' if"
    ),
    mutant(
        "qwen2_5_omni_thinker",
        "permuted under computed positions",
        "sound_res",
        "residual res: Perm if not computed => residual res: Perm",
        part="qwen2_5_omni_audio_encoder",
    ),
    mutant(
        "qwen2_5_omni_thinker",
        "past the ear's last gain",
        "sound_nf",
        "audio_tower.proj.weight res (sound_res sound_nf)' => audio_tower.proj.weight res sound_res'",
    ),
    mutant(
        "qwen2_5_omni_thinker",
        "key not dual",
        "vision_c",
        "(h c' pair) (res n1)' if apart => (h c pair) (res n1)' if apart",
        part="qwen2_5_omni_vision_encoder",
    ),
    mutant("qwen2_5_omni", "codes in other coordinates", "res", "codes res => codes other"),
    mutant("qwen2_5_omni", "the talker reads other coordinates", "res", "talk_res res' => talk_res other"),
    mutant(
        "qwen2_5_omni",
        "the thinker's last gain folded past the talker",
        "nf",
        "of qwen2_5_omni_thinker without nf => of qwen2_5_omni_thinker",
    ),
    mutant(
        "qwen2_5_omni",
        "the talker's key not dual",
        "talk_c",
        "(kv c' pair) => (kv c pair)",
        part="qwen2_5_omni_talker",
    ),
    mutant("qwen3_omni_moe", "what is seen read in other coordinates", "res", "seen res' => seen other"),
    mutant("qwen3_omni_moe", "words past their neurons", "told", "talk_res told' => talk_res other"),
    mutant(
        "qwen3_omni_moe",
        "further codes in other coordinates",
        "talk_res",
        "codec_embedding.{c}.weight codes res => codec_embedding.{c}.weight codes other",
        part="qwen3_omni_moe_talker",
    ),
    mutant(
        "qwen3_omni_moe",
        "the talker's last gain folded past its predictor",
        "talk_nf",
        "qwen3_omni_moe_talker_text without nf => qwen3_omni_moe_talker_text",
        part="qwen3_omni_moe_talker",
    ),
    mutant(
        "qwen3_omni_moe",
        "the predictor's sign per coordinate",
        "talk_csg",
        "Sign[p, ckv, cpair] => Sign[p, ckv, cc, cpair]",
        part="qwen3_omni_moe_talker",
    ),
    mutant(
        "qwen3_omni_moe",
        "the shared expert's gate in other coordinates",
        "talk_n2",
        "shared_expert_gate.weight 1 (res n2)' => shared_expert_gate.weight 1 res'",
        part="qwen3_omni_moe_talker_text",
    ),
    mutant(
        "qwen3_omni_moe_thinker",
        "channels of sound not permuted back",
        "sound_c2",
        "c3 c2' row column => c3 other row column",
        part="qwen3_omni_moe_audio_encoder",
    ),
    mutant(
        "qwen3_omni_moe_thinker",
        "the last convolution's bias forgotten",
        "sound_c3",
        "conv2d3.bias c3 => conv2d3.bias rows",
        part="qwen3_omni_moe_audio_encoder",
    ),
    mutant(
        "qwen3_omni_moe_thinker",
        "permuted under computed positions",
        "sound_res",
        "residual res: Perm if not computed => residual res: Perm",
        part="qwen3_omni_moe_audio_encoder",
    ),
    mutant(
        "qwen3_omni_moe_thinker",
        "neurons behind what is heard forgotten",
        "sound_project",
        "audio_tower.proj2.weight res (sound_project' sound_pu') => audio_tower.proj2.weight res other",
    ),
    mutant(
        "qwen3_omni_moe_thinker",
        "a layer that is read forgotten",
        "deep",
        "res deep' if stacked => res other if stacked",
    ),
    mutant(
        "qwen3_asr",
        "the projector past its neurons",
        "project",
        "multi_modal_projector.linear_2.weight res (project pu') => multi_modal_projector.linear_2.weight res other",
    ),
]

"""Language models that hear: Voxtral, Flamingos, GLM-ASR."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers, drawn_words, heard_in_pieces
from toy_models import composed
from toy_settings import (
    COMPOSED_MODELS,
    IMAGE,
    KNOWN_TEXT,
    LLAMA,
    QWEN2,
    Inputs,
)

LOG_MEL_EARS: dict[str, Any] = {
    "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 240, "num_mel_bins": 7,
    "max_source_positions": 8, "head_dim": 12,
}  # fmt: skip
VOXTRAL: dict[str, Any] = {"text_config": LLAMA, "audio_config": LOG_MEL_EARS, "audio_token_id": IMAGE, "tie_word_embeddings": False, "projector_hidden_act": "relu"}  # fmt: skip
AUDIOFLAMINGO3: dict[str, Any] = {"text_config": QWEN2, "audio_config": LOG_MEL_EARS, "audio_token_id": IMAGE, "tie_word_embeddings": False}  # fmt: skip
LIVE: dict[str, Any] = {
    "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "head_dim": 8, "intermediate_size": 44, "num_mel_bins": 7, "max_position_embeddings": 64, "sliding_window": 9,
}  # fmt: skip
EAR: dict[str, Any] = {
    "hidden_size": 72, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 288, "num_mel_bins": 7, "max_position_embeddings": 16,
    "model_type": "glmasr_encoder",
}  # fmt: skip
LISTENING: dict[str, Any] = {"audio_token_id": IMAGE, "tie_word_embeddings": False}
MUSICFLAMINGO: dict[str, Any] = {"text_config": QWEN2, "audio_config": {**LOG_MEL_EARS, "model_type": "audioflamingo3_encoder"}, **LISTENING, "audio_bos_token_id": 64, "audio_eos_token_id": 65, "audio_frame_step": 30.0}  # fmt: skip
VOXTRAL_REALTIME: dict[str, Any] = {"text_config": {**KNOWN_TEXT, "sliding_window": 6, "tie_word_embeddings": False}, "audio_config": LIVE, "tie_word_embeddings": False}  # fmt: skip
GLMASR: dict[str, Any] = {"text_config": {**KNOWN_TEXT, "model_type": "llama"}, "audio_config": EAR, **LISTENING}  # fmt: skip


def _heard(pieces: int) -> Callable[[Any, torch.Generator], Inputs]:
    """Texts with a sound each, which so many tokens stand for."""

    def made(_: Any, rng: torch.Generator) -> Inputs:
        found = {"input_ids": drawn_words(rng, pieces), "input_features": drawn_numbers(rng, 3, 7, 16)}
        return {**found, "input_features_mask": torch.ones((3, 16), dtype=torch.long)}

    return made


def _live(_: Any, rng: torch.Generator) -> Inputs:
    """Texts to each word of which eight moments of sound are added."""
    return {
        "input_ids": torch.randint(4, 60, (3, 6), generator=rng),
        "input_features": drawn_numbers(rng, 3, 7, 48),
    }


MORE_TOYS: dict[str, Toy] = {
    "voxtral": (partial(composed, "Voxtral", VOXTRAL), 1e-5),
    "audioflamingo3": (partial(composed, "AudioFlamingo3", AUDIOFLAMINGO3), 1e-5),
    "musicflamingo": (partial(composed, "MusicFlamingo", MUSICFLAMINGO), 1e-5),
    "voxtral_realtime": (partial(composed, "VoxtralRealtime", VOXTRAL_REALTIME), 1e-5),
    "glmasr": (partial(composed, "GlmAsr", GLMASR), 1e-5),
}

MORE_NAMES: dict[str, Saved] = {
    "Voxtral": (VOXTRAL, COMPOSED_MODELS),
    "AudioFlamingo3": (AUDIOFLAMINGO3, COMPOSED_MODELS),
    "VoxtralEncoder": (LOG_MEL_EARS, [""]),
    "AudioFlamingo3Encoder": (LOG_MEL_EARS, [""]),
    "MusicFlamingo": (MUSICFLAMINGO, COMPOSED_MODELS),
    "VoxtralRealtime": (VOXTRAL_REALTIME, COMPOSED_MODELS),
    "GlmAsr": (GLMASR, COMPOSED_MODELS),
    "GlmAsrEncoder": (EAR, [""]),
    "VoxtralRealtimeText": (KNOWN_TEXT, []),
    "VoxtralRealtimeEncoder": (LIVE, [""]),
}

STREAMS: dict[str, Streams] = {
    **{key: {"res": "O", "sound_res": "Perm"} for key in ["voxtral", "audioflamingo3", "glmasr"]},
    "musicflamingo": {"res": "O"},
    "voxtral_realtime": {"res": "Perm", "sound_res": "Perm"},
}

IDLE = {
    ("audioflamingo3", "sound_kb"),
    ("audioflamingo3", "vb"),
    ("glmasr", "sound_kb"),
    ("glmasr", "vb"),
    ("musicflamingo", "sound_kb"),
    ("musicflamingo", "vb"),
    ("voxtral", "sound_kb"),
    ("voxtral", "vb"),
}

INPUTS: dict[str, Drawn] = {
    "musicflamingo": _heard(4),
    "glmasr": _heard(2),
    "voxtral_realtime": _live,
    "voxtral": heard_in_pieces(2),
    "audioflamingo3": heard_in_pieces(4, "input_features_mask"),
}

MUTANTS = [
    mutant(
        "voxtral",
        "channels of the second convolution forgotten",
        "sound_channel",
        "res channel' width => res other width",
        part="voxtral_encoder",
    ),
    mutant("voxtral", "moments fast", "sound_res", "(merge sound_res sound_nf)' => (sound_res merge sound_nf)'"),
    mutant("voxtral", "negative scale under ReLU", "pu", "PositiveScale[project] => Scale[project]"),
    mutant("audioflamingo3", "neurons not permuted on one side", "project", "res (project pu') => res neurons"),
    mutant("musicflamingo", "permuted where pairs are turned by the time", "sound_res", "without res nf => "),
    mutant("glmasr", "moments fast", "sound_res", "(merge sound_res sound_nf)' => (sound_res merge sound_nf)'"),
    mutant(
        "glmasr",
        "the rest before the rotated part",
        "sound_rest",
        "[c pair | rest] => [rest | c pair]",
        "[c' pair | rest'] => [rest' | c' pair]",
        part="glmasr_encoder",
    ),
    mutant(
        "glmasr",
        "channels of the second convolution forgotten",
        "sound_channel",
        "res channel' width => res other width",
        part="glmasr_encoder",
    ),
    mutant(
        "voxtral_realtime",
        "signs past the delay's factors",
        "res",
        "residual res: Perm => residual res: SignedPerm",
        part="voxtral_realtime_text",
    ),
    mutant(
        "voxtral_realtime",
        "the delay's factors in other coordinates",
        "res",
        "linear2.weight res af' => linear2.weight other af'",
        part="voxtral_realtime_text",
    ),
    mutant(
        "voxtral_realtime",
        "the delay's neurons not permuted back",
        "af",
        "linear2.weight res af' => linear2.weight res other",
        part="voxtral_realtime_text",
    ),
    mutant(
        "voxtral_realtime",
        "interleaved pairs",
        "sound_c",
        "(h c pair) => (h pair c)",
        "(h c' pair) => (h pair c')",
        part="voxtral_realtime_encoder",
    ),
    mutant(
        "voxtral_realtime",
        "gate scaled",
        "sound_u",
        "gate_proj.weight ff => gate_proj.weight (ff u)",
        part="voxtral_realtime_encoder",
    ),
]

"""Spectra, music and voices: AST, CLAP, MusicGen, Bark."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers
from toy_models import made
from toy_settings import BODY, SHAPE, Inputs

AST = {
    **SHAPE,
    "intermediate_size": 40,
    "max_length": 12,
    "num_mel_bins": 8,
    "frequency_stride": 4,
    "time_stride": 4,
}
TOLD: dict[str, Any] = {
    "model_type": "t5",
    "vocab_size": 67,
    "d_model": 48,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 2,
    "num_heads": 6,
    "relative_attention_num_buckets": 8,
}
PLAYED: dict[str, Any] = {
    "vocab_size": 29, "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "ffn_dim": 44, "num_codebooks": 2, "max_position_embeddings": 32,
    "pad_token_id": 29, "bos_token_id": 29,
}  # fmt: skip
MUSIC: dict[str, Any] = {
    "text_encoder": TOLD, "decoder": PLAYED,
    "audio_encoder": {
        "model_type": "encodec", "num_filters": 4, "hidden_size": 16, "codebook_size": 16, "codebook_dim": 16, "upsampling_ratios": [2, 2], "sampling_rate": 40,
        "target_bandwidths": [0.1],
    },
}  # fmt: skip
BARKING: dict[str, Any] = {
    "block_size": 32,
    "input_vocab_size": 67,
    "output_vocab_size": 61,
    "num_layers": 2,
    "num_heads": 6,
    "hidden_size": 48,
}
BARK: dict[str, Any] = {
    "semantic_config": BARKING, "coarse_acoustics_config": {**BARKING, "bias": False, "num_heads": 4},
    "fine_acoustics_config": {**BARKING, "num_heads": 8, "output_vocab_size": 67, "n_codes_total": 4, "n_codes_given": 1}, "codec_config": MUSIC["audio_encoder"],
}  # fmt: skip


def _played(_: Any, rng: torch.Generator) -> Inputs:
    """Two codes at every moment, and what is told."""
    codes = torch.randint(0, 29, (6, 7), generator=rng)
    return {"input_ids": torch.randint(1, 60, (3, 9), generator=rng), "decoder_input_ids": codes}


def _of_a_melody(_: Any, rng: torch.Generator) -> Inputs:
    return {**_played(_, rng), "input_features": drawn_numbers(rng, 3, 5, 6)}


def _codes_alone(_: Any, rng: torch.Generator) -> Inputs:
    """Two codes at every moment, and what is read by cross-attention."""
    return {
        "input_ids": torch.randint(0, 29, (6, 7), generator=rng),
        "encoder_hidden_states": drawn_numbers(rng, 3, 5, 60),
    }


def _words_alone(_: Any, rng: torch.Generator) -> Inputs:
    return {"input_ids": torch.randint(4, 60, (3, 11), generator=rng)}


def _spectra(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Spectrograms: times and frequencies."""
    return {
        "input_values": torch.randn((3, config.max_length, config.num_mel_bins), generator=rng, dtype=torch.float64)
    }


SPECTRA = {
    "hidden_size": 96, "patch_size": 4, "patch_stride": [4, 4], "num_mel_bins": 32, "spec_size": 64, "patch_embeds_hidden_size": 12,
    "depths": [2, 1, 1, 1], "num_attention_heads": [3, 4, 6, 8], "window_size": 2, "mlp_ratio": 1.5, "enable_fusion": True,
    "patch_embed_input_channels": 1, "num_hidden_layers": 4, "aff_block_r": 2,
}  # fmt: skip
HEARD = {"text_config": BODY, "audio_config": SPECTRA, "projection_dim": 20}
SHORT = {**HEARD, "audio_config": {**SPECTRA, "enable_fusion": False}}


def _sounds(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts and spectrograms: long ones as a whole and in three pieces."""
    pieces = 4 if config.audio_config.enable_fusion else 1
    return {
        "input_ids": torch.randint(4, 60, (3, 9), generator=rng),
        "input_features": torch.randn((3, pieces, 128, 32), generator=rng, dtype=torch.float64),
        "is_longer": torch.tensor([[True], [False], [True]]),
    }


MORE_TOYS: dict[str, Toy] = {
    "audio-spectrogram-transformer": (made("AST", "ForAudioClassification", **AST), 1e-9),
    "clap": (made("Clap", "Model", **HEARD), 1e-5),
    "clap-short": (made("Clap", "Model", **SHORT), 1e-5),
    "musicgen": (lambda: tf.MusicgenForConditionalGeneration(tf.MusicgenConfig(**MUSIC)), 1e-5),
    "musicgen_decoder": (
        lambda: tf.MusicgenForCausalLM(tf.MusicgenDecoderConfig(**PLAYED, activation_function="relu")),
        1e-9,
    ),
    "musicgen_melody": (
        lambda: tf.MusicgenMelodyForConditionalGeneration(tf.MusicgenMelodyConfig(**MUSIC, num_chroma=6)),
        1e-5,
    ),
    "bark": (lambda: tf.BarkModel(tf.BarkConfig(**BARK)), 1e-9),
}

MORE_NAMES: dict[str, Saved] = {
    "AST": (AST, ["Model", "ForAudioClassification"]),
    "Clap": (HEARD, ["Model"]),
    "ClapText": (BODY, ["Model"]),
    "ClapAudio": (SPECTRA, ["Model"]),
    "Musicgen": (MUSIC, ["ForConditionalGeneration"]),
    "MusicgenDecoder": (PLAYED, []),
    "MusicgenMelody": ({**MUSIC, "num_chroma": 6}, ["ForConditionalGeneration"]),
    "MusicgenMelodyDecoder": (PLAYED, []),
    "Bark": (BARK, ["Model"]),
    "BarkSemantic": (BARKING, ["Model"]),
    "BarkCoarse": (BARKING, ["Model"]),
    "BarkFine": (BARK["fine_acoustics_config"], ["Model"]),
}

STREAMS: dict[str, Streams] = {
    **{
        key: {
            "text_res": "Perm",
            "audio_res0": "Perm",
            "audio_res1": "OFixingOnes",
            "audio_res2": "OFixingOnes",
            "audio_res3": "OFixingOnes",
        }
        for key in ["clap", "clap-short"]
    },
    "musicgen": {"text_res": "O", "told": "O"},
    "musicgen_decoder": {},
    "musicgen_melody": {"text_res": "O"},
    "bark": {"semantic_res": "OFixingOnes", "coarse_res": "OFixingOnes", "fine_res": "Perm"},
}

IDLE = {
    ("bark", "coarse_kb"),
    ("bark", "coarse_vb"),
    ("musicgen", "kb"),
    ("musicgen", "text_db"),
    ("musicgen", "text_dn1"),
    ("musicgen", "text_dn2"),
    ("musicgen", "text_dn3"),
    ("musicgen", "text_dnf"),
    ("musicgen_decoder", "kb"),
    ("musicgen_melody", "kb"),
    ("musicgen_melody", "text_db"),
    ("musicgen_melody", "text_dn1"),
    ("musicgen_melody", "text_dn2"),
    ("musicgen_melody", "text_dn3"),
    ("musicgen_melody", "text_dnf"),
}

INPUTS: dict[str, Drawn] = {
    "bark": _words_alone,
    "musicgen": _played,
    "musicgen_melody": _of_a_melody,
    "musicgen_decoder": _codes_alone,
    "clap": _sounds,
    "audio-spectrogram-transformer": _spectra,
}

OUTPUTS: dict[str, tuple[str, ...]] = {
    "clap": ("logits_per_audio", "audio_embeds", "text_embeds"),
}

MUTANTS = [
    mutant(
        "audio-spectrogram-transformer",
        "the last gain behind another norm",
        "nf",
        "size nf = 1\n => residual nf: Scale[res]\n",
        "classifier.dense.weight labels res' => classifier.dense.weight labels (res nf)'",
    ),
    mutant(
        "audio-spectrogram-transformer",
        "the head's norm forgotten",
        "res",
        "classifier.layernorm.weight res => classifier.layernorm.weight other",
    ),
    mutant(
        "clap",
        "texts past their tower",
        "text_res",
        "text_projection.linear1.weight (tp tu) text_res' => text_projection.linear1.weight (tp tu) rows",
        "size tp = => size rows = text_config.hidden_size\nsize tp =",
    ),
    mutant(
        "clap", "sounds past the last norm", "audio_nf", "(ap au) (audio_res3 audio_nf)' => (ap au) audio_res3'"
    ),
    mutant(
        "clap",
        "gates in coordinates of their own",
        "audio_res0",
        "local_att.3.weight res0 (fl fv)' 1 1 => local_att.3.weight rows (fl fv)' 1 1",
        "global_att.4.weight res0 => global_att.4.weight rows",
        part="clap_audio_model",
    ),
    mutant(
        "clap",
        "long sounds in coordinates of their own",
        "audio_res0",
        "mel_conv2d.weight res0 => mel_conv2d.weight rows",
        part="clap_audio_model",
    ),
    mutant(
        "clap-short",
        "negative factors through ReLU",
        "au",
        "space au as scale: PositiveScale => space au as scale: Scale",
    ),
    mutant("musicgen", "past the last gain of the text", "text_enf", "told (text_res text_enf)' => told text_res'"),
    mutant(
        "musicgen",
        "what is told turned in its map alone",
        "told",
        "(xh xov) told' => (xh xov) other",
        part="musicgen_decoder",
    ),
    mutant(
        "musicgen_melody",
        "the text in other coordinates",
        "text_res",
        "enc_to_dec_proj.weight res (text_res text_enf)' => enc_to_dec_proj.weight res columns",
    ),
    mutant(
        "musicgen_decoder",
        "permuted under computed positions",
        "res",
        "residual n1: => residual res: Perm\nresidual n1:",
    ),
    mutant("musicgen_decoder", "negative scale under ReLU", "u", "PositiveScale[l, ff] => Scale[l, ff]"),
    mutant(
        "bark",
        "heads of another part",
        "coarse_h",
        "include coarse_acoustics_config as coarse => include semantic_config as coarse",
    ),
    mutant(
        "bark",
        "heads of the next part",
        "semantic_h",
        "include semantic_config as semantic => include coarse_acoustics_config as semantic",
    ),
    mutant(
        "bark", "fused head by head", "semantic_h", "[h qk | h qk' | h ov] => (h [qk | qk' | ov])", part="semantic"
    ),
    mutant(
        "bark",
        "values before keys",
        "coarse_ov",
        "[h qk | h qk' | h ov] => [h qk | h ov | h qk']",
        part="coarse_acoustics",
    ),
    mutant(
        "bark",
        "the last gain folded past tied heads",
        "fine_nf",
        "residual nf: Scale[res] if not tied => residual nf: Scale[res]",
        part="fine_acoustics",
    ),
    mutant(
        "bark",
        "the last gain kept from the head",
        "semantic_nf",
        "lm_head.weight words (res nf)' => lm_head.weight words res'",
        part="semantic",
    ),
]

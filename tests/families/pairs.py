"""Encoder-decoders that are made of two models."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers
from toy_models import made
from toy_settings import (
    BART,
    BODY,
    CROSS_WRITER,
    KNOWN,
    LEARNT,
    NARROW_TOWER,
    WINDOWS,
    WRITES,
    Inputs,
)

TROCR = {
    "vocab_size": 67, "d_model": 48, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 36,
    "max_position_embeddings": 32, "cross_attention_hidden_size": 20, "activation_function": "relu",
}  # fmt: skip


def _trocr() -> Any:
    """A vision-encoder-decoder of a ViT and TrOCR."""
    encoder, decoder = (
        tf.ViTConfig(**NARROW_TOWER),
        tf.TrOCRConfig(**TROCR, is_decoder=True, add_cross_attention=True),
    )
    config = tf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    return tf.VisionEncoderDecoderModel(config=config)


WRITING = {
    "encoder": {**NARROW_TOWER, "model_type": "vit"},
    "decoder": {**TROCR, "model_type": "trocr", "is_decoder": True, "add_cross_attention": True},
}
ENCODER: dict[str, Any] = {**LEARNT, "model_type": "roberta"}
DECODER: dict[str, Any] = {**LEARNT, "model_type": "bert", "is_decoder": True, "add_cross_attention": True}
EARS: dict[str, Any] = {
    "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 44, "conv_dim": [10, 12], "conv_stride": [2, 2],
    "conv_kernel": [3, 2], "num_conv_pos_embeddings": 5, "num_conv_pos_embedding_groups": 4, "apply_spec_augment": False,
}  # fmt: skip
WRITER: dict[str, Any] = {**BART, "is_encoder_decoder": False, "is_decoder": True}


def _hearing(encoder: str, decoder: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"encoder": {**EARS, "model_type": encoder, **changes}, "decoder": decoder}


HEARD_AND_WRITTEN = _hearing("wav2vec2", {**WRITER, "model_type": "bart"})
HEARD_BY_BERT = _hearing(
    "hubert", {**BODY, "model_type": "bert", "hidden_size": 60, "is_decoder": True, "add_cross_attention": True}
)


def _as_waves(_: Any, rng: torch.Generator) -> Inputs:
    """Sounds, and the words before."""
    return {
        "input_values": drawn_numbers(rng, 3, 90),
        "decoder_input_ids": torch.randint(4, 60, (3, 7), generator=rng),
    }


def _read(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Images of writing and the words before."""
    side = config.encoder.image_size
    return {
        "pixel_values": torch.randn((3, 3, side, side), generator=rng, dtype=torch.float64),
        "decoder_input_ids": torch.randint(1, 60, (3, 7), generator=rng),
    }


def _written(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Words, and what an encoder saw."""
    shape = (3, 5, config.cross_attention_hidden_size)
    return {
        "input_ids": torch.randint(1, 60, (3, 7), generator=rng),
        "encoder_hidden_states": torch.randn(shape, generator=rng, dtype=torch.float64),
    }


GPT: dict[str, Any] = {
    "vocab_size": 67, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 32, "n_inner": 36, **KNOWN,
}  # fmt: skip
DISTILLED: dict[str, Any] = {
    "vocab_size": 67, "dim": 48, "n_layers": 2, "n_heads": 6, "hidden_dim": 40, "max_position_embeddings": 32, "activation": "relu",
}  # fmt: skip
LOOKING: dict[str, Any] = {**NARROW_TOWER, "hidden_size": 48, "num_attention_heads": 6, "intermediate_size": 40}
PAGES: dict[str, Any] = {**WINDOWS, "embed_dim": 6, "num_heads": [1, 2, 3, 4]}
BERTS: dict[str, Any] = {**LEARNT, "num_attention_heads": 4, "intermediate_size": 36, **WRITES}


def _pair(family: str, encoder: Any, decoder: Any) -> Any:
    config = getattr(tf, f"{family}Config").from_encoder_decoder_configs(encoder, decoder)
    return getattr(tf, f"{family}Model")(config)


def _two_berts() -> Any:
    """A reader and a writer of other heads and neurons."""
    writer = tf.BertConfig(
        **{**LEARNT, "num_attention_heads": 4, "intermediate_size": 36}, is_decoder=True, add_cross_attention=True
    )
    config = tf.EncoderDecoderConfig.from_encoder_decoder_configs(tf.RobertaConfig(**LEARNT), writer)
    return tf.EncoderDecoderModel(config)


def _read_and_written(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts, and the words before."""
    return {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng),
        "decoder_input_ids": torch.randint(4, 60, (3, 7), generator=rng),
    }


MORE_TOYS: dict[str, Toy] = {
    "vision-encoder-decoder": (_trocr, 1e-9),
    "trocr": (made("TrOCR", "ForCausalLM", **TROCR, is_decoder=True, add_cross_attention=True), 1e-9),
    "encoder-decoder": (_two_berts, 1e-9),
    "encoder-decoder-gpt2": (
        lambda: _pair("EncoderDecoder", tf.BertConfig(**LEARNT), tf.GPT2Config(**GPT, **WRITES)),
        1e-9,
    ),
    "encoder-decoder-causal": (
        lambda: _pair("EncoderDecoder", tf.GPT2Config(**GPT), tf.RobertaConfig(**BERTS)),
        1e-9,
    ),
    "encoder-decoder-distilled": (
        lambda: _pair("EncoderDecoder", tf.DistilBertConfig(**DISTILLED), tf.BertConfig(**BERTS)),
        1e-9,
    ),
    "vision-encoder-decoder-gpt2": (
        lambda: _pair(
            "VisionEncoderDecoder",
            tf.ViTConfig(**LOOKING),
            tf.GPT2Config(**GPT, **WRITES, activation_function="relu"),
        ),
        1e-9,
    ),
    "vision-encoder-decoder-bert": (
        lambda: _pair("VisionEncoderDecoder", tf.DeiTConfig(**LOOKING), tf.BertConfig(**BERTS)),
        1e-9,
    ),
    "vision-encoder-decoder-donut": (
        lambda: _pair(
            "VisionEncoderDecoder",
            tf.DonutSwinConfig(**PAGES),
            tf.MBartConfig(**CROSS_WRITER, scale_embedding=True),
        ),
        1e-9,
    ),
    "speech-encoder-decoder": (
        lambda: tf.SpeechEncoderDecoderModel(tf.SpeechEncoderDecoderConfig(**HEARD_AND_WRITTEN)),
        1e-9,
    ),
    "speech-encoder-decoder-bert": (
        lambda: tf.SpeechEncoderDecoderModel(tf.SpeechEncoderDecoderConfig(**HEARD_BY_BERT)),
        1e-9,
    ),
}

MORE_NAMES: dict[str, Saved] = {
    "TrOCR": ({**TROCR, "is_decoder": True, "add_cross_attention": True}, ["ForCausalLM"]),
    "VisionEncoderDecoder": (WRITING, ["Model"]),
    "EncoderDecoder": ({"encoder": ENCODER, "decoder": DECODER}, ["Model"]),
    "SpeechEncoderDecoder": (HEARD_AND_WRITTEN, ["Model"]),
}

STREAMS: dict[str, Streams] = {
    **{
        key: {"res": "Perm", "read_res": "OFixingOnes"}
        for key in ["vision-encoder-decoder", "vision-encoder-decoder-gpt2", "vision-encoder-decoder-bert"]
    },
    **{
        key: {"res": "Perm", "read_res": "Perm"}
        for key in [
            "encoder-decoder",
            "encoder-decoder-gpt2",
            "encoder-decoder-causal",
            "encoder-decoder-distilled",
        ]
    },
    "vision-encoder-decoder-donut": {
        "res": "Perm",
        "read_res0": "Perm",
        "read_res1": "OFixingOnes",
        "read_res2": "OFixingOnes",
        "read_res3": "OFixingOnes",
    },
    "speech-encoder-decoder": {"res": "Perm", "read_res": "O", "heard_res": "Fixed", "heard_feat": "Fixed"},
    "speech-encoder-decoder-bert": {"res": "Perm", "heard_res": "Fixed", "heard_feat": "Fixed"},
}

WITHOUT_GAINS = {"speech-encoder-decoder"}

IDLE = {
    ("vision-encoder-decoder-donut", "read_h0"),
}

INPUTS: dict[str, Drawn] = {
    "encoder-decoder": _read_and_written,
    "speech-encoder-decoder": _as_waves,
    "vision-encoder-decoder": _read,
    "trocr": _written,
}

MUTANTS = [
    mutant(
        "vision-encoder-decoder",
        "cross-attention past the tower's last gain",
        "read_nf",
        "(xh xov) (read_res read_nf)' => (xh xov) read_res'",
        part="trocr",
    ),
    mutant(
        "vision-encoder-decoder",
        "negative scale under ReLU",
        "u",
        "space u as scale: PositiveScale => space u as scale: Scale",
        part="trocr",
    ),
    mutant("trocr", "cross-attention's key not dual", "xqk", "(xh xqk') read_res' => (xh xqk) read_res'"),
    mutant(
        "trocr",
        "the normed embeddings in other coordinates",
        "res",
        "decoder.layernorm_embedding.weight res => decoder.layernorm_embedding.weight other",
    ),
    mutant("encoder-decoder", "cross-attention reads the decoder", "read_res", "read_res' => res'", part="bert"),
    mutant("encoder-decoder", "cross-attention's key not dual", "xqk", "(xh xqk') => (xh xqk)", part="bert"),
    mutant(
        "encoder-decoder",
        "cross-attention past the encoder's stream",
        "seen_res",
        "include encoder as read at => include encoder as seen at",
    ),
    mutant(
        "encoder-decoder",
        "the two mistaken",
        "res",
        "include encoder as read at encoder. => include encoder at encoder.",
        "include decoder at decoder. => include decoder as read at decoder.",
    ),
    mutant(
        "encoder-decoder-gpt2", "values before keys", "xov", "[xh xqk' | xh xov] => [xh xov | xh xqk']", part="gpt2"
    ),
    mutant(
        "encoder-decoder-gpt2",
        "the gain before cross-attention forgotten",
        "nx",
        "q_attn.weight (res nx)' => q_attn.weight res'",
        part="gpt2",
    ),
    mutant(
        "encoder-decoder-gpt2",
        "the encoder's stream forgotten",
        "read_res",
        "crossattention.c_attn.weight read_res' => crossattention.c_attn.weight columns",
        part="gpt2",
    ),
    mutant(
        "encoder-decoder-causal",
        "past the last gain of GPT-2",
        "read_nf",
        "(xh xov) (read_res read_nf)' => (xh xov) read_res'",
        part="roberta",
    ),
    mutant(
        "encoder-decoder-distilled",
        "the encoder's stream forgotten",
        "read_res",
        "(xh xov) read_res' => (xh xov) columns",
        part="bert",
    ),
    mutant(
        "vision-encoder-decoder-gpt2",
        "past the tower's last gain",
        "read_nf",
        "(read_res read_nf)' => read_res'",
        part="gpt2",
    ),
    mutant(
        "vision-encoder-decoder-bert",
        "past the tower's last gain",
        "read_nf",
        "(xh xqk') (read_res read_nf)' => (xh xqk') read_res'",
        part="bert",
    ),
    mutant(
        "vision-encoder-decoder-donut",
        "the stream before the last",
        "read_res3",
        "(xh xqk') read_res3' => (xh xqk') columns",
        part="mbart",
    ),
    mutant(
        "speech-encoder-decoder",
        "what is heard turned in its map alone",
        "read_res",
        "enc_to_dec_proj.bias read_res => enc_to_dec_proj.bias rows",
    ),
    mutant(
        "speech-encoder-decoder",
        "permuted behind a convolution in groups",
        "heard_res",
        "residual read_res => residual heard_res: Perm\nresidual read_res",
    ),
    mutant(
        "speech-encoder-decoder-bert",
        "what is heard turned where nothing maps it",
        "read_res",
        "residual read_res: O if projected => residual read_res: O",
    ),
]

"""Constructors of tiny models that read and write, made of two others, and of the half that writes (see
`toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

from toy_encoders import TOWER
from toy_languages import KNOWN
from toy_models import BART
from toy_pictures import WINDOWS
from toy_texts import LEARNT

WRITES: dict[str, Any] = {"is_decoder": True, "add_cross_attention": True}
GPT: dict[str, Any] = {
    "vocab_size": 67, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 32, "n_inner": 36, **KNOWN,
}  # fmt: skip
DISTILLED: dict[str, Any] = {
    "vocab_size": 67, "dim": 48, "n_layers": 2, "n_heads": 6, "hidden_dim": 40, "max_position_embeddings": 32, "activation": "relu",
}  # fmt: skip
LOOKING: dict[str, Any] = {**TOWER, "hidden_size": 48, "num_attention_heads": 6, "intermediate_size": 40}
PAGES: dict[str, Any] = {**WINDOWS, "embed_dim": 6, "num_heads": [1, 2, 3, 4]}
WRITER: dict[str, Any] = {**BART, "is_encoder_decoder": False, **WRITES}
BERTS: dict[str, Any] = {**LEARNT, "num_attention_heads": 4, "intermediate_size": 36, **WRITES}
# the halves of each, and the class of both
HALVES: dict[str, tuple[str, Callable[[], Any], Callable[[], Any]]] = {
    "encoder-decoder-gpt2": ("EncoderDecoder", lambda: tf.BertConfig(**LEARNT), lambda: tf.GPT2Config(**GPT, **WRITES)),
    "encoder-decoder-causal": ("EncoderDecoder", lambda: tf.GPT2Config(**GPT), lambda: tf.RobertaConfig(**BERTS)),
    "encoder-decoder-distilled": (
        "EncoderDecoder", lambda: tf.DistilBertConfig(**DISTILLED), lambda: tf.BertConfig(**BERTS),
    ),
    "vision-encoder-decoder-gpt2": (
        "VisionEncoderDecoder", lambda: tf.ViTConfig(**LOOKING), lambda: tf.GPT2Config(**GPT, **WRITES, activation_function="relu"),
    ),
    "vision-encoder-decoder-bert": (
        "VisionEncoderDecoder", lambda: tf.DeiTConfig(**LOOKING), lambda: tf.BertConfig(**BERTS),
    ),
    "vision-encoder-decoder-donut": (
        "VisionEncoderDecoder", lambda: tf.DonutSwinConfig(**PAGES), lambda: tf.MBartConfig(**WRITER, scale_embedding=True),
    ),
}  # fmt: skip


def halves(name: str) -> Any:
    """The config of a pair."""
    family, encoder, decoder = HALVES[name]
    return getattr(tf, f"{family}Config").from_encoder_decoder_configs(encoder(), decoder())


def _pair(name: str) -> Callable[[], Any]:
    return lambda: getattr(tf, f"{HALVES[name][0]}Model")(halves(name))


# name -> (constructor, largest relative change of outputs that rounding explains)
PAIRS: dict[str, tuple[Callable[[], Any], float]] = {
    **{name: (_pair(name), 1e-9) for name in HALVES},
    "bart-decoder": (lambda: tf.BartForCausalLM(tf.BartConfig(**WRITER)), 1e-9),
    "mbart-decoder": (lambda: tf.MBartForCausalLM(tf.MBartConfig(**WRITER, tie_word_embeddings=False)), 1e-9),
}


def _read_or_written(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts and the words before; of a decoder alone the words, and what an encoder read."""
    found = {"input_ids": torch.randint(1, 60, (3, 11), generator=rng)}
    if config.is_encoder_decoder:
        return {**found, "decoder_input_ids": torch.randint(1, 60, (3, 7), generator=rng)}
    read = torch.randn((3, 5, config.d_model), generator=rng, dtype=torch.float64)
    return {**found, "encoder_hidden_states": read}


def _asked(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts and images; of a model that answers questions its loss is the only output that its answers have."""
    side = config.vision_config.image_size
    found = {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng), "pixel_values": torch.randn((3, 3, side, side), generator=rng, dtype=torch.float64),
    }  # fmt: skip
    if config.architectures[0] == "BlipForQuestionAnswering":
        found["labels"] = torch.randint(4, 60, (3, 7), generator=rng)
    return found


PAIR_INPUTS = {**dict.fromkeys(["bart", "mbart"], _read_or_written), "blip": _asked}
"""Inputs of models of which there are halves, by ``model_type``."""

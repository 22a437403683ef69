"""BART and other encoder-decoders of texts."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_models import made
from toy_settings import BART, COMPOSED_MODELS, CROSS_WRITER, KNOWN


def _bart(kind: str, **changes: Any) -> Any:
    model = "MarianMTModel" if kind == "Marian" else f"{kind}ForConditionalGeneration"
    return getattr(tf, model)(getattr(tf, f"{kind}Config")(**BART, **changes))


SPARSE = {**BART, "attention_type": "block_sparse", "block_size": 1, "num_random_blocks": 1}
BARTS = ["Model", "ForConditionalGeneration", "ForSequenceClassification", "ForQuestionAnswering"]


def _read_or_written(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts and the words before; of a decoder alone the words, and what an encoder read."""
    found = {"input_ids": torch.randint(1, 60, (3, 11), generator=rng)}
    if config.is_encoder_decoder:
        return {**found, "decoder_input_ids": torch.randint(1, 60, (3, 7), generator=rng)}
    read = torch.randn((3, 5, config.d_model), generator=rng, dtype=torch.float64)
    return {**found, "encoder_hidden_states": read}


ALONE: dict[str, Any] = {"is_encoder_decoder": False, "is_decoder": True}
EXPERT_NLLB: dict[str, Any] = {
    "vocab_size": 67, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 6, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40, "decoder_ffn_dim": 36, "max_position_embeddings": 32, "num_experts": 4, "encoder_sparse_step": 2,
    "decoder_sparse_step": 2, "router_bias": True, "expert_capacity": 64, **KNOWN,
}  # fmt: skip
TWO_STACKS: dict[str, Any] = {
    "vocab_size": 67, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 6, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40, "decoder_ffn_dim": 36, **KNOWN,
}  # fmt: skip
LED: dict[str, Any] = {
    **TWO_STACKS, "max_encoder_position_embeddings": 32, "max_decoder_position_embeddings": 32, "attention_window": 4,
}  # fmt: skip
BLOCKS: dict[str, Any] = {
    **TWO_STACKS,
    "max_position_embeddings": 32,
    "num_global_tokens": 3,
    "block_size": 4,
}
FAIRSEQ: dict[str, Any] = {
    **{k: v for k, v in TWO_STACKS.items() if k != "vocab_size"}, "src_vocab_size": 67, "tgt_vocab_size": 71, "langs": ["en", "de"],
    "max_position_embeddings": 32,
}  # fmt: skip
PROPHET: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 6,
    "num_decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 36, "num_buckets": 6, "relative_max_distance": 16,
    "max_position_embeddings": 32, **KNOWN,
}  # fmt: skip


def _looking_around(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts in which two words see all, and the words before."""
    seeing = torch.zeros((3, 12), dtype=torch.long)
    seeing[:, [0, 4]] = 1
    return {
        "input_ids": torch.randint(4, 60, (3, 12), generator=rng), "global_attention_mask": seeing,
        "decoder_input_ids": torch.randint(4, 60, (3, 7), generator=rng),
    }  # fmt: skip


TOYS: dict[str, Toy] = {
    "bart": (lambda: _bart("Bart"), 1e-9),
    "mbart": (lambda: _bart("MBart", activation_function="relu"), 1e-9),
    "marian": (lambda: _bart("Marian", activation_function="swish"), 1e-9),
    "pegasus": (lambda: _bart("Pegasus", activation_function="relu"), 1e-9),
}

MORE_TOYS: dict[str, Toy] = {
    "m2m_100": (made("M2M100", "ForConditionalGeneration", **BART), 1e-9),
    "blenderbot": (made("Blenderbot", "ForConditionalGeneration", **BART), 1e-9),
    "blenderbot-untied": (made("Blenderbot", "ForConditionalGeneration", **BART, tie_word_embeddings=False), 1e-9),
    "blenderbot-small": (made("BlenderbotSmall", "ForConditionalGeneration", **BART), 1e-9),
    "plbart": (made("PLBart", "ForConditionalGeneration", **BART), 1e-9),
    "bigbird_pegasus": (made("BigBirdPegasus", "ForConditionalGeneration", **SPARSE), 1e-9),
    "nllb-moe": (lambda: tf.NllbMoeForConditionalGeneration(tf.NllbMoeConfig(**EXPERT_NLLB)), 1e-6),
    "led": (lambda: tf.LEDForConditionalGeneration(tf.LEDConfig(**LED)), 1e-6),
    "led-relu": (lambda: tf.LEDForQuestionAnswering(tf.LEDConfig(**LED, activation_function="relu")), 1e-6),
    "pegasus_x": (lambda: tf.PegasusXForConditionalGeneration(tf.PegasusXConfig(**BLOCKS)), 1e-9),
    "pegasus_x-relu": (
        lambda: tf.PegasusXForConditionalGeneration(
            tf.PegasusXConfig(**BLOCKS, activation_function="relu", tie_word_embeddings=False)
        ),
        1e-9,
    ),
    "fsmt": (lambda: tf.FSMTForConditionalGeneration(tf.FSMTConfig(**FAIRSEQ)), 1e-9),
    "fsmt-gelu": (
        lambda: tf.FSMTForConditionalGeneration(tf.FSMTConfig(**FAIRSEQ, activation_function="gelu")),
        1e-9,
    ),
    "prophetnet": (lambda: tf.ProphetNetForConditionalGeneration(tf.ProphetNetConfig(**PROPHET)), 1e-6),
    "prophetnet-relu": (
        lambda: tf.ProphetNetForConditionalGeneration(
            tf.ProphetNetConfig(**PROPHET, activation_function="relu", ngram=3)
        ),
        1e-6,
    ),
    "bart-decoder": (lambda: tf.BartForCausalLM(tf.BartConfig(**CROSS_WRITER)), 1e-9),
    "mbart-decoder": (lambda: tf.MBartForCausalLM(tf.MBartConfig(**CROSS_WRITER, tie_word_embeddings=False)), 1e-9),
    "prophetnet-decoder": (
        lambda: tf.ProphetNetForCausalLM(tf.ProphetNetConfig(**PROPHET, **ALONE, add_cross_attention=False)),
        1e-6,
    ),
    "bigbird_pegasus-decoder": (
        lambda: tf.BigBirdPegasusForCausalLM(
            tf.BigBirdPegasusConfig(**{**SPARSE, **ALONE}, tie_word_embeddings=False)
        ),
        1e-9,
    ),
}

NAMES: dict[str, Saved] = {
    "Bart": (BART, [*BARTS, "ForCausalLM"]),
    "MBart": (BART, [*BARTS, "ForCausalLM"]),
    "Marian": (BART, ["Model", "MTModel", "ForCausalLM"]),
    "Pegasus": (BART, ["Model", "ForConditionalGeneration", "ForCausalLM"]),
}

MORE_NAMES: dict[str, Saved] = {
    "M2M100": (BART, COMPOSED_MODELS),
    "Blenderbot": (BART, COMPOSED_MODELS),
    "BlenderbotSmall": (BART, COMPOSED_MODELS),
    "PLBart": (BART, [*COMPOSED_MODELS, "ForSequenceClassification"]),
    "BigBirdPegasus": (SPARSE, [*COMPOSED_MODELS, "ForSequenceClassification", "ForQuestionAnswering"]),
    "NllbMoe": (EXPERT_NLLB, COMPOSED_MODELS),
    "LED": (LED, [*COMPOSED_MODELS, "ForQuestionAnswering"]),
    "PegasusX": (BLOCKS, COMPOSED_MODELS),
    "FSMT": (FAIRSEQ, COMPOSED_MODELS),
    "ProphetNet": (PROPHET, COMPOSED_MODELS),
}

STREAMS: dict[str, Streams] = {
    **{key: {} for key in ["nllb-moe", "pegasus_x", "pegasus_x-relu", "fsmt", "fsmt-gelu"]},
    **dict.fromkeys(["marian", "pegasus", "m2m_100"], "Fixed"),
    "blenderbot-untied": "OFixingOnes",
}

INPUTS: dict[str, Drawn] = {
    "led": _looking_around,
    **dict.fromkeys(["bart", "mbart"], _read_or_written),
}

MUTANTS = [
    mutant("bart", "cross-attention key not dual", "xqk", "(xh xqk') => (xh xqk)"),
    mutant(
        "bart",
        "post-LN gains scaled",
        "en1",
        "size en1 = 1\n => residual en1: Scale[l, res]\n",
    ),
    mutant(
        "mbart",
        "cross-attention past the encoder's last gain",
        "enf",
        "(xh xqk') (res enf)' => (xh xqk') res'",
    ),
    mutant(
        "marian",
        "permuted under sinusoids",
        "res",
        "space eh as h: => residual res: Perm\nspace eh as h:",
    ),
    mutant(
        "m2m_100",
        "a stream that moves under sinusoids",
        "res",
        "space eh as h: => residual res: Perm\nspace eh as h:",
    ),
    mutant(
        "m2m_100", "negative scale under ReLU", "eu", "space eu as scale: PositiveScale => space eu as scale: Scale"
    ),
    mutant(
        "blenderbot",
        "cross-attention past the encoder's last gain",
        "enf",
        "(xh xqk') (res enf)' => (xh xqk') res'",
    ),
    mutant(
        "blenderbot-small",
        "gains of norms behind the branches",
        "en1",
        "size en1 = 1\n => residual en1: Scale[l, res]\n",
    ),
    mutant(
        "plbart",
        "positions forgotten",
        "res",
        "decoder.embed_positions.weight pos res => decoder.embed_positions.weight pos other",
    ),
    mutant(
        "bigbird_pegasus",
        "the decoder past the encoder's last norm",
        "enf",
        "(xh xqk') (res enf)' => (xh xqk') res'",
    ),
    mutant("bigbird_pegasus", "output not dual", "eov", "res (eh eov') => res (eh eov)"),
    mutant(
        "nllb-moe",
        "experts permuted, of which transformers reads two",
        "ee",
        "space exff => space ee as expert: Perm[l]\nspace exff",
    ),
    mutant("nllb-moe", "cross-attention's key not dual", "xqk", "(xh xqk') => (xh xqk)"),
    mutant(
        "led",
        "values of those that see all in another basis",
        "eov",
        "value_global.weight (eh eov) => value_global.weight rows",
    ),
    mutant(
        "led",
        "one basis for near and far",
        "eqk",
        "query_global.weight (eh gqk) => query_global.weight (eh eqk)",
        "query_global.bias (eh gqk) => query_global.bias (eh eqk)",
    ),
    mutant("pegasus_x", "key not dual", "eqk", "(eh eqk') => (eh eqk)"),
    mutant(
        "pegasus_x",
        "tokens that see all in a permuted stream",
        "res",
        "space eh as => residual res: Perm\nspace eh as",
    ),
    mutant("fsmt", "a stream under sinusoids", "res", "space eh as => residual res: Perm\nspace eh as"),
    mutant("fsmt", "negative factors through ReLU", "du", "du as scale: PositiveScale => du as scale: Scale"),
    mutant(
        "prophetnet",
        "heads permuted in the streams beside the main one",
        "dh",
        "space eqk => space dh as h: Perm[l]\nspace eqk",
    ),
    mutant(
        "prophetnet",
        "one stream's first word past the stream",
        "res",
        "ngram_embeddings.weight streams res => ngram_embeddings.weight streams other",
    ),
    mutant(
        "mbart-decoder", "the last gain past the head", "dnf", "vocab (res dnf)' = decoder => vocab res' = decoder"
    ),
    mutant(
        "bart-decoder",
        "embeddings in other coordinates",
        "res",
        "decoder.embed_tokens.weight vocab res if not two => decoder.embed_tokens.weight vocab other if not two",
    ),
    mutant(
        "prophetnet-decoder",
        "heads permuted in the streams beside the main one",
        "dh",
        "space dqk as qk => space dh as h: Perm[l]\nspace dqk as qk",
    ),
    mutant(
        "prophetnet-decoder",
        "embeddings in other coordinates",
        "res",
        "\nword_embeddings.weight vocab res => \nword_embeddings.weight vocab other",
    ),
    mutant(
        "bigbird_pegasus-decoder",
        "the last gain past the head",
        "dnf",
        "vocab (res dnf)' = decoder => vocab res' = decoder",
    ),
]

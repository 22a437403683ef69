"""T5 and its kin, T5Gemma among them."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import StreamMutant, mutant
from toy_models import made
from toy_settings import COMPOSED_MODELS, IMAGE, LAYERS, TASK_CLASSES, TWO, UMT5

SEQ2SEQ = {
    "vocab_size": 67, "d_model": 48, "d_kv": 8, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 6,
    "relative_attention_num_buckets": 8,
}  # fmt: skip


def _t5(**changes: Any) -> Any:
    return tf.T5ForConditionalGeneration(tf.T5Config(**SEQ2SEQ, **changes))


LONGT5 = {**UMT5, "local_radius": 3, "global_block_size": 4}
SWITCH = {
    **UMT5, "num_experts": 4, "expert_capacity": 64, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1,
}  # fmt: skip
SEQUENCE_CLASSES = ["Model", "EncoderModel", "ForConditionalGeneration", *TASK_CLASSES]
UNREAD = ("(xh xqk') (res enf)' => (xh xqk') res'", "(xh xov) (res enf)' => (xh xov) res'")
READ: dict[str, Any] = {
    **TWO, "hidden_size": 60, "num_attention_heads": 4, "head_dim": 10, "intermediate_size": 44, "layer_types": LAYERS, "sliding_window": 4,
    "query_pre_attn_scalar": 9, "attn_logit_softcapping": 2.0, "attention_bias": True,
}  # fmt: skip
WRITTEN: dict[str, Any] = {
    **TWO, "layer_types": LAYERS, "sliding_window": 4, "query_pre_attn_scalar": 7, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
    "attention_bias": True,
}  # fmt: skip


def _t5gemma(kind: str = "ForConditionalGeneration", **changes: Any) -> Any:
    config = tf.T5GemmaConfig(encoder=READ, decoder=WRITTEN, vocab_size=67, **changes)
    return getattr(tf, f"T5Gemma{kind}")(config)


GEMMA: dict[str, Any] = {
    **TWO, "layer_types": LAYERS, "sliding_window": 4, "query_pre_attn_scalar": 9, "attention_bias": True,
}  # fmt: skip
SEEN: dict[str, Any] = {
    "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 44, "image_size": 8, "patch_size": 2,
    "vision_use_head": False, "model_type": "siglip_vision_model",
}  # fmt: skip
T5GEMMA2: dict[str, Any] = {
    "encoder": {
        "text_config": {**GEMMA, "num_key_value_heads": 3, "intermediate_size": 36, "head_dim": 10, "dropout_rate": 0.0}, "vision_config": SEEN,
        "mm_tokens_per_image": 4, "image_token_index": IMAGE, "boi_token_index": 64, "eoi_token_index": 65,
    },
    "decoder": {**GEMMA, "final_logit_softcapping": 3.0}, "image_token_index": IMAGE, "eoi_token_index": 65,
}  # fmt: skip


def _seen_and_written(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts with an image each, and the words before."""
    ids = torch.randint(4, 60, (3, 16), generator=rng)
    ids[:, 1:6] = torch.tensor([IMAGE] * 4 + [65])
    return {
        "input_ids": ids, "decoder_input_ids": torch.randint(4, 60, (3, 7), generator=rng),
        "pixel_values": torch.randn((3, 3, 8, 8), generator=rng, dtype=torch.float64),
    }  # fmt: skip


TOYS: dict[str, Toy] = {
    "t5-gated": (lambda: _t5(feed_forward_proj="gated-gelu"), 1e-5),
    "t5-relu": (lambda: _t5(feed_forward_proj="relu"), 1e-5),
    "mt5": (
        lambda: tf.MT5ForConditionalGeneration(tf.MT5Config(**{**SEQ2SEQ, "d_kv": 6}, tie_word_embeddings=False)),
        1e-5,
    ),
}

MORE_TOYS: dict[str, Toy] = {
    "umt5": (made("UMT5", "ForConditionalGeneration", **UMT5), 1e-5),
    "longt5": (made("LongT5", "ForConditionalGeneration", **LONGT5), 1e-5),
    "longt5-global": (
        made("LongT5", "ForConditionalGeneration", **LONGT5, encoder_attention_type="transient-global"),
        1e-5,
    ),
    "switch_transformers": (made("SwitchTransformers", "ForConditionalGeneration", **SWITCH), 1e-5),
    "t5gemma": (lambda: _t5gemma(tie_word_embeddings=False), 1e-9),
    "t5gemma-tied": (lambda: _t5gemma(tie_word_embeddings=True), 1e-9),
    "t5gemma-labels": (lambda: _t5gemma("ForSequenceClassification", num_labels=5), 1e-9),
    "t5gemma2": (
        lambda: tf.T5Gemma2ForConditionalGeneration(tf.T5Gemma2Config(**T5GEMMA2, tie_word_embeddings=False)),
        1e-9,
    ),
    "t5gemma2-tied": (lambda: tf.T5Gemma2ForConditionalGeneration(tf.T5Gemma2Config(**T5GEMMA2)), 1e-9),
    "t5gemma2_encoder": (lambda: tf.T5Gemma2Encoder(tf.T5Gemma2EncoderConfig(**T5GEMMA2["encoder"])), 1e-9),
}

NAMES: dict[str, Saved] = {
    "T5": (SEQ2SEQ, SEQUENCE_CLASSES),
    "MT5": (SEQ2SEQ, SEQUENCE_CLASSES),
}

MORE_NAMES: dict[str, Saved] = {
    "UMT5": (UMT5, ["Model", "EncoderModel", "ForConditionalGeneration", *TASK_CLASSES]),
    "LongT5": (LONGT5, ["Model", "EncoderModel", "ForConditionalGeneration"]),
    "SwitchTransformers": (SWITCH, ["Model", "EncoderModel", "ForConditionalGeneration"]),
    "T5Gemma": (
        {"encoder": READ, "decoder": WRITTEN, "vocab_size": 67},
        ["Model", "ForConditionalGeneration", "ForSequenceClassification", "ForTokenClassification"],
    ),
    "T5Gemma2": (T5GEMMA2, [*COMPOSED_MODELS, *TASK_CLASSES[:2]]),
    "T5Gemma2Encoder": (T5GEMMA2["encoder"], [""]),
}

HALF: dict[str, str | tuple[str, ...]] = {
    "T5EncoderModel": "dx",
    "MT5EncoderModel": "dx",
    "T5ForTokenClassification": "dx",
    "MT5ForTokenClassification": "dx",
    "UMT5EncoderModel": "dx",
    "UMT5ForTokenClassification": "dx",
    "LongT5EncoderModel": "dx",
    "SwitchTransformersEncoderModel": "dx",
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(
        ["t5-gated", "t5-relu", "mt5", "umt5", "longt5", "longt5-global", "switch_transformers"], "SignedPerm"
    ),
    **{key: {"eres": "SignedPerm", "dres": "SignedPerm"} for key in ["t5gemma", "t5gemma-tied", "t5gemma-labels"]},
    **{key: {"res": "SignedPerm", "vision_res": "Perm"} for key in ["t5gemma2", "t5gemma2-tied"]},
    "t5gemma2_encoder": {"vision_res": "Perm"},
}

INPUTS: dict[str, Drawn] = {
    "t5gemma2": _seen_and_written,
    "t5gemma2_encoder": lambda config, rng: {
        k: v for k, v in _seen_and_written(config, rng).items() if k != "decoder_input_ids"
    },
}

CONVERTED = {"t5gemma2", "t5gemma2-tied", "t5gemma2_encoder"}

MUTANTS = [
    mutant(
        "t5-relu",
        "a constant along heads",
        "db",
        "shift db: decoder.block.{l}.layer.0.SelfAttention.relative_attention_bias.weight along bucket => shift db: decoder.block.{l}.layer.0.SelfAttention.q.weight along dh",
    ),
    mutant("t5-gated", "self-attention heads per layer", "eh", "space eh as h: Perm\n => space eh as h: Perm[l]\n"),
    mutant("t5-relu", "relative bias not permuted", "dh", "bucket dh => bucket heads"),
    mutant(
        "t5-gated",
        "scale on both gated inputs",
        "eu",
        "wi_0.weight eff (res en2)' => wi_0.weight (eff eu) (res en2)'",
    ),
    mutant(
        "t5-relu", "negative scale under ReLU", "du", "space du as scale: PositiveScale => space du as scale: Scale"
    ),
    mutant("t5-gated", "cross-attention key not dual", "xqk", "(xh xqk') (res enf)' => (xh xqk) (res enf)'"),
    mutant(
        "mt5",
        "cross-attention reads the decoder",
        "dn2",
        "EncDecAttention.k.weight (xh xqk') (res enf)' => EncDecAttention.k.weight (xh xqk') (res dn2)'",
    ),
    mutant(
        "umt5",
        "one permutation for all layers",
        "eh",
        "space eh as h: Perm[l] => space eh as h: Perm[l]",
        "relative_attention_bias.weight bucket eh => relative_attention_bias.weight bucket heads",
    ),
    mutant(
        "umt5",
        "the decoder's table forgotten",
        "dh",
        "relative_attention_bias.weight bucket dh => relative_attention_bias.weight bucket heads",
    ),
    mutant(
        "longt5",
        "heads per layer under one table",
        "eh",
        "space eh as h: Perm\n => space eh as h: Perm[l]\n",
        "relative_attention_bias.weight bucket eh => relative_attention_bias.weight bucket heads",
    ),
    mutant(
        "longt5-global",
        "the first gain past the norm of sums",
        "en1",
        ' if encoder_attention_type != "transient-global" => ',
    ),
    mutant(
        "longt5-global",
        "the table of sums forgotten",
        "eh",
        "global_relative_attention_bias.weight bucket eh => global_relative_attention_bias.weight bucket heads",
    ),
    mutant(
        "switch_transformers",
        "router forgotten",
        "ee",
        "mlp.router.classifier.weight ee (res en2)' => mlp.router.classifier.weight rows (res en2)'",
        "mlp.router.classifier.bias ee if => mlp.router.classifier.bias rows if",
    ),
    mutant(
        "switch_transformers", "an expert's second layer not permuted", "dxff", "res (dxff dxu') => res neurons"
    ),
    mutant(
        "t5gemma",
        "cross-attention reads the decoder's gain past the encoder's",
        "enf",
        "k_proj.weight (xkv xqk') (eres enf)' => k_proj.weight (xkv xqk') eres'",
    ),
    mutant(
        "t5gemma",
        "any matrix under rotary positions",
        "ec",
        "space ec as qk: Complex[l, ekv, epair] => space ec as qk: GL[l, ekv, epair]",
    ),
    mutant("t5gemma", "key not dual", "xqk", "(xkv xqk') => (xkv xqk)"),
    mutant(
        "t5gemma",
        "key bias free under caps",
        "xkb",
        "shift xvb: => shift xkb: decoder.layers.{l}.cross_attn.k_proj.bias\nshift xvb:",
    ),
    mutant("t5gemma", "gains stored as they act", "dn2", "diag(dres dn2) - 1 => diag(dres dn2)"),
    mutant(
        "t5gemma",
        "the encoder read in another order",
        "eres",
        "v_proj.weight (xkv xov) (eres enf)' => v_proj.weight (xkv xov) other",
    ),
    mutant("t5gemma-tied", "groups fast", "xkv", "(xkv xg xqk) => (xg xkv xqk)", "(xkv xg xov') => (xg xkv xov')"),
    mutant(
        "t5gemma-labels",
        "labels read in another order",
        "dres",
        "labels (dres dnf)' => labels other",
        "residual dnf: Scale[dres]\n => ",
        "diag(dres dnf) => diag(dres)",
        "vocab (dres dnf)' => vocab dres'",
    ),
    mutant(
        "t5gemma2",
        "a factor in front of merged attention",
        "dn1",
        "residual dn3: => residual dn1: Scale[l, res]\nresidual dn3:",
        "decoder.layers.{l}.pre_self_attn_layernorm.weight diag(res) - 1 => decoder.layers.{l}.pre_self_attn_layernorm.weight diag(res dn1) - 1",
        "(dkv dg dc dpair dsg) res' => (dkv dg dc dpair dsg) (res dn1)'",
        "(dkv dc dpair dsg') res' => (dkv dc dpair dsg') (res dn1)'",
        "(dkv dov) res' => (dkv dov) (res dn1)'",
    ),
    mutant("t5gemma2", "a factor behind the encoder", "nf", " without nf => "),
    mutant(
        "t5gemma2",
        "a sign per coordinate where pairs rotate",
        "dsg",
        "Sign[l, dkv, dpair] => Sign[l, dkv, dc, dpair]",
    ),
    mutant(
        "t5gemma2",
        "the token at an image's end past the stream",
        "res",
        "eoi_embedding res => eoi_embedding rows",
        part="t5gemma2_encoder",
    ),
    mutant(
        "t5gemma2", "gains stored as they are", "n3", "diag(res n3) - 1 => diag(res n3)", part="t5gemma2_encoder"
    ),
    mutant("t5gemma2_encoder", "output not dual", "ov", "(kv g ov') => (kv g ov)"),
    mutant(
        "t5gemma2_encoder",
        "a sign per coordinate where pairs rotate",
        "sg",
        "Sign[l, kv, pair] => Sign[l, kv, c, pair]",
    ),
]

STREAM_MUTANTS = [
    StreamMutant("t5-gated", "final gain folded into a tied head", "O", ()),
    StreamMutant("t5-gated", "cross-attention past the encoder's last gain", "SignedPerm", UNREAD),
]

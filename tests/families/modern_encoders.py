"""ModernBERT, DeBERTa, encoders for embeddings, proteins."""

from __future__ import annotations

from typing import Any

import transformers as tf

from families.tables import Saved, Streams, Toy
from mutants import StreamMutant, mutant
from toy_models import made
from toy_settings import (
    BODY,
    BODY_OF_THREE,
    CLASSIFYING_LANGUAGE_MODELS,
    LAYERS,
    PAGE_CLASSES,
    PLAIN,
    READER_CLASSES,
    TASK_CLASSES,
)

MODERN = {
    **BODY, "pad_token_id": 0, "bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2,
    "layer_types": LAYERS, "local_attention": 4,
}  # fmt: skip


def _modernbert(model: Any, **changes: Any) -> Any:
    return model(tf.ModernBertConfig(**MODERN, **changes))


DISENTANGLED = {
    **BODY_OF_THREE, "relative_attention": True, "norm_rel_ebd": "layer_norm", "position_buckets": 8,
    "position_biased_input": False, "type_vocab_size": 0, "max_relative_positions": 16, "hidden_dropout_prob": 0.0,
}  # fmt: skip


def _deberta(model: Any, share: bool, terms: list[str], **changes: Any) -> Any:
    return model(tf.DebertaV2Config(**{**DISENTANGLED, **changes}, share_att_key=share, pos_att_type=terms))


ESM: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 40,
    "max_position_embeddings": 32, "pad_token_id": 0, "mask_token_id": 4,
}  # fmt: skip
SPOKEN_MODERN: dict[str, Any] = {
    **PLAIN, "layer_types": LAYERS, "local_attention": 8, "attention_bias": True, "mlp_bias": True, "norm_bias": True,
    "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip
DEBERTA = {**BODY, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 16}
FIRST_WITHOUT_NORM = (
    "Wqkv.weight [h c pair | h c' pair | h ov] res' => Wqkv.weight [h c pair | h c' pair | h ov] (res n1)'",
)
ESMC: dict[str, Any] = {**PLAIN, "attention_bias": True, "mlp_bias": True}

TOYS: dict[str, Toy] = {
    "deberta-shared": (lambda: _deberta(tf.DebertaV2ForMaskedLM, True, ["c2p", "p2c"]), 1e-9),
    "deberta-unshared": (
        lambda: _deberta(tf.DebertaV2ForSequenceClassification, False, ["c2p", "p2c"], position_biased_input=True),
        1e-9,
    ),
    "deberta-c2p": (lambda: _deberta(tf.DebertaV2ForMaskedLM, False, ["c2p"]), 1e-9),
    "deberta-conv": (
        lambda: _deberta(
            tf.DebertaV2ForSequenceClassification,
            True,
            ["c2p"],
            conv_kernel_size=3,
            conv_act="gelu",
            embedding_size=24,
        ),
        1e-9,
    ),
    "modernbert": (lambda: _modernbert(tf.ModernBertForMaskedLM), 1e-5),
    "modernbert-biased": (
        lambda: _modernbert(
            tf.ModernBertForSequenceClassification,
            attention_bias=True,
            mlp_bias=True,
            norm_bias=True,
            classifier_bias=True,
        ),
        1e-5,
    ),
}

MORE_TOYS: dict[str, Toy] = {
    "nomic_bert": (lambda: tf.NomicBertForMaskedLM(tf.NomicBertConfig(**BODY)), 1e-5),
    "esm": (lambda: tf.EsmForMaskedLM(tf.EsmConfig(**ESM)), 1e-9),
    "esm-rotary": (
        lambda: tf.EsmForMaskedLM(
            tf.EsmConfig(**ESM, position_embedding_type="rotary", token_dropout=True, emb_layer_norm_before=True)
        ),
        1e-5,
    ),
    "deberta": (made("Deberta", "ForMaskedLM", **DEBERTA, type_vocab_size=2), 1e-5),
    "deberta-long": (made("Deberta", "ForMaskedLM", **{**DEBERTA, "max_relative_positions": 32}), 1e-5),
    "gte": (made("Gte", "ForMaskedLM", **BODY), 1e-5),
    "gte-labels": (made("Gte", "ForSequenceClassification", **BODY), 1e-5),
    "jina_embeddings_v3": (made("JinaEmbeddingsV3", "ForMaskedLM", **BODY), 1e-5),
    "modernbert-decoder": (
        lambda: tf.ModernBertDecoderForCausalLM(tf.ModernBertDecoderConfig(**SPOKEN_MODERN)),
        1e-5,
    ),
    "esmc": (lambda: tf.EsmcForMaskedLM(tf.EsmcConfig(**ESMC)), 1e-9),
}

NAMES: dict[str, Saved] = {
    "DebertaV2": ({**DISENTANGLED, "pos_att_type": ["c2p", "p2c"]}, READER_CLASSES),
    "ModernBert": (MODERN, READER_CLASSES),
    "NomicBert": (BODY_OF_THREE, ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"]),
}

MORE_NAMES: dict[str, Saved] = {
    "Esm": (ESM, ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"]),
    "Deberta": (DEBERTA, PAGE_CLASSES),
    "Gte": (BODY, PAGE_CLASSES[:-1]),
    "JinaEmbeddingsV3": (BODY, PAGE_CLASSES),
    "ModernBertDecoder": (SPOKEN_MODERN, CLASSIFYING_LANGUAGE_MODELS),
    "Esmc": (ESMC, ["Model", "ForMaskedLM", *TASK_CLASSES[:2]]),
}

STREAMS: dict[str, Streams] = {
    "esmc": "OFixingOnes",
}

IDLE = {
    ("modernbert", "vb"),
    ("nomic_bert", "vb"),
}

CONVERTED = {"nomic_bert", "gte", "gte-labels", "jina_embeddings_v3"}

MUTANTS = [
    mutant(
        "deberta-unshared",
        "signs under GELU",
        "hs",
        ' and pooler_hidden_act == "relu" => ',
        "PositiveScale[hidden] => Sign[hidden]",
    ),
    mutant(
        "deberta-shared",
        "key bias under p2c",
        "kb",
        ' if "p2c" not in (pos_att_type or ()) => ',
    ),
    mutant("deberta-shared", "key not dual", "qk", "key_proj.weight (h qk') res' => key_proj.weight (h qk) res'"),
    mutant(
        "deberta-unshared",
        "pos_key_proj forgotten",
        "qk",
        "pos_key_proj.weight (h qk') res' => pos_key_proj.weight rows res'",
    ),
    mutant(
        "deberta-unshared",
        "pos_query_proj forgotten",
        "h",
        "pos_query_proj.weight (h qk) res' => pos_query_proj.weight rows res'",
    ),
    mutant(
        "deberta-shared",
        "position table not in the residual",
        "res",
        "rel_embeddings.weight rel res => rel_embeddings.weight rel other",
    ),
    mutant("modernbert", "a scale where the first layer has no norm", "n1", *FIRST_WITHOUT_NORM),
    mutant("modernbert", "input and gate mistaken", "u", "[ff | ff u] => [ff u | ff]"),
    mutant("nomic_bert", "fused head by head", "h", "[h c pair | h c' pair | h ov] => (h [c pair | c' pair | ov])"),
    mutant(
        "nomic_bert",
        "up and gate mistaken",
        "u",
        "fc11.weight (ff u) => fc11.weight ff",
        "fc12.weight ff => fc12.weight (ff u)",
    ),
    mutant("nomic_bert", "rotated post-LN stream", "res", "residual res: Perm => residual res: O"),
    mutant("esm", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant("esm-rotary", "interleaved pairs", "c", "(h c pair) => (h pair c)", "(h c' pair) => (h pair c')"),
    mutant("esm-rotary", "key bias under rotary positions", "kb", "key.bias if not turned => key.bias"),
    mutant("deberta", "fused block by block", "h", "(h [qk | qk' | ov]) => [h qk | h qk' | h ov]"),
    mutant("deberta", "positions as keys forgotten", "qk", "pos_proj.weight (h qk') rb => pos_proj.weight rows rb"),
    mutant(
        "deberta",
        "the bias of positions as queries forgotten",
        "qk",
        "pos_q_proj.bias (h qk) => pos_q_proj.bias rows",
    ),
    mutant("gte", "up and gate mistaken", "u", "[ff u | ff] => [ff | ff u]"),
    mutant(
        "gte-labels",
        "the pooler in coordinates of its own",
        "res",
        "pooler.dense.weight (pooled ps) res' => pooler.dense.weight (pooled ps) columns",
    ),
    mutant(
        "gte-labels",
        "the classifier past its pooler",
        "pooled",
        "classifier.weight labels (pooled ps)' => classifier.weight labels columns",
    ),
    mutant("gte", "interleaved pairs", "c", "h c pair => h pair c", "h c' pair => h pair c'"),
    mutant(
        "jina_embeddings_v3",
        "fused head by head",
        "h",
        "[h c pair | h c' pair | h ov] => (h [c pair | c' pair | ov])",
    ),
    mutant("jina_embeddings_v3", "rotated post-LN stream", "res", "residual res: Perm => residual res: O"),
    mutant(
        "modernbert-decoder",
        "key not dual",
        "c",
        "k_proj.weight (h c' pair) => k_proj.weight (h c pair)",
        "k_proj.bias (h c' pair) => k_proj.bias (h c pair)",
    ),
    mutant(
        "modernbert-decoder",
        "the head past the stream",
        "res",
        "(head|lm_head).dense.weight res res' => (head|lm_head).dense.weight rows res'",
    ),
    mutant(
        "esmc",
        "signs under a norm that centres",
        "sg",
        "space t as qk: => space sg as qk: Sign[l, h, pair]\nspace t as qk:",
        "size ov => size sg = 1\nsize ov",
        "q_proj.weight (h c pair) => q_proj.weight (h c pair sg)",
        "q_proj.bias (h c pair) => q_proj.bias (h c pair sg)",
        "k_proj.weight (h c pair) => k_proj.weight (h c pair sg)",
        "k_proj.bias (h c pair) => k_proj.bias (h c pair sg)",
    ),
    mutant(
        "esmc", "a factor per coordinate in front of the rotation", "t", "Scale[l, h, pair] => Scale[l, h, c, pair]"
    ),
    mutant("deberta-shared", "ReLU's scale under GELU", "u", ' if hidden_act == "relu" => '),
]

STREAM_MUTANTS = [
    StreamMutant(
        "deberta-shared", "rotated post-LN stream", "O", ("residual res: Perm => residual res: Perm folded O",)
    ),
    StreamMutant(
        "modernbert",
        "rotated behind the norm of embeddings",
        "OFixingOnes",
        (
            "res: Perm => res: Perm folded OFixingOnes",
            "diag(res) => res",
        ),
    ),
]

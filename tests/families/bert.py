"""BERT and the encoders closest to it."""

from __future__ import annotations

from typing import Any

import transformers as tf

from families.tables import Saved, Streams, Toy
from mutants import StreamMutant, mutant
from toy_models import made
from toy_settings import (
    BODY,
    BODY_OF_THREE,
    LEARNT,
    READER_CLASSES,
    ROTATED,
)

NARROW = {**BODY, "embedding_size": 24}


def _electra(model: Any, **changes: Any) -> Any:
    return model(tf.ElectraConfig(**{**NARROW, **changes}))


def _albert(**changes: Any) -> Any:
    return tf.AlbertForMaskedLM(tf.AlbertConfig(**NARROW, **changes))


REMBERT = {**BODY, "input_embedding_size": 24, "output_embedding_size": 28}
SPLINTER = {**BODY, "question_token_id": 5}
DISTILLED = {
    "vocab_size": 67,
    "dim": 48,
    "n_layers": 3,
    "n_heads": 6,
    "hidden_dim": 40,
    "max_position_embeddings": 32,
}

TOYS: dict[str, Toy] = {
    "bert": (lambda: tf.BertForMaskedLM(tf.BertConfig(**BODY_OF_THREE)), 1e-9),
    "bert-relu": (
        lambda: tf.BertForSequenceClassification(tf.BertConfig(**BODY_OF_THREE, hidden_act="relu")),
        1e-9,
    ),
    "distilbert": (
        lambda: tf.DistilBertForMaskedLM(
            tf.DistilBertConfig(
                vocab_size=67, dim=48, n_layers=3, n_heads=6, hidden_dim=40, max_position_embeddings=32
            )
        ),
        1e-9,
    ),
    "electra": (lambda: _electra(tf.ElectraForMaskedLM), 1e-9),
    "electra-wide": (lambda: _electra(tf.ElectraForPreTraining, embedding_size=48, hidden_act="relu"), 1e-9),
    "albert": (_albert, 1e-9),
    "albert-groups": (lambda: _albert(num_hidden_groups=2, inner_group_num=2, hidden_act="relu"), 1e-9),
}

MORE_TOYS: dict[str, Toy] = {
    "mpnet": (lambda: tf.MPNetForMaskedLM(tf.MPNetConfig(**BODY)), 1e-9),
    "ernie": (made("Ernie", "ForMaskedLM", **BODY, use_task_id=True), 1e-9),
    "splinter": (made("Splinter", "ForQuestionAnswering", **SPLINTER), 1e-5),
    "bert-generation": (made("BertGeneration", "Decoder", **BODY, is_decoder=True), 1e-9),
    "megatron-bert": (made("MegatronBert", "ForSequenceClassification", **BODY, hidden_act="relu"), 1e-9),
    "megatron-bert-words": (made("MegatronBert", "ForMaskedLM", **BODY), 1e-9),
    "electra-discriminator": (lambda: _electra(tf.ElectraForPreTraining), 1e-9),
    "albert-untied": (lambda: _albert(tie_word_embeddings=False), 1e-9),
    "rembert": (made("RemBert", "ForMaskedLM", **REMBERT), 1e-9),
    "roformer": (made("RoFormer", "ForMaskedLM", **BODY, embedding_size=24), 1e-9),
    "roformer-plain": (made("RoFormer", "ForSequenceClassification", **BODY), 1e-9),
    "roformer-narrow": (made("RoFormer", "ForSequenceClassification", **BODY, embedding_size=24), 1e-9),
    "dpr": (lambda: tf.DPRQuestionEncoder(tf.DPRConfig(**LEARNT, projection_dim=11)), 1e-9),
    "dpr-plain": (lambda: tf.DPRContextEncoder(tf.DPRConfig(**LEARNT)), 1e-9),
    "dpr-reader": (lambda: tf.DPRReader(tf.DPRConfig(**LEARNT)), 1e-9),
    "ibert": (lambda: tf.IBertForMaskedLM(tf.IBertConfig(**BODY)), 1e-9),
    "roformer-turned": (lambda: tf.RoFormerForMaskedLM(tf.RoFormerConfig(**BODY, rotary_value=True)), 1e-9),
}

NAMES: dict[str, Saved] = {
    "Bert": (BODY_OF_THREE, [*READER_CLASSES, "ForPreTraining", "ForNextSentencePrediction", "LMHeadModel"]),
    "DistilBert": (DISTILLED, READER_CLASSES),
    "Electra": (NARROW, [*READER_CLASSES, "ForPreTraining", "ForCausalLM"]),
    "Albert": (NARROW, [*READER_CLASSES, "ForPreTraining"]),
}

MORE_NAMES: dict[str, Saved] = {
    "MPNet": (BODY, ["Model", "ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering"]),
    "Ernie": (
        {**BODY, "use_task_id": True},
        [*READER_CLASSES, "ForPreTraining", "ForNextSentencePrediction", "ForCausalLM"],
    ),
    "Splinter": (SPLINTER, ["Model", "ForQuestionAnswering", "ForPreTraining"]),
    "BertGeneration": ({**BODY, "is_decoder": True}, ["Encoder", "Decoder"]),
    "MegatronBert": (BODY, [*READER_CLASSES, "ForPreTraining", "ForNextSentencePrediction", "ForCausalLM"]),
    "RemBert": (REMBERT, [*READER_CLASSES, "ForCausalLM"]),
    "RoFormer": ({**BODY, "embedding_size": 24}, [*READER_CLASSES, "ForCausalLM"]),
    "DPR": (LEARNT, ["ContextEncoder", "QuestionEncoder", "Reader"]),
    "IBert": (
        BODY,
        ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"],
    ),
}

STREAMS: dict[str, Streams] = {
    **{key: {"res": "Perm", "emb": "Perm"} for key in ["electra", "albert", "albert-groups", "roformer"]},
    **{key: {"res": "Perm", "emb": "OFixingOnes"} for key in ["electra-discriminator", "roformer-narrow"]},
    "megatron-bert": "OFixingOnes",
    "albert-untied": {"res": "Perm", "emb": "OFixingOnes", "oemb": "Perm"},
    "rembert": {"res": "Perm", "emb": "OFixingOnes", "oemb": "Perm"},
    "dpr-plain": {},
}

MUTANTS = [
    mutant("electra-wide", "negative factors under ReLU", "hs", "PositiveScale[hidden] => Scale[hidden]"),
    mutant(
        "bert",
        "one flat permutation over heads",
        "flat",
        "size ov =  => size flat = res\nsize ov = ",
        "space ov: GL[l, h] => space flat: Perm[l]",
        "value.weight (h ov) res' => value.weight flat res'",
        "value.bias (h ov) => value.bias flat",
        "res (h ov') => res flat'",
    ),
    mutant("bert", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant("bert", "output not dual", "ov", "(h ov') => (h ov)"),
    mutant("bert", "rotated post-LN residual", "res", ROTATED),
    mutant("bert-relu", "negative scale under ReLU", "u", "PositiveScale[l, ff] => Scale[l, ff]"),
    mutant("bert-relu", "factors through tanh", "ps", "Sign[pooled] => Scale[pooled]"),
    mutant(
        "bert-relu",
        "a pooler past its reader",
        "pooled",
        "classifier.weight labels (pooled ps)' if pools => classifier.weight labels res' if pools",
    ),
    mutant("bert-relu", "hidden scale not undone", "u", "(ff u') => ff"),
    mutant("bert", "heads fast", "h", "(h ov) => (ov h)", "(h ov') => (ov' h)"),
    mutant("distilbert", "second layer not permuted", "ff", "res (ff u') => res neurons"),
    mutant("distilbert", "output not dual", "ov", "res (h ov') => res (h ov)"),
    mutant(
        "electra",
        "narrow norm not permuted",
        "emb",
        "LayerNorm.(weight|gamma) diag(emb ne) => LayerNorm.(weight|gamma) other",
        "reached nr: => # reached nr:",
    ),
    mutant(
        "electra",
        "projection reads another order",
        "emb",
        "res (emb ne)' => res other",
        "reached nr: => # reached nr:",
    ),
    mutant("electra-wide", "rotated post-LN stream", "res", "residual res: Perm => residual res: O"),
    mutant(
        "albert",
        "the way back in another order",
        "emb",
        "predictions.dense.bias emb => predictions.dense.bias other",
    ),
    mutant("albert-groups", "query bias forgotten", "qk", "query.bias (h qk) => query.bias rows"),
    mutant(
        "mpnet",
        "heads per layer under one table",
        "h",
        "space h: Perm\n => space h: Perm[l]\n",
        "attention_bias.weight bucket h => attention_bias.weight bucket heads",
    ),
    mutant("mpnet", "output not dual", "ov", "(h ov') => (h ov)"),
    mutant(
        "ernie",
        "task embeddings forgotten",
        "res",
        "task_type_embeddings.weight types res => task_type_embeddings.weight types other",
    ),
    mutant(
        "splinter",
        "questions read other coordinates",
        "res",
        "query_start_transform.dense.weight inner res' => query_start_transform.dense.weight inner other",
    ),
    mutant("bert-generation", "output not dual", "ov", "(h ov') => (h ov)"),
    mutant("megatron-bert", "negative scale under ReLU", "u", "PositiveScale[l, ff] => Scale[l, ff]"),
    mutant(
        "megatron-bert",
        "the head past its pooler",
        "nf",
        'labels (res nf)\' if not ("pooler.dense.weight" in tensors) or task == "TokenClassification" => labels (res nf)\'',
        '? classifier.weight labels (pooled ps)\' if "pooler.dense.weight" in tensors and task != "TokenClassification"\n => ',
    ),
    mutant(
        "megatron-bert-words",
        "the last gain in the tied head",
        "nf",
        "residual nf: Scale[res] if not words => residual nf: Scale[res]",
    ),
    mutant(
        "rembert",
        "the embeddings' norm forgotten",
        "emb",
        "embeddings.LayerNorm.weight emb => embeddings.LayerNorm.weight other",
    ),
    mutant(
        "rembert",
        "the head's norm forgotten",
        "oemb",
        "cls.predictions.LayerNorm.weight oemb => cls.predictions.LayerNorm.weight other",
    ),
    mutant("roformer", "half-split pairs", "c", "(h pair c) => (h c pair)", "(h pair c') => (h c' pair)"),
    mutant("roformer-plain", "output not dual", "ov", "(h ov') => (h ov)"),
    mutant(
        "dpr",
        "the projection past the stream",
        "res",
        "encode_proj.weight shared res' => encode_proj.weight shared columns",
    ),
    mutant(
        "dpr-plain",
        "a stream that is given out",
        "res",
        ' if projection_dim or "span_predictor.qa_outputs.weight" in tensors => ',
    ),
    mutant(
        "dpr-reader",
        "one head past the stream",
        "res",
        "? span_predictor.qa_outputs.weight labels res' => ? span_predictor.qa_outputs.weight labels columns",
    ),
    mutant("ibert", "key not dual", "qk", "(h qk') res' => (h qk) res'"),
    mutant("ibert", "query bias forgotten", "h", "self.query.bias (h qk) => self.query.bias rows"),
    mutant(
        "roformer-turned",
        "any matrix on values that turn",
        "ov",
        "space ov: GL[l, h] if not rotary_value => space ov: GL[l, h]",
        "(h pair vc) res' if => (h ov) res' if",
        "value.bias (h pair vc) if => value.bias (h ov) if",
        "space vc as ov: Complex[l, h, pair] if rotary_value\n => ",
        "res (h pair vc') if => res (h ov') if",
    ),
    mutant(
        "roformer-turned",
        "the bias of values that turn is free",
        "vb",
        "via encoder.layer.{l}.attention.output.dense.weight if not rotary_value => via encoder.layer.{l}.attention.output.dense.weight",
    ),
    mutant("bert", "ReLU's scale under GELU", "u", ' if hidden_act == "relu" => '),
    mutant("distilbert", "ReLU's scale under GELU", "u", ' if activation == "relu" => '),
]

STREAM_MUTANTS = [
    StreamMutant("bert", "rotated post-LN stream", "O", ("residual res: Perm => residual res: Perm folded O",)),
    StreamMutant(
        "electra-discriminator",
        "rotations that a norm's mean sees",
        "O",
        ("folded OFixingOnes => folded O", "reached nr: => # reached nr:"),
        "emb",
    ),
    StreamMutant(
        "electra",
        "embeddings turned that are the head as well",
        "OFixingOnes",
        (
            "residual emb: Perm if => residual emb: Perm folded OFixingOnes if",
            "residual ne: Scale[emb] if emb != res and own => residual ne: Scale[emb] if emb != res",
        ),
        "emb",
    ),
]

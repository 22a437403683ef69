"""RoBERTa and its kin; XLM and XLNet."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_models import made
from toy_settings import BODY, BODY_OF_THREE, KNOWN, READER_CLASSES, ROTATED


def _xl(kind: str, **changes: Any) -> Any:
    return getattr(tf, f"XLMRobertaXL{kind}")(tf.XLMRobertaXLConfig(**{**BODY, **changes}))


LUKE = {**BODY, "entity_vocab_size": 11, "entity_emb_size": 24}
FLUENT = ["Model", "WithLMHeadModel", "ForQuestionAnswering", "ForQuestionAnsweringSimple", "ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice"]  # fmt: skip


def _linked(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts and the entities that stand in them."""
    places = torch.full((3, 2, 4), -1)
    places[:, 0, :2], places[:, 1, :3] = torch.tensor([1, 2]), torch.tensor([5, 6, 7])
    return {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng), "entity_ids": torch.randint(1, 11, (3, 2), generator=rng),
        "entity_position_ids": places, "entity_attention_mask": torch.ones((3, 2), dtype=torch.long),
    }  # fmt: skip


XLM: dict[str, Any] = {
    "vocab_size": 67, "emb_dim": 48, "n_layers": 2, "n_heads": 6, "max_position_embeddings": 32, "pad_token_id": 0, "n_langs": 2,
}  # fmt: skip
XLNET: dict[str, Any] = {"vocab_size": 67, "d_model": 48, "n_layer": 2, "n_head": 6, "d_inner": 40, **KNOWN}


def _segments(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts of two segments."""
    return {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng),
        "token_type_ids": torch.tensor([[0] * 5 + [1] * 6] * 3),
    }


def _in_languages(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts of two languages."""
    return {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng),
        "langs": torch.tensor([[0] * 5 + [1] * 6] * 3),
    }


TOYS: dict[str, Toy] = {
    "roberta": (lambda: tf.RobertaForMaskedLM(tf.RobertaConfig(**BODY_OF_THREE)), 1e-9),
    "xlm-roberta": (lambda: tf.XLMRobertaForSequenceClassification(tf.XLMRobertaConfig(**BODY_OF_THREE)), 1e-9),
}

MORE_TOYS: dict[str, Toy] = {
    "xlm-roberta-xl": (lambda: _xl("ForSequenceClassification", intermediate_size=36), 1e-9),
    "xlm-roberta-xl-words": (lambda: _xl("ForMaskedLM", hidden_act="relu"), 1e-9),
    "data2vec-text": (made("Data2VecText", "ForMaskedLM", **BODY), 1e-9),
    "roberta-prelayernorm": (made("RobertaPreLayerNorm", "ForSequenceClassification", **BODY), 1e-9),
    "roberta-prelayernorm-words": (made("RobertaPreLayerNorm", "ForMaskedLM", **BODY), 1e-9),
    "luke": (made("Luke", "ForTokenClassification", **LUKE), 1e-9),
    "luke-inside": (
        made("Luke", "ForMaskedLM", **{**LUKE, "entity_emb_size": 48, "tie_word_embeddings": False}),
        1e-9,
    ),
    "xlm": (lambda: tf.XLMWithLMHeadModel(tf.XLMConfig(**XLM)), 1e-6),
    "xlm-relu": (lambda: tf.XLMForQuestionAnsweringSimple(tf.XLMConfig(**XLM, gelu_activation=False)), 1e-6),
    "flaubert": (lambda: tf.FlaubertWithLMHeadModel(tf.FlaubertConfig(**XLM)), 1e-6),
    "flaubert-before": (lambda: tf.FlaubertWithLMHeadModel(tf.FlaubertConfig(**XLM, pre_norm=True)), 1e-6),
    "xlnet": (lambda: tf.XLNetLMHeadModel(tf.XLNetConfig(**XLNET)), 1e-5),
    "xlnet-relu": (
        lambda: tf.XLNetForSequenceClassification(tf.XLNetConfig(**XLNET, ff_activation="relu", attn_type="uni")),
        1e-5,
    ),
}

NAMES: dict[str, Saved] = {
    "Roberta": (BODY_OF_THREE, [*READER_CLASSES, "ForCausalLM"]),
    "XLMRoberta": (BODY_OF_THREE, [*READER_CLASSES, "ForCausalLM"]),
    "Camembert": (BODY_OF_THREE, [*READER_CLASSES, "ForCausalLM"]),
    "XLMRobertaXL": (BODY_OF_THREE, [*READER_CLASSES, "ForCausalLM"]),
}

MORE_NAMES: dict[str, Saved] = {
    "Data2VecText": (BODY, [*READER_CLASSES, "ForCausalLM"]),
    "RobertaPreLayerNorm": (BODY, [*READER_CLASSES, "ForCausalLM"]),
    "Luke": (LUKE, ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"]),
    "XLM": (XLM, FLUENT),
    "Flaubert": (XLM, FLUENT),
    "XLNet": (
        XLNET,
        [
            "Model",
            "LMHeadModel",
            "ForSequenceClassification",
            "ForTokenClassification",
            "ForMultipleChoice",
            "ForQuestionAnswering",
            "ForQuestionAnsweringSimple",
        ],
    ),
}

STREAMS: dict[str, Streams] = {
    "xlm-roberta-xl": "OFixingOnes",
    "luke": {"res": "Perm", "eemb": "Perm"},
}

IDLE = {("xlnet", "kb"), ("xlnet-relu", "kb")}

INPUTS: dict[str, Drawn] = {
    "xlnet": _segments,
    **dict.fromkeys(["xlm", "flaubert"], _in_languages),
    "luke": _linked,
}

MUTANTS = [
    mutant("xlm-roberta", "positive factors under tanh", "hs", "Sign[hidden] => PositiveScale[hidden]"),
    mutant("xlm-roberta", "the head's neurons not followed", "hidden", "labels (hidden hs)' => labels neurons"),
    mutant("roberta", "query bias forgotten", "qk", "query.bias (h qk) => query.bias rows"),
    mutant(
        "roberta", "hidden bias forgotten", "ff", "intermediate.dense.bias (ff u) => intermediate.dense.bias rows"
    ),
    mutant("xlm-roberta", "rotated post-LN residual", "res", ROTATED),
    mutant("xlm-roberta-xl", "norms behind the branches", "n1", "(h ov) (res n1)' => (h ov) res'"),
    mutant(
        "xlm-roberta-xl-words",
        "the last gain in the tied head",
        "nf",
        "residual nf: Scale[res] if not words => residual nf: Scale[res]",
    ),
    mutant("xlm-roberta-xl-words", "negative scale under ReLU", "u", "PositiveScale[l, ff] => Scale[l, ff]"),
    mutant("data2vec-text", "query bias forgotten", "qk", "query.bias (h qk) => query.bias rows"),
    mutant("data2vec-text", "rotated post-LN stream", "res", "residual res: Perm => residual res: O"),
    mutant(
        "roberta-prelayernorm",
        "norm's bias not scaled",
        "n1",
        "attention.LayerNorm.bias (res n1) => attention.LayerNorm.bias res",
    ),
    mutant(
        "roberta-prelayernorm-words",
        "the last gain in the tied head",
        "nf",
        "residual nf: Scale[res] if not words => residual nf: Scale[res]",
    ),
    mutant(
        "luke",
        "key bias free under several queries",
        "kb",
        "shift vb: => shift kb: encoder.(layer|layers).{l}.attention.self.key.bias\nshift vb:",
    ),
    mutant(
        "luke",
        "words that ask entities by another matrix",
        "qk",
        "w2e_query.weight (h qk) res' => w2e_query.weight rows res'",
    ),
    mutant(
        "luke",
        "the projection of entities forgotten",
        "eemb",
        "entity_embedding_dense.weight res eemb' => entity_embedding_dense.weight res rows",
    ),
    mutant(
        "xlm",
        "languages past the stream",
        "res",
        "lang_embeddings.weight languages res => lang_embeddings.weight languages other",
    ),
    mutant("xlm-relu", "negative factors through ReLU", "u", "u as scale: PositiveScale => u as scale: Scale"),
    mutant("flaubert", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant(
        "flaubert",
        "rotated post-LN stream",
        "res",
        "residual res: Perm => residual res: O",
        "diag(res) => res",
        "diag(res n1) => res",
        "diag(res n2) => res",
    ),
    mutant("xlnet", "keys of places in another basis", "qk", "rel_attn.r pos h qk' => rel_attn.r pos h coordinate"),
    mutant("xlnet", "a bias of segments keeps its heads", "h", "r_s_bias h qk => r_s_bias heads coordinate"),
    mutant("xlnet", "keys of segments not dual", "qk", "seg_embed segment h qk' => seg_embed segment h qk"),
    mutant(
        "luke-inside", "entities in other coordinates", "res", "entities res if inside => entities other if inside"
    ),
    mutant("flaubert-before", "norms behind the branches", "n2", "(ff u) (res n2)' => (ff u) res'"),
    mutant(
        "flaubert-before",
        "norm's bias not scaled",
        "n1",
        "layer_norm1.{l}.bias (res n1) => layer_norm1.{l}.bias res",
    ),
    mutant("flaubert", "gains of post-LN scaled", "n1", "n1: Scale[l, res] if pre_norm => n1: Scale[l, res]"),
    mutant("roberta", "ReLU's scale under GELU", "u", ' if hidden_act == "relu" => '),
]

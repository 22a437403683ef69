"""Encoders that save work: bottlenecks, convolutions, windows, landmarks, Fourier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_models import made
from toy_settings import BODY, LEARNT, READER_CLASSES

BIRD = {**BODY, "attention_type": "original_full"}
LONG = {**BODY, "attention_window": [4, 4]}


def _attended(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts, in which two words see all."""
    seeing = torch.zeros((3, 11), dtype=torch.long)
    seeing[:, [0, 4]] = 1
    return {"input_ids": torch.randint(2, 60, (3, 11), generator=rng), "global_attention_mask": seeing}


NYSTROM: dict[str, Any] = {
    **LEARNT,
    "num_landmarks": 3,
    "segment_means_seq_len": 12,
    "conv_kernel_size": 3,
    "type_vocab_size": 2,
}
MOBILE: dict[str, Any] = {
    **LEARNT, "embedding_size": 20, "intra_bottleneck_size": 30, "num_feedforward_networks": 3, "hidden_act": "relu",
}  # fmt: skip
CONVOLVED: dict[str, Any] = {**LEARNT, "embedding_size": 20, "head_ratio": 2, "conv_kernel_size": 3}
GROUPED: dict[str, Any] = {
    **LEARNT, "embedding_size": 48, "num_attention_heads": 8, **dict.fromkeys(["q_groups", "k_groups", "v_groups", "intermediate_groups", "output_groups"], 2),
}  # fmt: skip
FOURIER: dict[str, Any] = {k: v for k, v in LEARNT.items() if k != "num_attention_heads"}


def _long(tokens: int) -> Callable[[Any, torch.Generator], dict[str, torch.Tensor]]:
    """Texts of so many tokens."""
    return lambda _, rng: {"input_ids": torch.randint(4, 60, (3, tokens), generator=rng)}


MORE_TOYS: dict[str, Toy] = {
    "big_bird": (made("BigBird", "ForSequenceClassification", **BIRD), 1e-9),
    "big_bird-sparse": (
        made(
            "BigBird",
            "ForMaskedLM",
            **{**BIRD, "attention_type": "block_sparse"},
            block_size=1,
            num_random_blocks=1,
        ),
        1e-9,
    ),
    "longformer": (made("Longformer", "ForMaskedLM", **LONG), 1e-5),
    "nystromformer": (lambda: tf.NystromformerForMaskedLM(tf.NystromformerConfig(**NYSTROM)), 1e-9),
    "mobilebert": (lambda: tf.MobileBertForMaskedLM(tf.MobileBertConfig(**MOBILE)), 1e-9),
    "mobilebert-normed": (
        lambda: tf.MobileBertForSequenceClassification(
            tf.MobileBertConfig(**{**MOBILE, "hidden_act": "gelu"}, normalization_type="layer_norm")
        ),
        1e-9,
    ),
    "convbert": (lambda: tf.ConvBertForMaskedLM(tf.ConvBertConfig(**CONVOLVED)), 1e-9),
    "convbert-wide": (
        lambda: tf.ConvBertForSequenceClassification(
            tf.ConvBertConfig(**{**CONVOLVED, "embedding_size": 48}, hidden_act="relu")
        ),
        1e-9,
    ),
    "convbert-narrow": (lambda: tf.ConvBertForTokenClassification(tf.ConvBertConfig(**CONVOLVED)), 1e-9),
    "squeezebert": (lambda: tf.SqueezeBertForMaskedLM(tf.SqueezeBertConfig(**GROUPED)), 1e-9),
    "squeezebert-relu": (
        lambda: tf.SqueezeBertForTokenClassification(
            tf.SqueezeBertConfig(**GROUPED, hidden_act="relu", num_labels=5)
        ),
        1e-9,
    ),
    "fnet": (lambda: tf.FNetForMaskedLM(tf.FNetConfig(**FOURIER, hidden_act="relu")), 1e-9),
}

MORE_NAMES: dict[str, Saved] = {
    "BigBird": (BIRD, [*READER_CLASSES, "ForPreTraining", "ForCausalLM"]),
    "Longformer": (LONG, READER_CLASSES),
    "Nystromformer": (NYSTROM, READER_CLASSES),
    "MobileBert": (MOBILE, [*READER_CLASSES, "ForPreTraining", "ForNextSentencePrediction"]),
    "ConvBert": (CONVOLVED, READER_CLASSES),
    "SqueezeBert": (GROUPED, READER_CLASSES),
    "FNet": (FOURIER, [*READER_CLASSES, "ForPreTraining", "ForNextSentencePrediction"]),
}

STREAMS: dict[str, Streams] = {
    **{key: {"res": "Perm", "emb": "Perm"} for key in ["mobilebert", "mobilebert-normed", "convbert"]},
    "convbert-narrow": {"res": "Perm", "emb": "OFixingOnes"},
    **dict.fromkeys(["squeezebert", "squeezebert-relu"], "Fixed"),
    "fnet": {"res": "Fixed", "emb": "Fixed"},
}

INPUTS: dict[str, Drawn] = {
    "nystromformer": _long(12),
    "longformer": _attended,
}

MUTANTS = [
    mutant(
        "big_bird",
        "the head reads other coordinates",
        "res",
        "classifier.dense.weight res res' => classifier.dense.weight res other",
    ),
    mutant("big_bird-sparse", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant(
        "longformer",
        "queries that see all by the others' matrices",
        "gqk",
        "key_global.weight (h gqk') res' => key_global.weight rows res'",
        "key_global.bias (h gqk') => key_global.bias rows",
    ),
    mutant(
        "longformer",
        "values that see all by a basis of their own",
        "ov",
        "value_global.weight (h ov) res' => value_global.weight rows res'",
    ),
    mutant(
        "longformer",
        "values' biases without those of tokens that see all",
        "vb",
        " with encoder.(layer|layers).{l}.attention.self.value_global.bias => ",
    ),
    mutant(
        "nystromformer", "convolutions keep their heads", "h", "self.conv.weight h 1 => self.conv.weight heads 1"
    ),
    mutant(
        "nystromformer",
        "value bias free where rows do not sum to one",
        "vb",
        "shift kb: => shift vb: encoder.layer.{l}.attention.self.value.bias -> encoder.layer.{l}.attention.output.dense.bias via encoder.layer.{l}.attention.output.dense.weight\nshift kb:",
    ),
    mutant("mobilebert", "keys in the other bottleneck", "b", "key.weight (h qk') a' => key.weight (h qk') b'"),
    mutant(
        "mobilebert",
        "one of three neighbours past the embeddings",
        "emb",
        "[emb | emb | emb]' => [emb | emb | same]'",
        "size further => size same = emb\nsize further",
    ),
    mutant(
        "mobilebert",
        "the layer's own stream past its last MLP",
        "b",
        "{l}.intermediate.dense.weight (ff u) b' => {l}.intermediate.dense.weight (ff u) columns",
    ),
    mutant(
        "convbert",
        "any matrix where products are read by coordinates",
        "qk",
        "space qk: Perm[l, h] => space qk: GL[l, h]",
        "space t as qk: Scale[l, h, qk]\n => ",
        "space s as scale: Scale[l, h, qk]\n => ",
        "(h qk t) => (h qk)",
        "(h qk t') => (h qk')",
        "(h qk t' s) => (h qk')",
        "(h qk s') => (h qk)",
    ),
    mutant(
        "convbert", "products forget a factor", "t", "pointwise.weight (h qk t' s) => pointwise.weight (h qk s)"
    ),
    mutant("convbert", "halves mistaken", "ov", "[h ov' | h cv'] => [h cv' | h ov']"),
    mutant(
        "squeezebert",
        "heads cross groups",
        "h",
        "(b h qk) => (h b qk)",
        "(b h qk') => (h b qk')",
        "(b h ov) => (h b ov)",
        "res (b h ov') => res (h b ov')",
    ),
    mutant(
        "squeezebert",
        "neurons read in the first group's order",
        "ff",
        "output.conv1d.weight (b rows) (ff u') 1 => output.conv1d.weight (rows b) (ff u') 1",
    ),
    mutant(
        "fnet", "a permuted stream under a Fourier transform", "res", "residual res: Fixed => residual res: Perm"
    ),
    mutant("fnet", "negative factors through ReLU", "u", "u as scale: PositiveScale => u as scale: Scale"),
]

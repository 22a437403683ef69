"""Models of pages, tables and markup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers
from toy_models import made
from toy_settings import BODY, LEARNT, PAGE_CLASSES, TASK_CLASSES, Inputs


def _boxes(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts, and where the words stand on a page."""
    corners = torch.randint(0, 8, (3, 11, 2), generator=rng)
    sizes = torch.randint(0, 8, (3, 11, 2), generator=rng)
    return {
        "input_ids": torch.randint(1, 60, (3, 11), generator=rng),
        "bbox": torch.cat([corners, corners + sizes], -1),
    }


UDOP: dict[str, Any] = {
    "vocab_size": 67, "d_model": 48, "d_kv": 9, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 5, "max_2d_position_embeddings": 20,
    "image_size": 8, "patch_size": 4,
}  # fmt: skip
SCREEN: dict[str, Any] = {
    "vision_config": {"hidden_size": 48, "patch_embed_hidden_size": 12, "d_ff": 44, "d_kv": 9, "num_hidden_layers": 2, "num_attention_heads": 5, "seq_len": 10},
    "text_config": {
        "vocab_size": 67, "hidden_size": 48, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 6, "relative_attention_num_buckets": 8, "is_decoder": True,
    },
    "tie_word_embeddings": False,
}  # fmt: skip


def _placed_patches(_: Any, rng: torch.Generator) -> Inputs:
    """Patches, each behind its row and its column, and the words before."""
    places = torch.randint(1, 9, (3, 7, 2), generator=rng)
    return {
        "flattened_patches": torch.cat([places.double(), drawn_numbers(rng, 3, 7, 12)], -1), "decoder_input_ids": torch.randint(1, 60, (3, 5), generator=rng),
    }  # fmt: skip


def _on_pages(_: Any, rng: torch.Generator) -> Inputs:
    """Words, where they stand on a page, the page itself, and the words before."""
    corners = torch.rand((3, 9, 2), generator=rng, dtype=torch.float64) / 2
    return {
        "input_ids": torch.randint(1, 60, (3, 9), generator=rng), "bbox": torch.cat([corners, corners + 0.3], -1), "pixel_values": drawn_numbers(rng, 3, 3, 8, 8),
        "attention_mask": torch.ones((3, 9), dtype=torch.long), "decoder_input_ids": torch.randint(1, 60, (3, 5), generator=rng),
    }  # fmt: skip


TABLE = {
    **BODY, "num_aggregation_labels": 3, "type_vocab_sizes": [3, 8, 8, 2, 8, 8, 10], "max_num_rows": 4, "max_num_columns": 4, "select_one_column": True,
}  # fmt: skip


def _table(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Words, of which the last eight stand in the cells of a table."""
    kinds = torch.stack([torch.randint(0, size, (3, 11), generator=rng) for size in config.type_vocab_sizes], -1)
    kinds[..., 0], kinds[:, :3, :3] = 1, 0
    kinds[:, 3:, 1], kinds[:, 3:, 2] = torch.arange(8) % 4 + 1, torch.arange(8) // 4 + 1
    return {"input_ids": torch.randint(1, 60, (3, 11), generator=rng), "token_type_ids": kinds}


MARKED: dict[str, Any] = {
    **LEARNT, "xpath_unit_hidden_size": 7, "max_depth": 3, "max_xpath_tag_unit_embeddings": 11, "max_xpath_subs_unit_embeddings": 13, "tag_pad_id": 10,
    "subs_pad_id": 12,
}  # fmt: skip
LILT: dict[str, Any] = {
    **LEARNT, "channel_shrink_ratio": 2, "max_2d_position_embeddings": 24, "max_position_embeddings": 32,
}  # fmt: skip
LAYOUT: dict[str, Any] = {
    **LEARNT, "max_2d_position_embeddings": 1024, "coordinate_size": 9, "shape_size": 6, "input_size": 8, "patch_size": 4, "rel_pos_bins": 8,
    "max_rel_pos": 16, "rel_2d_pos_bins": 8, "max_rel_2d_pos": 512,
}  # fmt: skip


def _marked(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Words, and the path of each in its document."""
    shape = (3, 11, config.max_depth)
    return {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng),
        "xpath_tags_seq": torch.randint(0, 10, shape, generator=rng), "xpath_subs_seq": torch.randint(0, 12, shape, generator=rng),
    }  # fmt: skip


def _pages(scale: int, images: bool) -> Callable[[Any, torch.Generator], dict[str, torch.Tensor]]:
    """Words, where they stand on a page, and the page."""

    def made(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
        corners, sizes = torch.randint(0, 8, (2, 3, 11, 2), generator=rng) * scale
        found = {
            "input_ids": torch.randint(4, 60, (3, 11), generator=rng),
            "bbox": torch.cat([corners, corners + sizes], -1),
        }
        if images and config.visual_embed:
            found["pixel_values"] = torch.randn((3, 3, 8, 8), generator=rng, dtype=torch.float64)
        return found

    return made


MORE_TOYS: dict[str, Toy] = {
    "layoutlm": (made("LayoutLM", "ForMaskedLM", **BODY, max_2d_position_embeddings=16), 1e-9),
    "markuplm": (lambda: tf.MarkupLMForTokenClassification(tf.MarkupLMConfig(**MARKED, num_labels=5)), 1e-6),
    "lilt": (lambda: tf.LiltForTokenClassification(tf.LiltConfig(**LILT, num_labels=5)), 1e-9),
    "layoutlmv3": (lambda: tf.LayoutLMv3ForQuestionAnswering(tf.LayoutLMv3Config(**LAYOUT)), 1e-9),
    "layoutlmv3-words": (
        lambda: tf.LayoutLMv3ForTokenClassification(
            tf.LayoutLMv3Config(
                **LAYOUT,
                visual_embed=False,
                has_spatial_attention_bias=False,
                has_relative_attention_bias=False,
                num_labels=5,
            )
        ),
        1e-9,
    ),
    "tapas": (made("Tapas", "ForSequenceClassification", **TABLE), 1e-9),
    "tapas-cells": (made("Tapas", "ForQuestionAnswering", **TABLE), 1e-5),
    "udop": (lambda: tf.UdopForConditionalGeneration(tf.UdopConfig(**UDOP)), 1e-5),
    "pix2struct": (lambda: tf.Pix2StructForConditionalGeneration(tf.Pix2StructConfig(**SCREEN)), 1e-5),
}

MORE_NAMES: dict[str, Saved] = {
    "LayoutLM": (BODY, PAGE_CLASSES),
    "MarkupLM": (MARKED, ["Model", *TASK_CLASSES]),
    "Lilt": (LILT, ["Model", *TASK_CLASSES]),
    "LayoutLMv3": (LAYOUT, ["Model", *TASK_CLASSES]),
    "Tapas": (TABLE, ["Model", "ForMaskedLM", "ForQuestionAnswering", "ForSequenceClassification"]),
    "Pix2Struct": (SCREEN, ["ForConditionalGeneration"]),
    "Udop": (UDOP, ["Model", "ForConditionalGeneration", "EncoderModel"]),
}

HALF: dict[str, str | tuple[str, ...]] = {
    "UdopEncoderModel": "dx",
}

STREAMS: dict[str, Streams] = {
    "lilt": {"res": "Perm", "tres": "Perm"},
    **{key: {"res": "Fixed"} for key in ["layoutlmv3", "layoutlmv3-words"]},
    "udop": {"res": "SignedPerm"},
    "pix2struct": {"vres": "O", "res": "O"},
}

INPUTS: dict[str, Drawn] = {
    "markuplm": _marked,
    "lilt": _pages(1, images=False),
    "layoutlmv3": _pages(60, images=True),
    "udop": _on_pages,
    "pix2struct": _placed_patches,
    "layoutlm": _boxes,
    "tapas": _table,
}

OUTPUTS: dict[str, tuple[str, ...]] = {
    "tapas": ("logits", "logits_aggregation"),
}

MUTANTS = [
    mutant(
        "layoutlm",
        "boxes forgotten",
        "res",
        "h_position_embeddings.weight edge res => h_position_embeddings.weight edge other",
    ),
    mutant(
        "markuplm",
        "neurons of paths keep their places",
        "xff",
        "inner2emb.weight res (xff xu') => inner2emb.weight res neurons",
    ),
    mutant(
        "markuplm",
        "paths past the stream",
        "res",
        "inner2emb.weight res (xff xu') => inner2emb.weight rows (xff xu')",
    ),
    mutant(
        "lilt",
        "heads of the layout of their own",
        "th",
        "size tqk = => size th = h\nsize tqk =",
        "space tqk as qk: GL[l, h] => space th as h: Perm[l]\nspace tqk as qk: GL[l, th]",
        "space tov as ov: GL[l, h] => space tov as ov: GL[l, th]",
        "(h tqk) => (th tqk)",
        "(h tqk') => (th tqk')",
        "(h tov) => (th tov)",
        "(h tov') => (th tov')",
    ),
    mutant(
        "lilt",
        "places in the text past the layout's stream",
        "tres",
        "box_position_embeddings.weight pos tres => box_position_embeddings.weight pos other",
    ),
    mutant(
        "layoutlmv3",
        "heads per layer under one table",
        "h",
        "space h: Perm if placed => space h: Perm[l] if placed",
        "rel_pos_bias.weight h bins => rel_pos_bias.weight heads bins",
        "rel_pos_x_bias.weight h bins => rel_pos_x_bias.weight heads bins",
        "rel_pos_y_bias.weight h bins => rel_pos_y_bias.weight heads bins",
    ),
    mutant("layoutlmv3", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant(
        "layoutlmv3",
        "a stream under boxes",
        "res",
        "space h: Perm if placed => residual res: Perm\nspace h: Perm if placed",
    ),
    mutant(
        "tapas",
        "places in the table forgotten",
        "res",
        "token_type_embeddings_{t}.weight types res => token_type_embeddings_{t}.weight types other",
    ),
    mutant(
        "tapas",
        "labels past the stream",
        "res",
        "? classifier.weight labels res' => ? classifier.weight labels rows",
    ),
    mutant(
        "udop",
        "distances on the page past their heads",
        "eh",
        "biases.{b}.relative_attention_bias.weight bucket eh => biases.{b}.relative_attention_bias.weight bucket heads",
    ),
    mutant(
        "udop",
        "places in other coordinates",
        "res",
        "y_position_embeddings.weight pos res => y_position_embeddings.weight pos other",
    ),
    mutant(
        "pix2struct",
        "heads of a layer change places alone",
        "dh",
        "space dh as h: Perm => space dh as h: Perm[l]",
        "bucket dh => bucket heads",
    ),
    mutant(
        "pix2struct",
        "the decoder reads past the tower's last gain",
        "enf",
        "(xh xov) (vres enf)' => (xh xov) vres'",
    ),
    mutant("pix2struct", "columns in other coordinates", "vres", "columns vres => columns other"),
    mutant("pix2struct", "gates scaled with their values", "du", "wi_0.weight dff => wi_0.weight (dff du)"),
]

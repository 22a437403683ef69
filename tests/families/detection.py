"""Detectors: DETR and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import seen_pictures
from toy_models import made

FOUND = ["Model", "ForObjectDetection"]
TOWER = {
    "model_type": "rt_detr_resnet", "embedding_size": 8, "hidden_sizes": [8, 12, 16], "depths": [1, 1, 1], "layer_type": "basic",
    "out_features": ["stage1", "stage2", "stage3"],
}  # fmt: skip
GRIDS = {
    "backbone_config": TOWER, "encoder_hidden_dim": 24, "encoder_in_channels": [8, 12, 16], "feat_strides": [4, 8, 16], "encoder_layers": 2,
    "encoder_ffn_dim": 20, "encoder_attention_heads": 3, "encode_proj_layers": [2], "d_model": 32, "num_queries": 5, "hidden_expansion": 0.5,
    "decoder_in_channels": [24, 24, 24], "decoder_ffn_dim": 28, "num_feature_levels": 3, "decoder_n_points": 3, "decoder_layers": 2,
    "decoder_attention_heads": 4, "num_denoising": 4, "num_labels": 7,
}  # fmt: skip
HGNET = {
    "model_type": "hgnet_v2", "embedding_size": 8, "hidden_sizes": [8, 12, 16, 20], "depths": [1, 1, 1, 1], "stem_channels": [3, 4, 8],
    "stage_in_channels": [8, 8, 12, 16], "stage_mid_channels": [4] * 4, "stage_out_channels": [8, 12, 16, 20], "stage_num_blocks": [1] * 4,
    "stage_num_of_layers": [2] * 4, "out_features": ["stage2", "stage3", "stage4"],
}  # fmt: skip
FINE = {
    **GRIDS, "backbone_config": HGNET, "encoder_in_channels": [12, 16, 20], "feat_strides": [8, 16, 32], "d_model": 24, "decoder_n_points": [2, 3, 4],
    "lqe_hidden_dim": 6, "max_num_bins": 8, "top_prob_values": 2,
}  # fmt: skip
STAGES = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 12, 16, 24], "depths": [1] * 4, "out_features": ["stage2", "stage3", "stage4"],
}  # fmt: skip
STAGED_QUERIES = {
    "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": STAGES, "d_model": 32, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 8, "encoder_ffn_dim": 40, "decoder_ffn_dim": 28, "num_queries": 5,
    "num_labels": 7,
}  # fmt: skip
POINTS = {**STAGED_QUERIES, "num_feature_levels": 4, "encoder_n_points": 3, "decoder_n_points": 2}
REFINED = {**POINTS, "with_box_refine": True, "activation_function": "gelu"}
STAGED = {
    **POINTS, "with_box_refine": True, "two_stage": True, "two_stage_num_proposals": 6, "position_embedding_type": "learned",
}  # fmt: skip
JOINED = {**STAGED_QUERIES, "d_model": 48, "encoder_attention_heads": 6, "decoder_layers": 3}
OUTLINED = {
    **STAGED_QUERIES, "d_model": 64, "encoder_attention_heads": 8, "auxiliary_loss": True, "activation_function": "gelu", "position_embedding_type": "learned",
    "backbone_config": {**STAGES, "out_features": [f"stage{s}" for s in range(1, 5)]},
}  # fmt: skip
WINDOWS = {
    "model_type": "swin", "image_size": 64, "patch_size": 2, "embed_dim": 12, "depths": [2, 1, 1, 1], "num_heads": [3, 4, 6, 8], "window_size": 3,
    "mlp_ratio": 1.5,
}  # fmt: skip
WORDS = {
    "model_type": "bert", "vocab_size": 2100, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 40,
    "max_position_embeddings": 32,
}  # fmt: skip
GROUNDED = {
    "backbone_config": {**WINDOWS, "out_indices": [2, 3, 4]}, "text_config": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 8, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 28, "num_queries": 5,
    "num_feature_levels": 4, "encoder_n_points": 3, "decoder_n_points": 2, "max_text_len": 16,
}  # fmt: skip
MASKED_QUERIES = {
    "backbone_config": {**WINDOWS, "out_indices": [1, 2, 3, 4]}, "feature_size": 32, "mask_feature_size": 20, "hidden_dim": 32,
    "encoder_feedforward_dim": 40, "encoder_layers": 2, "decoder_layers": 3, "num_attention_heads": 4, "dim_feedforward": 28, "num_queries": 5,
    "num_labels": 7,
}  # fmt: skip
BEFORE = {
    **MASKED_QUERIES, "backbone_config": {**STAGES, "out_features": [f"stage{s}" for s in range(1, 5)]}, "pre_norm": True, "enforce_input_projection": True,
    "activation_function": "gelu",
}  # fmt: skip


def _seen(side: int) -> Callable[[Any, torch.Generator], dict[str, torch.Tensor]]:
    return lambda _, rng: {"pixel_values": torch.randn((3, 3, side, side), generator=rng, dtype=torch.float64)}


def _named(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Pictures, and two phrases to look for, between the tokens that part them."""
    ids = torch.randint(4, 60, (2, 9), generator=rng)
    ids[:, [0, 4, 8]] = torch.tensor([101, 1012, 102])
    return {"input_ids": ids, "pixel_values": torch.randn((2, 3, 64, 64), generator=rng, dtype=torch.float64)}


RESNET = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "out_features": ["stage2"],
}  # fmt: skip
QUERIED = {
    "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": RESNET, "d_model": 48,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 6, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40, "decoder_ffn_dim": 32, "num_queries": 5,
}  # fmt: skip
MASKED = {
    **QUERIED, "d_model": 64, "encoder_attention_heads": 8,
    "backbone_config": {**RESNET, "hidden_sizes": [8, 12, 16, 24], "depths": [1] * 4, "out_features": [f"stage{s}" for s in range(1, 5)]},
}  # fmt: skip

MORE_TOYS: dict[str, Toy] = {
    "detr": (made("Detr", "ForObjectDetection", **QUERIED), 1e-9),
    "detr-learned": (made("Detr", "ForObjectDetection", **QUERIED, position_embedding_type="learned"), 1e-9),
    "detr-masks": (made("Detr", "ForSegmentation", **MASKED), 1e-9),
    "table-transformer": (made("TableTransformer", "ForObjectDetection", **QUERIED), 1e-9),
    "rt_detr": (made("RTDetr", "ForObjectDetection", **GRIDS), 1e-9),
    "rt_detr_v2": (
        made("RTDetrV2", "ForObjectDetection", **GRIDS, decoder_n_levels=3, encoder_activation_function="relu"),
        1e-9,
    ),
    "d_fine": (made("DFine", "ForObjectDetection", **FINE), 1e-9),
    "d_fine-even": (
        made(
            "DFine", "ForObjectDetection", **{**FINE, "decoder_n_points": 3, "encoder_activation_function": "relu"}
        ),
        1e-9,
    ),
    "deformable_detr": (made("DeformableDetr", "ForObjectDetection", **POINTS), 1e-9),
    "deformable_detr-refined": (made("DeformableDetr", "ForObjectDetection", **REFINED), 1e-9),
    "deformable_detr-staged": (made("DeformableDetr", "ForObjectDetection", **STAGED), 1e-9),
    "conditional_detr": (made("ConditionalDetr", "ForObjectDetection", **JOINED), 1e-9),
    "conditional_detr-masks": (made("ConditionalDetr", "ForSegmentation", **OUTLINED), 1e-9),
    "grounding-dino": (made("GroundingDino", "ForObjectDetection", **GROUNDED), 1e-9),
    "mm-grounding-dino": (
        made("MMGroundingDino", "ForObjectDetection", **{**GROUNDED, "activation_function": "gelu"}),
        1e-9,
    ),
    "mask2former": (made("Mask2Former", "ForUniversalSegmentation", **MASKED_QUERIES), 1e-9),
    "mask2former-before": (made("Mask2Former", "ForUniversalSegmentation", **BEFORE), 1e-9),
}

MORE_NAMES: dict[str, Saved] = {
    "Detr": (QUERIED, ["Model", "ForObjectDetection"]),
    "TableTransformer": (QUERIED, ["Model", "ForObjectDetection"]),
    "RTDetr": (GRIDS, FOUND),
    "RTDetrV2": ({**GRIDS, "decoder_n_levels": 3}, FOUND),
    "DFine": (FINE, FOUND),
    "DeformableDetr": (POINTS, FOUND),
    "ConditionalDetr": ({**OUTLINED, "decoder_layers": JOINED["decoder_layers"]}, [*FOUND, "ForSegmentation"]),
    "GroundingDino": (GROUNDED, FOUND),
    "MMGroundingDino": (GROUNDED, FOUND),
    "Mask2Former": (MASKED_QUERIES, ["Model", "ForUniversalSegmentation"]),
}

STREAMS: dict[str, Streams] = {
    **{
        key: {}
        for key in [
            "detr",
            "detr-learned",
            "detr-masks",
            "table-transformer",
            "d_fine",
            "d_fine-even",
            "mask2former-before",
        ]
    },
    **{key: {"res": "Perm", "mem": "Perm"} for key in ["rt_detr", "rt_detr_v2"]},
    "deformable_detr-staged": {"res": "Perm", "pro": "OFixingOnes"},
    **{key: {"res": "Perm", "qp": "Perm"} for key in ["conditional_detr", "conditional_detr-masks"]},
    **{
        key: {
            "vision_res0": "Perm",
            "vision_res1": "Perm",
            "vision_res2": "Perm",
            "vision_res3": "Perm",
            "text_res": "Perm",
        }
        for key in ["grounding-dino", "mm-grounding-dino"]
    },
    "mask2former": {"vision_res0": "Perm", "vision_res1": "Perm", "vision_res2": "Perm", "vision_res3": "Perm"},
}

INPUTS: dict[str, Drawn] = {
    **dict.fromkeys(["detr", "table-transformer"], seen_pictures(16)),
    **dict.fromkeys(["rt_detr", "rt_detr_v2"], _seen(48)),
    **dict.fromkeys(["d_fine", "deformable_detr", "conditional_detr", "mask2former"], _seen(64)),
    **dict.fromkeys(["grounding-dino", "mm-grounding-dino"], _named),
}

OUTPUTS: dict[str, tuple[str, ...]] = {
    "rt_detr": ("logits", "pred_boxes", "pred_masks"),
    "rt_detr_v2": ("logits", "pred_boxes", "pred_masks"),
    "d_fine": ("logits", "pred_boxes", "pred_masks"),
    "deformable_detr": ("logits", "pred_boxes", "pred_masks"),
    "conditional_detr": ("logits", "pred_boxes", "pred_masks"),
    "grounding-dino": ("intermediate_hidden_states", "pred_boxes"),
    "mm-grounding-dino": ("intermediate_hidden_states", "pred_boxes"),
    "mask2former": ("class_queries_logits", "masks_queries_logits"),
    "detr": ("logits", "pred_boxes", "pred_masks"),
    "table-transformer": ("logits", "pred_boxes", "pred_masks"),
}

CONVERTED = {"detr", "detr-learned", "detr-masks"}

MUTANTS = [
    mutant("detr", "the queries' keys not dual", "xqk", "(xh xqk') => (xh xqk)"),
    mutant(
        "detr",
        "the stream of sinusoids permuted",
        "res",
        "space h: => size res = d_model\nresidual res: Perm\nspace h:",
    ),
    mutant(
        "table-transformer",
        "negative scale under ReLU",
        "du",
        "space du as scale: PositiveScale => space du as scale: Scale",
    ),
    mutant(
        "table-transformer",
        "query bias forgotten",
        "h",
        "encoder.layers.{l}.self_attn.q_proj.bias (h qk) => encoder.layers.{l}.self_attn.q_proj.bias rows",
    ),
    mutant(
        "rt_detr",
        "points across grids",
        "pt",
        "space pt as points: Perm[l, xh, level] => space pt as points: Perm[l, xh]",
        "size level = decoder_n_levels or num_feature_levels => size level = 1",
        "size pt = decoder_n_points => size pt = decoder_n_points * num_feature_levels",
    ),
    mutant(
        "rt_detr",
        "where a point lies forgotten",
        "pt",
        "sampling_offsets.bias (xh level pt 2) => sampling_offsets.bias places",
    ),
    mutant("rt_detr", "points fast", "xh", "(xh level pt) => (level pt xh)"),
    mutant(
        "rt_detr",
        "the batch's gain forgotten by one reader",
        "ms",
        "enc_output.0.weight res (mem ms)' => enc_output.0.weight res mem'",
    ),
    mutant(
        "rt_detr", "the batch's mean in other coordinates", "mem", "1.running_mean mem => 1.running_mean channel"
    ),
    mutant(
        "rt_detr_v2",
        "learned positions forgotten",
        "res",
        "query_pos_head.layers.1.bias res => query_pos_head.layers.1.bias other",
    ),
    mutant(
        "rt_detr_v2",
        "a value bias where grids end in zeros",
        "xvb",
        "shift dkb: => shift xvb: decoder.layers.{l}.encoder_attn.value_proj.bias -> decoder.layers.{l}.encoder_attn.output_proj.bias via decoder.layers.{l}.encoder_attn.output_proj.weight\nshift dkb:",
    ),
    mutant("d_fine", "heads over grids without maps", "xh", "space pt0 as => space xh as h: Perm[l]\nspace pt0 as"),
    mutant(
        "d_fine",
        "grids mistaken",
        "pt2",
        "(xh [pt0 2 | pt1 2 | pt2 2 | pt3 2]) => (xh [pt2 2 | pt0 2 | pt1 2 | pt3 2])",
    ),
    mutant(
        "d_fine-even",
        "negative factors",
        "bv",
        "space bv as scale: PositiveScale[l, bb] => space bv as scale: Scale[l, bb]",
    ),
    mutant(
        "d_fine",
        "queries permuted past the gates",
        "query",
        "size h = => size query = d_model\nresidual query: Perm\nsize h =",
        "decoder.query_pos_head.layers.1.weight query (pos pu') => decoder.query_pos_head.layers.1.weight other (pos pu')",
    ),
    mutant(
        "deformable_detr", "two halves of a query in one order", "res", "queries [res | res] => queries (res 2)"
    ),
    mutant(
        "deformable_detr",
        "boxes of every layer",
        "bb",
        "space bb as ff: Perm if => space bb as ff: Perm[l] if",
        "space bv as scale: PositiveScale[bb] if => space bv as scale: PositiveScale[l, bb] if",
        "2.weight box (bb bv') => 2.weight box other",
    ),
    mutant(
        "deformable_detr-refined",
        "heads of the encoder forgotten",
        "h",
        "self_attn.attention_weights.bias (h level pt) => self_attn.attention_weights.bias weights",
    ),
    mutant(
        "deformable_detr-staged",
        "proposals past their norm",
        "np",
        "class_embed.{l:decoder_layers}.weight labels (pro np)' => class_embed.{l:decoder_layers}.weight labels pro'",
    ),
    mutant(
        "deformable_detr-staged",
        "the proposals' bias forgotten",
        "pro",
        "enc_output.bias pro => enc_output.bias rows",
    ),
    mutant(
        "conditional_detr",
        "places apart from contents in the first layer",
        "xs",
        "{l:0}.(ca_kpos_proj|encoder_attn.k_pos_proj).weight (xh xqk') => {l:0}.(ca_kpos_proj|encoder_attn.k_pos_proj).weight (xh xs')",
        "{l:0}.(ca_qpos_sine_proj|encoder_attn.q_pos_sine_proj).weight (xh xqk) => {l:0}.(ca_qpos_sine_proj|encoder_attn.q_pos_sine_proj).weight (xh xs)",
    ),
    mutant("conditional_detr", "queries' positions in the stream", "res", "queries qp => queries res"),
    mutant(
        "conditional_detr",
        "boxes past the last norm",
        "nf",
        "bbox_predictor.layers.0.weight (ba bu) (res nf)' => bbox_predictor.layers.0.weight (ba bu) res'",
    ),
    mutant(
        "conditional_detr-masks",
        "the last norm before the next layer",
        "nf",
        "residual nf: Scale[res] if auxiliary_loss in (None, False) and => residual nf: Scale[res] if",
    ),
    mutant(
        "grounding-dino",
        "values of the other side",
        "ftv",
        "(channel vs) (fh ftv') => (channel vs) (fh other)",
        "size level = => size other = encoder_ffn_dim // encoder_attention_heads\nsize level =",
    ),
    mutant(
        "grounding-dino",
        "a bias free where both sides are normed",
        "fkb",
        "shift ftb: => shift fkb: encoder.layers.{l}.fusion_layer.attn.vision_proj.bias\nshift ftb:",
    ),
    mutant("grounding-dino", "the gain not divided", "vs", "vision_param (channel vs') => vision_param channel"),
    mutant(
        "grounding-dino",
        "stages mistaken",
        "vision_res3",
        "input_proj_vision.3.0.weight channel vision_res3' => input_proj_vision.3.0.weight channel other",
        "size level = => size other = backbone_config.embed_dim * 8\nsize level =",
    ),
    mutant(
        "mm-grounding-dino",
        "words past their map",
        "text_res",
        "text_projection.weight channel text_res' => text_projection.weight channel rows",
    ),
    mutant(
        "mask2former",
        "the scalar product with one side",
        "mf",
        "mask_projection.weight mf' => mask_projection.weight rows",
        "returns mf vision_res3 => returns vision_res3",
    ),
    mutant("mask2former", "fused head by head", "xqk", "[xh xqk | xh xqk' | xh xov] => (xh [xqk | xqk' | xov])"),
    mutant(
        "mask2former",
        "stages from the first",
        "vision_res1",
        "input_projections.2.0.weight channel vision_res1' => input_projections.2.0.weight channel rows",
    ),
    mutant(
        "mask2former-before",
        "queries in other coordinates than grids",
        "query",
        "size h = => residual query: Perm\nsize h =",
    ),
]

"""Families of `toy_finders` whose saved names are tried, the largest groups of their streams, and plausible wrong
specs of them."""

from __future__ import annotations

from typing import Any

from archs.mutants import mutant
from toy_finders import FINE, GRIDS, GROUNDED, JOINED, MASKED, OUTLINED, POINTS

FOUND = ["Model", "ForObjectDetection"]
FINDER_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "RTDetr": (GRIDS, FOUND),
    "RTDetrV2": ({**GRIDS, "decoder_n_levels": 3}, FOUND),
    "DFine": (FINE, FOUND),
    "DeformableDetr": (POINTS, FOUND),
    "ConditionalDetr": ({**OUTLINED, "decoder_layers": JOINED["decoder_layers"]}, [*FOUND, "ForSegmentation"]),
    "GroundingDino": (GROUNDED, FOUND),
    "MMGroundingDino": (GROUNDED, FOUND),
    "Mask2Former": (MASKED, ["Model", "ForUniversalSegmentation"]),
}
GRIDDED = {f"vision_res{stage}": "Perm" for stage in range(4)}
FINDER_STREAMS: dict[str, dict[str, str]] = {
    **{name: {**GRIDDED, "text_res": "Perm"} for name in ("grounding-dino", "mm-grounding-dino")},
    "mask2former": GRIDDED,
    "mask2former-before": {},
    **{key: {"res": "Perm", "mem": "Perm"} for key in ("rt_detr", "rt_detr_v2")},
    **{key: {} for key in ("d_fine", "d_fine-even")},
    "deformable_detr-staged": {"res": "Perm", "pro": "OFixingOnes"},
    **{key: {"res": "Perm", "qp": "Perm"} for key in ("conditional_detr", "conditional_detr-masks")},
}
"""The largest groups of their streams (see `test_streams`)."""
FINDER_IDLE: set[tuple[str, str]] = set()
"""What a toy declares but cannot move (see `test_law`)."""
FINDER_MUTANTS = [
    mutant("rt_detr", "points across grids", "pt", "space pt as points: Perm[l, xh, level] => space pt as points: Perm[l, xh]", "size level = decoder_n_levels or num_feature_levels => size level = 1", "size pt = decoder_n_points => size pt = decoder_n_points * num_feature_levels"),
    mutant("rt_detr", "where a point lies forgotten", "pt", "sampling_offsets.bias (xh level pt 2) => sampling_offsets.bias places"),
    mutant("rt_detr", "points fast", "xh", "(xh level pt) => (level pt xh)"),
    mutant("rt_detr", "the batch's gain forgotten by one reader", "ms", "enc_output.0.weight res (mem ms)' => enc_output.0.weight res mem'"),
    mutant("rt_detr", "the batch's mean in other coordinates", "mem", "1.running_mean mem => 1.running_mean channel"),
    mutant("rt_detr_v2", "learned positions forgotten", "res", "query_pos_head.layers.1.bias res => query_pos_head.layers.1.bias other"),
    mutant("rt_detr_v2", "a value bias where grids end in zeros", "xvb", "shift dkb: => shift xvb: decoder.layers.{l}.encoder_attn.value_proj.bias -> decoder.layers.{l}.encoder_attn.output_proj.bias via decoder.layers.{l}.encoder_attn.output_proj.weight\nshift dkb:"),
    mutant("d_fine", "heads over grids without maps", "xh", "space pt0 as => space xh as h: Perm[l]\nspace pt0 as"),
    mutant("d_fine", "grids mistaken", "pt2", "(xh [pt0 2 | pt1 2 | pt2 2 | pt3 2]) => (xh [pt2 2 | pt0 2 | pt1 2 | pt3 2])"),
    mutant("d_fine-even", "negative factors", "bv", "space bv as scale: PositiveScale[l, bb] => space bv as scale: Scale[l, bb]"),
    mutant("d_fine", "queries permuted past the gates", "query", "size h = => size query = d_model\nresidual query: Perm\nsize h =", "decoder.query_pos_head.layers.1.weight query (pos pu') => decoder.query_pos_head.layers.1.weight other (pos pu')"),
    mutant("deformable_detr", "two halves of a query in one order", "res", "queries [res | res] => queries (res 2)"),
    mutant("deformable_detr", "boxes of every layer", "bb", "space bb as ff: Perm if => space bb as ff: Perm[l] if", "space bv as scale: PositiveScale[bb] if => space bv as scale: PositiveScale[l, bb] if", "2.weight box (bb bv') => 2.weight box other"),
    mutant("deformable_detr-refined", "heads of the encoder forgotten", "h", "self_attn.attention_weights.bias (h level pt) => self_attn.attention_weights.bias weights"),
    mutant("deformable_detr-staged", "proposals past their norm", "np", "class_embed.{l:decoder_layers}.weight labels (pro np)' => class_embed.{l:decoder_layers}.weight labels pro'"),
    mutant("deformable_detr-staged", "the proposals' bias forgotten", "pro", "enc_output.bias pro => enc_output.bias rows"),
    mutant("conditional_detr", "places apart from contents in the first layer", "xs", "{l:0}.(ca_kpos_proj|encoder_attn.k_pos_proj).weight (xh xqk') => {l:0}.(ca_kpos_proj|encoder_attn.k_pos_proj).weight (xh xs')", "{l:0}.(ca_qpos_sine_proj|encoder_attn.q_pos_sine_proj).weight (xh xqk) => {l:0}.(ca_qpos_sine_proj|encoder_attn.q_pos_sine_proj).weight (xh xs)"),
    mutant("conditional_detr", "queries' positions in the stream", "res", "queries qp => queries res"),
    mutant("conditional_detr", "boxes past the last norm", "nf", "bbox_predictor.layers.0.weight (ba bu) (res nf)' => bbox_predictor.layers.0.weight (ba bu) res'"),
    mutant("conditional_detr-masks", "the last norm before the next layer", "nf", "residual nf: Scale[res] if auxiliary_loss in (None, False) and => residual nf: Scale[res] if"),
    mutant("grounding-dino", "values of the other side", "ftv", "(channel vs) (fh ftv') => (channel vs) (fh other)", "size level = => size other = encoder_ffn_dim // encoder_attention_heads\nsize level ="),
    mutant("grounding-dino", "a bias free where both sides are normed", "fkb", "shift ftb: => shift fkb: encoder.layers.{l}.fusion_layer.attn.vision_proj.bias\nshift ftb:"),
    mutant("grounding-dino", "the gain not divided", "vs", "vision_param (channel vs') => vision_param channel"),
    mutant("grounding-dino", "stages mistaken", "vision_res3", "input_proj_vision.3.0.weight channel vision_res3' => input_proj_vision.3.0.weight channel other", "size level = => size other = backbone_config.embed_dim * 8\nsize level ="),
    mutant("mm-grounding-dino", "words past their map", "text_res", "text_projection.weight channel text_res' => text_projection.weight channel rows"),
    mutant("mask2former", "the scalar product with one side", "mf", "mask_projection.weight mf' => mask_projection.weight rows", "returns mf vision_res3 => returns vision_res3"),
    mutant("mask2former", "fused head by head", "xqk", "[xh xqk | xh xqk' | xh xov] => (xh [xqk | xqk' | xov])"),
    mutant("mask2former", "stages from the first", "vision_res1", "input_projections.2.0.weight channel vision_res1' => input_projections.2.0.weight channel rows"),
    mutant("mask2former-before", "queries in other coordinates than grids", "query", "size h = => residual query: Perm\nsize h ="),
]  # fmt: skip

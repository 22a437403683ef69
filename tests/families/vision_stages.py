"""Towers in stages, and heads that segment and measure depth."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers, seen_pictures
from toy_models import in_stages, made
from toy_settings import PIXELS, SHAPE, WINDOWS, Inputs

MASKS = {
    "image_size": 32, "hidden_sizes": [12, 20, 36, 48], "num_attention_heads": [2, 4, 6, 8], "depths": [2, 1, 1, 1],
    "mlp_ratios": [2, 3, 2, 2], "decoder_hidden_size": 18, "sr_ratios": [4, 2, 2, 1], "num_labels": 5,
}  # fmt: skip
SEGMENTED = {
    "vision_config": {
        "hidden_size": 48, "output_channels": 20, "num_hidden_layers": 2, "num_attention_heads": 6, "image_size": 20,
        "patch_size": 4, "window_size": 2, "global_attn_indexes": [1], "mlp_dim": 40, "num_pos_feats": 10,
    },
    "prompt_encoder_config": {"hidden_size": 20, "image_size": 20, "patch_size": 4, "mask_input_channels": 4},
    "mask_decoder_config": {
        "hidden_size": 20, "mlp_dim": 28, "num_hidden_layers": 2, "num_attention_heads": 2, "iou_head_hidden_dim": 12,
    },
}  # fmt: skip
NECK = {"neck_hidden_sizes": [8, 10, 12, 14], "fusion_hidden_size": 16}
DEEP = {**PIXELS, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], **NECK}
DINO = {
    **{k: v for k, v in SHAPE.items() if k != "num_labels"}, "num_hidden_layers": 4, "mlp_ratio": 2, "model_type": "dinov2",
    "out_indices": [1, 2, 3, 4], "reshape_hidden_states": False, "apply_layernorm": True,
}  # fmt: skip
DEPTH = {
    "backbone_config": DINO,
    "reassemble_hidden_size": 48,
    "patch_size": 4,
    **NECK,
    "head_hidden_size": 6,
    "depth_estimation_type": "metric",
}
POOLED: dict[str, Any] = {
    "embed_dim": 12, "image_size": [16, 16], "patch_size": [3, 3], "patch_stride": [2, 2], "patch_padding": [1, 1], "mlp_ratio": 1.5, "depths": [2, 2, 2, 2],
    "num_heads": [2, 3, 4, 6], "masked_unit_size": [8, 8], "num_labels": 5,
}  # fmt: skip


def _images(_: Any, rng: torch.Generator) -> Inputs:
    """Images."""
    return {"pixel_values": drawn_numbers(rng, 3, 3, 16, 16)}


MORE_TOYS: dict[str, Toy] = {
    "segformer": (made("Segformer", "ForSemanticSegmentation", **MASKS), 1e-9),
    "segformer-labels": (made("Segformer", "ForImageClassification", **MASKS), 1e-9),
    "swin": (made("Swin", "ForImageClassification", **WINDOWS, use_absolute_embeddings=True), 1e-9),
    "donut-swin": (made("DonutSwin", "ForImageClassification", **WINDOWS), 1e-9),
    "swinv2": (made("Swinv2", "ForImageClassification", **WINDOWS, hidden_act="relu"), 1e-9),
    "sam": (made("Sam", "Model", **SEGMENTED), 1e-5),
    "dpt": (made("DPT", "ForDepthEstimation", **DEEP), 1e-9),
    "dpt-added": (made("DPT", "ForDepthEstimation", **DEEP, readout_type="add", hidden_act="relu"), 1e-9),
    "depth_anything": (made("DepthAnything", "ForDepthEstimation", **DEPTH), 1e-9),
    "hiera": (lambda: tf.HieraForImageClassification(tf.HieraConfig(**POOLED)), 1e-9),
    "dpt-labels": (lambda: tf.DPTForSemanticSegmentation(tf.DPTConfig(**DEEP)), 1e-9),
    "swin-three": (lambda: tf.SwinForImageClassification(tf.SwinConfig(**in_stages(WINDOWS, 3))), 1e-9),
    "swin-one": (lambda: tf.SwinForImageClassification(tf.SwinConfig(**in_stages(WINDOWS, 1))), 1e-9),
    "swinv2-three": (lambda: tf.Swinv2ForImageClassification(tf.Swinv2Config(**in_stages(WINDOWS, 3))), 1e-9),
    "hiera-three": (
        lambda: tf.HieraForImageClassification(tf.HieraConfig(**in_stages(POOLED, 3), num_query_pool=2)),
        1e-9,
    ),
}

MORE_NAMES: dict[str, Saved] = {
    "Segformer": (MASKS, ["Model", "ForImageClassification", "ForSemanticSegmentation"]),
    "Swin": (WINDOWS, ["Model", "ForImageClassification", "ForMaskedImageModeling", "Backbone"]),
    "DonutSwin": (WINDOWS, ["Model", "ForImageClassification"]),
    "Swinv2": (
        {**WINDOWS, "hidden_act": "relu"},
        ["Model", "ForImageClassification", "ForMaskedImageModeling", "Backbone"],
    ),
    "Sam": (SEGMENTED, ["Model"]),
    "SamVision": (SEGMENTED["vision_config"], ["Model"]),
    "DPT": (DEEP, ["Model", "ForDepthEstimation", "ForSemanticSegmentation"]),
    "DepthAnything": (DEPTH, ["ForDepthEstimation"]),
    "Hiera": (POOLED, ["Model", "ForImageClassification", "Backbone"]),
}

STREAMS: dict[str, Streams] = {
    **{
        key: {"res0": "Perm", "res1": "Perm", "res2": "Perm", "res3": "Perm"}
        for key in ["segformer", "segformer-labels", "swinv2"]
    },
    **{
        key: {"res0": "Perm", "res1": "OFixingOnes", "res2": "OFixingOnes", "res3": "OFixingOnes"}
        for key in ["swin", "donut-swin"]
    },
    **{key: {"vision_res": "OFixingOnes"} for key in ["sam", "depth_anything"]},
    **{key: {"vision_res": "Perm"} for key in ["dpt", "dpt-added", "dpt-labels"]},
    "hiera": {"res0": "OFixingOnes", "res1": "Perm", "res2": "Perm", "res3": "Perm"},
    "swin-three": {"res0": "Perm", "res1": "OFixingOnes", "res2": "OFixingOnes"},
    "swinv2-three": {"res0": "Perm", "res1": "Perm", "res2": "Perm"},
    "swin-one": {"res0": "Perm"},
    "hiera-three": {"res0": "OFixingOnes", "res1": "Perm", "res2": "Perm"},
}

INPUTS: dict[str, Drawn] = {
    "hiera": _images,
    "sam": seen_pictures(20, input_points=torch.tensor([[[[2.0, 3.0], [11.0, 7.0]]]] * 3, dtype=torch.float64)),
    "depth_anything": seen_pictures(8),
}

OUTPUTS: dict[str, tuple[str, ...]] = {
    "sam": ("pred_masks", "iou_scores"),
    "dpt": ("predicted_depth", "logits"),
    "depth_anything": ("predicted_depth", "logits"),
}

CONVERTED = {"segformer", "segformer-labels"}

MUTANTS = [
    mutant("segformer", "the coarser grid's bias forgotten", "r0", "sr.bias r0 if => sr.bias rows if"),
    mutant("segformer", "the coarser grid's gain not scaled back", "g1", "(h1 qk1') (r1 g1)' => (h1 qk1') r1'"),
    mutant(
        "segformer",
        "a factor through the activation",
        "u0",
        "dwconv.weight (ff0 u0') => dwconv.weight ff0",
        "res0 ff0' => res0 (ff0 u0')",
    ),
    mutant("segformer", "neighbours' biases forgotten", "ff2", "dwconv.bias ff2 => dwconv.bias rows"),
    mutant("segformer", "stages in their own order", "c0", "[c3 | c2 | c1 | c0]' => [c0 | c1 | c2 | c3]'"),
    mutant("segformer", "the next stage past the norm", "n0f", "res1 (res0 n0f)' => res1 res0'"),
    mutant(
        "segformer",
        "the norm over the images forgotten",
        "fuse",
        "batch_norm.weight fuse => batch_norm.weight rows",
        "batch_norm.bias fuse => batch_norm.bias rows",
    ),
    mutant(
        "segformer-labels",
        "the head past the last norm",
        "n3f",
        "classifier.weight labels (res3 n3f)' => classifier.weight labels res3'",
    ),
    mutant("swin", "the table of places forgotten", "h0", "place h0 => place heads"),
    mutant(
        "swin",
        "merged neighbours' gains forgotten",
        "res1",
        "norm.weight diag(four res1 d1) => norm.weight merged",
    ),
    mutant("swin", "neighbours and coordinates mistaken", "res0", "diag(four res0 d0) => diag(res0 four d0)"),
    mutant("swin", "key not dual", "qk3", "(h3 qk3') => (h3 qk3)"),
    mutant(
        "donut-swin",
        "norm's bias not scaled",
        "n21",
        "2.blocks.{l}.layernorm_before.bias (res2 n21) => 2.blocks.{l}.layernorm_before.bias res2",
    ),
    mutant("donut-swin", "output not dual", "ov1", "(h1 ov1') => (h1 ov1)"),
    mutant("swinv2", "any matrix under norms of length", "qk0", "space qk0 as qk: O[ => space qk0 as qk: GL["),
    mutant("swinv2", "temperatures forgotten", "h1", "logit_scale h1 => logit_scale rows"),
    mutant(
        "swinv2",
        "biases of positions forgotten",
        "h2",
        "continuous_position_bias_mlp.2.weight h2 => continuous_position_bias_mlp.2.weight rows",
    ),
    mutant(
        "swinv2", "negative scale under ReLU", "w0", "space w0 as scale: PositiveScale => space w0 as scale: Scale"
    ),
    mutant(
        "swinv2",
        "rotated behind the branches' norms",
        "res3",
        "residual res3: Perm => residual res3: O",
        "layernorm_after.weight diag(res3) => layernorm_after.weight res3",
        "layernorm_before.weight diag(res3) => layernorm_before.weight res3",
        "downsample.norm.weight diag(res3) => downsample.norm.weight res3",
        "diag(res3 nf) => (res3 nf)",
    ),
    mutant(
        "sam",
        "a matrix per head under a table for all",
        "vision_qk",
        "space qk: GL[l] if => space qk: GL[l, h] if",
        "place qk' => place rows",
        part="sam_vision_model",
    ),
    mutant(
        "sam",
        "the tables not dual",
        "vision_qk",
        "rel_pos_h place qk' if => rel_pos_h place qk if",
        part="sam_vision_model",
    ),
    mutant(
        "sam",
        "the neck's norm forgotten",
        "vision_neck",
        "layer_norm1.bias neck => layer_norm1.bias rows",
        part="sam_vision_model",
    ),
    mutant("sam", "tokens' keys not dual", "tqk", "(th tqk') => (th tqk)"),
    mutant("sam", "negative scale under ReLU", "du", "PositiveScale[l, dff] => Scale[l, dff]"),
    mutant(
        "dpt", "the readout read head by tail", "vision_res", "r [vision_res | vision_res]' => r (vision_res 2)'"
    ),
    mutant("dpt", "the readout's bias forgotten", "r", "0.bias r => 0.bias rows"),
    mutant("dpt-added", "the neck past the stream", "vision_res", "channel vision_res' 1 1 => channel rows 1 1"),
    mutant(
        "depth_anything",
        "the neck past the last norm",
        "vision_nf",
        "channel (vision_res vision_nf)' => channel vision_res'",
    ),
    mutant(
        "hiera",
        "negative factors in front of the largest",
        "qs1",
        "qs1 as scale: PositiveScale => qs1 as scale: Scale",
    ),
    mutant(
        "hiera",
        "a stage rotated behind the largest",
        "res1",
        "residual res1: Perm => residual res1: O",
        "diag(res1 n11) => (res1 n11)",
        "diag(res1 n12) => (res1 n12)",
        "diag(res1 m1) => (res1 m1)",
    ),
    mutant(
        "hiera",
        "a stage's first map past the gain in front of it",
        "m0",
        "proj.weight res1 (res0 m0)' => proj.weight res1 res0'",
    ),
    mutant("swin-three", "the last norm past the last stage", "nf", "labels (res2 nf)' if => labels res2' if"),
    mutant(
        "swinv2-three",
        "biases of positions forgotten",
        "h2",
        "continuous_position_bias_mlp.2.weight h2 => continuous_position_bias_mlp.2.weight rows",
    ),
    mutant(
        "hiera-three",
        "a stage's first map past the gain in front of it",
        "m1",
        "proj.weight res2 (res1 m1)' => proj.weight res2 res1'",
    ),
]

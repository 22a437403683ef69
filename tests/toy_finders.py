"""Constructors of tiny models that find and outline things in pictures, their inputs and what is compared of their
outputs (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

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
QUERIED = {
    "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": STAGES, "d_model": 32, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 8, "encoder_ffn_dim": 40, "decoder_ffn_dim": 28, "num_queries": 5,
    "num_labels": 7,
}  # fmt: skip
POINTS = {**QUERIED, "num_feature_levels": 4, "encoder_n_points": 3, "decoder_n_points": 2}
REFINED = {**POINTS, "with_box_refine": True, "activation_function": "gelu"}
STAGED = {
    **POINTS, "with_box_refine": True, "two_stage": True, "two_stage_num_proposals": 6, "position_embedding_type": "learned",
}  # fmt: skip
JOINED = {**QUERIED, "d_model": 48, "encoder_attention_heads": 6, "decoder_layers": 3}
OUTLINED = {
    **QUERIED, "d_model": 64, "encoder_attention_heads": 8, "auxiliary_loss": True, "activation_function": "gelu", "position_embedding_type": "learned",
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
MASKED = {
    "backbone_config": {**WINDOWS, "out_indices": [1, 2, 3, 4]}, "feature_size": 32, "mask_feature_size": 20, "hidden_dim": 32,
    "encoder_feedforward_dim": 40, "encoder_layers": 2, "decoder_layers": 3, "num_attention_heads": 4, "dim_feedforward": 28, "num_queries": 5,
    "num_labels": 7,
}  # fmt: skip
BEFORE = {
    **MASKED, "backbone_config": {**STAGES, "out_features": [f"stage{s}" for s in range(1, 5)]}, "pre_norm": True, "enforce_input_projection": True,
    "activation_function": "gelu",
}  # fmt: skip


def _made(kind: str, head: str, **config: Any) -> Callable[[], Any]:
    return lambda: getattr(tf, f"{kind}{head}")(getattr(tf, f"{kind}Config")(**config))


# name -> (constructor, largest relative change of outputs that rounding explains)
FINDERS: dict[str, tuple[Callable[[], Any], float]] = {
    "rt_detr": (_made("RTDetr", "ForObjectDetection", **GRIDS), 1e-9),
    "rt_detr_v2": (_made("RTDetrV2", "ForObjectDetection", **GRIDS, decoder_n_levels=3, encoder_activation_function="relu"), 1e-9),
    "d_fine": (_made("DFine", "ForObjectDetection", **FINE), 1e-9),
    "d_fine-even": (_made("DFine", "ForObjectDetection", **{**FINE, "decoder_n_points": 3, "encoder_activation_function": "relu"}), 1e-9),
    "deformable_detr": (_made("DeformableDetr", "ForObjectDetection", **POINTS), 1e-9),
    "deformable_detr-refined": (_made("DeformableDetr", "ForObjectDetection", **REFINED), 1e-9),
    "deformable_detr-staged": (_made("DeformableDetr", "ForObjectDetection", **STAGED), 1e-9),
    "conditional_detr": (_made("ConditionalDetr", "ForObjectDetection", **JOINED), 1e-9),
    "conditional_detr-masks": (_made("ConditionalDetr", "ForSegmentation", **OUTLINED), 1e-9),
    "grounding-dino": (_made("GroundingDino", "ForObjectDetection", **GROUNDED), 1e-9),
    "mm-grounding-dino": (_made("MMGroundingDino", "ForObjectDetection", **{**GROUNDED, "activation_function": "gelu"}), 1e-9),
    "mask2former": (_made("Mask2Former", "ForUniversalSegmentation", **MASKED), 1e-9),
    "mask2former-before": (_made("Mask2Former", "ForUniversalSegmentation", **BEFORE), 1e-9),
}  # fmt: skip


def _seen(side: int) -> Callable[[Any, torch.Generator], dict[str, torch.Tensor]]:
    return lambda _, rng: {"pixel_values": torch.randn((3, 3, side, side), generator=rng, dtype=torch.float64)}


def _named(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Pictures, and two phrases to look for, between the tokens that part them."""
    ids = torch.randint(4, 60, (2, 9), generator=rng)
    ids[:, [0, 4, 8]] = torch.tensor([101, 1012, 102])
    return {"input_ids": ids, "pixel_values": torch.randn((2, 3, 64, 64), generator=rng, dtype=torch.float64)}


FINDER_INPUTS: dict[str, Callable[[Any, torch.Generator], dict[str, torch.Tensor]]] = {
    **dict.fromkeys(["rt_detr", "rt_detr_v2"], _seen(48)),
    **dict.fromkeys(["d_fine", "deformable_detr", "conditional_detr", "mask2former"], _seen(64)),
    **dict.fromkeys(["grounding-dino", "mm-grounding-dino"], _named),
}
"""Inputs by ``model_type`` (see `toys.inputs`)."""

FINDER_OUTPUTS = {
    **dict.fromkeys(
        ["rt_detr", "rt_detr_v2", "d_fine", "deformable_detr", "conditional_detr"],
        ("logits", "pred_boxes", "pred_masks"),
    ),
    **dict.fromkeys(["grounding-dino", "mm-grounding-dino"], ("intermediate_hidden_states", "pred_boxes")),
    "mask2former": ("class_queries_logits", "masks_queries_logits"),
}
"""The outputs that are compared, by ``model_type`` (see `toy_pictures.seen_outputs`)."""

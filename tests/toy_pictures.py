"""Constructors of tiny models of pictures and films: towers, pairs, stages, heads that find and draw (see
`toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import transformers as tf

from toy_finders import FINDER_OUTPUTS
from toy_signals import SIGNAL_OUTPUTS
from toy_towers import PIXELS, WORDS

SHAPE = {k: v for k, v in PIXELS.items() if k != "intermediate_size"}
FILM = {**{k: v for k, v in PIXELS.items() if k != "patch_size"}, "num_frames": 4, "tubelet_size": [2, 4, 4]}
TIMES = {**PIXELS, "num_frames": 3}
PIXIO = {**{k: v for k, v in SHAPE.items() if k != "num_labels"}, "mlp_ratio": 2}
MASKS = {
    "image_size": 32, "hidden_sizes": [12, 20, 36, 48], "num_attention_heads": [2, 4, 6, 8], "depths": [2, 1, 1, 1],
    "mlp_ratios": [2, 3, 2, 2], "decoder_hidden_size": 18, "sr_ratios": [4, 2, 2, 1], "num_labels": 5,
}  # fmt: skip
WINDOWS = {
    "image_size": 40, "patch_size": 2, "embed_dim": 12, "depths": [2, 1, 1, 1], "num_heads": [3, 4, 6, 8],
    "window_size": 3, "mlp_ratio": 1.5, "num_labels": 5,
}  # fmt: skip
NAMED = {**WORDS, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
LOOKED = {
    "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 44, "image_size": 8,
    "patch_size": 4, "hidden_act": "relu",
}  # fmt: skip
FOUND = {"text_config": NAMED, "vision_config": LOOKED, "projection_dim": 48}
DRAWN = {
    "text_config": NAMED, "vision_config": LOOKED, "projection_dim": 20, "reduce_dim": 16, "extract_layers": [0, 1],
    "decoder_num_attention_heads": 4, "decoder_intermediate_size": 28,
}  # fmt: skip
FRAMES = {
    "text_config": NAMED, "projection_dim": 36, "prompt_layers": 2, "prompt_num_attention_heads": 4,
    "vision_config": {
        **LOOKED, "mit_hidden_size": 36, "mit_intermediate_size": 28, "mit_num_hidden_layers": 2, "mit_num_attention_heads": 3,
        "num_frames": 3,
    },
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
SPOKEN = {**WORDS, "image_size": 8, "patch_size": 4, "hidden_act": "relu"}
POSED = {
    "model_type": "vitpose_backbone", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "mlp_ratio": 2,
    "image_size": [16, 16], "patch_size": [8, 8],
}  # fmt: skip
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


def _made(kind: str, head: str, **config: Any) -> Callable[[], Any]:
    return lambda: getattr(tf, f"{kind}{head}")(getattr(tf, f"{kind}Config")(**config))


# name -> (constructor, largest relative change of outputs that rounding explains). Some compute logits in float32.
PICTURES: dict[str, tuple[Callable[[], Any], float]] = {
    "vivit": (_made("Vivit", "ForVideoClassification", **FILM), 1e-9),
    "timesformer": (_made("Timesformer", "ForVideoClassification", **TIMES), 1e-9),
    "timesformer-joint": (
        _made("Timesformer", "ForVideoClassification", **TIMES, attention_type="joint_space_time", hidden_act="relu"), 1e-9,
    ),
    "pixio": (_made("Pixio", "Model", **PIXIO), 1e-9),
    "mlcd_vision_model": (_made("MLCDVision", "Model", **LOOKED), 1e-5),
    "segformer": (_made("Segformer", "ForSemanticSegmentation", **MASKS), 1e-9),
    "segformer-labels": (_made("Segformer", "ForImageClassification", **MASKS), 1e-9),
    "swin": (_made("Swin", "ForImageClassification", **WINDOWS, use_absolute_embeddings=True), 1e-9),
    "donut-swin": (_made("DonutSwin", "ForImageClassification", **WINDOWS), 1e-9),
    "swinv2": (_made("Swinv2", "ForImageClassification", **WINDOWS, hidden_act="relu"), 1e-9),
    "owlvit": (_made("OwlViT", "ForObjectDetection", **FOUND), 1e-5),
    "owlv2": (_made("Owlv2", "ForObjectDetection", **FOUND), 1e-5),
    "clipseg": (_made("CLIPSeg", "ForImageSegmentation", **DRAWN), 1e-9),
    "clipseg-complex": (
        _made("CLIPSeg", "ForImageSegmentation", **DRAWN, use_complex_transposed_convolution=True), 1e-9,
    ),
    "sam": (_made("Sam", "Model", **SEGMENTED), 1e-5),
    "dpt": (_made("DPT", "ForDepthEstimation", **DEEP), 1e-9),
    "dpt-added": (_made("DPT", "ForDepthEstimation", **DEEP, readout_type="add", hidden_act="relu"), 1e-9),
    "depth_anything": (_made("DepthAnything", "ForDepthEstimation", **DEPTH), 1e-9),
    "vilt": (_made("Vilt", "ForQuestionAnswering", **SPOKEN), 1e-9),
    "vitpose": (_made("VitPose", "ForPoseEstimation", backbone_config=POSED, num_labels=5), 1e-9),
    "vitpose-classic": (
        _made("VitPose", "ForPoseEstimation", backbone_config=POSED, num_labels=5, use_simple_decoder=False), 1e-9,
    ),
    "detr": (_made("Detr", "ForObjectDetection", **QUERIED), 1e-9),
    "detr-learned": (_made("Detr", "ForObjectDetection", **QUERIED, position_embedding_type="learned"), 1e-9),
    "detr-masks": (_made("Detr", "ForSegmentation", **MASKED), 1e-9),
    "table-transformer": (_made("TableTransformer", "ForObjectDetection", **QUERIED), 1e-9),
    "xclip": (_made("XCLIP", "Model", **FRAMES), 1e-9),
}  # fmt: skip

PICTURE_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Vivit": (FILM, ["Model", "ForVideoClassification"]),
    "Timesformer": (TIMES, ["Model", "ForVideoClassification"]),
    "Pixio": (PIXIO, ["Model"]),
    "MLCDVision": (LOOKED, ["Model"]),
    "Segformer": (MASKS, ["Model", "ForImageClassification", "ForSemanticSegmentation"]),
    "Swin": (WINDOWS, ["Model", "ForImageClassification", "ForMaskedImageModeling", "Backbone"]),
    "DonutSwin": (WINDOWS, ["Model", "ForImageClassification"]),
    "Swinv2": (
        {**WINDOWS, "hidden_act": "relu"},
        ["Model", "ForImageClassification", "ForMaskedImageModeling", "Backbone"],
    ),
    "OwlViT": (FOUND, ["Model", "ForObjectDetection"]),
    "OwlViTText": (NAMED, ["Model"]),
    "OwlViTVision": (LOOKED, ["Model"]),
    "Owlv2": (FOUND, ["Model", "ForObjectDetection"]),
    "Owlv2Text": (NAMED, ["Model"]),
    "Owlv2Vision": (LOOKED, ["Model"]),
    "CLIPSeg": (DRAWN, ["Model", "ForImageSegmentation"]),
    "CLIPSegText": (NAMED, ["Model"]),
    "CLIPSegVision": (LOOKED, ["Model"]),
    "Sam": (SEGMENTED, ["Model"]),
    "SamVision": (SEGMENTED["vision_config"], ["Model"]),
    "DPT": (DEEP, ["Model", "ForDepthEstimation", "ForSemanticSegmentation"]),
    "DepthAnything": (DEPTH, ["ForDepthEstimation"]),
    "Vilt": (
        SPOKEN,
        ["Model", "ForMaskedLM", "ForQuestionAnswering", "ForImageAndTextRetrieval", "ForTokenClassification"],
    ),
    "VitPose": ({"backbone_config": POSED}, ["ForPoseEstimation"]),
    "VitPoseBackbone": ({k: v for k, v in POSED.items() if k != "model_type"}, [""]),
    "Detr": (QUERIED, ["Model", "ForObjectDetection"]),
    "TableTransformer": (QUERIED, ["Model", "ForObjectDetection"]),
    "XCLIP": (FRAMES, ["Model"]),
    "XCLIPText": (NAMED, ["Model"]),
    "XCLIPVision": (FRAMES["vision_config"], ["Model"]),
}
"""Families whose saved names are tried (see `test_names`): ``Config`` name, its arguments, model classes."""

PICTURE_HALF: dict[str, str | tuple[str, ...]] = {}
"""Spaces, by how their names begin, that a class without the part does not have (see `test_names`)."""

STAGES = {f"res{s}": "Perm" for s in range(4)}
CLIPS = {"text_res": "OFixingOnes", "vision_res": "Perm"}
PICTURE_STREAMS: dict[str, dict[str, str]] = {
    **{name: {"res": "OFixingOnes"} for name in ("vivit", "timesformer", "timesformer-joint")},
    **{
        name: {}
        for name in ("pixio", "mlcd_vision_model", "detr", "detr-learned", "detr-masks", "table-transformer")
    },
    "vilt": {"res": "Perm"},
    **{name: {"vision_res": "Perm"} for name in ("vitpose", "vitpose-classic", "dpt", "dpt-added")},
    **{name: {"vision_res": "OFixingOnes"} for name in ("sam", "depth_anything")},
    **dict.fromkeys(("segformer", "segformer-labels", "swin", "donut-swin", "swinv2"), STAGES),
    **dict.fromkeys(("owlvit", "owlv2", "xclip"), CLIPS),
    **{name: {**CLIPS, "dres": "Perm"} for name in ("clipseg", "clipseg-complex")},
}
"""The largest groups of their streams (see `test_streams`)."""

PICTURE_IDLE: set[tuple[str, str]] = set()
"""What a toy declares but cannot move (see `test_law`)."""


def _film(side: Callable[[Any], tuple[int, int]]) -> Callable[[Any, torch.Generator], dict[str, torch.Tensor]]:
    def made(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
        frames, size = side(config)
        found = {"pixel_values": torch.randn((3, frames, 3, size, size), generator=rng, dtype=torch.float64)}
        if hasattr(config, "text_config"):
            found["input_ids"] = torch.randint(1, 60, (4, 11), generator=rng)
        return found

    return made


def _seen(side: int, **more: torch.Tensor) -> Callable[[Any, torch.Generator], dict[str, torch.Tensor]]:
    return lambda _, rng: {
        "pixel_values": torch.randn((3, 3, side, side), generator=rng, dtype=torch.float64),
        **more,
    }


PICTURE_INPUTS: dict[str, Callable[[Any, torch.Generator], dict[str, torch.Tensor]]] = {
    **dict.fromkeys(["vivit", "timesformer"], _film(lambda c: (c.num_frames, c.image_size))),
    "sam": _seen(20, input_points=torch.tensor([[[[2.0, 3.0], [11.0, 7.0]]]] * 3, dtype=torch.float64)),
    "vilt": _seen(8, input_ids=torch.arange(33).reshape(3, 11) + 4),
    "vitpose": _seen(16),
    **dict.fromkeys(["detr", "table-transformer"], _seen(16)),
    "depth_anything": _seen(8),
    "xclip": _film(lambda c: (c.vision_config.num_frames, c.vision_config.image_size)),
}
"""Inputs of those that ask for others than one picture and a text, by ``model_type`` (see `toys.inputs`)."""

PICTURE_OUTPUTS = {
    **FINDER_OUTPUTS,
    **SIGNAL_OUTPUTS,
    "lxmert": ["prediction_logits", "cross_relationship_score", "question_answering_score"],
    **dict.fromkeys(["pixio", "mlcd_vision_model"], ("last_hidden_state", "pooler_output")),
    "owlvit": ["logits", "pred_boxes"],
    "owlv2": ["logits", "pred_boxes", "objectness_logits"],
    "sam": ["pred_masks", "iou_scores"],
    **dict.fromkeys(["dpt", "depth_anything"], ("predicted_depth", "logits")),
    "vitpose": ["heatmaps"],
    **dict.fromkeys(["detr", "table-transformer"], ("logits", "pred_boxes", "pred_masks")),
    "xclip": ["logits_per_video"],
}
"""The outputs that are compared, by ``model_type``, where they are not the logits alone."""


def seen_outputs(kind: str, found: Any) -> torch.Tensor | None:
    """The outputs of a model of pictures in a row, None where its logits are all."""
    if kind not in PICTURE_OUTPUTS:
        return None
    named = [
        reduce(lambda part, key: part.get(key), name.split("."), found)
        for name in PICTURE_OUTPUTS[kind]
        if name.split(".")[0] in found
    ]
    return torch.cat([each.double().flatten() for each in named if each is not None])

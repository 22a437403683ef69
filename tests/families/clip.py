"""Pairs of towers for texts and images: CLIP, SigLIP and kin."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import StreamMutant, mutant
from toy_models import made
from toy_settings import BODY, LOOKED, NAMED, PIXELS, TOWER_OF_PATCHES, TOWERS

PAIR = {
    "text_config": {**BODY, "projection_size": 20},
    "vision_config": {
        **PIXELS, "hidden_size": 20, "num_attention_heads": 5, "intermediate_size": 44, "hidden_act": "relu",
    },
}  # fmt: skip
NATIVE = {"text_config": PAIR["text_config"], "vision_config": {**PAIR["vision_config"], "num_patches": 4}}
DOUBLE = {
    "text_config": {**BODY, "eos_token_id": 2},
    "vision_config": {**PAIR["vision_config"], "hidden_act": "gelu"},
    "projection_dim": 18,
}
LIT = {
    "text_config": {**BODY, "qkv_bias": True, "mlp_bias": True, "eos_token_id": 2},
    "vision_config": {**PAIR["vision_config"], "hidden_act": "silu", "qkv_bias": True},
    "projection_dim": 18,
}
# transformers zeroes the padding row of a Chinese CLIP as it loads it: here none is padding, so that all are seen
CHINESE = {**DOUBLE, "text_config": {**BODY, "pad_token_id": None}}
ALT = {**DOUBLE, "text_config": {**BODY, "project_dim": 18, "pad_token_id": 0}}


def _patches(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Images as lists of patches, of two shapes, and texts."""
    seen = config.vision_config
    shape = (3, seen.num_patches, 3 * seen.patch_size**2)
    return {
        "pixel_values": torch.randn(shape, generator=rng, dtype=torch.float64),
        "spatial_shapes": torch.tensor([[2, 2], [1, 4], [2, 1]]),
        "pixel_attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]]),
        "input_ids": torch.randint(1, 60, (3, 11), generator=rng),
    }


FOUND = {"text_config": NAMED, "vision_config": LOOKED, "projection_dim": 48}
DRAWN = {
    "text_config": NAMED, "vision_config": LOOKED, "projection_dim": 20, "reduce_dim": 16, "extract_layers": [0, 1],
    "decoder_num_attention_heads": 4, "decoder_intermediate_size": 28,
}  # fmt: skip

TOYS: dict[str, Toy] = {
    "clip": (lambda: tf.CLIPModel(tf.CLIPConfig(**TOWERS)), 1e-9),
}

MORE_TOYS: dict[str, Toy] = {
    "clip_text_model": (
        lambda: tf.CLIPTextModelWithProjection(tf.CLIPTextConfig(**TOWERS["text_config"], projection_dim=20)),
        1e-9,
    ),
    "clip_vision_model": (
        lambda: tf.CLIPVisionModelWithProjection(tf.CLIPVisionConfig(**TOWERS["vision_config"], projection_dim=20)),
        1e-9,
    ),
    "siglip_vision_model": (lambda: tf.SiglipVisionModel(tf.SiglipVisionConfig(**TOWER_OF_PATCHES)), 1e-9),
    "siglip_text_model": (made("SiglipText", "Model", **PAIR["text_config"]), 1e-9),
    "siglip": (made("Siglip", "Model", **PAIR), 1e-9),
    "siglip2": (made("Siglip2", "Model", **NATIVE), 1e-5),
    "metaclip_2": (made("MetaClip2", "Model", **DOUBLE), 1e-9),
    "aimv2": (made("Aimv2", "Model", **LIT), 1e-5),
    "altclip": (made("AltCLIP", "Model", **ALT), 1e-9),
    "chinese_clip": (made("ChineseCLIP", "Model", **CHINESE), 1e-9),
    "owlvit": (made("OwlViT", "ForObjectDetection", **FOUND), 1e-5),
    "owlv2": (made("Owlv2", "ForObjectDetection", **FOUND), 1e-5),
    "clipseg": (made("CLIPSeg", "ForImageSegmentation", **DRAWN), 1e-9),
    "clipseg-complex": (
        made("CLIPSeg", "ForImageSegmentation", **DRAWN, use_complex_transposed_convolution=True),
        1e-9,
    ),
}

NAMES: dict[str, Saved] = {
    "CLIPText": (TOWERS["text_config"], ["Model", "ModelWithProjection"]),
    "CLIPVision": (TOWERS["vision_config"], ["Model", "ModelWithProjection"]),
    "SiglipVision": (TOWERS["vision_config"], ["Model"]),
    "CLIP": (TOWERS, ["Model", "ForImageClassification"]),
}

MORE_NAMES: dict[str, Saved] = {
    "SiglipText": (PAIR["text_config"], ["Model"]),
    "Siglip2Text": (PAIR["text_config"], ["Model"]),
    "Siglip2Vision": (NATIVE["vision_config"], ["Model"]),
    "Siglip": (PAIR, ["Model", "ForImageClassification"]),
    "Siglip2": (NATIVE, ["Model", "ForImageClassification"]),
    "MetaClip2Text": (DOUBLE["text_config"], ["Model", "ModelWithProjection"]),
    "MetaClip2Vision": (DOUBLE["vision_config"], ["Model", "ModelWithProjection"]),
    "MetaClip2": (DOUBLE, ["Model", "ForImageClassification"]),
    "Aimv2Text": (LIT["text_config"], ["Model"]),
    "Aimv2Vision": (LIT["vision_config"], ["Model"]),
    "Aimv2": (LIT, ["Model"]),
    "AltCLIPText": (ALT["text_config"], []),
    "AltCLIPVision": (ALT["vision_config"], ["Model"]),
    "AltCLIP": (ALT, ["Model"]),
    "ChineseCLIPText": (BODY, ["Model"]),
    "ChineseCLIPVision": (CHINESE["vision_config"], ["Model"]),
    "ChineseCLIP": (CHINESE, ["Model"]),
    "OwlViT": (FOUND, ["Model", "ForObjectDetection"]),
    "OwlViTText": (NAMED, ["Model"]),
    "OwlViTVision": (LOOKED, ["Model"]),
    "Owlv2": (FOUND, ["Model", "ForObjectDetection"]),
    "Owlv2Text": (NAMED, ["Model"]),
    "Owlv2Vision": (LOOKED, ["Model"]),
    "CLIPSeg": (DRAWN, ["Model", "ForImageSegmentation"]),
    "CLIPSegText": (NAMED, ["Model"]),
    "CLIPSegVision": (LOOKED, ["Model"]),
}

HALF: dict[str, str | tuple[str, ...]] = {
    "CLIPForImageClassification": "t",
    "SiglipForImageClassification": "t",
    "Siglip2ForImageClassification": "t",
    "MetaClip2ForImageClassification": "t",
}

STREAMS: dict[str, Streams] = {
    **{key: {"text_res": "OFixingOnes", "vision_res": "Perm"} for key in ["clip", "metaclip_2", "owlvit", "owlv2"]},
    **dict.fromkeys(["clip_text_model", "siglip_vision_model", "siglip_text_model"], "OFixingOnes"),
    **{key: {"text_res": "OFixingOnes", "vision_res": "OFixingOnes"} for key in ["siglip", "siglip2"]},
    "aimv2": {"text_res": "O", "vision_res": "SignedPerm"},
    **{key: {"text_res": "Perm", "vision_res": "Perm"} for key in ["altclip", "chinese_clip"]},
    **{
        key: {"text_res": "OFixingOnes", "vision_res": "Perm", "dres": "Perm"}
        for key in ["clipseg", "clipseg-complex"]
    },
}

INPUTS: dict[str, Drawn] = {
    "siglip2": _patches,
}

OUTPUTS: dict[str, tuple[str, ...]] = {
    "owlvit": ("logits", "pred_boxes"),
    "owlv2": ("logits", "pred_boxes", "objectness_logits"),
}

NO_PROBE = "probe pq: => # pq:"
"""Else the text is refused as soon as it is read: what a probe reads is in the coordinates of its readers."""
MUTANTS = [
    mutant("clip_text_model", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant("clip_text_model", "projection past the last gain", "nf", "shared (res nf)' => shared res'"),
    mutant("clip_vision_model", "negative scale under ReLU", "u", "PositiveScale[l, ff] => Scale[l, ff]"),
    mutant(
        "clip_vision_model",
        "the first norm's bias forgotten",
        "res",
        "(pre_layrnorm|pre_layernorm).bias res => (pre_layrnorm|pre_layernorm).bias rows",
    ),
    mutant(
        "siglip_vision_model",
        "the probe in coordinates of its own",
        "res",
        "head.probe 1 1 (res nf) => head.probe 1 1 rows",
        NO_PROBE,
    ),
    mutant(
        "siglip_vision_model",
        "the probe past the last gain",
        "nf",
        "head.probe 1 1 (res nf) => head.probe 1 1 res",
        NO_PROBE,
    ),
    mutant(
        "siglip_vision_model",
        "pooling key not dual",
        "pqk",
        "weight [ph pqk | ph pqk' | => weight [ph pqk | ph pqk |",
    ),
    mutant(
        "clip",
        "image projection past the last gain",
        "vision_nf",
        "shared (vision_res vision_nf)' => shared vision_res'",
    ),
    mutant(
        "clip", "text projection in other coordinates", "text_res", "shared (text_res text_nf)' => shared other"
    ),
    mutant(
        "siglip_text_model",
        "the head past the last gain",
        "nf",
        "head.weight shared (res nf)' => head.weight shared res'",
    ),
    mutant(
        "siglip",
        "the probe past the last gain",
        "vision_nf",
        "head.probe 1 1 (res nf) => head.probe 1 1 res",
        NO_PROBE,
        part="siglip_vision_model",
    ),
    mutant(
        "siglip",
        "the tower of texts by the projections of CLIP",
        "text_ov",
        "(h ov') => (h ov)",
        part="siglip_text_model",
    ),
    mutant(
        "siglip2",
        "patches in other coordinates",
        "vision_res",
        "embeddings.patch_embedding.weight res pixels => embeddings.patch_embedding.weight other pixels",
        part="siglip2_vision_model",
    ),
    mutant(
        "siglip2",
        "negative scale under ReLU",
        "vision_u",
        "PositiveScale[l, ff] => Scale[l, ff]",
        part="siglip2_vision_model",
    ),
    mutant(
        "metaclip_2",
        "the projection past the last gain",
        "vision_nf",
        "visual_projection.weight shared (vision_res vision_nf)' => visual_projection.weight shared vision_res'",
    ),
    mutant(
        "aimv2",
        "the query of the pool in the stream",
        "vision_pqk",
        "head.cls_token 1 1 (ph pqk) => head.cls_token 1 1 rows",
        part="aimv2_vision_model",
    ),
    mutant(
        "aimv2",
        "gate and up mistaken",
        "text_u",
        "gate_proj.weight ff (res n2)' => gate_proj.weight (ff u) (res n2)'",
        part="aimv2_text_model",
    ),
    mutant(
        "aimv2",
        "the projection reads the stream",
        "vision_pov",
        "head.output_proj.weight pooled (ph pov') => head.output_proj.weight pooled (ph pov)",
        part="aimv2_vision_model",
    ),
    mutant(
        "chinese_clip",
        "the tower of texts by the last norm of CLIP",
        "text_res",
        "text_projection.weight shared text_res' => text_projection.weight shared other",
    ),
    mutant(
        "altclip",
        "the last norm in other coordinates",
        "text_res",
        "pre_LN.weight res => pre_LN.weight other",
        part="altclip_text_model",
    ),
    mutant(
        "altclip",
        "the map past the stream",
        "text_res",
        "transformation.weight shared res' => transformation.weight shared other",
        part="altclip_text_model",
    ),
    mutant("chinese_clip", "output not dual", "text_ov", "(h ov') => (h ov)", part="chinese_clip_text_model"),
    mutant(
        "owlvit",
        "the tower's last gain in the heads",
        "vision_nf",
        "owlvit_vision_model without nf => owlvit_vision_model",
        "visual_projection.weight shared vision_res' => visual_projection.weight shared (vision_res vision_nf)'",
        "diag(vision_res hn) => diag(vision_res)",
        "layer_norm.bias (vision_res hn) => layer_norm.bias vision_res",
        "(vision_res hn)' => (vision_res vision_nf)'",
        'residual hn: Scale[vision_res] if "layer_norm.weight" in tensors\n => \n',
    ),
    mutant(
        "owlvit",
        "classes past the heads' norm",
        "hn",
        "class_head.dense0.weight shared (vision_res hn)' => class_head.dense0.weight shared vision_res'",
    ),
    mutant(
        "owlv2",
        "boxes past the heads' norm",
        "hn",
        "box_head.dense0.weight inner (vision_res hn)' => box_head.dense0.weight inner vision_res'",
    ),
    mutant(
        "owlv2",
        "objects past the heads' norm",
        "vision_res",
        "objectness_head.dense0.weight inner (vision_res hn)' => objectness_head.dense0.weight inner rows",
    ),
    mutant("clipseg", "what to look for forgotten", "dres", "film_add.weight dres => film_add.weight rows"),
    mutant("clipseg", "the stream past the last norm", "vision_res", "dres vision_res' => dres rows"),
    mutant("clipseg", "negative scale under ReLU", "du", "PositiveScale[l, dff] => Scale[l, dff]"),
    mutant(
        "clipseg-complex",
        "the drawing forgotten",
        "dres",
        "transposed_convolution.0.weight inner dres' => transposed_convolution.0.weight inner rows",
    ),
]

STREAM_MUTANTS = [
    StreamMutant(
        "clip_vision_model",
        "rotated behind the norm of patches",
        "OFixingOnes",
        (
            "res: Perm => res: Perm folded OFixingOnes",
            "(pre_layrnorm|pre_layernorm).weight diag(res) => (pre_layrnorm|pre_layernorm).weight res",
        ),
    ),
]

"""Vision transformers of one width: ViT, DINO, BEiT and kin."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import StreamMutant, mutant
from toy_inputs import seen_pictures
from toy_models import made
from toy_settings import LAYER_NORM, LOOKED, PIXELS, PLAIN_GAINS, ROTATED, SHAPE, VECTORS

PATCHES = {
    "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 40,
    "image_size": 8, "patch_size": 4, "num_labels": 5,
}  # fmt: skip


def _dinov2(**changes: Any) -> Any:
    shape = {k: v for k, v in PATCHES.items() if k != "intermediate_size"}
    return tf.Dinov2ForImageClassification(tf.Dinov2Config(**shape, mlp_ratio=2, **changes))


BY_PLACE = {**PIXELS, "use_relative_position_bias": True}


def _beit(kind: str, **changes: Any) -> Any:
    return getattr(tf, f"Beit{kind}")(tf.BeitConfig(**{**PIXELS, **changes}))


YOLOS = {**PIXELS, "image_size": [8, 8], "num_detection_tokens": 3}
MASKED = {
    **PIXELS, "decoder_hidden_size": 36, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 3,
    "decoder_intermediate_size": 28,
}  # fmt: skip
REGISTERED = {**PIXELS, "num_register_tokens": 2, "key_bias": True}
IMAGE_CLASSES = ["Model", "ForImageClassification", "ForMaskedImageModeling"]
DINO = {k: v for k, v in PATCHES.items() if k != "intermediate_size"}


def _hidden(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Images, and the noise that decides which patches are hidden."""
    shape, patches = (3, 3, config.image_size, config.image_size), (config.image_size // config.patch_size) ** 2
    return {
        "pixel_values": torch.randn(shape, generator=rng, dtype=torch.float64),
        "noise": torch.rand((3, patches), generator=rng, dtype=torch.float64),
    }


def _images(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Images whose height and width the config gives apart."""
    return {"pixel_values": torch.randn((3, 3, *config.image_size), generator=rng, dtype=torch.float64)}


PIXIO = {**{k: v for k, v in SHAPE.items() if k != "num_labels"}, "mlp_ratio": 2}
POSED = {
    "model_type": "vitpose_backbone", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "mlp_ratio": 2,
    "image_size": [16, 16], "patch_size": [8, 8],
}  # fmt: skip

TOYS: dict[str, Toy] = {
    "vit": (lambda: tf.ViTForImageClassification(tf.ViTConfig(**PATCHES)), 1e-9),
    "vit-plain": (
        lambda: tf.ViTForImageClassification(tf.ViTConfig(**PATCHES, qkv_bias=False, hidden_act="relu")),
        1e-9,
    ),
    "dinov2": (lambda: _dinov2(), 1e-9),
    "dinov2-swiglu": (lambda: _dinov2(use_swiglu_ffn=True), 1e-9),
    "deit": (lambda: tf.DeiTForImageClassificationWithTeacher(tf.DeiTConfig(**PATCHES)), 1e-9),
}

MORE_TOYS: dict[str, Toy] = {
    "beit": (
        lambda: _beit(
            "ForImageClassification", use_relative_position_bias=True, use_absolute_position_embeddings=True
        ),
        1e-9,
    ),
    "beit-shared": (
        lambda: _beit(
            "ForMaskedImageModeling",
            vocab_size=9,
            use_shared_relative_position_bias=True,
            use_mask_token=True,
            layer_scale_init_value=0.0,
            hidden_act="relu",
        ),
        1e-9,
    ),
    "data2vec-vision": (
        lambda: tf.Data2VecVisionForImageClassification(
            tf.Data2VecVisionConfig(**BY_PLACE, use_mean_pooling=False)
        ),
        1e-9,
    ),
    "vit_msn": (made("ViTMSN", "ForImageClassification", **PIXELS), 1e-9),
    "ijepa": (made("IJepa", "ForImageClassification", **PIXELS), 1e-9),
    "yolos": (made("Yolos", "ForObjectDetection", **YOLOS), 1e-9),
    "yolos-plain": (made("Yolos", "ForObjectDetection", **YOLOS, use_mid_position_embeddings=False), 1e-9),
    "yolos-deep": (made("Yolos", "ForObjectDetection", **{**YOLOS, "num_hidden_layers": 3}), 1e-9),
    "vit_mae": (made("ViTMAE", "ForPreTraining", **MASKED, hidden_act="relu"), 1e-9),
    "dinov2_with_registers": (made("Dinov2WithRegisters", "ForImageClassification", **SHAPE, mlp_ratio=2), 1e-9),
    "dinov3_vit": (made("DINOv3ViT", "Model", **REGISTERED), 1e-9),
    "dinov3_vit-gated": (made("DINOv3ViT", "Model", **REGISTERED, use_gated_mlp=True), 1e-9),
    "pixio": (made("Pixio", "Model", **PIXIO), 1e-9),
    "mlcd_vision_model": (made("MLCDVision", "Model", **LOOKED), 1e-5),
    "vitpose": (made("VitPose", "ForPoseEstimation", backbone_config=POSED, num_labels=5), 1e-9),
    "vitpose-classic": (
        made("VitPose", "ForPoseEstimation", backbone_config=POSED, num_labels=5, use_simple_decoder=False),
        1e-9,
    ),
}

NAMES: dict[str, Saved] = {
    "ViT": (PATCHES, IMAGE_CLASSES),
    "DeiT": (PATCHES, [*IMAGE_CLASSES, "ForImageClassificationWithTeacher"]),
    "Dinov2": (DINO, ["Model", "ForImageClassification", "Backbone"]),
    "Beit": ({**BY_PLACE, "vocab_size": 9}, IMAGE_CLASSES[:2]),
    "Data2VecVision": (BY_PLACE, IMAGE_CLASSES[:2]),
}

MORE_NAMES: dict[str, Saved] = {
    "ViTMSN": (PIXELS, ["Model", "ForImageClassification"]),
    "IJepa": (PIXELS, ["Model", "ForImageClassification"]),
    "Yolos": (YOLOS, ["Model", "ForObjectDetection"]),
    "ViTMAE": (MASKED, ["Model", "ForPreTraining"]),
    "Dinov2WithRegisters": (SHAPE, ["Model", "ForImageClassification", "Backbone"]),
    "DINOv3ViT": (REGISTERED, ["Model", "Backbone"]),
    "Pixio": (PIXIO, ["Model"]),
    "MLCDVision": (LOOKED, ["Model"]),
    "VitPose": ({"backbone_config": POSED}, ["ForPoseEstimation"]),
    "VitPoseBackbone": ({k: v for k, v in POSED.items() if k != "model_type"}, [""]),
}

HALF: dict[str, str | tuple[str, ...]] = {
    "ViTMAEModel": "d",
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(
        [
            "vit",
            "vit-plain",
            "dinov2",
            "dinov2-swiglu",
            "deit",
            "beit",
            "beit-shared",
            "data2vec-vision",
            "vit_msn",
            "ijepa",
            "yolos",
            "yolos-plain",
            "yolos-deep",
            "dinov2_with_registers",
        ],
        "OFixingOnes",
    ),
    "vit_mae": {"res": "OFixingOnes", "dres": "OFixingOnes"},
    **dict.fromkeys(["dinov3_vit", "dinov3_vit-gated"], "Fixed"),
    **{key: {} for key in ["pixio", "mlcd_vision_model"]},
    **{key: {"vision_res": "Perm"} for key in ["vitpose", "vitpose-classic"]},
}

IDLE = {
    ("vit-plain", "kb"),
    ("vit-plain", "vb"),
}

INPUTS: dict[str, Drawn] = {
    "vitpose": seen_pictures(16),
    "vit_mae": _hidden,
    **dict.fromkeys(["yolos", "yolos-plain", "yolos-deep"], _images),
}

OUTPUTS: dict[str, tuple[str, ...]] = {
    "pixio": ("last_hidden_state", "pooler_output"),
    "mlcd_vision_model": ("last_hidden_state", "pooler_output"),
    "vitpose": ("heatmaps",),
}

CONVERTED = {"dinov2-swiglu", "beit", "beit-shared"}

MUTANTS = [
    mutant("vit", "residual rotated under gains", "res", ROTATED, *PLAIN_GAINS),
    mutant("vit", "norm bias not scaled", "n1", "layernorm_before.bias (res n1) => layernorm_before.bias res"),
    mutant(
        "vit",
        "one flat permutation over heads",
        "flat",
        "size ov =  => size flat = res\nsize ov = ",
        "space ov: GL[l, h] => space flat: Perm[l]",
        "(attention.value|v_proj).weight (h ov) (res n1)' => (attention.value|v_proj).weight flat (res n1)'",
        "(attention.value|v_proj).bias (h ov) => (attention.value|v_proj).bias flat",
        "res (h ov') => res flat'",
    ),
    mutant("dinov2", "layer scale not divided", "s1", "lambda1 diag(res s1') => lambda1 res"),
    mutant("dinov2", "layer scale on the wrong side", "s2", "diag(res s2') => diag(res s2)"),
    mutant("dinov2", "bias past the layer scale", "s2", "mlp.fc2.bias (res s2) => mlp.fc2.bias res"),
    mutant("dinov2-swiglu", "gate and up mistaken", "u", "[ff | ff u] => [ff u | ff]"),
    mutant(
        "beit",
        "the table of places forgotten",
        "h",
        "relative_position_bias_table place h => relative_position_bias_table place heads",
    ),
    mutant("beit", "layer scale not divided", "s1", "lambda_1 diag(res s1') => lambda_1 res"),
    mutant(
        "beit-shared",
        "heads per layer under one table",
        "h",
        "space h: Perm if => space h: Perm[l] if",
        "bias_table place h if => bias_table place heads if",
    ),
    mutant(
        "data2vec-vision", "bias past the layer scale", "s2", "output.dense.bias (res s2) => output.dense.bias res"
    ),
    mutant(
        "vit_msn", "norm's bias not scaled", "n1", "layernorm_before.bias (res n1) => layernorm_before.bias res"
    ),
    mutant("ijepa", "output not dual", "ov", "(h ov') => (h ov)"),
    mutant(
        "yolos",
        "detection tokens forgotten",
        "res",
        "detection_tokens 1 detected res => detection_tokens 1 detected other",
        "shift dp: embeddings.detection_tokens -> embeddings.position_embeddings#2 => # none of it",
    ),
    mutant(
        "yolos",
        "tokens for detections at the places of patches",
        "dp",
        "[1 | patches | detected] => [1 | detected | patches]",
        "position_embeddings#2 => position_embeddings#1",
        "position_embeddings#1 along => position_embeddings#2 along",
    ),
    mutant("yolos", "positions between the layers forgotten", "res", "between 1 pos res => between 1 pos other"),
    mutant(
        "vit_mae",
        "the decoder past the last gain",
        "nf",
        "decoder.decoder_embed.weight dres (res nf)' => decoder.decoder_embed.weight dres res'",
    ),
    mutant(
        "vit_mae",
        "the token of hidden patches forgotten",
        "dres",
        "decoder.mask_token 1 1 dres => decoder.mask_token 1 1 other",
    ),
    mutant("vit_mae", "negative scale under ReLU", "du", "PositiveScale[l, dff] => Scale[l, dff]"),
    mutant(
        "dinov2_with_registers",
        "registers forgotten",
        "res",
        "register_tokens 1 tokens res => register_tokens 1 tokens other",
    ),
    mutant("dinov2_with_registers", "layer scale not divided", "s1", "lambda1 diag(res s1') => lambda1 res"),
    mutant("dinov3_vit", "interleaved pairs", "c", "(h c pair) => (h pair c)", "(h c' pair) => (h pair c')"),
    mutant("dinov3_vit", "layer scale on the wrong side", "s2", "diag(res s2') => diag(res s2)"),
    mutant(
        "dinov3_vit-gated", "gate scaled", "u", "gate_proj.weight ff (res n2)' => gate_proj.weight (ff u) (res n2)'"
    ),
    mutant("pixio", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant("pixio", "features permuted", "res", "residual n1 => residual res: Perm\nresidual n1"),
    mutant("mlcd_vision_model", "interleaved pairs", "c", "(h c pair) => (h pair c)", "(h c' pair) => (h pair c')"),
    mutant(
        "mlcd_vision_model",
        "key bias under RoPE",
        "kb",
        "shift vb: => shift kb: encoder.layers.{l}.self_attn.k_proj.bias\nshift vb:",
    ),
    mutant(
        "vitpose",
        "a gain through ReLU",
        "vision_nf",
        "vitpose_backbone without nf => vitpose_backbone",
        "points vision_res' => points (vision_res vision_nf)'",
    ),
    mutant(
        "vitpose-classic",
        "the head in coordinates of its own",
        "vision_res",
        "deconv1.weight vision_res' => deconv1.weight rows",
    ),
    mutant("vit", "ReLU's scale under GELU", "u", ' if hidden_act == "relu" => '),
]

STREAM_MUTANTS = [
    StreamMutant("vit", "gains as vectors", "OFixingOnes", VECTORS),
    StreamMutant("vit", "signed permutations under LayerNorm", "SignedPerm", (f"{LAYER_NORM} SignedPerm",)),
    StreamMutant("vit", "all rotations under LayerNorm", "O", (f"{LAYER_NORM} O",)),
    StreamMutant("dinov2", "all rotations under LayerNorm", "O", (f"{LAYER_NORM} O",)),
    StreamMutant(
        "vit",
        "norm's bias not turned",
        "OFixingOnes",
        ("layernorm_before.bias (res n1) => layernorm_before.bias rows",),
    ),
    StreamMutant(
        "vit",
        "norm's bias not folded",
        "OFixingOnes",
        ("layernorm_after.bias (res n2) => layernorm_after.bias res",),
    ),
    StreamMutant(
        "vit",
        "positions forgotten",
        "OFixingOnes",
        (
            "position_embeddings 1 pos res => position_embeddings 1 pos other",
            *(f"shift {name}: => # {name}:" for name in ("cp", "dp", "pp")),  # which would refuse it
        ),
    ),
    StreamMutant(
        "dinov2",
        "layer scale as a vector",
        "OFixingOnes",
        ("lambda1 diag(res s1') => lambda1 res", "(res s1) => res"),
    ),
    StreamMutant("dinov2", "layer scale on the reader's side", "OFixingOnes", ("diag(res s1') => diag(res s1)",)),
]

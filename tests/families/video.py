"""Models of films."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_models import made
from toy_settings import LOOKED, NAMED, PIXELS

VIDEO = {**PIXELS, "num_frames": 4}


def _video(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Films."""
    shape = (3, config.num_frames, 3, config.image_size, config.image_size)
    return {"pixel_values": torch.randn(shape, generator=rng, dtype=torch.float64)}


FILM = {**{k: v for k, v in PIXELS.items() if k != "patch_size"}, "num_frames": 4, "tubelet_size": [2, 4, 4]}
TIMES = {**PIXELS, "num_frames": 3}
FRAMES = {
    "text_config": NAMED, "projection_dim": 36, "prompt_layers": 2, "prompt_num_attention_heads": 4,
    "vision_config": {
        **LOOKED, "mit_hidden_size": 36, "mit_intermediate_size": 28, "mit_num_hidden_layers": 2, "mit_num_attention_heads": 3,
        "num_frames": 3,
    },
}  # fmt: skip


def _film(side: Callable[[Any], tuple[int, int]]) -> Callable[[Any, torch.Generator], dict[str, torch.Tensor]]:
    def made(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
        frames, size = side(config)
        found = {"pixel_values": torch.randn((3, frames, 3, size, size), generator=rng, dtype=torch.float64)}
        if hasattr(config, "text_config"):
            found["input_ids"] = torch.randint(1, 60, (4, 11), generator=rng)
        return found

    return made


PREDICTED_FILM = {
    "patch_size": 4, "crop_size": 16, "frames_per_clip": 4, "hidden_size": 84, "num_attention_heads": 3, "num_hidden_layers": 2, "mlp_ratio": 2,
    "pred_hidden_size": 40, "pred_num_attention_heads": 2, "pred_num_hidden_layers": 2, "pred_mlp_ratio": 2, "num_pooler_layers": 2,
}  # fmt: skip


def _predicted_film(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    shape = (2, config.frames_per_clip, 3, config.crop_size, config.crop_size)
    return {"pixel_values_videos": torch.randn(shape, generator=rng, dtype=torch.float64)}


MORE_TOYS: dict[str, Toy] = {
    "videomae": (made("VideoMAE", "ForVideoClassification", **VIDEO), 1e-9),
    "vivit": (made("Vivit", "ForVideoClassification", **FILM), 1e-9),
    "timesformer": (made("Timesformer", "ForVideoClassification", **TIMES), 1e-9),
    "timesformer-joint": (
        made(
            "Timesformer", "ForVideoClassification", **TIMES, attention_type="joint_space_time", hidden_act="relu"
        ),
        1e-9,
    ),
    "xclip": (made("XCLIP", "Model", **FRAMES), 1e-9),
    "vjepa2": (made("VJEPA2", "Model", **PREDICTED_FILM), 1e-9),
    "vjepa2-labels": (made("VJEPA2", "ForVideoClassification", **PREDICTED_FILM, hidden_act="relu"), 1e-9),
}

MORE_NAMES: dict[str, Saved] = {
    "VideoMAE": (VIDEO, ["Model", "ForVideoClassification"]),
    "Vivit": (FILM, ["Model", "ForVideoClassification"]),
    "Timesformer": (TIMES, ["Model", "ForVideoClassification"]),
    "XCLIP": (FRAMES, ["Model"]),
    "XCLIPText": (NAMED, ["Model"]),
    "XCLIPVision": (FRAMES["vision_config"], ["Model"]),
    "VJEPA2": (PREDICTED_FILM, ["Model", "ForVideoClassification"]),
}

STREAMS: dict[str, Streams] = {
    "videomae": {},
    **{key: {"res": "OFixingOnes"} for key in ["vivit", "timesformer", "timesformer-joint"]},
    "xclip": {"text_res": "OFixingOnes", "vision_res": "Perm"},
    **{key: {"pres": "OFixingOnes"} for key in ["vjepa2", "vjepa2-labels"]},
}

INPUTS: dict[str, Drawn] = {
    **dict.fromkeys(["vivit", "timesformer"], _film(lambda c: (c.num_frames, c.image_size))),
    "xclip": _film(lambda c: (c.vision_config.num_frames, c.vision_config.image_size)),
    "vjepa2": _predicted_film,
    "videomae": _video,
}

OUTPUTS: dict[str, tuple[str, ...]] = {
    "vjepa2": ("logits", "last_hidden_state", "predictor_output.last_hidden_state"),
    "xclip": ("logits_per_video",),
}

MUTANTS = [
    mutant(
        "videomae",
        "a stream that moves under sinusoids",
        "res",
        "space h: Perm[l]\n => residual res: Perm\nspace h: Perm[l]\n",
    ),
    mutant("videomae", "query bias forgotten", "qk", "(query.bias|q_bias) (h qk) => (query.bias|q_bias) rows"),
    mutant("vivit", "key not dual", "qk", "(h qk') => (h qk)"),
    mutant(
        "vivit",
        "the film's patches forgotten",
        "res",
        "res channel frame row column => pixels channel frame row column",
    ),
    mutant(
        "timesformer",
        "the last map of time not dual",
        "mid",
        "temporal_dense.weight res mid' => temporal_dense.weight res mid",
    ),
    mutant("timesformer", "fused head by head", "th", "[th tqk | th tqk' | th tov] => (th [tqk | tqk' | tov])"),
    mutant("timesformer", "times forgotten", "res", "time_embeddings 1 frame res => time_embeddings 1 frame other"),
    mutant("timesformer-joint", "negative scale under ReLU", "u", "PositiveScale[l, ff] => Scale[l, ff]"),
    mutant(
        "xclip",
        "messages in coordinates of their own",
        "vision_res",
        "message_fc.bias res => message_fc.bias rows",
        part="xclip_vision_model",
    ),
    mutant(
        "xclip",
        "the message's bias not scaled",
        "vision_m1",
        "message_ln.bias (res m1) => message_ln.bias res",
        part="xclip_vision_model",
    ),
    mutant(
        "xclip",
        "film past the prompts' norm",
        "vn",
        "prompts_visual_projection (vision_res vn)' => prompts_visual_projection vision_res'",
    ),
    mutant("xclip", "prompts' keys not dual", "pqk", "(ph pqk') => (ph pqk)"),
    mutant(
        "vjepa2",
        "a rotation per pair",
        "tw",
        "space tw as qk: GL[l, h, axis, pr] => space tw as qk: Complex[l, h, axis, pr]",
        "size tw = 2 - (hidden_size // num_attention_heads - hidden_size // num_attention_heads % 6) // 3 // 2 % 2 => size tw = 2",
        "axis tw pr 2 => axis pr 2 tw",
        "axis tw' pr 2 => axis pr 2 tw'",
    ),
    mutant(
        "vjepa2", "neighbours for twins", "tw", "axis tw pr 2 => axis pr tw 2", "axis tw' pr 2 => axis pr tw' 2"
    ),
    mutant(
        "vjepa2",
        "twins of unlike frequencies",
        "ptw",
        "size ptw = 2 - (pred_hidden_size // pred_num_attention_heads - pred_hidden_size // pred_num_attention_heads % 6) // 3 // 2 % 2 => size ptw = 3",
    ),
    mutant(
        "vjepa2-labels",
        "heads without a place",
        "xh",
        'space xqk as qk: GL[xh] => space xh as h: Perm if "classifier.weight" in tensors\nspace xqk as qk: GL[xh]',
    ),
]

"""Random LoRAs of tiny pipelines in the forms in which image LoRAs are published; what diffusers makes of the same files
is stored by `tests/merging/image_lora_reference.py`.

Left out is what diffusers 0.42.1 drops of kohya's files: alphas that differ between layers of attention, and FLUX's last
layers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

from isomerge.checkpoint.single_file_names import unet_rules
from isomerge.checkpoint.single_file_transformers import FLUX
from pipeline_models import PIPELINES, made
from single_file_models import UNETS

Tensors = dict[str, torch.Tensor]
FORMS = {
    "sd-kohya": "kohya", "sd-peft": "peft", "sd-metadata": "metadata", "sd-lora.down": "lora.down", "sd-first": "first",
    "sdxl-kohya": "kohya", "sdxl-peft": "peft", "flux-kohya": "kohya", "flux-peft": "peft", "sd3-peft": "peft",
}  # fmt: skip
"""By a pipeline and a form: the form."""
ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "q_proj", "k_proj", "v_proj", "out_proj")
ENCODERS = ("text_encoder", "text_encoder_2")


def pipeline_of(name: str, seed: int = 0) -> Any:
    """The tiny pipeline of a name of `FORMS`; XL's U-Net has two layers at all heights, as published ones have."""
    kind = name.split("-")[0]
    pipeline = PIPELINES[kind](seed)
    if kind == "sdxl":
        pipeline.register_modules(unet=made(UNet2DConditionModel(**UNETS["xl"]), seed))
    return pipeline


def _layers(model: Any, form: str, encoder: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The layers that a LoRA changes: linear layers, of a U-Net convolutions too."""
    for name, tensor in model.state_dict().items():
        module = name.removesuffix(".weight")
        if (
            module == name
            or tensor.ndim not in (2, 4)
            or "embedding" in name
            or "embed." in name
            or "embedder" in name
        ):
            continue
        if encoder and not module.endswith((*ATTENTION[4:], "fc1", "fc2")):
            continue
        if form == "first" and not module.endswith(ATTENTION):
            continue
        if form == "first" and not encoder and "attentions" not in module:
            continue
        yield module, tuple(tensor.shape)


def _named(module: str, form: str, encoder: bool) -> tuple[str, str, str]:
    """What a layer and its halves are called."""
    if form in ("peft", "metadata"):
        return module, ".lora_A.weight", ".lora_B.weight"
    if form == "lora.down" or (encoder and not module.endswith(ATTENTION)):
        word = "lora_linear_layer" if encoder else "lora"
        return module, f".{word}.down.weight", f".{word}.up.weight"
    for old, new in (
        ("q_proj", "to_q"),
        ("k_proj", "to_k"),
        ("v_proj", "to_v"),
        ("out_proj", "to_out"),
        ("to_out.0", "to_out"),
    ):
        module = module.removesuffix(old) + new if module.endswith(old) else module
    if not encoder:
        module = module.replace(".attn1.", ".attn1.processor.").replace(".attn2.", ".attn2.processor.")
    return module, "_lora.down.weight", "_lora.up.weight"


def lora(name: str, pipeline: Any, seed: int = 7, size: float = 0.3) -> tuple[Tensors, dict[str, str]]:
    """The tensors of a file and its metadata; ranks differ from layer to layer.

    Args:
        name: of `FORMS`.
        pipeline: of the kind that the name begins with.
        seed: of the numbers.
        size: of the halves.
    """
    kind, form = name.split("-", 1)[0], FORMS[name]
    main = "unet" if hasattr(pipeline, "unet") else "transformer"
    rng = torch.Generator().manual_seed(seed)
    tensors: Tensors = {}
    config: dict[str, Any] = {}

    def add(stem: str, shape: tuple[int, ...], rank: int, down: str, up: str) -> None:
        tensors[stem + down] = size * torch.randn(rank, *shape[1:], generator=rng)
        tensors[stem + up] = size * torch.randn(shape[0], rank, *[1] * (len(shape) - 2), generator=rng)

    for part in (main, *ENCODERS):
        model = getattr(pipeline, part, None)
        if model is None or (kind == "flux" and part == "text_encoder_2"):  # T5: diffusers takes no LoRA of it
            continue
        encoder = part != main
        layers = dict(_layers(model, form, encoder))
        if form == "kohya":
            start = {main: "lora_unet_", "text_encoder": "lora_te1_" if kind != "sd" else "lora_te_"}.get(
                part, "lora_te2_"
            )
            for module, shape in _kohya(kind, layers, encoder).items():
                add(start + module, shape, 2, ".lora_down.weight", ".lora_up.weight")
                tensors[f"{start}{module}.alpha"] = torch.tensor(1.0 if encoder else 3.0)
            continue
        for k, (module, shape) in enumerate(layers.items()):
            body = "text_model." * (encoder and form != "metadata" and not module.startswith("text_"))
            stem, down, up = _named(module, form, encoder)
            add(f"{part}.{body}{stem}", shape, 2 + k % 2 * (form != "first"), down, up)
        if form == "metadata":
            other = dict.fromkeys(list(layers)[1::2], 3)
            values = {
                "r": 2,
                "lora_alpha": 6,
                "rank_pattern": other,
                "alpha_pattern": {},
                "target_modules": list(layers),
            }
            config |= {f"{part}.{key}": value for key, value in values.items()}
    return tensors, {"lora_adapter_metadata": json.dumps(config)} if config else {}


def _kohya(kind: str, layers: dict[str, tuple[int, ...]], encoder: bool) -> dict[str, tuple[int, ...]]:
    """Names without dots: of text encoders and of Stable Diffusion 1 diffusers', of XL and FLUX those of their layouts,
    in which rows of several layers may be one."""
    if encoder:
        return {("text_model." * (not m.startswith("text_")) + m).replace(".", "_"): s for m, s in layers.items()}
    if kind == "sd":
        return {module.replace(".", "_"): shape for module, shape in layers.items()}
    if kind == "flux":
        fused = {}
        shapes = {f"{module}.weight": shape for module, shape in layers.items()}
        for name, modules, _ in FLUX.modules(shapes):
            if name.startswith("final_layer."):
                continue
            shape = layers[modules[0]]
            fused[name.replace(".", "_")] = (sum(layers[module][0] for module in modules), *shape[1:])
        return fused
    rules = list(unet_rules(2, 2))
    names = {}
    for module, shape in layers.items():
        old = [o + f"{module}."[len(n) :] for o, n in rules if f"{module}.".startswith(n)]
        block = ".".join(module.split(".")[:2])
        if ".upsamplers." in module:  # behind the attention, where there is one
            place = "2" if f"{block}.attentions.0.proj_in" in layers else "1"
            old = [name for name in old if name.split(".")[2] == place]
        names[old[0].rstrip(".").replace(".", "_")] = shape
    return names

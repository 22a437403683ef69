"""LoRAs of image models in one file, as they are published: diffusers' ``pytorch_lora_weights.safetensors``,
kohya's file, and files with peft's names for the halves.

A file is for several models of a pipeline, which the beginnings of names tell apart (`STARTS`), and its layers
have scalings of their own: an ``alpha`` beside the halves, or diffusers' metadata. Which tensors of a model they
change, its own names tell (`isomerge.models.lora_layers`): kohya's names have no dots.
``FILE.safetensors:text_encoder`` is what a file has for one model.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isomerge.checkpoint.adapter import BASE, Adapter, Update, check_halves, is_adapter, open_adapter, strength
from isomerge.checkpoint.header import read_header
from isomerge.checkpoint.hub import local_folder
from isomerge.checkpoint.reader import Checkpoint, Derived
from isomerge.checkpoint.single_file import SUFFIX, split_part
from isomerge.checkpoint.stamps import stamps_of
from isomerge.errors import IsomergeError
from isomerge.records import Json

IMAGE_WEIGHTS = "pytorch_lora_weights.safetensors"
"""What diffusers calls such a file."""
METADATA = "lora_adapter_metadata"
"""Where diffusers keeps the configurations of adapters, in the header."""
KOHYA_BASE = "ss_sd_model_name"
"""Where kohya's header has the name of the model that was trained on."""
MAIN = "model"
"""The part for what makes images: a U-Net or a transformer, whose names have other beginnings, or none."""
STARTS = {
    "lora_unet_": MAIN, "lora_transformer_": MAIN, "lycoris_": MAIN, "unet.": MAIN, "transformer.": MAIN,
    "diffusion_model.": MAIN, "model.diffusion_model.": MAIN, "base_model.model.": MAIN, "": MAIN,
    "lora_te_": "text_encoder", "lora_te1_": "text_encoder", "text_encoder.": "text_encoder",
    "text_encoders.clip_l.transformer.": "text_encoder",
    "lora_te2_": "text_encoder_2", "text_encoder_2.": "text_encoder_2",
    "text_encoders.clip_g.transformer.": "text_encoder_2",
    "lora_te3_": "text_encoder_3", "text_encoder_3.": "text_encoder_3",
    "text_encoders.t5xxl.transformer.": "text_encoder_3",
}  # fmt: skip
"""Beginnings of names, and the part of the file that they tell; of two that fit the longer one counts. A part may
be another text encoder's of a pipeline: kohya's third is T5, which is the second one of FLUX."""
LAYER = re.compile(
    r"(?P<module>.+?)(?:\.lora_(?P<letter>[AB])(?:\.default(?:_\d+)?)?"
    r"|(?P<dash>[._])lora(?:_linear_layer)?[._](?P<half>down|up|mid))\.(?P<what>weight|bias)"
    r"|(?P<owner>.+?)\.(?P<own>alpha|dora_scale|lora_magnitude_vector)(?:\.\w+)*"
)
"""The tensors of a layer."""
PARTS = {"A": "A", "B": "B", "down": "A", "up": "B", "mid": "mid", "dora_scale": "magnitude",
         "lora_magnitude_vector": "magnitude", "alpha": "alpha"}  # fmt: skip
"""What a layer's tensors are, by the words for them."""
KOHYA = {"A": "lora_down.weight", "B": "lora_up.weight"}
OLD = (
    (re.compile(r"\.self_attn\.to_([qkv])$"), r".self_attn.\1_proj"),
    (re.compile(r"\.self_attn\.to_out$"), ".self_attn.out_proj"),
    (re.compile(r"\.to_out$"), ".to_out.0"),
)
"""Names of layers in diffusers' first files, ``to_out_lora.down``, and those of the layers."""
BODY = re.compile(r"encoder([._])layers[._]\d")
"""Names of CLIP's layers where ``text_model`` is not before them, as of transformers' newer versions."""
BLOCK = re.compile(r"blocks?[._]\d")
ORIGINAL = re.compile(r"(input_blocks|middle_block|output_blocks|double_blocks|single_blocks|joint_blocks)[._]\d")
"""Names of layers in the layouts of those who trained the models, which are not those of diffusers."""


def lora_file(ref: str | Path) -> tuple[Path, str] | None:
    """The file of an image LoRA that a reference names, and the part (empty: all); None for an adapter of peft.

    Raises:
        IsomergeError: there is no such folder, or several files are in it.
    """
    if (place := split_part(ref)) is not None:
        return place
    path = Path(os.path.expanduser(ref))
    if path.suffix == SUFFIX and path.is_file():
        return None if is_adapter(path.parent) else (path, "")
    folder = local_folder(ref)
    if is_adapter(folder):
        return None
    files = [folder / IMAGE_WEIGHTS] if (folder / IMAGE_WEIGHTS).is_file() else sorted(folder.glob(f"*{SUFFIX}"))
    files = [file for file in files if any("lora" in name for name in read_header(file)[0])]
    if len(files) > 1:
        raise IsomergeError(
            f"{folder} holds {len(files)} LoRAs ({files[0].name}, {files[1].name}, ...): name one file"
        )
    return (files[0], "") if files else None


def open_lora(ref: str | Path, *, allow_pickle: bool = False) -> Adapter:
    """Opens an adapter of peft (see `open_adapter`), or a LoRA of image models: its file, a folder with it, or the
    part of it that is meant, ``FILE.safetensors:text_encoder``.
    """
    image = None if is_adapter(Path(os.path.expanduser(ref))) else lora_file(ref)
    return open_adapter(ref, allow_pickle=allow_pickle) if image is None else open_image_lora(ref, *image)


def open_image_lora(ref: str | Path, file: Path, part: str = "") -> Adapter:
    """The adapter in a file, or what it has for one part; no halves are read.

    Raises:
        IsomergeError: it has no such part, or tensors that are no LoRA's, or halves that do not fit together.
    """
    stamps = stamps_of([file])
    infos, header = read_header(file)
    config = _configuration(file, header)
    named = [value for key, value in config.items() if key.rpartition(".")[2] == BASE and value]
    base = {BASE: str(next(iter(named), header.get(KOHYA_BASE, "")))}
    tensors = Checkpoint(str(ref), file, base, infos, stamps, _companions={}, in_folder=False)
    starts: dict[str, str] = {}
    layers: dict[str, Update] = {}
    for key in infos:
        fits = LAYER.fullmatch(key)
        if fits is None:
            raise IsomergeError(
                f"{file}: tensor {key!r} is of no LoRA that is known here (LoHa, LoKr and whole tensors are not): "
                "apply it by the program that it is for, and merge the result"
            )
        whole = fits["module"] or fits["owner"]
        start = max((start for start in STARTS if whole.startswith(start)), key=len)
        kind = STARTS[start]
        module = whole[len(start) :].replace(".processor.", ".")
        for old, new in OLD if fits["dash"] == "_" else ():
            module = old.sub(new, module)
        if kind != MAIN and (body := BODY.match(module)):  # one name, whatever the version that wrote the file
            module = f"text_model{body[1]}{module}"
        starts.setdefault(kind, start)
        layer = layers.setdefault(f"{kind}.{module.replace('.', '_')}", Update(module, 1.0, 0, part=kind))
        what = "bias" if fits["what"] == "bias" else PARTS[fits["letter"] or fits["half"] or fits["own"]]
        if layer.parts.setdefault(what, key) != key:
            raise IsomergeError(f"{file}: tensors {layer.parts[what]!r} and {key!r} are the same part of one layer")
    if part and part not in starts:
        is_strength = re.fullmatch(r"-?[\d.]+", part)
        way = f"merge MODEL+{file} --base-model MODEL --method task_arithmetic --weights {part}"
        hint = f"; a strength is a weight of a merge, isomerge {way} -o OUT" if is_strength else ""
        raise IsomergeError(f"{file} has no part {part!r:.100}: there are {', '.join(starts)}{hint}")
    layers = {key: layer for key, layer in layers.items() if part in ("", layer.part)}
    starts = {kind: start for kind, start in starts.items() if part in ("", kind)}
    if not layers:
        raise IsomergeError(f"{file} has no tensors: a LoRA has two for every layer")
    tensors = _complete(tensors, layers.values(), starts, config)
    adapter = Adapter(str(ref), tensors, layers, {}, {}, starts)
    for layer in layers.values():
        check_halves(adapter, layer)
    return adapter


def _configuration(file: Path, header: Mapping[str, str]) -> Json:
    """What diffusers' metadata say of ranks and scalings; empty where there are none.

    Raises:
        IsomergeError: they cannot be read.
    """
    try:
        config = json.loads(header.get(METADATA) or "{}")
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise IsomergeError(f"{file}: {METADATA} in the header is no JSON object: save the file again by diffusers")
    return config


def _complete(
    tensors: Checkpoint, layers: Iterable[Update], starts: Mapping[str, str], config: Mapping[str, Any]
) -> Checkpoint:
    """Give layers their ranks and scalings; the file's tensors, with kernels of a decomposition put together."""
    derived: dict[str, Derived] = {}
    infos, file = tensors.tensors, tensors.folder
    own = {
        part: {
            k.removeprefix(start): v
            for k, v in config.items()
            if k.startswith(start) and "." not in k[len(start) :]
        }
        for part, start in starts.items()
    }
    for layer in layers:
        halves = [infos[layer.parts[half]].shape for half in "AB" if half in layer.parts]
        layer.rank = rank = next((shape[k] for k, shape in enumerate(halves) if len(shape) > 1), 1)
        if (alpha := layer.parts.pop("alpha", None)) is not None:
            layer.scaling = float(tensors.read(alpha).float().mean()) / max(rank, 1)
        elif "r" in own[layer.part]:
            layer.scaling = strength(file, own[layer.part], layer.module)[1]
        magnitude = layer.parts.get("magnitude")
        if magnitude and infos[magnitude].shape[:1] == (1,) and halves[-1][0] > 1:
            raise IsomergeError(
                f"{file}: tensor {magnitude!r} has a magnitude for every input, and a magnitude of DoRA is one for "
                "every output here: apply the file by the program that it is for, and merge the result"
            )
        if (mid := layer.parts.pop("mid", None)) is not None and "A" in layer.parts:
            key = layer.parts["A"] = f"{layer.parts['A']} {mid}"
            derived[key] = _kernel(tensors, key.split(" ")[0], mid)
    return tensors.derive(derived, origin="kernels") if derived else tensors


def _kernel(tensors: Checkpoint, down: str, mid: str) -> Derived:
    """The first half of a convolution that is stored as a kernel over ranks and a matrix (LyCORIS, Tucker)."""
    low, core = tensors.tensors[down], tensors.tensors[mid]
    shape = (core.shape[0], low.shape[1], *core.shape[2:])

    def read() -> Any:
        import torch

        kernel, matrix = (tensors.read(key) for key in (mid, down))
        whole = torch.einsum("ij...,jk->ik...", kernel.float(), matrix.float().flatten(1))
        return whole.to(matrix.dtype).contiguous()

    return Derived(replace(low, shape=shape), read)


@dataclass(frozen=True)
class WrittenNames:
    """What the layers of image LoRAs are called in one file for all of them."""

    layers: Mapping[str, str]
    """By part and layer without dots: the name with its beginning."""
    kohya: bool
    """Whether they are kohya's names, or diffusers'."""

    def of(self, layer: str, what: str) -> str:
        """The name of a layer's half, ``A`` or ``B``, or of its ``alpha``."""
        half = KOHYA.get(what, what) if self.kohya else f"lora_{what}.weight"
        return f"{self.layers[layer]}.{half}"


def written_names(adapters: Iterable[Adapter]) -> WrittenNames:
    """With dots where all have such a name, as diffusers writes them, else kohya's names.

    Raises:
        IsomergeError: the files name the layers of different layouts.
    """
    layouts: dict[bool, Adapter] = {}
    dotted: dict[str, str] = {}
    flat: dict[str, str] = {}
    for adapter in adapters:
        for key, layer in adapter.updates.items():
            start = adapter.starts[layer.part]
            (flat if start.endswith("_") else dotted).setdefault(key, start + layer.module)
            if layer.part == MAIN and BLOCK.search(layer.module):
                layouts.setdefault(ORIGINAL.match(layer.module) is not None, adapter)
    if len(layouts) > 1:
        raise IsomergeError(
            f"{layouts[True].file} names the blocks of the model in the layout of its training and "
            f"{layouts[False].file} in diffusers': bring both into diffusers' by isomerge extract-lora MODEL+LORA "
            "MODEL, and merge these"
        )
    kohya = any(key not in dotted for key in flat)
    for key in dotted if kohya else ():
        kind, _, module = key.partition(".")
        start = next(start for start, named in STARTS.items() if named == kind and start.endswith("_"))
        flat.setdefault(key, start + module)
    return WrittenNames(flat if kohya else dotted, kohya)

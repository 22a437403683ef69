"""Pairs of synthetic checkpoints in the layouts of Hugging Face, whose best alignment is known or is none.

Weights are Gaussian. The source of a pair is drawn; the anchor is the source moved by random symmetries of the
paper's spaces and some noise (``related``), the source and less noise (``fine-tune``), or drawn as well
(``unrelated``). Embeddings are small: alignment leaves them alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.performance.naive import Layer

SPREAD = 0.03
"""The standard deviation of weights and biases."""
NOISE = {"related": 0.05, "fine-tune": 0.01}
"""Of the standard deviation, by case."""
CASES = ("related", "fine-tune", "unrelated")


class Shape(NamedTuple):
    """The layers of a model."""

    model_type: str
    layers: int
    width: int
    heads: int
    neurons: int


SHAPES = {
    "vit-7x384": Shape("vit", 7, 384, 12, 384),
    "roberta-base": Shape("roberta", 12, 768, 12, 3072),
    "deberta-v3-large": Shape("deberta-v2", 24, 1024, 16, 4096),
}
_DENSE = {"o": "attention.output.dense", "i": "intermediate.dense", "f": "output.dense"}
# the stem of the layers, and what the projections are called in it
LAYOUTS = {
    "vit": (
        "vit.encoder.layer",
        {n: f"attention.attention.{m}" for n, m in zip("qkv", ("query", "key", "value"), strict=True)},
    ),
    "roberta": (
        "roberta.encoder.layer",
        {n: f"attention.self.{m}" for n, m in zip("qkv", ("query", "key", "value"), strict=True)},
    ),
    "deberta-v2": (
        "deberta.encoder.layer",
        {n: f"attention.self.{m}_proj" for n, m in zip("qkv", ("query", "key", "value"), strict=True)},
    ),
}
VOCABULARY, POSITIONS = 64, 32
# what config.json needs beside the sizes, and the tensors outside the layers: name -> shape, d for the width
CONFIGS: dict[str, dict[str, Any]] = {
    "vit": {
        "architectures": ["ViTModel"], "hidden_act": "gelu", "image_size": 32, "patch_size": 8, "num_channels": 3,
    },
    "roberta": {
        "architectures": ["RobertaModel"], "hidden_act": "gelu", "vocab_size": VOCABULARY, "type_vocab_size": 1,
        "max_position_embeddings": POSITIONS, "pad_token_id": 1,
    },
    "deberta-v2": {
        "architectures": ["DebertaV2Model"], "hidden_act": "gelu", "vocab_size": VOCABULARY, "type_vocab_size": 0,
        "max_position_embeddings": POSITIONS, "relative_attention": True, "position_buckets": POSITIONS // 2,
        "pos_att_type": ["p2c", "c2p"], "share_att_key": True, "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
    },
}  # fmt: skip
OUTSIDE: dict[str, dict[str, tuple[int | str, ...]]] = {
    "vit": {
        "vit.embeddings.cls_token": (1, 1, "d"), "vit.embeddings.position_embeddings": (1, 17, "d"),
        "vit.embeddings.patch_embeddings.projection.weight": ("d", 3, 8, 8),
        "vit.embeddings.patch_embeddings.projection.bias": ("d",),
        "vit.layernorm.weight": ("d",), "vit.layernorm.bias": ("d",),
    },
    "roberta": {
        "roberta.embeddings.word_embeddings.weight": (VOCABULARY, "d"),
        "roberta.embeddings.position_embeddings.weight": (POSITIONS, "d"),
        "roberta.embeddings.token_type_embeddings.weight": (1, "d"),
        "roberta.embeddings.LayerNorm.weight": ("d",), "roberta.embeddings.LayerNorm.bias": ("d",),
    },
    "deberta-v2": {
        "deberta.embeddings.word_embeddings.weight": (VOCABULARY, "d"),
        "deberta.embeddings.LayerNorm.weight": ("d",), "deberta.embeddings.LayerNorm.bias": ("d",),
        "deberta.encoder.rel_embeddings.weight": (POSITIONS, "d"),
        "deberta.encoder.LayerNorm.weight": ("d",), "deberta.encoder.LayerNorm.bias": ("d",),
    },
}  # fmt: skip
NORMS = {
    "vit": ("layernorm_before", "layernorm_after"),
    "roberta": ("attention.output.LayerNorm", "output.LayerNorm"),
    "deberta-v2": ("attention.output.LayerNorm", "output.LayerNorm"),
}


def names_of(model_type: str, layer: int) -> dict[str, str]:
    """From the short names of a layer's tensors (``q.weight``) to those of the checkpoint."""
    stem, attention = LAYOUTS[model_type]
    modules = {**attention, **_DENSE}
    return {f"{n}.{kind}": f"{stem}.{layer}.{m}.{kind}" for n, m in modules.items() for kind in ("weight", "bias")}


def layers_of(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> list[Layer]:
    """The matched tensors of a checkpoint, layer by layer."""
    return [
        {short: tensors[name] for short, name in names_of(config["model_type"], layer).items()}
        for layer in range(config["num_hidden_layers"])
    ]


def config_of(shape: Shape) -> dict[str, Any]:
    sizes = {
        "num_hidden_layers": shape.layers, "hidden_size": shape.width, "num_attention_heads": shape.heads,
        "intermediate_size": shape.neurons,
    }  # fmt: skip
    return {"model_type": shape.model_type, "torch_dtype": "float32", **sizes, **CONFIGS[shape.model_type]}


def drawn(shape: Shape, rng: torch.Generator) -> dict[str, Tensor]:
    """The tensors of a model; gains are near one."""
    d, m = shape.width, shape.neurons
    found = {}
    for layer in range(shape.layers):
        for short, name in names_of(shape.model_type, layer).items():
            rows, columns = {"i": (m, d), "f": (d, m)}.get(short[0], (d, d))
            found[name] = SPREAD * torch.randn(
                (rows, columns) if short.endswith("weight") else (rows,), generator=rng
            )
        for norm in NORMS[shape.model_type]:
            for kind, centre in (("weight", 1.0), ("bias", 0.0)):
                name = f"{LAYOUTS[shape.model_type][0]}.{layer}.{norm}.{kind}"
                found[name] = centre + SPREAD * torch.randn(d, generator=rng)
    for name, dims in OUTSIDE[shape.model_type].items():
        found[name] = SPREAD * torch.randn([d if n == "d" else int(n) for n in dims], generator=rng)
    return found


def disguised(layer: Layer, heads: int, rng: torch.Generator) -> Layer:
    """The same function in other weights: rotations of every head's QK and VO, and another order of the neurons."""
    found = {name: tensor.clone() for name, tensor in layer.items()}
    size = len(layer["q.weight"]) // heads
    for pair in ("qk", "vo"):
        turns = torch.linalg.qr(torch.randn(heads, size, size, generator=rng, dtype=torch.float64))[0].float()
        for name in pair:
            w = found[f"{name}.weight"]
            rows = (w.T if name == "o" else w).reshape(heads, size, -1)
            turned = (turns @ rows).reshape(heads * size, -1)
            found[f"{name}.weight"] = turned.T.contiguous() if name == "o" else turned
            if name != "o":
                found[f"{name}.bias"] = (turns @ layer[f"{name}.bias"].reshape(heads, size, 1)).reshape(-1)
    order = torch.randperm(len(layer["i.weight"]), generator=rng)
    found["i.weight"], found["i.bias"] = layer["i.weight"][order], layer["i.bias"][order]
    found["f.weight"] = layer["f.weight"][:, order].contiguous()
    return found


def make_pair(shape: Shape, case: str, seed: int = 0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of a source and of its anchor, float32."""
    rng = torch.Generator().manual_seed(seed)
    source = drawn(shape, rng)
    if case == "unrelated":
        return source, drawn(shape, rng)
    anchor = dict(source)
    if case == "related":
        for number, layer in enumerate(layers_of(source, config_of(shape))):
            moved = disguised(layer, shape.heads, rng)
            anchor |= {names_of(shape.model_type, number)[short]: tensor for short, tensor in moved.items()}
    return source, {n: t + NOISE[case] * SPREAD * torch.randn(t.shape, generator=rng) for n, t in anchor.items()}


def write_pair(shape: Shape, case: str, folder: Path, seed: int = 0) -> tuple[Path, Path]:
    """A pair as checkpoint folders ``source`` and ``anchor``."""
    from safetensors.torch import save_file

    for name, tensors in zip(("source", "anchor"), make_pair(shape, case, seed), strict=True):
        (folder / name).mkdir(parents=True)
        save_file(tensors, folder / name / "model.safetensors", metadata={"format": "pt"})
        (folder / name / "config.json").write_text(json.dumps(config_of(shape), indent=2))
    return folder / "source", folder / "anchor"

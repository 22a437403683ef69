"""Pairs of synthetic checkpoints in the layouts of Hugging Face, whose best alignment is known or is none.

Weights are Gaussian. The source of a pair is drawn; the anchor is the source moved by random symmetries of the
paper's spaces and some noise (``related``), the source and less noise (``fine-tune``), or drawn as well
(``unrelated``). Embeddings are small: alignment leaves them alone.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

Layer = dict[str, Tensor]
"""``{"q.weight": Tensor, "q.bias": ..., "i.weight": ...}``, weights [out, in]."""
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
PROJECTIONS = {"o": "attention.output.dense", "i": "intermediate.dense", "f": "output.dense"}
ATTENTION = {
    "vit": "attention.attention.{}",
    "roberta": "attention.self.{}",
    "deberta-v2": "attention.self.{}_proj",
}
"""What a layer's queries, keys and values are called."""
TOKENS = {"vocab_size": 64, "max_position_embeddings": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "vit": {"architectures": ["ViTModel"], "image_size": 32, "patch_size": 8},
    "roberta": {"architectures": ["RobertaModel"], **TOKENS, "type_vocab_size": 1, "pad_token_id": 1},
    "deberta-v2": {
        "architectures": ["DebertaV2Model"], **TOKENS, "type_vocab_size": 0, "relative_attention": True,
        "position_buckets": 16, "pos_att_type": ["p2c", "c2p"], "share_att_key": True,
        "norm_rel_ebd": "layer_norm", "position_biased_input": False,
    },
}  # fmt: skip
"""What config.json says beside the sizes."""


def names_of(model_type: str, layer: int) -> dict[str, str]:
    """From the short names of a layer's tensors (``q.weight``) to those of the checkpoint."""
    words = {"q": "query", "k": "key", "v": "value"}
    modules = {short: ATTENTION[model_type].format(word) for short, word in words.items()} | PROJECTIONS
    return {
        f"{short}.{kind}": f"encoder.layer.{layer}.{module}.{kind}"
        for short, module in modules.items()
        for kind in ("weight", "bias")
    }


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
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModel

    model = AutoModel.from_config(AutoConfig.for_model(**config_of(shape)))
    for name, parameter in model.named_parameters():
        gain = float(parameter.ndim == 1 and name.endswith("weight"))
        parameter.data = gain + SPREAD * torch.randn(parameter.shape, generator=rng)
    with tempfile.TemporaryDirectory() as folder:  # stored names are others than those in memory
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


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

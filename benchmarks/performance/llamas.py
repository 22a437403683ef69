"""Synthetic checkpoints in Llama's layout, written tensor by tensor: of any size, in the memory of one tensor."""

from __future__ import annotations

import json
import math
import random
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

SPREAD = 0.02
"""The standard deviation of the weights."""


@dataclass(frozen=True)
class Llama:
    """The sizes of a model."""

    width: int
    neurons: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors, in the order of the layers."""
        d, kv = self.width, self.width * self.key_heads // self.heads
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocabulary, d)}
        for layer in range(self.layers):
            p = f"model.layers.{layer}."
            shapes |= {p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,)}
            rows = {"q": d, "k": kv, "v": kv, "o": d}
            shapes |= {f"{p}self_attn.{n}_proj.weight": (size, d) for n, size in rows.items()}
            shapes |= {f"{p}mlp.{n}_proj.weight": (self.neurons, d) for n in ("gate", "up")}
            shapes[p + "mlp.down_proj.weight"] = (d, self.neurons)
        return {**shapes, "model.norm.weight": (d,), "lm_head.weight": (self.vocabulary, d)}

    @property
    def parameters(self) -> int:
        return sum(map(math.prod, self.shapes().values()))

    def config(self) -> dict[str, Any]:
        return {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
            "hidden_size": self.width, "intermediate_size": self.neurons, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.key_heads,
            "vocab_size": self.vocabulary, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }  # fmt: skip


def in_proportion(width: int, layers: int, vocabulary: int) -> Llama:
    """Sizes in Llama's proportions: heads of 64 coordinates, four to a key head."""
    return Llama(width, width * 11 // 4, layers, width // 64, max(width // 256, 1), vocabulary)


def write_tokens(file: Path, model: Llama, count: int, length: int) -> Path:
    """So many examples of random tokens."""
    rng = random.Random(0)
    rows = [{"input_ids": [rng.randrange(model.vocabulary) for _ in range(length)]} for _ in range(count)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write(folder: Path, model: Llama, seed: int, *, shards: int = 1, noise: float = 0.0, draw: int = 0) -> Path:
    """A random model in bfloat16: the weights of ``seed``, and for ``noise`` the draw ``draw`` added, so many
    standard deviations large.

    Two models of one seed are fine-tunes of one base. A folder that is complete is left as it is.
    """
    made = folder / "made.json"
    said = json.dumps({**asdict(model), "seed": seed, "shards": shards, "noise": noise, "draw": draw})
    if made.exists() and made.read_text() == said:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    shapes, weight_map = model.shapes(), {}
    for number, names in enumerate(_shards(shapes, shards), 1):
        file = "model.safetensors" if shards == 1 else f"model-{number:05}-of-{shards:05}.safetensors"
        _write_shard(folder / file, {name: shapes[name] for name in names}, seed, noise, draw)
        weight_map |= dict.fromkeys(names, file)
    if shards > 1:
        index = {"metadata": {"total_size": 2 * model.parameters}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(model.config(), indent=2))
    made.write_text(said)
    return folder


def _shards(shapes: dict[str, tuple[int, ...]], count: int) -> Iterator[list[str]]:
    """The names in ``count`` groups of about one size."""
    total, seen = sum(map(math.prod, shapes.values())), 0
    groups: list[list[str]] = [[] for _ in range(count)]
    for name, shape in shapes.items():
        groups[seen * count // total].append(name)
        seen += math.prod(shape)
    yield from groups


def _write_shard(file: Path, shapes: dict[str, tuple[int, ...]], seed: int, noise: float, draw: int) -> None:
    """By hand: `safetensors.torch.save_file` wants the whole shard in memory."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            tensor = _normal(shape, f"{seed} {name}").mul_(SPREAD)
            if noise:
                tensor.add_(_normal(shape, f"{draw} of {seed} {name}"), alpha=noise * SPREAD)
            if len(shape) == 1:  # gains
                tensor += 1
            stream.write(memoryview(tensor.bfloat16().view(torch.int16).numpy()).cast("B"))


def _normal(shape: tuple[int, ...], name: str) -> torch.Tensor:
    """Normal numbers that are a name's own: no tensor depends on which others are written."""
    rng = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape, generator=rng)

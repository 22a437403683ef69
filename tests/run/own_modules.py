"""A module of one's own: names, forward and outputs that no library has, its spec, and data for it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SPEC = """
model small_reader

size res = tensors["table.weight"][1]
size h = 3
size qk = res // h
size ov = res // h
size ff = tensors["blocks.0.up.weight"][0]

residual res: Perm folded OFixingOnes
residual n1: Scale[l, res]
residual n2: Scale[l, res]
residual nf: Scale[res]
space h: Perm[l]
space qk: GL[l, h]
space ov: GL[l, h]
space ff: Perm[l]

shift kb: blocks.{l}.key.bias
shift vb: blocks.{l}.value.bias -> blocks.{l}.out.bias via blocks.{l}.out.weight

table.weight            vocab res
places.weight           place res
blocks.{l}.first.*      diag(res n1)
blocks.{l}.query.*      (h qk) (res n1)'
blocks.{l}.key.*        (h qk') (res n1)'
blocks.{l}.value.*      (h ov) (res n1)'
blocks.{l}.out.*        res (h ov')
blocks.{l}.second.*     diag(res n2)
blocks.{l}.up.*         ff (res n2)'
blocks.{l}.down.*       res ff'
last.*                  diag(res nf)
answer.*                classes (res nf)'
"""
"""The text of `SmallReader`."""
HEADS, WIDTH, NEURONS, TOKENS, CLASSES = 3, 24, 20, 31, 5


class ReaderBlock(nn.Module):
    """A pre-LN block with its own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, NEURONS), nn.Linear(NEURONS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        count, length, _ = x.shape
        seen = self.first(x)
        q, k, v = (
            part(seen).reshape(count, length, HEADS, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(count, length, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class SmallReader(nn.Module):
    """A classifier of sequences of tokens; what it gives is a tensor, a tuple, a dict, or a dict with its loss."""

    def __init__(self, gives: str = "tensor") -> None:
        super().__init__()
        self.gives = gives
        self.table, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(16, WIDTH)
        self.blocks = nn.ModuleList(ReaderBlock() for _ in range(2))
        self.last, self.answer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Any:
        x = self.table(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        scores = self.answer(self.last(x).mean(1))
        if self.gives == "tuple":
            return scores, x
        if self.gives == "dict":
            loss = None if labels is None else nn.functional.cross_entropy(scores, labels)
            return {"loss": loss, "logits": scores, "states": x}
        if self.gives == "far" and labels is not None:
            return {"loss": 7 * nn.functional.cross_entropy(scores, labels), "logits": scores}
        return scores


def reader(seed: int, gives: str = "tensor") -> SmallReader:
    """With random weights, float32."""
    module = SmallReader(gives)
    rng = torch.Generator().manual_seed(seed)
    for name, p in module.named_parameters():
        gain = any(f"{norm}.weight" in name for norm in ("first", "second", "last"))
        p.data = torch.randn(p.shape, generator=rng) * (0.2 if p.ndim == 1 else 0.3) + float(gain)
    return module.eval()


def disguised(module: SmallReader, seed: int) -> SmallReader:
    """The same function: heads, neurons and coordinates in another order, queries and values in another basis."""
    twin, rng = copy.deepcopy(module), torch.Generator().manual_seed(seed)
    size = WIDTH // HEADS
    with torch.no_grad():
        for block in twin.blocks:
            order = torch.randperm(NEURONS, generator=rng)
            block.up.weight.copy_(block.up.weight[order])
            block.up.bias.copy_(block.up.bias[order])
            block.down.weight.copy_(block.down.weight[:, order])
            heads = torch.randperm(HEADS, generator=rng)
            rows = (heads[:, None] * size + torch.arange(size)).flatten()
            bases = [torch.eye(size) + 0.3 * torch.randn(size, size, generator=rng) for _ in range(2 * HEADS)]
            left, right = (torch.block_diag(*part) for part in (bases[:HEADS], bases[HEADS:]))
            for part, by in ((block.query, left), (block.key, left.inverse().mT), (block.value, right)):
                part.weight.copy_(by @ part.weight[rows])
                part.bias.copy_(by @ part.bias[rows])
            block.out.weight.copy_(block.out.weight[:, rows] @ right.inverse())
    return twin


def batches(count: int = 48, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    """Pairs of tokens [size, 12] and labels [size]."""
    rng = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, TOKENS, (count, 12), generator=rng)
    return [(tokens[k : k + size], tokens[k : k + size].sum(1) % CLASSES) for k in range(0, count, size)]


def spec_file(folder: Path) -> Path:
    """The text in a file."""
    path = folder / "small_reader.spec"
    path.write_text(SPEC)
    return path

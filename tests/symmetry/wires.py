"""Small wires: a text of a few lines, of random sizes and numbers, and what runs it.

A wire has what one statement speaks of and no more: who writes, a norm, who reads. Its tensors are drawn, its forward
is written here by hand, and no class of any library is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.symmetry.axes import TypedAxes, length
from isomerge.symmetry.blocks import Block, Blocks, gather_blocks
from isomerge.symmetry.language.spec import Spec, coverage
from isomerge.symmetry.language.spec_text import parse_spec

Weights = Mapping[str, Tensor]
"""Tensors by name."""
Sizes = Mapping[str, int]
LAYERS = 2


@dataclass(frozen=True)
class Wire:
    """A text of one stack of layers, and its forward."""

    name: str
    text: str
    forward: Callable[[Weights, Sizes], Tensor]
    """What it gives out, of its tensors and sizes."""
    sizes: Mapping[str, tuple[int, int]]
    """The least and the most of every size that is drawn."""
    kinds: tuple[str, ...]
    """The kinds of elements that it has, and maybe others."""
    bare: tuple[str, ...] = ()
    """How the names of tensors end that lines describe and nobody stores."""
    anything: tuple[str, ...] = ()
    """How the names of tensors end that may be anything, such as keys' biases, which softmax drops."""
    layers: int = LAYERS

    def __str__(self) -> str:
        return self.name

    def bound(self, rng: torch.Generator) -> Spec:
        """The text, bound to random sizes."""
        drawn = {
            name: int(torch.randint(least, most + 1, (), generator=rng))
            for name, (least, most) in self.sizes.items()
        }
        sizes = "".join(f"size {name} = {size}\n" for name, size in drawn.items())
        depth = f"depth layer. = {self.layers}\n" if "layer." in self.text else ""
        text = "\n".join(map(str.strip, f"model wire\n{sizes}{self.text}{depth}".splitlines()))
        return parse_spec(text, {"model_type": "wire"}, self.name)

    def blocks(self, spec: Spec) -> list[Block]:
        """All that is stored."""
        lines = [line for line in spec.lines if line.axes is not None and not line.tied]
        names = {
            line.canonical(dict.fromkeys(line.indices, layer)): stored(line, spec)
            for line in lines
            for layer in range(self.layers if line.indices else 1)
        }
        kept = {name: size for name, size in names.items() if not name.endswith(self.bare or ("?",))}
        return gather_blocks(spec, coverage(spec, kept))

    def outputs(self, spec: Spec, tensors: Blocks) -> Tensor:
        """What the forward makes of some blocks."""
        return self.forward({block.canonical[0]: tensor for block, tensor in tensors.items()}, spec.sizes)


def stored(described: TypedAxes, spec: Spec) -> tuple[int, ...]:
    """The shape of a line's tensors, or of a block's."""
    return tuple(length(axis, spec.sizes) for axis in described.axes or ())


def drawn(spec: Spec, blocks: list[Block], rng: torch.Generator) -> Blocks:
    """Random tensors, float64: of norms gains that are not small and biases of their signs, so that what they have
    along the reciprocals of gains is something; of everything else normal numbers."""
    tensors: Blocks = {}
    for block in blocks:
        tensors[block] = torch.randn(stored(block, spec), generator=rng, dtype=torch.float64)
    by_name = {block.canonical[0]: block for block in blocks}
    for name in (name for name in by_name if name.endswith("norm.weight")):
        gain, bias = by_name[name], by_name[name.replace(".weight", ".bias")]
        sizes = 0.5 + torch.rand(2, len(tensors[gain]), generator=rng, dtype=torch.float64)
        tensors[gain], tensors[bias] = sizes * tensors[gain].sign()
        tensors[gain] -= gain.line.less
    return tensors


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    """A map, and its bias where it has one."""
    made = x @ w[f"{name}.weight"].mT
    return made + w[f"{name}.bias"] if f"{name}.bias" in w else made


def standard(x: Tensor) -> Tensor:
    """What a LayerNorm makes of rows before its gains."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def normed(w: Weights, name: str, x: Tensor, less: int = 0) -> Tensor:
    """What one makes of them behind these."""
    made = standard(x) * (w[f"{name}.weight"] + less)
    return made + w[f"{name}.bias"] if f"{name}.bias" in w else made


def attended(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Attention of rows [places, heads * coordinates] to one another."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(0, 1) for x in (q, k, v))
    return ((q @ k.mT).softmax(-1) @ v).transpose(0, 1).flatten(1)


def attention(w: Weights, at: str, x: Tensor, heads: int) -> Tensor:
    """The same of three maps, and what a fourth makes of it."""
    q, k, v = (linear(w, f"{at}.{name}", x) for name in "qkv")
    return linear(w, f"{at}.o", attended(q, k, v, heads))


STREAM = {"res": (3, 6), "vocab": (4, 7)}
HEADS = {"h": (1, 3), "qk": (1, 3), "ov": (1, 3)}
NEURONS, LABELS = {"ff": (1, 4)}, {"labels": (1, 3)}
OF_HEADS = """
space h: Perm[l]
space qk: GL[l, h]
space ov: GL[l, h]
shift kb: layer.{l}.k.bias
shift vb: layer.{l}.v.bias -> layer.{l}.o.bias via layer.{l}.o.weight
"""
ATTENTION = """
layer.{l}.q.*  (h qk) res'
layer.{l}.k.*  (h qk') res'
layer.{l}.v.*  (h ov) res'
layer.{l}.o.*  res (h ov')
"""
PERCEPTRON = """
layer.{l}.up.*    ff res'
layer.{l}.down.*  res ff'
"""
EMBEDDED = """
embed.weight  vocab res
norm.*        res
"""

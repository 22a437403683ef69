"""Random weights for one unit of a spec: the tensors of layer 0 whose names hold one of some words."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch

from isomerge.archs import spec_for
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import shape
from isomerge.symmetry.blocks import Block, gather_blocks
from isomerge.symmetry.language.spec import Spec, coverage

Blocks = dict[Block, torch.Tensor]
FREE = 3  # the length of axes without a size


def small_spec(kind: str, **config: Any) -> Spec:
    """A packaged spec at a size of one's own."""
    return spec_for({"model_type": kind, "vocab_size": 7, **config})


def draw(spec: Spec, seed: int, *words: str, spread: float = 0.0) -> Blocks:
    """Float64 noise; with ``spread``, of sizes that differ from tensor to tensor by that many e-folds."""
    rng = torch.Generator().manual_seed(seed)
    stored: dict[str, torch.Tensor] = {}
    for line in spec.lines:
        if line.axes is None or not any(word in line.name for word in words):
            continue
        extent = [n or FREE for n in shape(line.axes, spec.sizes)]
        for values in product(*(range(spec.sizes.get(i, 1)) for i in line.indices)):
            name = line.canonical(dict(zip(line.indices, values, strict=True)))
            size = (spread * torch.randn((), generator=rng, dtype=torch.float64)).exp()
            stored[name] = size * torch.randn(extent, generator=rng, dtype=torch.float64)
    matches = coverage(spec, {name: tuple(t.shape) for name, t in stored.items()})
    return {b: b.assemble(stored.__getitem__).contiguous() for b in gather_blocks(spec, matches)}


def named(blocks: Blocks) -> dict[str, torch.Tensor]:
    """The tensors by what is left of their keys without the layer: ``q_proj.weight``."""
    return {block.key.partition(".0.")[2].split(".", 1)[-1]: t for block, t in blocks.items()}


def moved(g: Alignment, blocks: Blocks) -> Blocks:
    """A moved copy."""
    found = {block: t.clone() for block, t in blocks.items()}
    g.act(found)
    return found

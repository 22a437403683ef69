"""Twins by permutations alone, and pairs of models without a run around them."""

from __future__ import annotations

from pathlib import Path

import torch

from isomerge.evidence.law import random_alignment
from isomerge.models.recognised import recognise
from isomerge.models.unit_plan import make_plan
from isomerge.research.baselines.permutations import permutation_spec
from isomerge.solve.pairs.pair import PairSolver
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from toys import Toy, load_toy, write_toy

Blocks = dict[Block, torch.Tensor]


def renumber(name: str, folder: Path, out: Path, seed: int = 3) -> Path:
    """The same function with streams, heads, head dimensions and neurons in random order."""
    toy = load_toy(name, folder)
    blocks, rng = toy.fresh(), torch.Generator().manual_seed(seed)
    random_alignment(permutation_spec(toy.spec), toy.blocks, rng).act(blocks)
    moved = toy.named(blocks)
    assert toy.change(moved) > 0.01
    return write_toy(toy, moved, out)


def pair_of(anchor: Path, source: Path, spaces: str = "all", layers: str | None = None) -> PairSolver:
    """The pair as a merge makes it, in float64."""
    a, b = recognise(anchor), recognise(source)
    return PairSolver(a, b, make_plan(a, [b], spaces, layers), torch.float64, guard=False)


def moved_by(alignment: Alignment, toy: Toy) -> Blocks:
    """A toy's blocks moved by an alignment."""
    blocks = toy.fresh()
    alignment.act({block: t for block, t in blocks.items() if t.is_floating_point()})
    return blocks


def gap(a: Blocks, b: Blocks) -> float:
    """The largest difference between any two numbers."""
    return max(float((t.double() - b[block].double()).abs().max()) for block, t in a.items())


def squared_gap(a: Blocks, b: Blocks) -> float:
    """The squared Frobenius distance, float64."""
    return sum(float((t.double() - b[block].double()).square().sum()) for block, t in a.items())

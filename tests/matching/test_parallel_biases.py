"""Biases behind parallel branches, which trade with each other, and a value's, which passes on to one of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from isomerge.evidence.law import random_alignment
from isomerge.matching.balance import fold_biases
from isomerge.matching.refine import refine
from isomerge.symmetry.blocks import Blocks
from isomerge.symmetry.language.spec import Spec
from toys import Toy

BIASES = ["vb", "pb"]


def layer_of(model: Toy) -> tuple[Spec, Blocks]:
    """The first layer of a Phi with the shifts of its biases alone."""
    spec = model.spec.restrict(BIASES)
    return spec, {block: t for block, t in model.fresh().items() if block.at("l") == 0}


def far(one: Blocks, two: Blocks) -> float:
    """The squared distance of two sets of blocks."""
    return sum(float((t - two[block]).square().sum()) for block, t in one.items())


@pytest.mark.parametrize("planted", [["vb"], ["pb"], BIASES])
def test_both_come_back_at_once(planted: list[str], toy: Callable[..., Toy]) -> None:
    """What is planted in either or both is found exactly, in one pass."""
    spec, anchor = layer_of(toy("phi"))
    g = random_alignment(spec.restrict(planted), [*anchor], torch.Generator().manual_seed(1))
    moved = {block: t.clone() for block, t in g.applied(anchor).items()}
    assert far(anchor, moved) > 0.1
    refine(spec, anchor, moved)
    assert far(anchor, moved) < 1e-18


def test_the_nearest_of_both(toy: Callable[..., Toy]) -> None:
    """Against least squares over all that either shift may add."""
    spec, moved = layer_of(toy("phi"))
    rng = torch.Generator().manual_seed(2)
    anchor = {block: t + torch.randn(t.shape, generator=rng, dtype=t.dtype) for block, t in moved.items()}
    named = {block.line.name.removeprefix("layers.{l}."): block for block in moved}
    v, out, up = (named[name] for name in ("self_attn.v_proj.bias", "self_attn.dense.bias", "mlp.fc2.bias"))
    traded = 3 * torch.randn(moved[up].shape, generator=rng, dtype=torch.float64)  # else none is worth it
    anchor[out], anchor[up] = anchor[out] + traded, anchor[up] - traded
    w = moved[named["self_attn.dense.weight"]]
    w = w.reshape(len(w), *(spec.sizes[name] for name in ("kv", "g", "ov"))).sum(2).flatten(1)
    n, width = moved[v].numel(), len(w)
    eye, zero = torch.eye(width).double(), torch.zeros(n, width).double()
    whole = torch.cat(
        [
            torch.cat([torch.eye(n).double(), zero], 1),
            torch.cat([-w, eye], 1),
            torch.cat([torch.zeros(width, n).double(), -eye], 1),
        ]
    )
    gap = torch.cat([anchor[block] - moved[block] for block in (v, out, up)])
    best = torch.linalg.lstsq(whole, gap[:, None]).solution
    wanted = float((whole @ best - gap[:, None]).square().sum())
    refine(spec, anchor, moved)
    reached = sum(float((anchor[block] - moved[block]).square().sum()) for block in (v, out, up))
    assert reached == pytest.approx(wanted, rel=1e-9)


def test_one_form(toy: Callable[..., Toy]) -> None:
    """Folded one after the other, twins are one: what a value's bias leaves in an output goes on to the other."""
    spec, blocks = layer_of(toy("phi"))
    g = random_alignment(spec, [*blocks], torch.Generator().manual_seed(3))
    twin = {block: t.clone() for block, t in g.applied(blocks).items()}
    fold_biases(spec, blocks)
    fold_biases(spec, twin)
    assert far(blocks, twin) < 1e-18
    named = {block.line.name.removeprefix("layers.{l}."): block for block in blocks}
    assert not bool(blocks[named["self_attn.dense.bias"]].any())

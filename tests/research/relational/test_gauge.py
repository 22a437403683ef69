"""Which parameters are free: none with full forms on anchors that are atoms; what factors and frames bring back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from isomerge.research.relational import RelationalBlock, RelationalConfig, RelationalTransformer
from isomerge.research.relational.head_circuits import FactorCircuits, frequencies, rotary_forms, rotate
from isomerge.symmetry.groups import GROUPS

M, HEADS, RANK = 4, 2, 2


def free_directions(**changes) -> int:
    """The directions in weight space along which no output of many inputs changes, at a random model."""
    torch.manual_seed(1)
    shape = {"width": M, "layers": 1, "heads": HEADS, "anchors": M, "mlp": 3, "patch": 5, "length": 4, "classes": 3}
    # without eps, which would break the scale of the stream by a little
    model = RelationalTransformer(RelationalConfig(**{**shape, "eps": 0.0, **changes})).double()
    state = {name: p + 0.4 * torch.randn_like(p) for name, p in model.named_parameters()}
    x = torch.randn(80, 4, 5, dtype=torch.float64)
    sizes = [p.numel() for p in state.values()]

    def outputs(flat: Tensor) -> Tensor:
        parts = [f.view_as(p) for f, p in zip(flat.split(sizes), state.values(), strict=True)]
        return torch.func.functional_call(model, dict(zip(state, parts, strict=True)), (x,)).flatten()

    flat = torch.cat([p.detach().flatten() for p in state.values()])
    slopes = torch.func.jacfwd(outputs)(flat)
    values = torch.linalg.svdvals(slopes)
    small = values < 1e-9 * values[0]
    # a clear gap: what is not zero is well above rounding
    assert float(values[~small].min()) > 1e-7 * float(values[0])
    return int(small.sum())


GAUGES = {
    "full forms on atoms": ({}, 0),
    "factors on atoms": ({"rank": RANK}, HEADS * 2 * RANK**2),
    "full forms in a frame": ({"anchoring": "frame"}, M * (M - 1) // 2 + 1),
    "rotary factors": ({"rank": RANK, "rotary": 100.0}, HEADS * (RANK + RANK**2)),
}


@pytest.mark.parametrize("name", GAUGES)
def test_dimension_of_the_gauge(name: str) -> None:
    """Full forms on atoms have none; factors have GL(rank) per circuit, a frame O(m) and the scale of the stream,
    rotary pairs one complex number each."""
    changes, expected = GAUGES[name]
    assert free_directions(**changes) == expected


def circuits_of(block: nn.Module) -> FactorCircuits:
    """The factors of a block's heads."""
    assert isinstance(block, RelationalBlock)
    assert isinstance(block.attention.circuits, FactorCircuits)
    return block.attention.circuits


def unbalanced(rotary: bool, kv_heads: int) -> RelationalTransformer:
    """A model whose factors have been moved far along their gauge."""
    torch.manual_seed(2)
    found = RelationalTransformer(
        RelationalConfig(
            width=8, layers=2, heads=4, anchors=8, mlp=8, rank=4, vocab=11, length=6, classes=3, kv_heads=kv_heads,
            rotary=100.0 if rotary else None,
        )
    ).double()  # fmt: skip
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for block in found.blocks:
            c = circuits_of(block)
            g = GROUPS["GL"].sample((kv_heads,), 4, rng, condition=30.0)
            c.value.copy_(g @ c.value)
            c.output.copy_(torch.linalg.inv(g).mT[:, None] @ c.output)
            c.query.mul_(7.0)
            c.key.div_(7.0)
    return found


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("rotary", [False, True])
def test_balancing_keeps_the_function(rotary: bool, kv_heads: int) -> None:
    """The same logits, a smaller norm, and equal self-Grams on both sides."""
    model = unbalanced(rotary, kv_heads)
    x = torch.randint(0, 11, (2, 6), generator=torch.Generator().manual_seed(0))
    before, size = model(x), sum(float(p.detach().square().sum()) for p in model.parameters())
    model.balance()
    torch.testing.assert_close(model(x), before, rtol=1e-10, atol=1e-10)
    assert sum(float(p.detach().square().sum()) for p in model.parameters()) < 0.5 * size
    for block in model.blocks:
        c = circuits_of(block)
        read, written = c.value @ c.value.mT, torch.einsum("kgem,kgfm->kef", c.output, c.output)
        torch.testing.assert_close(read, written, rtol=1e-8, atol=1e-8)
        if not rotary:
            asked, keyed = torch.einsum("kgem,kgfm->kef", c.query, c.query), c.key @ c.key.mT
            torch.testing.assert_close(asked, keyed, rtol=1e-8, atol=1e-8)


def test_rotary_forms_are_the_scores() -> None:
    """``r_i S(j - i) r_j`` with even and odd forms is what rotated factors give, and no complex gauge changes
    them."""
    rng = torch.Generator().manual_seed(0)
    u, v = (torch.randn(6, 5, generator=rng, dtype=torch.float64) for _ in range(2))
    r = torch.randn(7, 5, generator=rng, dtype=torch.float64)
    angles = frequencies(100.0, 6)
    scores = rotate(r @ u.mT, angles) @ rotate(r @ v.mT, angles).mT
    even, odd = rotary_forms(u, v)
    t = torch.arange(7)
    turns = (t[None, :] - t[:, None])[..., None] * angles  # j - i
    forms = torch.einsum("ijp,pmn->ijmn", turns.cos(), even) + torch.einsum("ijp,pmn->ijmn", turns.sin(), odd)
    torch.testing.assert_close(torch.einsum("im,ijmn,jn->ij", r, forms, r), scores, rtol=1e-10, atol=1e-10)

    z = GROUPS["Complex"].sample((3,), 2, rng)
    moved = []
    for x, dual in ((u, False), (v, True)):
        pairs = torch.stack(x.chunk(2, 0), -1)  # (pair, m, 2)
        moved.append(torch.cat(GROUPS["Complex"].act(z, pairs, dual).unbind(-1)))
    assert float((moved[0] - u).abs().max()) > 0.1
    for one, two in zip(rotary_forms(*moved), (even, odd), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)

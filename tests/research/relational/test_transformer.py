"""Relational transformers from scratch: they learn, count as others do, and are all in their state."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from depth import more
from isomerge.errors import IsomergeError
from isomerge.research.relational import RelationalAttention, RelationalConfig, RelationalTransformer, patches_of
from isomerge.research.relational.attention import RelationalNorm

SMALL = {"width": 16, "layers": 2, "heads": 2, "anchors": 16, "mlp": 32}


def build(**changes) -> RelationalTransformer:
    """A small model."""
    torch.manual_seed(0)
    return RelationalTransformer(RelationalConfig(**{**SMALL, **changes}))


def trained(model: RelationalTransformer, draw, steps: int) -> float:
    """The loss on fresh data after some steps of Adam."""
    rng = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss() -> torch.Tensor:
        x, y = draw(rng)
        out = model(x)
        return nn.functional.cross_entropy(out.flatten(0, -2), y.flatten())

    first = float(loss().detach())
    assert first < 4.0  # near the logarithm of the classes: logits start small
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return float(loss().detach())


def copies(rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight letters twice: the next one is known in the second half only, to a model that looks back."""
    x = torch.randint(0, 12, (48, 4), generator=rng).repeat(1, 2)
    return x[:, :-1], x[:, 1:].where(torch.arange(7) >= 3, torch.tensor(-100))


@pytest.mark.parametrize("changes", [*more({}, {"rank": 8}), {"rank": 8, "rotary": 100.0, "chunk": 3}], ids=str)
def test_learns_to_copy(changes) -> None:
    """A causal language model that must attend; log 12 = 2.5 is what it knows without looking."""
    model = build(vocab=12, length=7, causal=True, **changes)
    assert trained(model, copies, 250) < 0.5
    assert float((model.atoms.anchors().detach() - torch.eye(16)).abs().max()) > 0.01  # K was learned


def brighter(rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of one bright patch; the class is where it is."""
    y = torch.randint(0, 4, (48,), generator=rng)
    images = 0.3 * torch.randn(48, 1, 4, 4, generator=rng)
    patches = patches_of(images, 2)
    patches[torch.arange(48), y] += 1.0
    return patches, y


def test_learns_patches() -> None:
    """A classifier of patches."""
    assert trained(build(patch=4, length=4, classes=4, rank=8), brighter, 80) < 0.4


def test_the_count_is_an_ordinary_transformers() -> None:
    """With m = d, rank = d / heads and G = H, heads and neurons have as many numbers as ordinary ones; full forms m
    / (2 rank) times as many in their heads. Atoms save d (d - 1) / 2: the dimension of O(d)."""
    d, heads = 16, 2
    block = build(vocab=40, length=6, rank=d // heads).blocks[0]
    ordinary = nn.TransformerEncoderLayer(d, heads, 32, bias=False)
    weights = sum(p.numel() for p in ordinary.parameters() if p.ndim == 2)
    assert sum(p.numel() for p in block.parameters() if p.ndim > 1) == weights
    full = RelationalAttention(d, heads)
    assert sum(p.numel() for p in full.circuits.parameters()) == 4 * d * d * (d // (2 * (d // heads)))
    atoms = build(vocab=40, length=6).atoms
    assert sum(p.numel() for p in atoms.parameters()) == (40 + 6) * d - d * (d - 1) // 2


@pytest.mark.parametrize(
    "changes", [{}, {"rank": 8, "rotary": 100.0, "kv_heads": 1}, {"anchoring": "frame"}], ids=str
)
def test_state_is_all(tmp_path: Path, changes) -> None:
    """Saved and loaded into another model of the config: the same tensors and bit for bit the same logits."""
    model = build(vocab=12, length=7, **changes)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    torch.manual_seed(7)
    other = RelationalTransformer(model.config)
    x = torch.arange(7)[None]
    assert not torch.equal(other(x), model(x))
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert all(
        torch.equal(a, b) for a, b in zip(other.state_dict().values(), model.state_dict().values(), strict=True)
    )
    assert torch.equal(other(x), model(x))


def test_seeds_decide() -> None:
    """The same generator state, the same model; another, another."""
    a, b = build(vocab=40, length=3), build(vocab=40, length=3)
    torch.manual_seed(9)
    c = RelationalTransformer(a.config)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.atoms.free, c.atoms.free)


def test_patches_are_rows_of_the_image() -> None:
    """Row by row, each with its channels, rows and columns in order."""
    images = torch.arange(2 * 3 * 4 * 6.0).view(2, 3, 4, 6)
    found = patches_of(images, (2, 3))
    assert found.shape == (2, 4, 18)
    assert torch.equal(found[1, 2], images[1, :, 2:4, 0:3].flatten())


BAD = {
    "exactly one of vocab": {"vocab": 3, "patch": 4},
    "patches need classes": {"patch": 4},
    "anchors is 0": {"vocab": 3, "anchors": 0},
    "cannot be independent": {"vocab": 3, "anchors": 17},
    "anchoring is 'free'": {"vocab": 3, "anchoring": "free"},
    "LayerNorm needs the ones": {"vocab": 3, "norm": "layer"},
    "no rotary positions": {"vocab": 3, "rotary": 10.0},
    "even rank": {"vocab": 3, "rotary": 10.0, "rank": 3},
    "cannot share": {"vocab": 3, "rank": 2, "kv_heads": 3},
    "activation 'magic'": {"vocab": 3, "activation": "magic"},
}


@pytest.mark.parametrize("message", BAD)
def test_configs_are_checked(message: str) -> None:
    """One sentence each."""
    with pytest.raises(IsomergeError, match=message):
        build(**BAD[message])


def test_inputs_are_checked() -> None:
    """Kinds and lengths."""
    words, images = build(vocab=5, length=3), build(patch=4, length=4, classes=2)
    with pytest.raises(IsomergeError, match="longer than length=3"):
        words(torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(IsomergeError, match=r"expected tokens \(B, T\) of integers, got float32"):
        words(torch.zeros(1, 3))
    with pytest.raises(IsomergeError, match=r"expected patches \(B, T, 4\)"):
        images(torch.zeros(1, 3, 5))
    with pytest.raises(IsomergeError, match="cannot be cut"):
        patches_of(torch.zeros(1, 1, 5, 4), 2)
    attention = RelationalAttention(16, 2, norm=RelationalNorm(16, 1e-6))
    with pytest.raises(IsomergeError, match="needs the tokens' squared norms"):
        attention(torch.zeros(1, 3, 16), torch.eye(16))

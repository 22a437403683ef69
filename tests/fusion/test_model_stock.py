"""Model Stock, SCE, RAM, NearSwap, Arcee Fusion and passthrough against their formulas."""

from __future__ import annotations

import pytest
import torch

from isomerge.errors import IsomergeError
from isomerge.fusion.arcee_fusion import arcee_fusion
from isomerge.fusion.model_stock import model_stock
from isomerge.fusion.nearswap import nearswap
from isomerge.fusion.passthrough import passthrough
from isomerge.fusion.ram import ram, ramplus_tl
from isomerge.fusion.sce import sce


def normal(*shape: int, seed: int) -> torch.Tensor:
    """Float64 noise."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stock_oracle(tensors: list[torch.Tensor], base: torch.Tensor) -> torch.Tensor:
    """The paper's ratio from explicit pairs."""
    deltas = [(t - base).flatten() for t in tensors]
    n = len(deltas)
    pairs = [(a, b) for a in range(n) for b in range(a)]
    cosine = sum(torch.cosine_similarity(deltas[a], deltas[b], dim=0) for a, b in pairs) / len(pairs)
    t = n * cosine / (1 + (n - 1) * cosine)
    return t * sum(tensors) / n + (1 - t) * base


@pytest.mark.parametrize("n", [2, 3, 5])
def test_model_stock_by_pairs(n: int) -> None:
    """The whole tensor, and row by row."""
    base, common = normal(4, 6, seed=0), normal(4, 6, seed=1)
    tensors = [base + common + 0.8 * normal(4, 6, seed=10 + s) for s in range(n)]
    assert torch.allclose(model_stock(tensors, base, filter_wise=False), stock_oracle(tensors, base))
    rows = torch.stack([stock_oracle([t[r] for t in tensors], base[r]) for r in range(4)])
    assert torch.allclose(model_stock(tensors, base, filter_wise=True), rows)
    assert not torch.allclose(rows, stock_oracle(tensors, base))


def test_model_stock_finds_the_centre() -> None:
    """In the paper's geometry (equal right-angled spread around a centre) it is the base's projection on the
    models' plane."""
    base = torch.zeros(5, dtype=torch.float64)
    centre = torch.tensor([2.0, 0, 0, 0, 0], dtype=torch.float64)
    spread = torch.eye(5, dtype=torch.float64)[1:4]
    models = [centre + s for s in spread]
    found = model_stock(models, base, filter_wise=False)
    mean = sum(models) / 3
    assert abs(float((found - mean) @ (models[0] - models[1]))) < 1e-12
    # nearest point of the line from base to mean to the centre
    assert torch.allclose(found, mean * float(centre @ mean) / float(mean @ mean))


def test_model_stock_edges() -> None:
    """Equal models come out; task vectors at right angles leave the base; opposite ones divide by nothing."""
    base, a = normal(6, seed=0), normal(6, seed=1)
    assert torch.allclose(model_stock([a, a, a], base, filter_wise=False), a)
    e = torch.eye(6, dtype=torch.float64)
    assert torch.allclose(model_stock([base + e[0], base + e[1]], base, filter_wise=False), base)
    assert torch.allclose(model_stock([base + e[0], base - e[0]], base, filter_wise=False), base)
    with pytest.raises(
        IsomergeError, match=r"--method model_stock merges 2 or more models \(a base not counted\), but 1"
    ):
        model_stock([a], base, filter_wise=False)


def sce_oracle(tensors: list[torch.Tensor], base: torch.Tensor, topk: float) -> torch.Tensor:
    """Select, calculate, erase, entry by entry."""
    deltas = torch.stack([(t - base).flatten() for t in tensors])
    variance = deltas.var(0, unbiased=False)
    keep = int(int((variance != 0).sum()) * topk) if topk < 1 else len(variance)
    order = sorted(range(len(variance)), key=lambda i: (-float(variance[i]), i))[:keep]
    mask = torch.zeros(len(variance), dtype=torch.float64)
    mask[order] = 1
    deltas = deltas * mask
    weights = deltas.square().mean(1)
    weights = weights / weights.sum() if weights.sum() >= 1e-6 else torch.full_like(weights, 1 / len(weights))
    out = torch.zeros_like(variance)
    for i, entry in enumerate(deltas.T):
        sign = 1 if entry.sum() >= 0 else -1
        kept = entry.sign() == sign
        if kept.any():
            out[i] = (entry * weights)[kept].sum() / weights[kept].sum().clamp_min(1e-6)
    return base + out.reshape(base.shape)


@pytest.mark.parametrize("topk", [1.0, 0.5, 0.07, 0.0])
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_sce_entry_by_entry(topk: float, scale: float) -> None:
    """At scales at which weights are calculated, and at which they are all alike; agreement is no difference."""
    base = normal(5, 6, seed=0)
    tensors = [base + scale * (s + 1) * normal(5, 6, seed=5 + s) for s in range(3)]
    for t in tensors:
        t[0] = base[0] + scale  # no variance: never selected below 1
    assert torch.allclose(sce(tensors, base, select_topk=topk), sce_oracle(tensors, base, topk), atol=1e-12, rtol=0)
    with pytest.raises(IsomergeError, match="`select_topk` is 2"):
        sce(tensors, base, select_topk=2)


def test_ram_entry_by_entry() -> None:
    """Whole where one model has learned, the mean of those who have where several did, nothing below the
    threshold."""
    deltas = torch.tensor([[1.0, 1.0, 0.0, 0.05, 2.0], [0.0, 3.0, 0.0, 0.0, 0.05], [0.0, 0.0, -2.0, 0.0, 0.0]])
    base = torch.full((5,), 10.0)
    tensors = [base + d for d in deltas]
    assert torch.allclose(ram(tensors, base, epsilon=0.1), base + torch.tensor([1.0, 2.0, -2.0, 0.0, 2.0]))
    # shared / unique: 1 / 2 for the first (capped at 0.3), 1 / 0 for the second, 0 / 1 for the third
    found = ramplus_tl(tensors, base, r=0.5, alpha=0.3, epsilon=0.1)
    assert torch.allclose(found, base + torch.tensor([1.15, 2.0, -2.0, 0.0, 2.3]))
    uncapped = ramplus_tl(tensors, base, r=0.5, alpha=9.0, epsilon=0.1)
    assert torch.allclose(uncapped, base + torch.tensor([1.25, 2.0, -2.0, 0.0, 2.5]))


@pytest.mark.parametrize("t", [0.0, 0.2, 10.0])
def test_nearswap_moves_by_t_at_most(t: float) -> None:
    """Each entry goes towards the other model by t, and not beyond it."""
    base, other = normal(200, seed=0), normal(200, seed=1)
    expected = base + (other - base).clamp(-t, t)
    assert torch.allclose(nearswap([other], base, t=t), expected, atol=1e-12)
    with pytest.raises(IsomergeError, match="--method nearswap merges exactly 1 model"):
        nearswap([other, other], base, t=t)


def test_arcee_fusion_by_sorting() -> None:
    """The divergence from torch's own, the quantiles from a sort."""
    base, theta = normal(7, 9, seed=0), normal(7, 9, seed=1)
    p, q = (x.softmax(-1).log() for x in (theta, base))
    kl = torch.nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(-1, keepdim=True)
    importance = (theta - base).abs() * kl
    ordered = importance.flatten().sort().values
    q1, median, q3 = (float(ordered[int(x * 62)]) for x in (0.25, 0.5, 0.75))
    taken = importance >= median + 1.5 * (q3 - q1)
    found = arcee_fusion([theta], base)
    assert 0 < int(taken.sum()) < 32
    assert torch.allclose(found, torch.where(taken, theta, base))
    assert torch.equal(found == base, ~taken)


def test_arcee_fusion_of_near_models() -> None:
    """A light fine-tune in float32: the decisions are those of float64, where float32 divergences are noise."""
    base = normal(30, 50, seed=0).float()
    theta = base + 1e-4 * normal(30, 50, seed=1).float()
    assert torch.equal(arcee_fusion([theta], base), arcee_fusion([theta.double()], base.double()).float())


def test_passthrough() -> None:
    """One model, scaled on demand."""
    x = normal(3, 2, seed=0)
    assert torch.equal(passthrough([x], scale=[1.0]), x)
    assert torch.equal(passthrough([x], scale=[-0.5]), -0.5 * x)
    with pytest.raises(IsomergeError, match="--method passthrough merges exactly 1 model"):
        passthrough([x, x], scale=[1.0, 1.0])

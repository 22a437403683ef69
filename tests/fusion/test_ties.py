"""Task arithmetic, TIES, DARE, DELLA and Breadcrumbs against entry-by-entry oracles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isomerge.errors import IsomergeError
from isomerge.fusion.breadcrumbs import breadcrumbs, breadcrumbs_ties
from isomerge.fusion.dare import dare_linear, dare_ties
from isomerge.fusion.della import della, della_linear
from isomerge.fusion.registry import methods
from isomerge.fusion.task_arithmetic import task_arithmetic
from isomerge.fusion.ties import ties

COMMON = {"normalize": False, "lambda_": 1.0}
# small integers: sums are exact, and zeros and ties are common
ENTRIES = st.lists(st.integers(-3, 3), min_size=6, max_size=6)


def rng(seed: int = 0) -> torch.Generator:
    """A seeded generator."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> torch.Tensor:
    """Float64 noise."""
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


def naive(
    deltas: list[list[float]],
    weight: list[float],
    *,
    elected: str | None,
    normalize: bool,
    lambda_: float,
) -> list[float]:
    """What is added to every entry, in plain Python."""
    out = []
    for entry in zip(*deltas, strict=True):
        weighted = [w * d for w, d in zip(weight, entry, strict=True)]
        signs = [(v > 0) - (v < 0) for v in weighted]
        if elected is None:
            kept = [True] * len(weight)
        else:
            sign = 1 if sum(weighted if elected == "sum" else signs) >= 0 else -1
            kept = [s == sign for s in signs]
        mixed = sum(v for v, k in zip(weighted, kept, strict=True) if k)
        total = sum(w for w, k in zip(weight, kept, strict=True) if k)
        out.append(lambda_ * mixed / (total if normalize and total else 1))
    return out


def trimmed(delta: list[float], density: float) -> list[float]:
    """The largest entries by sorting."""
    order = sorted(range(len(delta)), key=lambda i: (-abs(delta[i]), i))
    kept = set(order[: max(1, int(density * len(delta)))] if density else [])
    return [d if i in kept else 0 for i, d in enumerate(delta)]


@given(
    st.lists(ENTRIES, min_size=1, max_size=4),
    st.lists(st.sampled_from([1.0, 0.3, 2.0, -1.0, 0.0]), min_size=4, max_size=4),
    st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]), min_size=4, max_size=4),
    st.sampled_from(["sum", "count"]),
    st.booleans(),
)
def test_ties_entry_by_entry(
    deltas: list[list[int]], weight: list[float], density: list[float], consensus: str, normalize: bool
) -> None:
    """Trim by sorting, elect, merge."""
    n = len(deltas)
    base = torch.tensor([1.0, -2.0, 3.0, 0.0, 5.0, -6.0], dtype=torch.float64)
    sparse = [trimmed(d, s) for d, s in zip(deltas, density[:n], strict=True)]
    added = naive(sparse, weight[:n], elected=consensus, normalize=normalize, lambda_=1.5)
    found = ties(
        [base + torch.tensor(d) for d in deltas], base, weight=weight[:n], density=density[:n], normalize=normalize,
        rescale=False, lambda_=1.5, consensus_method=consensus,
    )  # fmt: skip
    assert torch.allclose(found, base + torch.tensor(added, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@given(st.lists(ENTRIES, min_size=1, max_size=4), st.lists(st.floats(-2, 2), min_size=4, max_size=4), st.booleans())
def test_task_arithmetic_entry_by_entry(deltas: list[list[int]], weight: list[float], normalize: bool) -> None:
    """The weighted sum; where the weights cancel, nothing is divided."""
    n = len(deltas)
    weight = [round(w, 2) for w in weight[:n]]
    total = sum(weight)
    added = naive(deltas, weight, elected=None, normalize=normalize and abs(total) >= 1e-8, lambda_=0.5)
    base = torch.ones(6, dtype=torch.float64)
    tensors = [base + torch.tensor(d) for d in deltas]
    found = task_arithmetic(tensors, base, weight=weight, normalize=normalize, lambda_=0.5)
    assert torch.allclose(found, base + torch.tensor(added, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_elections() -> None:
    """By sum and by count; ties and silence are positive; other words are refused."""
    deltas = [
        torch.tensor([3.0, -1.0, 0.0, 1.0]),
        torch.tensor([-1.0, 1.0, 0.0, -2.0]),
        torch.tensor([-1.0, 0.0, 0.0, 0.0]),
    ]
    base, how = torch.zeros(4), {"weight": [1.0] * 3, "density": [1.0] * 3, "normalize": False}
    assert ties(deltas, base, **how, consensus_method="sum").tolist() == [3, 1, 0, -2]
    assert ties(deltas, base, **how, consensus_method="count").tolist() == [-2, 1, 0, 1]
    with pytest.raises(IsomergeError, match="`consensus_method` is mean: give one of sum, count"):
        ties(deltas, base, **how, consensus_method="mean")


def test_ties_rescaled() -> None:
    """Trimmed task vectors with their sum of magnitudes back."""
    base, delta = torch.zeros(4), torch.tensor([1.0, -2.0, 3.0, -4.0])
    found = ties(
        [delta],
        base,
        weight=[1.0],
        density=[0.5],
        rescale=True,
        **{**COMMON, "normalize": True},
        consensus_method="sum",
    )
    assert torch.allclose(found, torch.tensor([0.0, 0.0, 3.0, -4.0]) * 10 / 7)


DENSE: list[tuple[Any, dict[str, Any]]] = [
    (dare_linear, {}),
    (dare_ties, {"consensus_method": "sum"}),
    (della_linear, {"epsilon": [0.15, 0.15]}),
    (della, {"epsilon": [0.15, 0.15], "consensus_method": "sum"}),
    (breadcrumbs, {"gamma": [0.3, 0.3]}),
    (breadcrumbs_ties, {"gamma": [0.3, 0.3], "consensus_method": "sum"}),
]


@pytest.mark.parametrize(("method", "own"), DENSE, ids=lambda m: getattr(m, "__name__", ""))
@pytest.mark.parametrize("normalize", [False, True])
def test_density_one_and_zero(method: Any, own: dict[str, Any], normalize: bool) -> None:
    """At density 1 nothing is dropped or drawn: task arithmetic, or TIES untrimmed; at 0 the base is left."""
    a, b, base = (normal(5, 4, seed=s) for s in range(3))
    own = {**own, "weight": [1.0, 0.5], "normalize": normalize, "lambda_": 0.7}
    if methods()[method.__name__].random:
        own["rng"] = rng()
    full = method([a, b], base, density=[1.0, 1.0], rescale=True, **own)
    if "rng" in own:
        assert torch.equal(own["rng"].get_state(), rng().get_state())
    if "consensus_method" in own:
        whole = {"weight": [1.0, 0.5], "density": [1.0, 1.0], "rescale": False, "lambda_": 0.7}
        expected = ties([a, b], base, normalize=normalize, consensus_method="sum", **whole)
    else:
        expected = task_arithmetic([a, b], base, weight=[1.0, 0.5], normalize=normalize, lambda_=0.7)
    assert torch.allclose(full, expected)
    assert torch.allclose(method([a, b], base, density=[0.0, 0.0], rescale=True, **own), base)


def test_dare_by_its_own_mask() -> None:
    """Every entry is either the base's or a common multiple of the task vector away; the factor is near 1 /
    density."""
    base, theta = normal(100, 80, seed=0), normal(100, 80, seed=1)
    found = dare_linear([theta], base, weight=[1.0], density=[0.3], rescale=True, rng=rng(5), **COMMON) - base
    kept = found != 0
    assert abs(float(kept.double().mean()) - 0.3) < 5 * (0.21 / kept.numel()) ** 0.5
    factors = (found / (theta - base))[kept]
    assert torch.allclose(factors, factors[0])
    assert float(factors[0]) == pytest.approx(1 / 0.3, rel=0.05)
    assert torch.allclose(found.abs().sum(), (theta - base).abs().sum())
    plain = dare_linear([theta], base, weight=[1.0], density=[0.3], rescale=False, rng=rng(5), **COMMON) - base
    assert torch.allclose(plain, (theta - base) * kept)


def test_dare_is_unbiased_over_seeds() -> None:
    """The mean over many masks is task arithmetic."""
    base, theta = normal(30, seed=0), normal(30, seed=1)
    draws = rng(9)
    runs = [
        dare_linear([theta], base, weight=[1.0], density=[0.5], rescale=False, rng=draws, **COMMON)
        for _ in range(3000)
    ]
    mean = base + (theta - base) / 2
    assert torch.allclose(
        torch.stack(runs).mean(0), mean, atol=5 * 0.5 * float((theta - base).abs().max()) / 3000**0.5
    )


def test_models_have_masks_of_their_own() -> None:
    """Two equal models are thinned differently, and the elections of dare_ties see it."""
    base, theta = torch.zeros(1000, dtype=torch.float64), torch.ones(1000, dtype=torch.float64)
    both = dare_linear(
        [theta, theta], base, weight=[1.0, 1.0], density=[0.5, 0.5], rescale=False, rng=rng(), **COMMON
    )
    assert set(both.tolist()) == {0.0, 1.0, 2.0}
    elected = dare_ties(
        [theta, -theta], base, weight=[1.0, 1.0], density=[0.5, 0.5], rescale=False, rng=rng(), **COMMON, consensus_method="sum"
    )  # fmt: skip
    assert torch.equal(elected[both == 2], torch.ones(int((both == 2).sum()), dtype=torch.float64))
    assert set(elected.tolist()) == {-1.0, 0.0, 1.0}


def test_della_prefers_large_entries() -> None:
    """The kept entries are larger on average; both methods draw alike."""
    base, theta = torch.zeros(50, 60, dtype=torch.float64), normal(50, 60, seed=2)
    given = {"weight": [1.0], "density": [0.5], "epsilon": [0.45], "rescale": False, **COMMON}
    found = della_linear([theta], base, rng=rng(1), **given)
    kept = found != 0
    assert float(kept.double().mean()) == pytest.approx(0.5, abs=0.05)
    assert theta[kept].abs().mean() > 1.5 * theta[~kept].abs().mean()
    assert torch.equal(della([theta], base, rng=rng(1), consensus_method="sum", **given), found)


def test_breadcrumbs_by_sorting() -> None:
    """Ten entries, one outlier, five kept."""
    delta = torch.tensor([9.0, -8.0, 7.0, -6.0, 5.0, -4.0, 3.0, -2.0, 1.0, 0.5])
    base = torch.ones(10)
    found = breadcrumbs([base + delta], base, weight=[2.0], density=[0.5], gamma=[0.1], rescale=False, **COMMON)
    expected = 2 * delta * torch.tensor([0, 1, 1, 1, 1, 1, 0, 0, 0, 0])
    assert torch.allclose(found, base + expected)


def test_wrong_shares() -> None:
    """Each method names the parameter."""
    x = torch.ones(3)
    for method, own in [*DENSE, (ties, {"consensus_method": "sum"})]:
        own = {k: v[:1] if isinstance(v, list) else v for k, v in own.items()}
        if methods()[method.__name__].random:
            own["rng"] = rng()
        with pytest.raises(IsomergeError, match=r"`density` is 1.5"):
            method([x], x, weight=[1.0], density=[1.5], rescale=False, **COMMON, **own)
    with pytest.raises(IsomergeError, match=r"`gamma` is -0.1"):
        breadcrumbs([x], x, weight=[1.0], density=[0.5], gamma=[-0.1], rescale=False, **COMMON)


MERGEKIT = {
    "task_arithmetic": {"normalize": False},
    "ties": {"normalize": True, "rescale": False},
    "dare_linear": {"normalize": False, "rescale": True},
    "dare_ties": {"normalize": False, "rescale": True},
    "della": {"normalize": True, "rescale": True, "epsilon": 0.15},
    "della_linear": {"normalize": False, "rescale": True, "epsilon": 0.15},
    "breadcrumbs": {"normalize": False, "rescale": False, "gamma": 0.01},
    "breadcrumbs_ties": {"normalize": False, "rescale": False, "gamma": 0.01},
}


@pytest.mark.parametrize("name", MERGEKIT)
def test_defaults_are_mergekits(name: str) -> None:
    """mergekit 0.1.5's names and defaults."""
    found = {key: option.default for key, option in methods()[name].options.items()}
    wanted = {"int8_mask": False, "lambda": 1.0, **MERGEKIT[name]}
    assert wanted.items() <= found.items()
    own = {"weight", "density"} if name != "task_arithmetic" else {"weight"}
    assert found.keys() - wanted.keys() - {"consensus_method"} == own
    assert methods()[name].base == "required"

"""Matching is optimal: against brute force where that is finite, against many starts where it is not."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from scipy.optimize import minimize
from torch import Tensor

from isomerge.evidence.law import random_alignment
from isomerge.matching import experts
from isomerge.matching.distances import distance
from isomerge.matching.local import compact_solution
from isomerge.matching.nested import Coupled
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.language.spec import Spec
from matching.drawn import Blocks, draw, moved, named, small_spec

ATTENTION = ("attention.self", "attention.output.dense")
BERT = {"hidden_size": 12, "num_attention_heads": 4, "intermediate_size": 5}
GROUPED = {"hidden_size": 6, "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 5}
MIXTURE = {**GROUPED, "num_attention_heads": 2, "num_local_experts": 3, "intermediate_size": 4}


def solved(spec: Spec, a: Blocks, b: Blocks) -> tuple[Alignment, float]:
    """The compact solution, and the distance that it reaches."""
    g = compact_solution(spec, a, b, {})
    return g, distance(a, moved(g, b))


def norms(a: Blocks, b: Blocks) -> float:
    """|A|^2 + |B|^2: compact elements leave it alone."""
    return sum(float(t.square().sum()) for side in (a, b) for t in side.values())


def nuclear(cross: Tensor) -> float:
    """The score of orthogonal Procrustes."""
    return float(torch.linalg.svdvals(cross).sum())


def head_rows(blocks: Blocks, heads: int) -> tuple[Tensor, Tensor]:
    """What QK and VO rotations act on: [heads, d, everything], biases included."""
    t = named(blocks)
    d = t["self.query.weight"].shape[0] // heads

    def split(name: str) -> Tensor:
        weight, bias = t[f"{name}.weight"], t[f"{name}.bias"]
        return torch.cat([weight, bias[:, None]], -1).reshape(heads, d, -1)

    out = t["output.dense.weight"].T.reshape(heads, d, -1)
    return torch.cat([split("self.query"), split("self.key")], -1), torch.cat([split("self.value"), out], -1)


# --------------------------------------------------------------- rotations and heads


def best_rotation(a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> float:
    """min |a - R b|^2 over O(3), by BFGS over exp(skew) from many starts in both components."""

    def turn(x: np.ndarray, mirror: float) -> np.ndarray:
        skew = np.array([[0, x[0], x[1]], [-x[0], 0, x[2]], [-x[1], -x[2], 0]])
        return expm(skew) @ np.diag([1, 1, mirror])

    def cost(x: np.ndarray, mirror: float) -> float:
        return float(((a - turn(x, mirror) @ b) ** 2).sum())

    starts = [(rng.normal(size=3) * 2, mirror) for mirror in (1.0, -1.0) for _ in range(4)]
    return min(float(minimize(cost, x, args=(mirror,)).fun) for x, mirror in starts)


@pytest.mark.parametrize("seed", range(2))
def test_rotations_against_many_starts(seed: int) -> None:
    """Head by head, Procrustes is the best rotation there is, reflections included."""
    spec = small_spec("bert", **{**BERT, "hidden_size": 6, "num_attention_heads": 2}).restrict(["qk", "ov"])
    a, b = draw(spec, seed, *ATTENTION), draw(spec, seed + 100, *ATTENTION)
    _, reached = solved(spec, a, b)
    rng = np.random.default_rng(seed)
    best = sum(
        best_rotation(x.numpy(), y.numpy(), rng)
        for one, two in zip(head_rows(a, 2), head_rows(b, 2), strict=True)
        for x, y in zip(one, two, strict=True)
    )
    fixed = float((named(a)["output.dense.bias"] - named(b)["output.dense.bias"]).square().sum())
    assert reached == pytest.approx(best + fixed, rel=1e-7)


@pytest.mark.parametrize("seed", range(3))
def test_heads_and_rotations_against_all_permutations(seed: int) -> None:
    """All 4! permutations of heads, with Procrustes inside."""
    spec = small_spec("bert", **BERT).restrict(["h", "qk", "ov"])
    a, b = draw(spec, seed, *ATTENTION), draw(spec, seed + 100, *ATTENTION)
    sides = list(zip(head_rows(a, 4), head_rows(b, 4), strict=True))
    score = [[sum(nuclear(x[i] @ y[j].T) for x, y in sides) for j in range(4)] for i in range(4)]
    best = max(sum(score[i][p[i]] for i in range(4)) for p in permutations(range(4)))
    biases = float((named(a)["output.dense.bias"] * named(b)["output.dense.bias"]).sum())
    g, reached = solved(spec, a, b)
    assert reached == pytest.approx(norms(a, b) - 2 * (best + biases), rel=1e-10)
    assert g["h[0]"].shape == (4,)


# -------------------------------------------------------------------------- neurons


@pytest.mark.parametrize("seed", range(3))
def test_neurons_against_all_permutations(seed: int) -> None:
    """All 5! assignments of neurons."""
    spec = small_spec("bert", **BERT).restrict(["ff"])
    words = ("intermediate", "{l}.output.dense")
    a, b = draw(spec, seed, *words), draw(spec, seed + 100, *words)
    distances = [distance(a, moved(Alignment(spec, {"ff[0]": torch.tensor(p)}), b)) for p in permutations(range(5))]
    assert len(set(distances)) == 120
    assert solved(spec, a, b)[1] == pytest.approx(min(distances), rel=1e-12)


# ------------------------------------------------------------------- grouped queries


def grouped_parts(blocks: Blocks, g: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries [kv, g, pair, d] and keys [kv, pair, d] as complex numbers; values, outputs [kv, (g), ov, d]."""
    t = named(blocks)
    q = t["q_proj.weight"].reshape(2, g, 2, 2, -1)
    k = t["k_proj.weight"].reshape(2, 2, 2, -1)
    o = t["o_proj.weight"].T.reshape(2, g, 4, -1)
    queries, keys = torch.complex(q[:, :, 0], q[:, :, 1]), torch.complex(k[:, 0], k[:, 1])
    return queries, keys, t["v_proj.weight"].reshape(2, 4, -1), o


def grouped_best(a: Blocks, b: Blocks, g: int) -> float:
    """The best score over S_g wr S_2, phases and rotations in closed form inside."""
    one, two = grouped_parts(a, g), grouped_parts(b, g)

    def score(i: int, j: int, p: tuple[int, ...]) -> float:
        (q, k, v, o), (qq, kk, vv, oo) = ([part[n] for part in side] for side, n in ((one, i), (two, j)))
        phases = (q * qq[list(p)].conj()).sum((0, -1)) + (k * kk.conj()).sum(-1)
        return float(phases.abs().sum()) + nuclear(v @ vv.T + (o @ oo[list(p)].mT).sum(0))

    pairs = [[max(score(i, j, p) for p in permutations(range(g))) for j in range(2)] for i in range(2)]
    return max(pairs[0][0] + pairs[1][1], pairs[0][1] + pairs[1][0])


def grouped_pair(g: int, seed: int) -> tuple[Spec, Blocks, Blocks]:
    """Two random attention blocks with two key-value heads of g queries."""
    spec = small_spec("llama", **GROUPED, num_attention_heads=2 * g)
    words = [f"{n}_proj.weight" for n in "qkvo"]
    a, b = draw(spec, seed, *words), draw(spec, seed + 100, *words)
    return spec.restrict(["kv", "g", "c", "ov"]), a, b


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("g", [2, 3])
def test_grouped_queries_against_all_permutations(g: int, seed: int) -> None:
    """Query heads, key-value heads, phases and rotations at once."""
    spec, a, b = grouped_pair(g, seed)
    assert solved(spec, a, b)[1] == pytest.approx(norms(a, b) - 2 * grouped_best(a, b, g), rel=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_larger_groups_never_lose(seed: int) -> None:
    """Five queries per key-value head are ascended: at least as good as standing still, at most the best."""
    spec, a, b = grouped_pair(5, seed)
    _, reached = solved(spec, a, b)
    stay = solved(spec.restrict(["kv", "c", "ov"]), a, b)[1]
    best = norms(a, b) - 2 * grouped_best(a, b, 5)
    assert best - 1e-9 <= reached <= stay + 1e-9
    assert reached < stay - 1e-3


@pytest.mark.parametrize("seed", range(2))
def test_larger_groups_are_recovered(seed: int) -> None:
    """A planted element of the wreath product comes back."""
    spec, a, _ = grouped_pair(5, seed)
    g = random_alignment(spec.restrict(["kv", "g"]), list(a), torch.Generator().manual_seed(seed))
    assert solved(spec, a, moved(g, a))[1] < 1e-20


def test_ascent_is_monotone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round of coordinate ascent scores at least as high as the one before."""
    spec, a, b = grouped_pair(5, 7)
    runs: list[list[Tensor]] = []
    ascend, total = Coupled.ascend, Coupled.total

    def recorded_ascend(self, *args, **kwargs):
        runs.append([])
        return ascend(self, *args, **kwargs)

    def recorded_total(self, *args):
        found = total(self, *args)
        runs[-1].append(found.data)
        return found

    monkeypatch.setattr(Coupled, "ascend", recorded_ascend)
    monkeypatch.setattr(Coupled, "total", recorded_total)
    solved(spec, a, b)
    assert max(map(len, runs)) > 2
    for run in runs:
        assert all((after >= before - 1e-9).all() for before, after in pairwise(run))


# -------------------------------------------------------------------------- experts


def expert_pair(seed: int) -> tuple[Spec, Blocks, Blocks]:
    """Two random mixtures of three experts of four neurons."""
    spec = small_spec("mixtral", **MIXTURE)
    a, b = draw(spec, seed, "block_sparse_moe"), draw(spec, seed + 100, "block_sparse_moe")
    return spec.restrict(["e", "ff", "u"]), a, b


def expert_best(a: Blocks, b: Blocks) -> float:
    """The best score over S_4 wr S_3 with a sign per neuron."""
    one, two = ({k.split(".")[-2]: t for k, t in named(side).items()} for side in (a, b))
    gate = torch.einsum("end,fmd->efnm", one["w1"], two["w1"])
    up = torch.einsum("end,fmd->efnm", one["w3"], two["w3"])
    down = torch.einsum("edn,fdm->efnm", one["w2"], two["w2"])
    profit, rows = gate + (up + down).abs(), torch.arange(4)
    orders = torch.tensor(list(permutations(range(4))))
    inner = torch.stack([profit[:, :, rows, p].sum(-1) for p in orders]).amax(0)
    outer = inner + one["gate"] @ two["gate"].T
    return max(float(sum(outer[i, p[i]] for i in range(3))) for p in permutations(range(3)))


@pytest.mark.parametrize("seed", range(4))
def test_experts_against_all_permutations(seed: int) -> None:
    """Experts, the neurons inside, and the neurons' signs."""
    spec, a, b = expert_pair(seed)
    assert solved(spec, a, b)[1] == pytest.approx(norms(a, b) - 2 * expert_best(a, b), rel=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_expert_by_expert_is_all_at_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of experts one after the other: the same elements."""
    spec, a, b = expert_pair(seed)
    whole, _ = solved(spec, a, b)
    monkeypatch.setattr(experts, "LARGEST", 0)
    parts, _ = solved(spec, a, b)
    assert set(parts) == set(whole)
    assert all(torch.equal(parts[k], whole[k]) for k in whole)


@pytest.mark.parametrize("seed", range(2))
def test_grouped_queries_head_by_head(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same path under key-value heads."""
    spec, a, b = grouped_pair(3, seed)
    reached = solved(spec, a, b)[1]
    monkeypatch.setattr(experts, "LARGEST", 0)
    assert solved(spec, a, b)[1] == pytest.approx(reached, rel=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_profiles_find_planted_experts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """When pairs are too dear, sorted norms propose them; a moved copy is still brought home."""
    spec, a, _ = expert_pair(seed)
    signed = {"u[0]": torch.randint(0, 2, (3, 4, 1), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1}
    g = random_alignment(spec, list(a), torch.Generator().manual_seed(seed), ["e", "ff"])
    b = moved(Alignment(spec, {**g, **signed}), a)
    assert distance(a, b) > 1
    monkeypatch.setattr(experts, "LARGEST", 0)
    monkeypatch.setattr(experts, "BUDGET", 0)
    assert solved(spec, a, b)[1] < 1e-20


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_large_dense_layers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A feed-forward layer whose Gram is larger than LARGEST has no experts to split it by."""
    spec = small_spec(
        kind, **(BERT if kind == "bert" else {**GROUPED, "num_attention_heads": 2, "intermediate_size": 12})
    )
    spec = spec.restrict(["ff", "u"])
    words = ("intermediate", "{l}.output.dense", "mlp")
    a, b = draw(spec, 0, *words), draw(spec, 100, *words)
    reached = solved(spec, a, b)[1]
    monkeypatch.setattr(experts, "LARGEST", 0)
    monkeypatch.setattr(experts, "BUDGET", 0)
    assert solved(spec, a, b)[1] == pytest.approx(reached, rel=1e-12)

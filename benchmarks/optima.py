"""What the optima gain over solving one space after the other, on random heads and neurons.

    python benchmarks/optima.py      # about two minutes on one core; writes results/optima.json

Gains are fractions of the squared distance that the sequential solution leaves. "Related" heads are copies with 30
% noise (or the level that is named), related neurons copies with noise of their own size; "hidden" ones are moved
by an unknown element first (rotations and factors of up to 4 to either side; general linear maps of the named
condition). Every figure is over all heads of all seeds; the spread is the standard deviation between the means of
seeds.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from isomerge.matching.general_linear_orbit import (
    Sides,
    balanced,
    descend,
    linear_optimum,
    sequential,
    squared_distance,
)
from isomerge.matching.joint import joint_optimum, sequential_scale
from isomerge.matching.rescale import complex_optimum, quartic_scale, quartic_value
from isomerge.symmetry.groups import GROUPS

RESULTS = Path(__file__).parent / "results" / "optima.json"
SEEDS = range(5)
KINDS = ("unrelated", "unrelated, hidden", "related", "related, hidden")
Heads = tuple[Tensor, Tensor, Tensor, Tensor]


def noise(rng: torch.Generator, *shape: int) -> Tensor:
    """Standard normal, float64."""
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def heads(
    kind: str, seed: int, batch: int, n: int, d: int, *, level: float = 0.3, hidden: Tensor | None = None
) -> Heads:
    """x1, y1 (moved) and x2, y2 (anchor) [batch, n, d]; ``hidden`` [batch, n, n] moves the source first."""
    rng = torch.Generator().manual_seed(seed)
    x2, y2, u, v = (noise(rng, batch, n, d) for _ in range(4))
    x1, y1 = (u, v) if kind == "unrelated" else (x2 + level * u, y2 + level * v)
    return (x1, y1, x2, y2) if hidden is None else (hidden @ x1, torch.linalg.inv(hidden).mT @ y1, x2, y2)


def gauge(seed: int, batch: int, n: int, *, group: str, condition: float) -> Tensor:
    """A hidden element: a rotation with a factor of up to ``condition`` to either side, or a general linear map."""
    rng = torch.Generator().manual_seed(1000 + seed)
    if group == "GL":
        return GROUPS["GL"].sample((batch,), n, rng, condition)
    factor = GROUPS["Scale"].sample((batch,), 1, rng, condition**2)
    return GROUPS["O"].sample((batch,), n, rng) * factor[..., None]


def sides(parts: Heads) -> Sides:
    """The Grams of heads."""
    x1, y1, x2, y2 = parts
    return Sides(x2 @ x1.mT, y2 @ y1.mT, x1 @ x1.mT, y1 @ y1.mT, x2 @ x2.mT, y2 @ y2.mT)


def trace(gram: Tensor) -> Tensor:
    """The trace of a stack of matrices."""
    return gram.diagonal(dim1=-2, dim2=-1).sum(-1)


def summary(by_seed: list[Tensor]) -> dict[str, float]:
    """Mean and largest over everything, and the spread of the seeds' means."""
    every = torch.cat([t.flatten() for t in by_seed])
    means = torch.stack([t.mean() for t in by_seed])
    return {
        "mean": float(every.mean()),
        "max": float(every.max()),
        "spread": float(means.std()),
        "count": len(every),
    }


def joint_gains(n: int, d: int, batch: int) -> list[dict[str, object]]:
    """Rotation and factor together against one after the other (seed paper, Eq. 10 then Eq. 12)."""
    found = []
    for kind in KINDS:
        gains, gaps = [], []
        for seed in SEEDS:
            hidden = gauge(seed, batch, n, group="O", condition=4.0) if "hidden" in kind else None
            s = sides(heads(kind.partition(",")[0], seed, batch, n, d, hidden=hidden))
            alpha, beta = trace(s.moved_plus), trace(s.moved_minus)
            best = joint_optimum(GROUPS["O"], alpha, beta, s.plus, s.minus)
            constant = trace(s.anchor_plus) + trace(s.anchor_minus)
            theirs = squared_distance(s, sequential(s))
            gains.append((theirs - best.value - constant) / theirs)
            gaps.append(best.gap / (best.value + constant))
        found.append({"heads": kind, "n": n, "d": d, "gain": summary(gains), "gap": summary(gaps),})  # fmt: skip
    return found


def phase_gains(d: int, batch: int) -> list[dict[str, object]]:
    """RoPE pairs: phase and modulus together against phase first, modulus second."""
    found = []
    for kind in KINDS:
        gains, gaps = [], []
        for seed in SEEDS:
            hidden = gauge(seed, batch, 2, group="O", condition=4.0) if "hidden" in kind else None
            x1, y1, x2, y2 = heads(kind.partition(",")[0], seed, batch, 2, d, hidden=hidden)
            alpha, beta = (t.square().sum((-2, -1)) for t in (x1, y1))
            plus, minus = x2 @ x1.mT, y2 @ y1.mT
            overlaps = [
                torch.stack([c[..., 0, 0] + c[..., 1, 1], c[..., 1, 0] - c[..., 0, 1]], -1) for c in (plus, minus)
            ]
            constant = sum(t.square().sum((-2, -1)) for t in (x2, y2))
            _, value, gap = complex_optimum(alpha, beta, *overlaps)
            a = sequential_scale(GROUPS["Complex"], alpha, beta, plus, minus)
            z, _ = GROUPS["Complex"].solve(plus + minus)
            shared = (z * (a[:, None] * overlaps[0] + overlaps[1] / a[:, None])).sum(-1)
            theirs = alpha * a**2 + beta / a**2 - 2 * shared + constant
            gains.append((theirs - value - constant) / theirs)
            gaps.append(gap / (value + constant))
        found.append({"pairs": kind, "d": d, "gain": summary(gains), "gap": summary(gaps)})
    return found


def linear_distances(n: int, d: int, batch: int) -> list[dict[str, object]]:
    """General linear against rotation, rotation with factor, and the balanced map, over hidden gauges."""
    found = []
    for kind, level in (("related", 0.02), ("related", 0.3), ("unrelated", 0.0)):
        for condition in (1.0, 3.0, 10.0, 100.0):
            gains: dict[str, list[Tensor]] = {"rotation": [], "rotation, factor": [], "joint": [], "balanced": []}
            relative, apart, steps = [], [], 0
            for seed in SEEDS:
                hidden = gauge(seed, batch, n, group="GL", condition=condition)
                s = sides(heads(kind, seed, batch, n, d, level=level, hidden=hidden))
                best = linear_optimum(s)
                joint = joint_optimum(GROUPS["O"], trace(s.moved_plus), trace(s.moved_minus), s.plus, s.minus)
                others = {
                    "rotation": GROUPS["O"].solve(s.plus + s.minus)[0],
                    "rotation, factor": sequential(s),
                    "joint": joint.element * joint.scale[:, None, None],
                    "balanced": balanced(s),
                }
                for name, g in others.items():
                    theirs = squared_distance(s, g)
                    gains[name].append((theirs - best.value) / theirs)
                relative.append((best.value / (trace(s.anchor_plus) + trace(s.anchor_minus))).sqrt())
                one, two = (descend(s, others[name], 1e-10, 300) for name in ("rotation, factor", "balanced"))
                apart.append((one.value - two.value).abs() / best.value)
                steps = max(steps, best.steps)
            found.append(
                {
                    "heads": kind,
                    "noise": level,
                    "condition": condition,
                    "n": n,
                    "d": d,
                    "most_steps": steps,
                    "relative_distance": summary(relative),
                    "starts_apart": summary(apart),
                    "gain_over": {k: summary(v) for k, v in gains.items()},
                }
            )
    return found


def neuron_gains(n: int, d: int) -> list[dict[str, object]]:
    """Neurons assigned with their factors inside the cost against assigned first (as stored, or balanced), then
    scaled."""
    found = []
    for gated in (True, False):
        for kind in KINDS:
            gains: dict[str, list[Tensor]] = {"stored": [], "balanced": []}
            for seed in SEEDS:
                rng = torch.Generator().manual_seed(seed)
                u2, w2, g2, u, w, g = (noise(rng, n, d) for _ in range(6))
                u1, w1, g1 = (u, w, g) if "unrelated" in kind else (x + t for x, t in ((u2, u), (w2, w), (g2, g)))
                if "hidden" in kind:
                    s = GROUPS["Scale"].sample((n,), 1, rng, 16.0)
                    s = s if gated else s.abs()
                    u1, w1 = s * u1, w1 / s
                theirs, ours = assignments((u2, w2, g2 * gated), (u1, w1, g1 * gated), gated)
                for name, value in theirs.items():
                    gains[name].append((value - ours) / value)
            found.append(
                {
                    "mlp": "gated" if gated else "relu",
                    "neurons": kind,
                    "n": n,
                    "d": d,
                    "gain_over": {k: summary(v) for k, v in gains.items()},
                }
            )
    return found


def assignments(
    anchor: tuple[Tensor, ...], source: tuple[Tensor, ...], gated: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """Squared distances: assigned as stored or balanced and then scaled, and with factors inside."""
    (u2, w2, g2), (u1, w1, g1) = anchor, source
    alpha, beta = u1.square().sum(-1), w1.square().sum(-1)
    plus, minus, free = u2 @ u1.T, w2 @ w1.T, g2 @ g1.T
    value = quartic_value(alpha, beta, plus, minus, signed=gated)
    constant = sum(t.square().sum() for t in (u2, w2, g2, g1))
    perm = GROUPS["Perm"]

    def mean_norm(u: Tensor, w: Tensor) -> Tensor:
        return (w.norm(dim=-1) / u.norm(dim=-1)).sqrt()

    mine, its = mean_norm(u1, w1), mean_norm(u2, w2)
    even = its[:, None] * plus * mine + minus / its[:, None] / mine
    profits = {"stored": plus + minus + free, "balanced": (even.abs() if gated else even) + free}
    found = {}
    for name, profit in profits.items():
        p, _ = perm.solve(profit)
        rows = torch.arange(len(p))
        a = quartic_scale(alpha[p], beta[p], plus[rows, p], minus[rows, p], signed=gated)
        cost = alpha[p] * a**2 + beta[p] / a**2 - 2 * (a * plus[rows, p] + minus[rows, p] / a)
        found[name] = cost.sum() - 2 * free[rows, p].sum() + constant
    p, score = perm.solve(free - value / 2)
    return found, constant - 2 * score


def main() -> None:
    """Run everything and write the results."""
    torch.set_num_threads(1)
    results = {
        "seeds": list(SEEDS),
        "joint": [row for size in ((1, 8, 400), (8, 64, 40), (64, 768, 12)) for row in joint_gains(*size)],
        "phase": phase_gains(64, 400),
        "linear": [row for size in ((16, 64, 20), (64, 768, 12)) for row in linear_distances(*size)],
        "neurons": [row for size in ((64, 16), (512, 128)) for row in neuron_gains(*size)],
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    for name in ("joint", "phase", "linear", "neurons"):
        for row in results[name]:
            print(name, json.dumps(row))


if __name__ == "__main__":
    main()

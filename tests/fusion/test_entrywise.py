"""Compiled methods of single entries against plain torch forms, whole and in pieces, on numbers of every kind."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from isomerge.fusion import task_vectors
from isomerge.fusion.registry import method
from isomerge.fusion.trimming import Trim
from isomerge.passes import Pass

SHAPES = ((), (1,), (0,), (3, 0), (5, 9), (4, 3, 5), (2, 3, 2, 2), (4100,), (64, 70))
TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "noise": lambda x: x,
    "equal sizes": lambda x: (x * 2).round() / 4,
    "zeros of both signs": lambda x: torch.where(x.abs() < 0.6, 0.0 * x.sign(), x),
    "subnormal": lambda x: x * 1e-40,
    "large": lambda x: x * 4000,
}
ROUNDINGS = 8
"""By how many roundings sums may differ."""


def stable(x: Tensor, *, descending: bool = False) -> Tensor:
    """The ranks of the entries of a vector, earlier ones first among equals."""
    return x.argsort(stable=True, descending=descending).argsort()


def rescaled(delta: Tensor, mask: Tensor, rescale: bool) -> Tensor:
    """The entries of a mask, with the sum of magnitudes of all."""
    kept = delta * mask
    before, after = float(delta.abs().double().sum()), float(kept.abs().double().sum())
    return kept * (before / after) if rescale and before >= 1e-7 and after >= 1e-7 else kept


def large(delta: Tensor, p: dict[str, Any], k: int, _: Any) -> Tensor:
    """TIES: the largest."""
    share = p["density"][k]
    count = max(1, int(share * delta.numel())) if share else 0
    return stable(delta.flatten().abs(), descending=True).view(delta.shape) < count


def middle(delta: Tensor, p: dict[str, Any], k: int, _: Any) -> Tensor:
    """Breadcrumbs: those below the largest."""
    n = delta.numel()
    count = int(p["density"][k] * n)
    below, ranks = max(0, n - count - int(p["gamma"][k] * n)), stable(delta.flatten().abs()).view(delta.shape)
    return (ranks >= below) & (ranks < below + count)


def drawn(delta: Tensor, p: dict[str, Any], k: int, rng: torch.Generator) -> Tensor:
    """DARE: random ones."""
    return torch.rand(delta.shape, generator=rng) < p["density"][k]


def by_rank(delta: Tensor, p: dict[str, Any], k: int, rng: torch.Generator) -> Tensor:
    """DELLA: random ones, the larger the likelier."""
    share, window = p["density"][k], p["epsilon"][k]
    if not share or not delta.numel():
        return torch.zeros(delta.shape, dtype=torch.bool)
    rows = delta.abs() if delta.ndim > 1 else delta.abs().reshape(1, -1)
    n = rows.shape[1]
    steps = torch.linspace(share - window, share + window, n) if n > 1 else torch.tensor([share])
    ranks = rows.argsort(dim=1, stable=True).argsort(dim=1)
    return (torch.rand(rows.shape, generator=rng) < steps[ranks]).view(delta.shape)


def added(mask: Any) -> Any:
    """The base and what a mask leaves of task vectors, with an election where there is one."""

    def merged(tensors: Sequence[Tensor], base: Tensor, p: dict[str, Any], rng: Any) -> Tensor:
        deltas = [t - base for t in tensors]
        if mask is not None:
            deltas = [
                d if p["density"][k] == 1 else rescaled(d, mask(d, p, k, rng), p["rescale"])
                for k, d in enumerate(deltas)
            ]
        parts = [d * w for d, w in zip(deltas, p["weight"], strict=True)]
        total: Any = sum(p["weight"])
        if how := p.get("consensus_method"):
            votes = sum(parts) if how == "sum" else sum(part.sign() for part in parts)
            agree = [part.sign() == torch.where(votes >= 0, 1.0, -1.0) for part in parts]
            parts = [part * agrees for part, agrees in zip(parts, agree, strict=True)]
            total = sum(w * agrees.to(base.dtype) for w, agrees in zip(p["weight"], agree, strict=True))
            total = torch.where(total == 0, 1.0, total)
        mixed: Any = sum(parts)
        return base + (mixed / total if p.get("normalize") and (how or abs(total) > 1e-8) else mixed) * p["lambda"]

    return merged


def elected(tensors: Sequence[Tensor], base: Tensor, p: dict[str, Any], _: Any) -> Tensor:
    """EMR."""
    deltas = torch.stack([(t - base) * w for t, w in zip(tensors, p["weight"], strict=True)])
    sign = torch.where(sum(deltas) > 0, 1.0, -1.0)
    return base + (deltas * sign).amax(0).clamp_min(0) * sign * p["lambda"]


def needed(tensors: Sequence[Tensor], base: Tensor, p: dict[str, Any], _: Any) -> Tensor:
    """Consensus of TALL masks."""
    deltas = [(t - base) * w for t, w in zip(tensors, p["weight"], strict=True)]
    whole: Any = sum(deltas)
    masks = [d.abs() > (whole - d).abs() * share for d, share in zip(deltas, p["tall_lambda"], strict=True)]
    return base + whole * (torch.stack(masks).sum(0) >= p["agreeing"]) * p["lambda"]


def near(tensors: Sequence[Tensor], base: Tensor, p: dict[str, Any], _: Any) -> Tensor:
    """NearSwap."""
    share = (p["t"] / (base - tensors[0]).abs().clamp_min(1e-6)).clamp(0, 1)
    return share * tensors[0] + (1 - share) * base


def average(tensors: Sequence[Tensor], base: Any, p: dict[str, Any], _: Any) -> Tensor:
    """Linear."""
    total = sum(p["weight"]) if p["normalize"] else 1.0
    return sum((t * (w / total) for t, w in zip(tensors, p["weight"], strict=True)), torch.zeros_like(tensors[0]))


def unique(tensors: Sequence[Tensor], base: Tensor, p: dict[str, Any], _: Any) -> Tensor:
    """RAM, with gains where there are any."""
    deltas = [(t - base) * ((t - base).abs() > p["epsilon"]) for t in tensors]
    counts = sum(((t - base).abs() > p["epsilon"]).int() for t in tensors)
    mixed = torch.zeros_like(base)
    for delta in deltas:
        alone = int((delta.ne(0) & (counts == 1)).sum())
        rho = int((delta.ne(0) & (counts != 1)).sum()) / max(alone, p["epsilon"])
        gain = 1 + p.get("r", 0.0) * min(rho, p.get("alpha", 0.0))
        mixed += torch.where(counts == 1, delta * gain, delta / torch.as_tensor(counts).clamp_min(1))
    return mixed + base


def differing(tensors: Sequence[Tensor], base: Tensor, p: dict[str, Any], _: Any) -> Tensor:
    """SCE."""
    deltas, share = torch.stack([t - base for t in tensors]), p["select_topk"]
    if share < 1:
        spread = deltas.var(0, unbiased=False)
        kept = int(int(spread.count_nonzero()) * share)
        deltas = deltas * (stable(spread.flatten(), descending=True).view(base.shape) < kept)
    squares = [float(d.double().square().sum()) / max(1, d.numel()) for d in deltas]
    shares = [1 / len(squares) if sum(squares) < 1e-6 else square / sum(squares) for square in squares]
    sign = torch.where(sum(deltas) >= 0, 1.0, -1.0)
    agree = [(d.sign() == sign).to(base.dtype) * s for d, s in zip(deltas, shares, strict=True)]
    mixed: Any = sum(d * a for d, a in zip(deltas, agree, strict=True))
    return mixed / torch.as_tensor(sum(agree)).clamp_min(1e-6) + base


FORMS: dict[str, Any] = {
    "linear": average,
    "task_arithmetic": added(None),
    "ties": added(large),
    "breadcrumbs": added(middle),
    "breadcrumbs_ties": added(middle),
    "dare_linear": added(drawn),
    "dare_ties": added(drawn),
    "della": added(by_rank),
    "della_linear": added(by_rank),
    "emr": elected,
    "consensus": needed,
    "nearswap": near,
    "ram": unique,
    "ramplus_tl": unique,
    "sce": differing,
}
CHOICES: dict[str, Sequence[Any]] = {
    "density": (0.0, 0.1, 0.5, 0.9, 1.0),
    "gamma": (0.0, 0.01, 0.3, 0.8),
    "epsilon": (0.05,),
    "tall_lambda": (0.4, 1.0),
    "normalize": (True, False),
    "rescale": (True, False),
    "lambda": (1.0, 0.7),
    "consensus_method": ("sum", "count"),
    "select_topk": (0.0, 0.3, 0.5, 1.0),
    "t": (0.0, 0.01, 0.3, 1.0),
    "agreeing": (0, 1, 2),
    "weight": (1.0, 0.5, 0.25, 2.0),
}


def cases(name: str, count: int) -> Iterator[tuple[list[Tensor], Tensor, dict[str, Any]]]:
    """Models, a base and options."""
    chosen = method(name)
    least, most = chosen.models
    for number in range(count):
        draw, rng = random.Random(f"{name} {number}"), torch.Generator().manual_seed(number)
        shape, dtype, kind = draw.choice(SHAPES), draw.choice(TYPES), KINDS[draw.choice(list(KINDS))]
        base, *tensors = (
            kind(torch.randn(shape, generator=rng, dtype=torch.float64)).to(dtype)
            for _ in range(1 + draw.randint(least, most or 4))
        )
        options = {
            key: [draw.choice(CHOICES[key]) for _ in tensors] if option.per_model else draw.choice(CHOICES[key])
            for key, option in chosen.options.items()
            if key in CHOICES and not (key == "epsilon" and not option.per_model)
        }
        yield tensors, base, {**chosen.values(options, len(tensors))}


def worst(name: str, count: int) -> float:
    """The largest difference from the plain form, in roundings of the largest entry; pieces must equal the whole, and one
    loop over what is stored give the bits and sums of all steps apart."""
    chosen, most = method(name), 0.0
    for tensors, base, options in cases(name, count):
        wide = torch.float64 if base.dtype == torch.float64 else torch.float32
        every, origin = [t.to(wide) for t in tensors], base.to(wide)
        start = None if chosen.base == "none" else origin

        def rng() -> torch.Generator:
            return torch.Generator().manual_seed(5)

        whole = chosen.fuse(every, options, base=start, rng=rng())
        plain = FORMS[name](every, origin, options, rng()).to(wide)
        parts = [base] if start is not None else []
        for stored in (wide, torch.bfloat16):
            told = []
            for in_one_loop in (False, True):
                selection, out = (
                    chosen.selection(tensors, options, base, rng()),
                    torch.empty(base.shape, dtype=stored),
                )
                reading = Pass([*tensors, *parts], wide)

                def merged(
                    pieces: list[Tensor],
                    *,
                    n: int = len(tensors),
                    options: dict[str, Any] = options,
                    selection: Any = selection,
                ) -> Tensor:
                    return chosen.fuse(pieces[:n], options, base=[*pieces, None][n], selection=selection)

                entries = chosen.entries_of(options, len(tensors), wide, selection)
                assert entries is not None
                reading.run(entries if in_one_loop else merged, out)
                told.append(
                    [out.view(torch.uint8).tolist() if out.ndim else float(out), reading.sums, reading.result]
                )
            assert str(told[0]) == str(told[1]), (name, options)
            assert stored != wide or torch.equal(out, whole), (name, options)
        scale = max([float(t.abs().max()) for t in (*every, origin, plain) if t.numel()] or [0.0])
        unit = max(torch.finfo(wide).eps * scale, torch.finfo(wide).smallest_normal * torch.finfo(wide).eps)
        most = max([most, *((whole - plain).abs() / unit).flatten().tolist()])
    return most


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 700 entries."""
    monkeypatch.setattr("isomerge.passes.PIECE", 700)


@pytest.mark.parametrize("name", FORMS)
def test_as_torch_computes_it(name: str) -> None:
    """Every shape, type and kind of numbers, with ties at thresholds, and no weights."""
    assert worst(name, 16) <= ROUNDINGS


def test_a_mistake_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later entries kept among equal ones; votes that are not weighted."""
    with monkeypatch.context() as patch:
        patch.setattr("isomerge.fusion.ties.Trim", lambda *a, earlier, **k: Trim(*a, **k))
        assert worst("ties", 16) > ROUNDINGS
    unweighted = replace(task_vectors.ELECTED, vote=lambda d, a, b, votes: votes + d)
    monkeypatch.setattr(task_vectors, "ELECTED", unweighted)
    assert worst("ties", 16) > ROUNDINGS

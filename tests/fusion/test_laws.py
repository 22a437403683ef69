"""Laws that every data-free method keeps: purity, dtypes, fixed points, order of models, and which maps it commutes
with."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from isomerge.fusion.registry import methods

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A method with parameters that leave none of its steps idle."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    per_model: dict[str, list[float]] = field(default_factory=dict)
    base: bool = True
    models: int = 3
    commutes: str = "permutations"
    """``all`` linear maps, ``rotations`` of the whole tensor, or ``permutations`` of its rows and columns."""
    orderly: bool = True
    """Permuting the models (with their parameters) changes nothing."""
    scales: bool = True
    """It commutes with a common positive factor."""

    def __str__(self) -> str:
        return "-".join([self.name, *map(str, self.options.values())])

    def run(
        self, tensors: Tensors, base: torch.Tensor, seed: int = 0, order: list[int] | None = None
    ) -> torch.Tensor:
        """Apply the method; ``order`` permutes the models."""
        method = methods()[self.name]
        order = order or list(range(self.models))
        given = {**self.options, **{k: [v[m] for m in order] for k, v in self.per_model.items()}}
        rng = torch.Generator().manual_seed(seed) if method.random else None
        chosen = [tensors[m] for m in order]
        return method.fuse(chosen, given, base=base if self.base else None, rng=rng)


WEIGHT = {"weight": [1.0, 0.5, 0.8]}
THIN = {**WEIGHT, "density": [0.5, 0.6, 0.4]}
CASES = [
    Case("linear", {}, WEIGHT, base=False, commutes="all"),
    Case("task_arithmetic", {"lambda": 0.7}, WEIGHT, commutes="all"),
    Case("task_arithmetic", {"normalize": True}, WEIGHT, commutes="all"),
    Case("passthrough", {}, {"scale": [1.0]}, base=False, models=1, commutes="all"),
    Case("slerp", {"t": 0.3}, models=1, commutes="rotations"),
    Case("nuslerp", {}, {"weight": [1.0, 0.4]}, models=2, commutes="rotations"),
    Case("nuslerp", {}, {"weight": [1.0, 0.4]}, base=False, models=2, commutes="rotations"),
    Case("nuslerp", {"nuslerp_flatten": False}, {"weight": [1.0, 0.4]}, models=2),
    Case("nuslerp", {"nuslerp_flatten": False, "nuslerp_row_wise": True}, {"weight": [1.0, 0.4]}, models=2),
    Case("multislerp", {}, WEIGHT, commutes="rotations"),
    Case("multislerp", {"normalize_weights": False}, WEIGHT, base=False, commutes="rotations", orderly=True),
    Case("karcher", {}, base=False, commutes="rotations"),
    Case("model_stock", {}, commutes="rotations"),
    Case("model_stock", {"filter_wise": True}),
    Case("ties", {"lambda": 1.2}, THIN),
    Case("ties", {"consensus_method": "count", "rescale": True, "int8_mask": True}, THIN),
    Case("breadcrumbs", {}, {**THIN, "gamma": [0.1, 0.2, 0.05]}),
    Case("breadcrumbs_ties", {"normalize": True}, {**THIN, "gamma": [0.1, 0.2, 0.05]}),
    Case("sce", {"select_topk": 0.5}, scales=False),
    Case("nearswap", {"t": 0.3}, models=1, scales=False),
    Case("arcee_fusion", {}, models=1, scales=False),
    Case("ram", {"epsilon": 0.3}, scales=False),
    Case("ramplus_tl", {"epsilon": 0.5}, scales=False),
    Case("dare_linear", {}, THIN, commutes="", orderly=False),
    Case("dare_ties", {"normalize": True}, THIN, commutes="", orderly=False),
    Case("della", {}, THIN, commutes="", orderly=False),
    Case("della_linear", {"rescale": False}, THIN, commutes="", orderly=False),
    Case("tsv_m", {"lambda": 0.7}, WEIGHT, commutes="rotations"),
    Case("tsv_m", {"rank": 3}, WEIGHT, commutes="rotations"),
    Case("svd_task_arithmetic", {"rank": 3}, WEIGHT, commutes="rotations"),
    Case("iso_c", {"lambda": 0.7}, WEIGHT, commutes="rotations"),
    Case("iso_cts", {"common": 0.4}, WEIGHT, commutes="rotations"),
    Case("knots", {"lambda": 1.2}, THIN),
    Case("knots", {"normalize": False}, THIN),
    Case("wudi", {"iterations": 20, "learning_rate": 1e-2}, WEIGHT, scales=False),
    Case("doge", {"eta": 2.0, "iterations": 20, "learning_rate": 1e-2}, WEIGHT, scales=False),
    Case("pcb", {"density": 0.4, "clamp": 0.05}, WEIGHT, scales=False),
    Case("consensus", {}, {**WEIGHT, "tall_lambda": [0.4, 0.5, 0.3]}),
    Case("emr", {"lambda": 0.9}, WEIGHT),
    Case("lines", {"alpha": 0.3, "beta": 0.5}, WEIGHT, commutes="all"),
]  # fmt: skip
every = pytest.mark.parametrize("case", CASES, ids=str)


def drawn(shape: tuple[int, ...], count: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensors:
    """Models around a base of their own, which comes last."""
    rng = torch.Generator().manual_seed(seed)
    base = torch.randn(shape, generator=rng, dtype=dtype)
    return [*(base + 0.5 * torch.randn(shape, generator=rng, dtype=dtype) for _ in range(count)), base]


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-9) -> bool:
    """Equal to rounding."""
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance)


def test_no_method_without_laws() -> None:
    """Every method of tensors alone (statistics and units have tests of their own) is held to these laws."""
    alone = {n for n, m in methods().items() if not (m.unit or m.forward) and m.statistics is None}
    assert alone == {case.name for case in CASES}


def test_no_method_without_a_line() -> None:
    """docs/guide/which-method.md names every method and every parameter."""
    page = (Path(__file__).parents[2] / "docs" / "guide" / "which-method.md").read_text()
    for name, method in methods().items():
        assert f"`{name}`" in page
        assert [option for option in method.options if not re.search(rf"\b{option}\b", page)] == []


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 1), (6, 7), (2, 3, 4)], ids=str)
def test_purity_shape_and_dtype(case: Case, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Inputs stay and are not handed out; any shape comes back finite, in its dtype."""
    *tensors, base = drawn(shape, case.models, dtype)
    copies = [t.clone() for t in (*tensors, base)]
    found = case.run(tensors, base)
    assert (found.shape, found.dtype) == (base.shape, dtype)
    assert bool(found.isfinite().all())
    found.fill_(7)
    assert all(torch.equal(t, c) for t, c in zip((*tensors, base), copies, strict=True))


@every
def test_equal_models_stay(case: Case) -> None:
    """When nobody has moved from the base, the base comes out; zeros too."""
    (base,) = drawn((6, 7), 0)
    if case.options.get("normalize_weights") is False:
        return  # three of one model are not one
    for value in (base, torch.zeros_like(base)):
        assert close(case.run([value] * case.models, value), value)


@every
def test_float32_is_float64_rounded(case: Case) -> None:
    """The same decisions in both precisions, at random inputs that are no ties."""
    tensors = drawn((6, 7), case.models, torch.float32)
    *single, base = tensors
    *double, origin = [t.double() for t in tensors]
    assert close(case.run(single, base).double(), case.run(double, origin), 1e-5)


@every
def test_order_of_models(case: Case) -> None:
    """Models are a set: their order is of no importance, each with its parameters."""
    if case.orderly and case.models > 1:
        *tensors, base = drawn((6, 7), case.models)
        order = [*range(1, case.models), 0]
        assert close(case.run(tensors, base, order=order), case.run(tensors, base))


@every
def test_common_factor(case: Case) -> None:
    """Without a threshold in absolute units, all models times three give three times the merge."""
    if case.scales:
        *tensors, base = drawn((6, 7), case.models)
        assert close(case.run([3 * t for t in tensors], 3 * base), 3 * case.run(tensors, base))


@every
def test_which_symmetries_it_commutes_with(case: Case) -> None:
    """Permutations; for some, rotations; for a few, every linear map. This is what docs/guide/which-method.md
    promises.

    And where it does not promise them, it does not keep them.
    """
    if not case.commutes:
        return
    *tensors, base = drawn((6, 7), case.models)
    rng = torch.Generator().manual_seed(9)
    rows, columns = torch.randperm(6, generator=rng), torch.randperm(7, generator=rng)
    left, right = (torch.randn(n, n, generator=rng, dtype=torch.float64) for n in (6, 7))
    turns = torch.linalg.qr(left)[0], torch.linalg.qr(right)[0]
    gaps = {}
    maps = {
        "permutations": lambda x: x[rows][:, columns],
        "rotations": lambda x: turns[0] @ x @ turns[1],
        "all": lambda x: left @ x @ right,
    }
    for name, g in maps.items():
        moved = case.run([g(t) for t in tensors], g(base))
        gaps[name] = float((moved - g(case.run(tensors, base))).abs().max())
    kept = ["permutations", "rotations", "all"]
    promised = kept[: kept.index(case.commutes) + 1]
    assert all(gaps[name] < 1e-9 for name in promised)
    assert all(gaps[name] > 1e-4 for name in kept if name not in promised)


@every
def test_random_methods_follow_their_generator(case: Case) -> None:
    """Equal seeds, equal masks, whatever else was drawn in between; another seed, another mask."""
    if not methods()[case.name].random:
        return
    *tensors, base = drawn((6, 7), case.models)
    found = case.run(tensors, base, seed=3)
    torch.manual_seed(1)
    torch.randn(5)
    state = torch.get_rng_state()
    assert torch.equal(case.run(tensors, base, seed=3), found)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(case.run(tensors, base, seed=4), found)

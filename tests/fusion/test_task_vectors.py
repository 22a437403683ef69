"""What methods that merge task vectors are, beyond the laws that all keep: their special cases, their formulas, and what is no
matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.fusion.descent import adam
from isomerge.fusion.fusion import fusion_of
from isomerge.fusion.isotropic import places
from isomerge.fusion.matrices import directions, left_directions, nearest_orthonormal, sum_of
from isomerge.fusion.registry import methods

MATRICES = ["tsv_m", "svd_task_arithmetic", "iso_c", "iso_cts", "knots", "wudi", "doge"]


def drawn(*shape: int, count: int = 3, seed: int = 0) -> tuple[Tensor, list[Tensor]]:
    """A base, and models around it."""
    rng = torch.Generator().manual_seed(seed)
    base = torch.randn(shape, generator=rng, dtype=torch.float64)
    return base, [base + 0.1 * torch.randn(shape, generator=rng, dtype=torch.float64) for _ in range(count)]


def merged(name: str, base: Tensor, models: list[Tensor], **given: Any) -> Tensor:
    """What a method adds to the base."""
    return methods()[name].fuse(models, given, base=base) - base


def thin(base: Tensor, *pairs: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Models whose task vectors are outer products."""
    return [base + left.outer(right) for left, right in pairs]


def test_orthogonal_tasks_are_added_whole() -> None:
    """Task vectors that neither read nor write a common direction do not disturb each other: TSV-M, KnOTS and
    truncation add them up; Iso-C gives all the mean length."""
    base, _ = drawn(6, 5)
    e = torch.eye(6, dtype=torch.float64)
    models = thin(base, (2 * e[0], e[0, :5]), (e[1], e[1, :5]))
    summed = models[0] + models[1] - 2 * base
    for name in ("tsv_m", "svd_task_arithmetic", "knots"):
        torch.testing.assert_close(merged(name, base, models), summed, msg=name)
    mean = 1.5 * (summed != 0)
    torch.testing.assert_close(merged("iso_c", base, models), mean.double())
    # all of the smaller side is common, or all is the models' own
    torch.testing.assert_close(merged("iso_cts", base, models, common=1.0), mean.double())


@pytest.mark.parametrize("shape", [(40, 40), (24, 90), (90, 24)])
def test_directions_in_float32_are_those_of_float64(shape: tuple[int, int]) -> None:
    """Singular values over four decades, and none of what is rounding: the Gram matrix in float64 loses neither;
    in float32 it would lose half of the digits."""
    rng = torch.Generator().manual_seed(0)
    u, v = (torch.linalg.qr(torch.randn(n, 20, generator=rng, dtype=torch.float64)).Q for n in shape)
    s = torch.logspace(0, -4, 20, dtype=torch.float64)
    matrix = ((u * s) @ v.mT).float()
    left, values, right = directions(matrix)
    assert len(values) == 20
    torch.testing.assert_close(values.double(), s, rtol=1e-3, atol=0)
    torch.testing.assert_close(values.double(), torch.linalg.svdvals(matrix.double())[:20], rtol=1e-5, atol=1e-8)
    for columns in (left, right.mT):
        torch.testing.assert_close(columns.mT @ columns, torch.eye(20), rtol=0, atol=1e-3)
    kept, values, others = directions(matrix, 3)
    assert float(((kept * values) @ others - matrix).norm()) == pytest.approx(float(s[3:].norm()), rel=1e-4)


def test_equal_tasks_are_one() -> None:
    """Three times one model is that model to TSV-M, cut to its rank: its directions are made orthonormal to
    themselves. A model that changed nothing changes nothing."""
    base, (model, *_) = drawn(6, 6)
    u, s, v = directions(model - base, 2)
    torch.testing.assert_close(merged("tsv_m", base, [model] * 3), (u * s) @ v)
    one = thin(base, (u[:, 0], v[0]))
    for name in ("tsv_m", "iso_c", "iso_cts", "knots", "wudi"):
        alone, beside = merged(name, base, one), merged(name, base, [*one, base, base])
        if name != "iso_cts":
            torch.testing.assert_close(beside, alone, msg=name)


def test_all_ranks_are_task_arithmetic() -> None:
    """Truncation to all ranks, WUDI after no step, consensus of nobody and TIES of one vote."""
    base, models = drawn(7, 5)
    summed = merged("task_arithmetic", base, models, weight=[1.0, 0.5, 2.0])
    for name, given in {
        "svd_task_arithmetic": {"rank": 5},
        "wudi": {"iterations": 0},
        "consensus": {"agreeing": 0},
        "lines": {"alpha": 1.0},
    }.items():
        torch.testing.assert_close(merged(name, base, models, weight=[1.0, 0.5, 2.0], **given), summed, msg=name)


def test_layers_are_scaled_along_the_stack() -> None:
    """LiNeS: one over the number of models at the first layer, the whole sum at the last; for any method by a
    gradient."""
    base, models = drawn(4, 3)
    summed = sum(models) - 3 * base
    for depth, factor in ((0.0, 1 / 3), (0.5, 2 / 3), (1.0, 1.0)):
        torch.testing.assert_close(merged("lines", base, models, depth=depth), factor * summed)
    asked = fusion_of(3, method="lines", base=True, parameters={})
    depths = [asked.parameters.depth(layer, depth=3) for layer in (None, 0, 1, 2)]
    assert depths == [0.0, 0.0, 0.5, 1.0]


def test_wudi_disturbs_less_than_the_sum() -> None:
    """Its loss falls, and its gradient is that of the loss."""
    base, models = drawn(5, 4)
    deltas = [model - base for model in models]

    def loss(tau: Tensor) -> Tensor:
        parts = [((tau - d) @ d.mT).square().sum() / d.square().sum() for d in deltas]
        return torch.stack(parts).sum()

    given = {"iterations": 100, "learning_rate": 1e-2}
    assert float(loss(merged("wudi", base, models, **given))) < 0.6 * float(loss(sum_of(deltas)))
    tau = sum_of(deltas).requires_grad_()
    optimiser = torch.optim.Adam([tau], lr=1e-2)
    for _ in range(20):
        optimiser.zero_grad()
        loss(tau).backward()
        optimiser.step()
    torch.testing.assert_close(merged("wudi", base, models, iterations=20, learning_rate=1e-2), tau.detach())


def test_doge_follows_its_loss_outside_of_the_shared_space() -> None:
    """The correction is Adam's on the published loss, by automatic differentiation."""
    base, models = drawn(8, 6)
    deltas = [model - base for model in models]
    factors = [0.5 / float(d.norm()) for d in deltas]
    strongest = torch.cat([torch.linalg.svd(d)[0][:, :2] for d in deltas], 1)
    shared = torch.linalg.svd(strongest)[0][:, :2]

    def gradient(change: Tensor) -> Tensor:
        free = change.clone().requires_grad_()
        mixed = sum_of([c * (d + free) for c, d in zip(factors, deltas, strict=True)])
        loss = torch.stack([(d * (d - mixed)).sum(1).square().sum() for d in deltas]).sum()
        (slope,) = torch.autograd.grad(loss, free)
        return slope - shared @ shared.mT @ slope

    change = adam(torch.zeros_like(base), gradient, iterations=15, learning_rate=1e-2)
    wanted = sum(c * (d + change) for c, d in zip(factors, deltas, strict=True))
    given = {"eta": 0.5, "density": 1.0, "subspace": 1 / 3, "iterations": 15, "learning_rate": 1e-2}
    torch.testing.assert_close(merged("doge", base, models, **given), wanted)


def test_emr_elects_and_keeps_the_largest() -> None:
    """Entry by entry."""
    base = torch.zeros(4, dtype=torch.float64)
    models = [
        torch.tensor(x).double() for x in ([1.0, -1.0, 0.0, 2.0], [3.0, 2.0, 0.0, -3.0], [-2.0, 0.5, 0.0, 0.5])
    ]
    assert merged("emr", base, models).tolist() == [3.0, 2.0, 0.0, -3.0]


def test_consensus_leaves_out_what_one_task_alone_needs() -> None:
    """Catastrophic and selfish weights, as the paper calls them."""
    base = torch.zeros(3, dtype=torch.float64)
    models = [torch.tensor(x).double() for x in ([1.0, 1.0, 0.1], [1.0, 0.0, -3.0], [1.0, 0.0, 3.0])]
    assert merged("consensus", base, models, agreeing=2).tolist() == pytest.approx([3.0, 0.0, 0.1])
    with pytest.raises(IsomergeError, match="`agreeing` is 4, but 3 models are merged"):
        merged("consensus", base, models, agreeing=4)
    with pytest.raises(IsomergeError, match="merges 2 or more models"):
        fusion_of(1, method="consensus", base=True, parameters={})
    assert merged("consensus", base, models, agreeing=1).tolist() == pytest.approx([3.0, 1.0, 0.1])


@pytest.mark.parametrize("name", MATRICES)
def test_stacks_and_kernels(name: str) -> None:
    """Experts in one tensor are merged one by one; a kernel is the matrix that acts on a window."""
    base, models = drawn(3, 6, 5)
    given = {"iterations": 5} if name in ("wudi", "doge") else {}
    whole = merged(name, base, models, stacked=1, **given)
    for k in range(3):
        torch.testing.assert_close(whole[k], merged(name, base[k], [m[k] for m in models], **given))
    kernel = merged(name, base, models, **given)
    flat = merged(name, base.flatten(1), [m.flatten(1) for m in models], **given)
    torch.testing.assert_close(kernel.flatten(1), flat)
    stacked_vectors = merged(name, base[0], [m[0] for m in models], stacked=1, **given)
    rows = [merged(name, base[0][k], [m[0][k] for m in models], **given) for k in range(6)]
    if name != "knots":  # density is of the whole tensor, whatever is stacked in it
        torch.testing.assert_close(stacked_vectors, torch.stack(rows))


def test_vectors_are_averaged() -> None:
    """By weight; DOGE leaves them."""
    base, models = drawn(5)
    mean = (models[0] + 3 * models[1] - 4 * base) / 4
    for name in ("tsv_m", "iso_c", "iso_cts", "wudi"):
        torch.testing.assert_close(merged(name, base, models[:2], weight=[1.0, 3.0]), mean, msg=name)
    assert not merged("doge", base, models).any()


def test_places_fill_the_smaller_side() -> None:
    """Whatever the share, the number of models and the side; never more than there are."""
    for side in range(1, 12):
        for models in (1, 2, 3, 5):
            for share in (0.0, 0.3, 0.8, 1.0):
                common, own = places(side, models, share)
                assert common + models * own == side
                assert min(common, own) >= 0
    assert places(10, 2, 0.8) == (8, 1)


def test_the_nearest_orthonormal_columns() -> None:
    """Of dependent ones the partial isometry."""
    _, (x, *_) = drawn(6, 3)
    q = nearest_orthonormal(x)
    torch.testing.assert_close(q.mT @ q, torch.eye(3, dtype=torch.float64))
    double = nearest_orthonormal(torch.cat([q, q], 1))
    torch.testing.assert_close(double, torch.cat([q, q], 1) / 2**0.5)


WRONG = [
    ("tsv_m", {"rank": 0}, "`parameters.rank` is 0: give a number of at least 1"),
    ("svd_task_arithmetic", {"rank": 0}, "of at least 1"),
    ("iso_cts", {"common": 1.5}, "from 0 to 1"),
    ("knots", {"density": -0.1}, "from 0 to 1"),
    ("wudi", {"iterations": -1}, "of at least 0"),
    ("wudi", {"iteration": 3}, "did you mean `iterations`"),
    ("doge", {"subspace": 2}, "from 0 to 1"),
    ("pcb", {"clamp": 0.6}, "from 0 to 0.5"),
    ("consensus", {"tall_lambda": -1}, "of at least 0"),
    ("iso_c", {"weight": [1, -1]}, "of at least 0"),
]


@pytest.mark.parametrize(("name", "given", "words"), WRONG)
def test_values_that_no_method_takes(name: str, given: dict, words: str) -> None:
    """One sentence, before anything is read."""
    with pytest.raises(IsomergeError, match=words):
        fusion_of(2, method=name, base=True, parameters=given)
    with pytest.raises(IsomergeError, match="needs a base model"):
        fusion_of(2, method=name, base=False, parameters={})


def normal(*shape: int, seed: int) -> Tensor:
    """Float64 noise."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("others", [0, 1, 6, 12, 25])
def test_known_columns_change_as_all_would(others: int) -> None:
    """The polar factor of orthonormal columns and others, some of them shared, is that of all together: wrong where
    the known ones stay as they are."""
    known = torch.linalg.qr(normal(60, 20, seed=1)).Q
    columns = torch.cat([known, normal(60, others, seed=2) + known[:, :1]], 1)
    u, _, v = torch.linalg.svd(columns, full_matrices=False)
    assert torch.allclose(nearest_orthonormal(columns, 20), u @ v, atol=1e-12)
    assert torch.allclose(nearest_orthonormal(columns.float(), 20).double(), u @ v, atol=1e-5)
    assert others == 0 or not torch.allclose(u @ v[:, :20], known, atol=1e-3)


@pytest.mark.parametrize("shape", [(30, 8), (30, 40)], ids=str)
def test_left_directions_of_several_matrices(shape: tuple[int, int]) -> None:
    """They span what all matrices write into, and are in the order of singular values; rounding has none."""
    thin = normal(30, 5, seed=1)
    parts = [thin @ normal(5, shape[1], seed=k) for k in (2, 3)]
    u, s, _ = torch.linalg.svd(torch.cat(parts, 1), full_matrices=False)
    for wide, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        basis = left_directions([part.to(wide) for part in parts]).double()
        assert basis.shape == (30, 5)
        assert torch.allclose((basis.mT @ u[:, :5]).abs(), torch.eye(5, dtype=torch.float64), atol=tolerance)
    assert s[5] < 1e-9

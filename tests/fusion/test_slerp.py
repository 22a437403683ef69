"""slerp and nuslerp against rotations in a plane, at their ends, and where there is no plane."""

from __future__ import annotations

import math

import pytest
import torch

from isomerge.errors import IsomergeError
from isomerge.fusion.nuslerp import nuslerp
from isomerge.fusion.slerp import slerp

DEGREE = math.pi / 180


def at(degrees: float, length: float = 1.0) -> torch.Tensor:
    """A vector of the plane."""
    return length * torch.tensor([math.cos(degrees * DEGREE), math.sin(degrees * DEGREE)], dtype=torch.float64)


def normal(*shape: int, seed: int) -> torch.Tensor:
    """Float64 noise."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("t", [0.0, 0.25, 0.5, 1.0])
def test_plane(t: float) -> None:
    """Unit vectors: the angle is divided evenly; common lengths are kept; the ends are the models."""
    base, other = at(20, 3), at(110, 3)
    expected = at(20 + 90 * t, 3)
    assert torch.allclose(slerp([other], base, t=t), expected)
    assert torch.allclose(
        nuslerp([base, other], weight=[1 - t, t], nuslerp_flatten=True, nuslerp_row_wise=False), expected
    )


def test_shape_is_one_vector() -> None:
    """A matrix is interpolated as one vector, not row by row."""
    base, other = normal(3, 4, seed=0), normal(3, 4, seed=1)
    flat = slerp([other.flatten()], base.flatten(), t=0.3)
    assert torch.equal(slerp([other], base, t=0.3), flat.reshape(3, 4))
    rows = torch.stack([slerp([b], a, t=0.3) for a, b in zip(base, other, strict=True)])
    assert not torch.allclose(slerp([other], base, t=0.3), rows)


def test_nuslerp_by_slices() -> None:
    """Vectors of their own along the last axis, or along the first."""
    a, b = normal(3, 4, seed=0), normal(3, 4, seed=1)
    whole = {"weight": [0.6, 0.4], "nuslerp_flatten": True, "nuslerp_row_wise": False}
    sliced = {**whole, "nuslerp_flatten": False}
    by_rows = torch.stack([nuslerp([x, y], **whole) for x, y in zip(a, b, strict=True)])
    assert torch.allclose(nuslerp([a, b], **sliced), by_rows)
    by_columns = torch.stack([nuslerp([x, y], **whole) for x, y in zip(a.T, b.T, strict=True)], 1)
    assert torch.allclose(nuslerp([a, b], **{**sliced, "nuslerp_row_wise": True}), by_columns)


def test_nuslerp_of_task_vectors() -> None:
    """With a base it is the base plus the interpolation of what was learned."""
    a, b, base = (normal(5, 3, seed=s) for s in range(3))
    given = {"weight": [1.0, 3.0], "nuslerp_flatten": True, "nuslerp_row_wise": False}
    expected = base + nuslerp([a - base, b - base], **given)
    assert torch.allclose(nuslerp([a, b], base, **given), expected)
    halfway = nuslerp([a, b], weight=[1.0, -1.0], nuslerp_flatten=True, nuslerp_row_wise=False)
    assert torch.allclose(halfway, slerp([b], a, t=0.5))


@pytest.mark.parametrize("cosine", [0.9994, 0.9996, -0.9994, -0.9996])
def test_threshold_of_colinear(cosine: float) -> None:
    """slerp takes the line beyond a cosine of 0.9995 either way, the arc before."""
    base, other = at(0), at(math.acos(cosine) / DEGREE)
    line = 0.7 * base + 0.3 * other
    arc = at(0.3 * math.acos(cosine) / DEGREE)
    assert torch.allclose(slerp([other], base, t=0.3), line if abs(cosine) > 0.9995 else arc)
    assert not torch.allclose(line, arc, atol=1e-6, rtol=0)


@pytest.mark.parametrize("factor", [2.0, -1.0, -3.0, 0.0])
@pytest.mark.parametrize("shape", [(1,), (1000,), (40, 40)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_plane(factor: float, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Colinear, antipodal and zero vectors: the line, however the sums round."""
    base = normal(*shape, seed=3).to(dtype)
    other = factor * base
    for t in (0.0, 0.5, 1.0):
        line = (1 - t) * base + t * other
        given = {"weight": [1 - t, t], "nuslerp_flatten": True, "nuslerp_row_wise": False}
        if factor:
            assert torch.allclose(slerp([other], base, t=t), line, atol=1e-6)
            assert torch.allclose(nuslerp([base, other], **given), line, atol=1e-6)
    assert torch.equal(slerp([base], torch.zeros_like(base), t=1.0), base)
    assert not slerp([base], torch.zeros_like(base), t=0.0).any()


def test_small_tensors_keep_their_direction() -> None:
    """Norms above 1e-8 are used as they are: the arc of tiny vectors is the arc."""
    found = slerp([at(90, 1e-6)], at(0, 1e-6), t=0.5)
    assert torch.allclose(found, at(45, 1e-6), atol=1e-12)


def test_number_of_models() -> None:
    """slerp takes one model beside its base, nuslerp two models."""
    x = torch.ones(3)
    with pytest.raises(IsomergeError, match=r"--method slerp merges exactly 1 model \(a base not counted\), but 2"):
        slerp([x, x], x, t=0.5)
    with pytest.raises(IsomergeError, match="--method nuslerp merges exactly 2 models"):
        nuslerp([x], weight=[1.0], nuslerp_flatten=True, nuslerp_row_wise=False)

"""Decompositions where LAPACK's fast driver gives up: the slower one answers, and what is damaged is still
refused."""

from __future__ import annotations

import pytest
import torch

from isomerge.symmetry.groups.polar import polar_factor
from isomerge.symmetry.groups.singular import singular_values_and_vectors


def gives_up(*_: object, **__: object) -> None:
    """What LAPACK said of a rotation of width 256 in the middle of learning."""
    raise torch.linalg.LinAlgError("the input matrix is ill-conditioned or has too many repeated singular values")


@pytest.mark.parametrize("shape", [(7, 4), (3, 4, 7), (2, 2, 5, 5)])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_slower_driver_answers(
    shape: tuple[int, ...], full: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shapes and dtypes are those of torch, and the factors multiply to the matrix."""
    m = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    usual = singular_values_and_vectors(m, full_matrices=full)
    monkeypatch.setattr(torch.linalg, "svd", gives_up)
    found = singular_values_and_vectors(m, full_matrices=full)
    assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in usual]
    u, s, vh = found
    k = s.shape[-1]
    near = 1e-5 if dtype == torch.float32 else 1e-12
    assert torch.allclose((u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :], m, atol=near)
    assert torch.allclose(s, usual[1], atol=near)


def test_a_polar_factor_is_found_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cross-Gram without full rank is left to the decomposition."""
    m = torch.eye(4, dtype=torch.float64)[[1, 0, 2, 3]] * torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    monkeypatch.setattr(torch.linalg, "svd", gives_up)
    turn, score = polar_factor(m)
    assert torch.allclose(turn @ turn.mT, torch.eye(4, dtype=torch.float64))
    assert float((turn * m).sum()) == pytest.approx(float(score)) == pytest.approx(3.0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_not_decomposed(
    value: float, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The engine says then that products of the weights overflow. LAPACK, which writes to the terminal, is not
    asked."""
    monkeypatch.setattr(torch.linalg, "svd", gives_up)
    m = torch.eye(20, dtype=torch.float64)
    m[2, 3] = value
    with pytest.raises(torch.linalg.LinAlgError, match="not finite"):
        singular_values_and_vectors(m)
    assert capfd.readouterr() == ("", "")

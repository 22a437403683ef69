"""Singular value decompositions that do not give up: LAPACK's fast driver may not converge where many singular
values are alike.

Rotations have nothing else, and cross-Grams of twins come close. The slower driver (QR iteration) converges there.
"""

from __future__ import annotations

import torch
from torch import Tensor


def check_finite(m: Tensor) -> None:
    """Refuse what LAPACK has no answer to, before it writes lines of its own to the terminal, or answers with
    anything.

    Raises:
        LinAlgError: of torch, where an entry is not finite.
    """
    if not bool(m.isfinite().all()):
        raise torch.linalg.LinAlgError("an entry is not finite")  # pyright: ignore[reportPrivateImportUsage]


def singular_values_and_vectors(m: Tensor, *, full_matrices: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """``U, S, V^H`` of matrices m [*b, n, p], in their dtype and on their device, as `torch.linalg.svd` gives them.

    Raises:
        LinAlgError: of torch where an entry is not finite, of numpy where the slower driver does not converge
            either.
    """
    check_finite(m)
    try:
        return torch.linalg.svd(m, full_matrices=full_matrices)
    except RuntimeError as error:  # LinAlgError is one, but no public name to type checkers
        if not type(error).__name__.endswith("LinAlgError"):
            raise
    from scipy.linalg import svd

    flat = m.detach().reshape(-1, *m.shape[-2:]).cpu().numpy()
    every = [svd(matrix, full_matrices=full_matrices, lapack_driver="gesvd") for matrix in flat]
    u, s, vh = (
        torch.stack([torch.from_numpy(part) for part in parts]).to(m.device) for parts in zip(*every, strict=True)
    )
    batch = m.shape[:-2]
    return u.reshape(*batch, *u.shape[1:]), s.reshape(*batch, -1), vh.reshape(*batch, *vh.shape[1:])

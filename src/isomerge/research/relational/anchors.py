"""Which vectors a converted model is anchored to."""

from __future__ import annotations

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.symmetry.groups import GROUPS

KINDS = ("identity", "random", "tokens")
CONDITION = 4.0
"""Of a random basis: rounding is amplified by its square."""


def choose_anchors(
    how: str | Tensor, width: int, atoms: Tensor | None = None, *, ones: bool = False, seed: int = 0
) -> Tensor:
    """Anchor vectors Z (m, d), float64, that span the tokens' space.

    Args:
        how: ``identity``, the coordinate axes; ``random``, a basis at random with singular values within a ratio of
            4; ``tokens``, as many atoms as there are dimensions, chosen one after the other by the largest part
            outside the span of those before (QR with pivoting); or the vectors themselves (m, d).
        width: d.
        atoms: the vectors to choose from (n, d).
        ones: whether the vector of ones is added as the last anchor, for LayerNorm.
        seed: of a random basis.

    Raises:
        IsomergeError: an unknown choice, vectors of another width, or that do not span the space.
    """
    if isinstance(how, Tensor):
        vectors = how.detach().to("cpu", torch.float64)
    elif how == "identity":
        vectors = torch.eye(width, dtype=torch.float64)
    elif how == "random":
        vectors = GROUPS["GL"].sample((), width, torch.Generator().manual_seed(seed), condition=CONDITION)
    elif how == "tokens":
        vectors = _pivots(atoms, width)
    else:
        raise IsomergeError(f"anchors {how!r} are not known: take {', '.join(KINDS)} or a matrix (m, {width})")
    if vectors.ndim != 2 or vectors.shape[1] != width:
        raise IsomergeError(f"anchors of shape {list(vectors.shape)} do not fit: expected (m, {width})")
    if int(torch.linalg.matrix_rank(vectors)) < width:
        raise IsomergeError(
            f"{len(vectors)} anchors of rank {int(torch.linalg.matrix_rank(vectors))} do not span the {width} "
            "dimensions: add anchors, or take anchors='identity'"
        )
    return torch.cat([vectors, torch.ones(1, width, dtype=torch.float64)]) if ones else vectors


def _pivots(atoms: Tensor | None, width: int) -> Tensor:
    """The ``width`` rows of ``atoms`` that QR with pivoting takes first."""
    from scipy.linalg import qr

    if atoms is None or len(atoms) < width:
        count = 0 if atoms is None else len(atoms)
        raise IsomergeError(
            f"{count} atoms cannot anchor {width} dimensions: take anchors='identity' or 'random', or give vectors"
        )
    vectors = atoms.detach().to("cpu", torch.float64)
    order = qr(vectors.numpy().T, mode="r", pivoting=True)[-1]
    chosen = vectors[torch.from_numpy(order[:width].copy()).long()]
    return chosen / chosen.norm(dim=1, keepdim=True)

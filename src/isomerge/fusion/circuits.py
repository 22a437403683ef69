"""Circuit averaging: heads are averaged as what they compute, not as the weights that compute it.

The circuits of a head are ``W_Q^T W_K`` and ``W_O W_V`` (Elhage et al. 2021). They do not depend on the basis of
the head's inner space, so their average needs no rotation to be found; the best approximation of the head's rank
(Eckart and Young 1936) brings it back to the head's size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.fusion.bounds import circuit_sides
from isomerge.fusion.circuit_spaces import Blocks, find_circuits, without_free_biases
from isomerge.fusion.inner_products import combination
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import per_model, unit_method
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.groups.singular import singular_values_and_vectors
from isomerge.symmetry.language.spec import Spec


@unit_method
@limited(bound=circuit_sides)
def circuits(
    spec: Spec, units: Sequence[Blocks], *, weight: Sequence[float] = per_model(1.0)
) -> dict[Block, Tensor]:
    """Per head, the average of ``W_Q^T W_K`` and of ``W_O W_V``, cut to the head's size by a singular value
    decomposition.

    Whatever spaces of general linear maps a layer has (`isomerge.fusion.circuit_spaces`): with the sides ``P_m``
    and ``D_m`` of model m, ``sum_m w_m P_m^T D_m = U S V^T``, and the merged sides are ``S^(1/2) U^T`` and
    ``S^(1/2) V^T``, the n largest singular values kept. Nothing of the size of the model is squared: the sides are
    stacked, their triangular factors multiplied. Query heads that share a key head (and outputs that share values)
    are columns of one side.

    Biases: a free one (a key bias without positions, a value bias with an output bias) is folded first, exactly;
    another is one more column of its side. The turn of the head that the balanced split leaves open is the one
    nearest to the first model's weights.

    With rotary positions queries and keys see each other through rotations that depend on the distance. No single
    product stands for them, their group is smaller (`Complex`), and they are averaged as they are, like all that no
    general linear map acts on. Where a space acts by rotations only (O, as after ``--spaces qk:O``), the products
    of a side with itself count as well, and the average of ``[P D]^T [P D]`` is cut.

    Args:
        spec: the spec whose spaces are used.
        units: per model, the aligned tensors of one work unit by block, float32 or float64; not changed.
        weight: one weight per model; they are divided by their sum.

    Returns:
        The blocks that carry such spaces, and those that their biases were folded into, in the tensors' dtype. The
        part of such a block that no circuit covers is averaged.

    Raises:
        IsomergeError: the weights sum to zero.
    """
    total = sum(weight)
    if total == 0:
        raise IsomergeError("circuits: the weights sum to zero, so there is no average: change one")
    shares = [w / total for w in weight]
    of_unit = find_circuits(spec, units[0])
    folded = [without_free_biases(spec, unit, of_unit) for unit in units]
    changed = {face.block for circuit in of_unit for face in circuit.faces}
    changed |= {
        block for old, new in zip(units, folded, strict=True) for block in old if new[block] is not old[block]
    }
    merged = {
        block: combination([unit[block] for unit in folded], shares) for block in units[0] if block in changed
    }
    for circuit in of_unit:
        plain, dual = ([circuit.side(spec, unit, dual=side) for unit in folded] for side in (False, True))
        average = invariants if spec.spaces[circuit.space].group_name == "O" else products
        for head in range(plain[0].shape[0]):
            p, d = ([x[head].double() for x in side] for side in (plain, dual))
            new_plain, new_dual = nearest_turn(average(p, d, shares), (p[0], d[0]))
            plain[0][head], dual[0][head] = new_plain.to(plain[0].dtype), new_dual.to(dual[0].dtype)
        circuit.write(spec, merged, plain[0], dual=False)
        circuit.write(spec, merged, dual[0], dual=True)
    return merged


def products(plain: Sequence[Tensor], dual: Sequence[Tensor], shares: Sequence[float]) -> tuple[Tensor, Tensor]:
    """The best factors of ``sum_m w_m P_m^T D_m``, balanced.

    Args:
        plain: float64 [n, p] per model.
        dual: float64 [n, d] per model.
        shares: one weight per model.

    Returns:
        float64 [n, p] and [n, d] with equal Gram matrices.
    """

    n = len(plain[0])
    left, upper = torch.linalg.qr(torch.cat(list(plain)).mT)  # [p, k], [k, models n]
    right, lower = torch.linalg.qr(torch.cat([w * x for w, x in zip(shares, dual, strict=True)]).mT)
    u, s, vh = singular_values_and_vectors(upper @ lower.mT, full_matrices=False)
    root = s[:n].sqrt().unsqueeze(1)
    return _padded(root * (left @ u[:, :n]).mT, n), _padded(root * (right @ vh[:n].mT).mT, n)


def invariants(plain: Sequence[Tensor], dual: Sequence[Tensor], shares: Sequence[float]) -> tuple[Tensor, Tensor]:
    """The best factor of ``sum_m w_m [P_m D_m]^T [P_m D_m]``: what is left of both sides when only rotations are
    free.

    Arguments and results as in `products`; negative eigenvalues, of negative weights, are cut.
    """

    n, width = plain[0].shape
    both = [torch.cat(pair, 1) for pair in zip(plain, dual, strict=True)]
    basis, upper = torch.linalg.qr(torch.cat(both).mT)
    signs = torch.tensor(shares, dtype=upper.dtype, device=upper.device).repeat_interleave(n)
    values, vectors = torch.linalg.eigh((upper * signs) @ upper.mT)
    root = values.flip(0)[:n].clamp_min(0).sqrt().unsqueeze(1)
    factor = _padded(root * (basis @ vectors.flip(1)[:, :n]).mT, n)
    return factor[:, :width], factor[:, width:]


def nearest_turn(sides: tuple[Tensor, Tensor], first: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The sides turned by the rotation of the inner space that brings them nearest to the first model's
    (Procrustes)."""
    (plain, dual), (to_plain, to_dual) = sides, first
    cross = to_plain @ plain.mT + to_dual @ dual.mT
    u, _, vh = singular_values_and_vectors(cross)
    return u @ vh @ sides[0], u @ vh @ sides[1]


def _padded(rows: Tensor, n: int) -> Tensor:
    """With rows of zeros up to n: a side of fewer columns than the head's size has no more rank."""

    return torch.cat([rows, rows.new_zeros(n - len(rows), rows.shape[1])]) if len(rows) < n else rows

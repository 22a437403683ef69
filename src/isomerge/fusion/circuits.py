"""Circuit averaging: heads are averaged as what they compute, not as the weights that compute it.

The circuits of a head are ``W_Q^T W_K`` and ``W_O W_V`` (Elhage et al. 2021). They do not depend on the basis of
the head's inner space, so their average needs no rotation to be found; the best approximation of the head's rank
(Eckart and Young 1936) brings it back to the head's size.

A space whose group is GL, inside a layer, is read off nowhere: what computes are the pairings of the blocks that
carry it (queries, values) with those that carry its dual (keys, output projections). As matrices ``P [n, p]`` and
``D [n, d]`` of all columns of either side, biases included, the function depends on ``P^T D`` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.fusion.bounds import circuit_sides
from isomerge.fusion.inner_products import combination
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import per_model, unit_method
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.groups.singular import singular_values_and_vectors
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stage import add_shifts, bias_view, element_key, find_shifts

GROUPS = ("GL", "O")
Blocks = Mapping[Block, "Tensor"]


@dataclass(frozen=True)
class Face:
    """One leaf that carries a circuit's space: the block, the number of the leaf in it, and the leaf's atoms."""

    block: Block
    number: int
    atoms: tuple[Atom, ...]
    dual: bool

    def of(self, spec: Spec, tensor: Tensor) -> Tensor:
        """The leaf of a tensor, as a writable view."""
        return next(view for (view,), _, number in leaves(spec, self.block, tensor) if number == self.number)


@dataclass(frozen=True)
class Circuit:
    """One space at one layer, and all leaves that carry it."""

    key: str
    space: str
    faces: tuple[Face, ...]

    def order(self, spec: Spec, face: Face) -> list[int]:
        """The axes of a leaf, heads first, then the space, then the columns."""
        names = [a.name for a in face.atoms]
        first = [*(names.index(i) for i in spec.batch(spec.spaces[self.space])), names.index(self.space)]
        return [*first, *(k for k in range(len(names)) if k not in first)]

    def _leaves(self, spec: Spec, tensors: Blocks, *, dual: bool) -> list[Tensor]:
        """One side's leaves, heads first, then the space."""
        faces = [face for face in self.faces if face.dual == dual]
        return [face.of(spec, tensors[face.block]).permute(self.order(spec, face)) for face in faces]

    def side(self, spec: Spec, tensors: Blocks, *, dual: bool) -> Tensor:
        """One side's leaves side by side, [heads, n, columns]."""
        heads = len(spec.batch(spec.spaces[self.space]))
        parts = self._leaves(spec, tensors, dual=dual)
        return torch.cat([x.reshape(-1, x.shape[heads], x.shape[heads + 1 :].numel()) for x in parts], dim=2)

    def write(self, spec: Spec, tensors: Blocks, side: Tensor, *, dual: bool) -> None:
        """The inverse of `side`, in place."""
        start = 0
        for x in self._leaves(spec, tensors, dual=dual):
            width = x.numel() // (side.shape[0] * side.shape[1])
            x.copy_(side[:, :, start : start + width].reshape(x.shape))
            start += width


def find_circuits(spec: Spec, tensors: Blocks) -> list[Circuit]:
    """The circuits of a unit: spaces of GL or O inside a layer that have both sides in it."""
    inner = {n for n, s in spec.spaces.items() if s.group_name in GROUPS and n not in spec.residual_names}
    faces_of: dict[tuple[str, str], list[Face]] = {}
    for block, tensor in tensors.items():
        for _, atoms, number in leaves(spec, block, tensor):
            for atom in atoms:
                if atom.name in inner and not atom.diag:
                    key = element_key(spec, spec.spaces[atom.name], dict(block.scope))
                    faces_of.setdefault((key, atom.name), []).append(Face(block, number, atoms, atom.dual))
    circuits = [Circuit(key, name, tuple(faces)) for (key, name), faces in faces_of.items()]
    return [c for c in circuits if len({face.dual for face in c.faces}) == 2]


def without_free_biases(spec: Spec, tensors: Blocks, circuits: Iterable[Circuit]) -> dict[Block, Tensor]:
    """The unit with the free biases of circuits folded, as `isomerge.matching.balance` does: a copy where it
    differs.

    A key bias that softmax ignores becomes zero, a value bias moves through the output projection into the output
    bias: the function stays, and no rank is spent on them. Biases that are not free stay, columns like others.
    """
    carried = {(face.block, face.number) for circuit in circuits for face in circuit.faces}
    moved = dict(tensors)
    elements = {}
    for shift, key, blocks in find_shifts(spec, list(tensors)):
        bias = blocks[shift.bias]
        if (bias, shift.block or 0) not in carried or shift.constant:
            continue
        for block in (bias, *([blocks[shift.into]] if shift.into is not None else [])):
            if moved[block] is tensors[block]:
                moved[block] = tensors[block].clone()
        elements[key] = -bias_view(spec, shift, bias, tensors[bias])[0].clone()
    add_shifts(spec, elements, moved)
    return moved


@unit_method
@limited(bound=circuit_sides)
def circuits(
    spec: Spec, units: Sequence[Blocks], *, weight: Sequence[float] = per_model(1.0)
) -> dict[Block, Tensor]:
    """Per head, the average of ``W_Q^T W_K`` and of ``W_O W_V``, cut to the head's size by a singular value
    decomposition.

    Whatever spaces of general linear maps a layer has (`find_circuits`): with the sides ``P_m``
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

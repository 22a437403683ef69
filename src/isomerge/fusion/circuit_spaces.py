"""Circuits of a work unit: the head-sized spaces that only products see, with the two sides that meet in them.

A space whose group is GL, inside a layer, is read off nowhere: what computes are the pairings of the blocks that
carry it (queries, values) with those that carry its dual (keys, output projections). As matrices ``P [n, p]`` and
``D [n, d]`` of all columns of either side, biases included, the function depends on ``P^T D`` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, leaves
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

    def side(self, spec: Spec, tensors: Blocks, *, dual: bool) -> Tensor:
        """One side's leaves side by side, [heads, n, columns]."""

        heads = len(spec.batch(spec.spaces[self.space]))
        parts = []
        for face in self.faces:
            if face.dual == dual:
                x = face.of(spec, tensors[face.block]).permute(self.order(spec, face))
                parts.append(x.reshape(-1, x.shape[heads], x.shape[heads + 1 :].numel()))
        return torch.cat(parts, dim=2)

    def write(self, spec: Spec, tensors: Blocks, side: Tensor, *, dual: bool) -> None:
        """The inverse of `side`, in place."""
        start = 0
        for face in self.faces:
            if face.dual == dual:
                x = face.of(spec, tensors[face.block]).permute(self.order(spec, face))
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

"""What is told of tensors that no product reaches, or whose products have no end with a name: their lengths.

In the canonical gauge, with gains folded, all that is left to act keeps lengths. So how long a tensor is there, at
every place that has a name, is the same number in all twins. It tells less than a relation, but of every tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import torch
from torch import Tensor

from isomerge.matching.gram import along, is_gain_of_latent
from isomerge.quotient.draws import sketch
from isomerge.quotient.relations import Related
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.language.spec import Spec

KIND = "length"


def lengths(spec: Spec, shifts: Spec, tensors: Mapping[Block, Tensor], salt: str = "") -> dict[Block, Related]:
    """The lengths of tensors of one unit.

    Args:
        spec: the full spec.
        shifts: the one of what acts inside the unit.
        tensors: the blocks, in the canonical gauge, with gains folded.
        salt: what signs are drawn with.

    Returns:
        Sums with random signs over named places of lengths, and of the sums of the lengths of every neuron or
        head; nothing of a block that something acts on which no gauge balances.
    """
    parts = {block: list(_of(spec, shifts, block, tensor, salt)) for block, tensor in tensors.items()}
    return {block: Related(torch.cat(of_leaves), ()) for block, of_leaves in parts.items() if of_leaves}


def along_stream(spec: Spec, stream: str, block: Block, tensor: Tensor) -> Tensor:
    """How long a matrix is at every coordinate of a stream, float64 [width]."""
    x, _ = next(iter(along(spec, stream, {block: tensor})))
    return x.norm(dim=1)


def _of(spec: Spec, shifts: Spec, block: Block, tensor: Tensor, salt: str) -> Iterator[Tensor]:
    """The lengths of every leaf of a block, [numbers]."""
    for (view,), atoms, number in leaves(spec, block, tensor):
        acting = {a.name for a in atoms if a.name in spec.spaces}
        loose = {name for name in acting if not spec.spaces[name].keeps_lengths}
        if loose - {*shifts.spaces, *spec.gains} or any(is_gain_of_latent(spec, atom) for atom in atoms):
            continue
        named = [at for at, a in enumerate(atoms) if a.name not in acting]
        permuted = [at for at, a in enumerate(atoms) if a.name in acting and _is_permuted(spec, a)]
        turned = [at for at in range(len(atoms)) if at not in {*named, *permuted}]
        x = (view + block.line.less).double().permute(*named, *permuted, *turned)
        places, parts = (prod(view.shape[at] for at in side) for side in (named, permuted))
        each = x.reshape(places, parts, -1).norm(dim=-1)
        sizes = torch.stack([each.norm(dim=-1), each.sum(-1) / parts**0.5], -1)
        yield sketch(f"{block.key} {number} {KIND}", sizes, torch.float64, salt).flatten()


def _is_permuted(spec: Spec, atom: Atom) -> bool:
    """Whether nothing else acts on an axis. (A stream may be turned in another twin.)"""
    return spec.spaces[atom.name].group_name == "Perm" and not spec.spaces[atom.name].residual

"""What `verify` takes away by reading a model in a form of the same function, as directions among its parameters.

A form (`isomerge.models.layer_norm_form`) is a map of the weights that leaves the function as it is. What `verify`
does not see through it is the null space of its derivative: counted from the form itself, so that no direction is
counted that `verify` would not accept.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from isomerge.checkpoint.in_memory import in_memory
from isomerge.discovery.bound_specimen import BoundSpecimen
from isomerge.models.layer_norm_form import layer_norm_form
from isomerge.models.recognised import Form, Model
from isomerge.symmetry.blocks import Block


def form_of(seen: BoundSpecimen) -> Form | None:
    """The form in which `verify` reads a specimen; None where it has none."""
    checkpoint = in_memory(seen.specimen.stored, seen.specimen.config, ref=type(seen.specimen.module).__name__)
    return layer_norm_form(Model(checkpoint, seen.spec, seen.matches, seen.declared)) or None


def form_tangents(form: Form, blocks: Mapping[Block, Tensor]) -> list[dict[Block, Tensor]]:
    """Directions of the blocks, one each, that together span what the form does not see.

    Args:
        form: the form.
        blocks: where it is derived: all blocks of a model, float64.

    Returns:
        By direction, what it adds to each block that it moves.
    """
    names = [block for block, x in blocks.items() if x.is_floating_point()]
    sizes = [blocks[block].numel() for block in names]
    flat = torch.cat([blocks[block].double().reshape(-1) for block in names])

    def parts(vector: Tensor) -> dict[Block, Tensor]:
        pieces = zip(names, vector.split(sizes), strict=True)
        return {block: piece.reshape(blocks[block].shape) for block, piece in pieces}

    def formed(vector: Tensor) -> Tensor:
        stored = parts(vector)
        return torch.cat([form.applied(b, x, stored.__getitem__).reshape(-1) for b, x in stored.items()])

    slopes = torch.func.jacrev(formed, chunk_size=CHUNK)(flat)
    changed = (slopes - torch.eye(len(flat), dtype=flat.dtype)).abs()
    moving = (changed.amax(0) > 0) | (changed.amax(1) > 0)
    unseen = _null_space(slopes[:, moving])
    whole = torch.zeros(len(unseen), len(flat), dtype=flat.dtype)
    whole[:, moving] = unseen
    return [parts(row) for row in whole]


CHUNK = 256
"""Directions that are derived at once: a tenth of a megabyte each."""
ZERO = 1e-10
"""Singular values at most this are zero; those of a projection are one, or near it where gains differ."""


def _null_space(slopes: Tensor) -> Tensor:
    """An orthonormal basis [dimensions, columns] of what a matrix maps to zero."""
    values, vectors = torch.linalg.eigh(slopes.mT @ slopes)
    return vectors[:, values <= ZERO].mT

"""Anchors: vectors of a residual stream that have a name of their own, from which its circuits are seen.

Where a stream can be turned they are rows of the embeddings, which turn with it: of fixed tokens, positions or patches. Where
nothing acts on a stream (sinusoids are added to it, or convolutions in groups of channels read it), its coordinates have names
already, and some of them are the anchors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from isomerge.engine.canonical.frame import read_moved
from isomerge.engine.models import Model
from isomerge.matching.frame import has_shared_meaning
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import atoms
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.spec import Spec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ROWS = 32
"""Rows of a table of embeddings that serve as anchors, or coordinates of a stream that nothing acts on."""


@dataclass(frozen=True)
class Anchors:
    """Vectors of a residual stream that have a name of their own."""

    names: tuple[str, ...]
    rows: Tensor
    """[anchors, width]."""


def anchor_rows(spec: Spec, block: Block, tensor: Tensor) -> Iterator[tuple[str, Anchors]]:
    """The rows that serve as anchors, with their stream, of a block outside the layers; none where it is no input of a stream.

    Rows are chosen by a hash of their numbers, so that a table that grew keeps most of those that it had.
    """
    for (view,), axes, _ in leaves(spec, block, tensor):
        here = [a for a in axes if a.name in spec.residual_names]
        if len(here) != 1 or here[0].name not in spec.streams or here[0].dual or here[0].diag:
            continue  # a head, a gain, or the bias of a norm, whose scale is another gauge
        rows = view.movedim(axes.index(here[0]), -1)
        rows = rows.reshape(-1, rows.shape[-1])
        chosen = _chosen(block.key, len(rows))
        yield here[0].name, Anchors(tuple(f"{block.key}#{n}" for n in chosen), rows[chosen].clone())


def mapped_rows(
    spec: Spec, block: Block, tensor: Tensor, anchors: Mapping[str, Anchors]
) -> Iterator[tuple[str, Anchors]]:
    """The anchors of one stream in another that begins as a linear map of it, as where embeddings are narrower than layers.

    Args:
        tensor: a block outside the layers, with gains folded.
        anchors: of the streams that have some.
    """
    import torch

    for (view,), axes, _ in leaves(spec, block, tensor):
        here = [a for a in axes if a.name in spec.streams]
        if len(here) != 2 or here[0].dual == here[1].dual or view.numel() != view.shape[0] * view.shape[-1]:
            continue
        new, old = sorted(here, key=lambda a: a.dual)
        if old.name not in anchors or new.name in anchors:
            continue
        matrix = view.movedim((axes.index(new), axes.index(old)), (0, 1)).flatten(1)
        rows = torch.matmul(anchors[old.name].rows, matrix.to(anchors[old.name].rows).mT)
        yield new.name, Anchors(anchors[old.name].names, rows)


def anchors_of(model: Model, dtype: torch.dtype, fold: Alignment) -> dict[str, Anchors]:
    """The anchors of every stream. Where LayerNorm takes the mean away, so do they: a reader's part along the ones is idle.

    Args:
        model: whose embeddings are read, and its gains.
        dtype: of the rows.
        fold: what folds the gains.
    """
    import torch

    parts: dict[str, list[Anchors]] = {}
    for block in model.blocks:
        if has_shared_meaning(model.spec, block):
            for stream, found in anchor_rows(model.spec, block, model.assemble(block, None)):
                parts.setdefault(stream, []).append(found)
    anchors = {}
    for stream, found in parts.items():
        rows = torch.cat([part.rows.to(dtype) for part in found])
        anchors[stream] = Anchors(tuple(name for part in found for name in part.names), rows)
    for block in model.blocks:
        if set(anchors) != set(model.spec.streams) and has_shared_meaning(model.spec, block):
            anchors |= dict(mapped_rows(model.spec, block, read_moved(model, block, dtype, fold), anchors))
    anchors |= {
        stream: replace(found, rows=found.rows - found.rows.mean(-1, keepdim=True))
        for stream, found in anchors.items()
        if model.spec.spaces[stream].folded == "OFixingOnes"
    }
    for name in fixed_streams(model.spec, model.blocks):
        anchors[name] = _coordinates(name, model.spec.sizes[name], dtype)
    return anchors


def fixed_streams(spec: Spec, blocks: Sequence[Block]) -> tuple[str, ...]:
    """The axes that no space acts on and that maps of the layers both read and write, where they have no other stream."""
    sides: dict[str, set[bool]] = {}
    for block in blocks:
        here = list(atoms(block.axes or ()))
        acting = [spec.spaces[a.name] for a in here if a.name in spec.spaces]
        if not block.scope or all(s.residual for s in acting) or any(a.name in spec.streams for a in here):
            continue
        for axis in block.axes or ():
            wide = [a for a in atoms((axis,)) if spec.sizes.get(a.name, 0) != 1]
            if len(wide) == 1 and wide[0].name in spec.sizes and wide[0].name not in spec.spaces:
                sides.setdefault(wide[0].name, set()).add(wide[0].dual)
    return tuple(name for name, found in sides.items() if len(found) == 2)


def _coordinates(name: str, size: int, dtype: torch.dtype) -> Anchors:
    """Some coordinates of a stream that nothing acts on."""
    import torch

    chosen = _chosen(name, size)
    return Anchors(tuple(f"{name}#{n}" for n in chosen), torch.eye(size, dtype=dtype)[chosen])


def _chosen(key: str, count: int) -> list[int]:
    """Some of so many numbers, by a hash of each: of more numbers, most of the same ones."""

    def rank(number: int) -> bytes:
        return hashlib.blake2b(f"{key}#{number}".encode(), digest_size=8).digest()

    return sorted(sorted(range(count), key=rank)[:ROWS])

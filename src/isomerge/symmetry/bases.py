"""Tables of which the columns stand in any basis, in the blocks of a model.

A table R of relative positions that projections W of all layers read, ``R W^T``, and nothing else, may be ``R A``
with ``W A^-T``. Every tensor moves by A alone, so that layers are still moved one by one. In one form of all of
them R is orthonormal, and nearest to numbers F that are always the same: the projection of F onto all that R can be
is the same for every A, and so is its polar factor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stated import Named

BASIS = "norm.basis."
"""What the keys of their elements begin with."""
LEVEL = 1e-9
"""The least part of the largest direction of a table that is one."""


@dataclass(frozen=True)
class Basis:
    """A table and what reads it, in some blocks of a model; a unit may have a part of them."""

    key: str
    along: str
    width: int
    table: Block | None
    readers: tuple[Block, ...]

    @property
    def blocks(self) -> list[Block]:
        """All that moves change."""
        return [*([] if self.table is None else [self.table]), *self.readers]

    @property
    def changed(self) -> list[Block]:
        """The same."""
        return self.blocks

    @property
    def element_keys(self) -> list[str]:
        """Of its one element."""
        return [self.key]

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        """The blocks in another basis; the given ones stay."""
        return {block: self.seen(block, element, tensors[block]) for block in self.blocks}

    def seen(
        self, block: Block, a: Tensor, tensor: Tensor, stored: Callable[[Block], Tensor] | None = None
    ) -> Tensor:
        """A block in another basis, a new tensor of its dtype.

        Args:
            block: one of `blocks`.
            a: invertible, [width, width].
            tensor: the block.
            stored: other blocks, of which none is needed.
        """
        axis = block.axis_of(self.along)
        moved = tensor.double().movedim(axis, -1)
        made = moved @ a.double() if block == self.table else torch.linalg.solve(a.double(), moved.mT).mT
        return made.movedim(-1, axis).to(tensor).contiguous()

    def formed(self, table: Tensor) -> Tensor:
        """What brings the table to the one form, [width, width]; float64."""
        flat = table.double()
        back = torch.linalg.solve(flat.mT @ flat, flat.mT)
        u, _, vh = torch.linalg.svd(flat @ (back @ _fixed(len(flat), self.width).to(flat)), full_matrices=False)
        return back @ (u @ vh)

    def is_identifiable(self, stored: Callable[[Block], Tensor]) -> bool:
        """Whether the table spans its columns, without what all its rows have in common, which may be carried."""
        if self.table is None:
            return False
        table = stored(self.table).double()
        return len(table) > self.width and spans(table - table.mean(0))


def spans(matrix: Tensor) -> bool:
    """Whether the columns of a matrix [rows, width] are independent."""
    sizes = torch.linalg.svdvals(matrix)
    return bool(sizes[-1] > LEVEL * sizes[0])


def _fixed(rows: int, width: int) -> Tensor:
    """Numbers that are always the same [rows, width]."""
    return torch.randn(rows, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def bases_in(spec: Spec, blocks: Sequence[Block]) -> list[Basis]:
    """The tables of which some blocks are, or read them; of a model, or of one unit."""
    bases, named = [], Named(blocks)
    for statement in spec.bases:
        table = named.at(statement.table)
        readers = tuple(b for name, b in named.items() if any(part.is_of(name) for part in statement.readers))
        if readers or table is not None:
            key, along = BASIS + statement.name, statement.along
            bases.append(Basis(key, along, spec.sizes[along], table, readers))
    return bases


def basis_width(spec: Spec, key: str) -> int | None:
    """How wide the table of an element is; None where no statement has it."""
    return next((spec.sizes[statement.along] for statement in spec.bases if BASIS + statement.name == key), None)

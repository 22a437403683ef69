"""All parameters that a continuous symmetry moves, as one flat vector; every tensor with typed axes is a view.

Layers are stacked: the query weights of all layers are one view ``[layer, head, row, column]``, so that one batched
product serves them all. Whatever has the shape of the parameters (updates, gradients, moments) is such a vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from isomerge.research.optim.binding import Binding
from isomerge.symmetry.axes import Atom, views
from isomerge.symmetry.blocks import Block

LAYER = "layer of a stack"


@dataclass(frozen=True)
class View:
    """A strided view of a flat vector, which must be contiguous."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, flat: Tensor) -> Tensor:
        """The view of this vector; writing to it writes to the vector."""
        return flat.as_strided(self.size, self.stride, flat.storage_offset() + self.offset)

    def permuted(self, order: Sequence[int]) -> View:
        """The same numbers with their dimensions in another order."""
        return View(tuple(self.size[k] for k in order), tuple(self.stride[k] for k in order), self.offset)

    def stacked(self, count: int, step: int) -> View:
        """As many views, each a step behind the one before, as one with a further first axis."""
        return View((count, *self.size), (step, *self.stride), self.offset)


@dataclass(frozen=True, eq=False)
class Leaf:
    """One tensor with atomic axes, of all layers: the first axis numbers the layers."""

    line: str
    part: int
    """Which part of a concatenation it is."""
    scopes: tuple[Mapping[str, int], ...]
    """The layers, in the order of the first axis."""
    atoms: tuple[Atom, ...]
    view: View

    @property
    def names(self) -> list[str]:
        """What the axes are called."""
        return [atom.name for atom in self.atoms]


class Layout:
    """Where the parameters that are moved lie in flat vectors.

    Args:
        binding: the recognised module; only the parameters that its active spaces and shifts move are taken, and
            those that what LayerNorm leaves free moves or looks at.
    """

    def __init__(self, binding: Binding) -> None:
        self.spec = binding.spec
        free = {*binding.free.writers, *(block for norm in binding.free.norms for block in norm.blocks)}
        free |= {block for vector in binding.free.carried for block in vector.looked_at}
        moved = [block for block in binding.blocks if block in free or _is_moved(binding, block)]
        stacks: dict[str, list[Block]] = {}
        for block in moved:
            stacks.setdefault(block.line.name, []).append(block)
        self.canonical = [name for blocks in stacks.values() for block in blocks for name in block.canonical]
        self.parameters: list[nn.Parameter] = [binding.parameters[name] for name in self.canonical]
        self.names = [binding.names[name] for name in self.canonical]
        self.sizes = [p.numel() for p in self.parameters]
        self.total = sum(self.sizes)
        self.shapes = [p.shape for p in self.parameters]
        self.leaves: list[Leaf] = []
        self.places: dict[Block, View] = {}
        """Where each block lies whole."""
        start, template = 0, torch.empty(self.total, device="meta")
        for line, blocks in stacks.items():
            shape = (len(blocks), *blocks[0].lead, *binding.parameters[blocks[0].canonical[0]].shape)
            end = start + prod(shape)
            for block, whole in zip(blocks, template[start:end].view(shape), strict=True):
                self.places[block] = View(tuple(whole.shape), whole.stride(), int(whole.storage_offset()))
            self.leaves += _leaves(binding, line, blocks, template[start:end].view(shape))
            start = end

    def gather(self, tensors: Sequence[Tensor], dtype: torch.dtype | None = None) -> Tensor:
        """The flat vector of tensors that are shaped like `parameters`, a copy.

        Args:
            tensors: one for every parameter, in this order.
            dtype: of the result; that of the tensors when None.
        """
        flat = torch.cat([t.detach().reshape(-1) for t in tensors])
        return flat if dtype is None else flat.to(dtype)

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat vector that are shaped like `parameters`."""
        return [t.view(shape) for t, shape in zip(flat.split(self.sizes), self.shapes, strict=True)]

    def scatter(self, flat: Tensor, tensors: Sequence[Tensor]) -> None:
        """Write a flat vector into tensors that are shaped like `parameters`."""
        with torch.no_grad():
            for target, part in zip(tensors, self.split(flat), strict=True):
                target.copy_(part)


def _is_moved(binding: Binding, block: Block) -> bool:
    """Whether an active space or shift moves a block, or a shift reads it."""
    shifts = binding.spec.shifts
    used = {n for shift in shifts for n in (shift.bias, shift.into, shift.via, shift.beside)}
    return block.line.name in used or not block.names.isdisjoint(binding.spec.spaces)


def _leaves(binding: Binding, line: str, blocks: list[Block], whole: Tensor) -> list[Leaf]:
    sizes = {**binding.spec.sizes, LAYER: len(blocks)}
    scopes = tuple(dict(block.scope) for block in blocks)
    leaves = []
    for part, ((leaf,), axes) in enumerate(views((whole,), (Atom(LAYER), *(blocks[0].axes or ())), sizes)):
        view = View(tuple(leaf.shape), leaf.stride(), int(leaf.storage_offset()))
        leaves.append(Leaf(line, part, scopes, axes, view))
    return leaves

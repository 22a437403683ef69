"""Blocks: the tensors of one line and one layer, as a single tensor with typed axes.

A name index that is an axis (``experts.{e}.w1.weight``) becomes a leading axis of the block, so that algorithms
see one tensor whether experts are stored fused or one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.symmetry.axes import Atom, Axis, TypedAxes, atoms, views
from isomerge.symmetry.language.spec import Line, Match, Spec


@dataclass(frozen=True)
class Block(TypedAxes):
    """One line at one scope (layer): ``key`` is unique in a checkpoint and equal for two checkpoints."""

    key: str
    line: Line
    scope: tuple[tuple[str, int], ...]
    axes: tuple[Axis, ...] | None
    canonical: tuple[str, ...]
    """The canonical tensor names, in the order of the leading (name) axes."""
    lead: tuple[int, ...]
    """The sizes of the leading (name) axes."""
    layers: tuple[int, ...] = ()
    """The layer of every tensor, for each is another one where layers are an axis; empty outside of layers."""

    def __hash__(self) -> int:
        return hash(self.key)  # blocks are looked up by the thousand, and the key tells nearly all of them apart

    def at(self, index: str) -> int | None:
        """The value of a scope index."""
        return dict(self.scope).get(index)

    def assemble(self, read: Callable[[str], Tensor]) -> Tensor:
        """The block as one tensor; ``read`` returns a tensor by canonical name."""
        if not self.lead:
            return read(self.canonical[0])
        parts = [read(name) for name in self.canonical]
        return torch.stack(parts).unflatten(0, self.lead)

    def split(self, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The inverse of `assemble`: canonical names and their tensors."""
        if not self.lead:
            yield self.canonical[0], tensor
        else:
            yield from zip(self.canonical, tensor.flatten(0, len(self.lead) - 1), strict=True)


Blocks = dict[Block, "Tensor"]
"""The blocks of one unit of one model."""


def gather_blocks(spec: Spec, matches: Mapping[str, Match]) -> list[Block]:
    """Group a checkpoint's tensors into blocks, layer by layer in the order of the spec.

    The order does not depend on how tensors are stored, so neither does the rounding of sums over them.

    Raises:
        IsomergeError: a layer lacks one of the tensors that a name axis numbers, such as an expert.
    """
    grouped: dict[tuple[str, tuple[tuple[str, int], ...]], set[str]] = {}
    for match in matches.values():
        scope = tuple((i, v) for i, v in match.binding.items() if i not in spec.sizes)
        grouped.setdefault((match.line.name, scope), set()).add(match.canonical)
    lines = {line.name: line for line in spec.lines}
    rank = {name: number for number, name in enumerate(lines)}
    order = sorted(grouped, key=lambda key: ([v for _, v in key[1]], rank[key[0]]))
    return [_block(spec, lines[key[0]], key[1], grouped[key]) for key in order]


def _block(spec: Spec, line: Line, scope: tuple[tuple[str, int], ...], present: set[str]) -> Block:
    virtual = tuple(i for i in line.indices if i in spec.sizes)
    lead = tuple(spec.sizes[i] for i in virtual)
    bindings = [
        {**dict(scope), **dict(zip(virtual, values, strict=True))} for values in product(*(range(n) for n in lead))
    ]
    names = tuple(map(line.canonical, bindings))
    layer = next((number for number in line.numbers if scope and number.index == scope[0][0]), None)
    layers = () if layer is None else tuple(map(layer.value, bindings))
    for name in names:
        if name not in present:
            raise IsomergeError(f"tensor {name} is missing, but others of its kind are there: is a shard lost?")
    if extra := present - set(names):
        wanted = ", ".join(f"{i} < {n}" for i, n in zip(virtual, lead, strict=True))
        raise IsomergeError(f"tensor {min(extra)} is out of range: config.json says {wanted}")
    axes = None if line.axes is None else (*(Atom(i) for i in virtual), *line.axes)
    key = line.canonical(dict.fromkeys(line.indices, 0) | dict(scope))
    return Block(key, line, scope, axes, names, lead, layers)


def layer_of(block: Block, number: int = 0) -> tuple[str, int | None]:
    """The stack that a block belongs to, and the layer in it of one of its tensors."""
    return block.line.stack, block.layers[number] if block.layers else None


def stacks_of(blocks: Sequence[Block]) -> dict[str, int]:
    """How many layers every stack has."""
    depths: dict[str, int] = {}
    for block in blocks:
        stack, _ = layer_of(block)
        if block.layers:
            depths[stack] = max(depths.get(stack, 0), *(layer + 1 for layer in block.layers))
    return depths


def stacked_axes(block: Block, spec: Spec) -> int:
    """How many leading axes of each of a block's stored tensors number tensors of their own, such as experts.

    They are indices by which a space of a later axis has another element, or by which any has where nothing is read
    (a bias for each expert; a router reads). A kernel's axes do not."""
    axes = (block.axes or ())[len(block.lead) :]
    reads = any(atom.dual for atom in atoms(axes))
    names = {atom.name for atom in atoms(axes)} if reads else set(spec.spaces)
    numbered = {index for name in names for index in _indices(spec, name)}
    count = 0
    while count < len(axes) - 1 and _names(axes[count]) & numbered:
        count += 1
    return count


def _indices(spec: Spec, name: str) -> set[str]:
    space = spec.spaces.get(name)
    return set() if space is None else set(space.index) - {name}


def _names(axis: Axis) -> set[str]:
    return {atom.name for atom in atoms((axis,))} if isinstance(axis, Atom) else set()


def leaves(
    spec: Spec, block: Block, *tensors: Tensor
) -> Iterator[tuple[tuple[Tensor, ...], tuple[Atom, ...], int]]:
    """The writable atom views of a block's tensors, their atoms, and the number of the concatenated part.

    Parts of length zero (no coordinate of a head is left unrotated) count, but are left out.
    """
    if block.axes is None:
        return
    for number, (parts, parts_atoms) in enumerate(views(tensors, block.axes, spec.sizes)):
        if parts[0].numel():
            yield parts, parts_atoms, number


def whole_leaves(
    spec: Spec, block: Block, *tensors: Tensor
) -> Iterator[tuple[tuple[Tensor, ...], tuple[Atom, ...], int]]:
    """`leaves` of what the axes describe, to be read: of gains that are stored less one, new tensors."""
    if block.line.less:
        tensors = tuple(tensor + block.line.less for tensor in tensors)
    return leaves(spec, block, *tensors)

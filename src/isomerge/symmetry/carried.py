"""Constants that are carried from one tensor into others, in the blocks of a model: what a move of them adds.

A vector that a table of positions has in every row reaches the first layer's readers as ``W v``, which their biases
may have in its place; a constant of a bias that nothing but the sum of all biases shows may stand in any of them.
Texts say so by `carry` (`isomerge.symmetry.language.statements`). The tensors may lie in all layers: every one of
them moves by what stands beside it and by the vector alone, so that layers are still moved one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from torch import Tensor

from isomerge.symmetry.axes import Axis, atoms
from isomerge.symmetry.blocks import Block, Blocks, leaves
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.language.names import numbers
from isomerge.symmetry.language.spec import Shift, Spec
from isomerge.symmetry.language.statements import Carry, Holder
from isomerge.symmetry.stage import bias_view, free_part, paid_through
from isomerge.symmetry.stated import Named

CARRY = "norm.carry."
"""What the keys of their elements begin with."""


@dataclass(frozen=True)
class Held:
    """A block that holds the vector, or what a weight makes of it."""

    holder: Holder
    block: Block
    via: Block | None = None


@dataclass(frozen=True)
class Carried:
    """A vector of one model that may stand in one block or in others."""

    key: str
    carry: Carry
    spec: Spec
    axes: tuple[Axis, ...]
    """Of the first tensor."""
    first: Block | None
    """None where it is of another unit."""
    others: tuple[Held, ...]
    traded: tuple[tuple[Shift, Mapping[str, Block]], ...] = ()
    """The shifts that move what the first block holds, and their blocks by name of line."""

    @property
    def blocks(self) -> list[Block]:
        """All blocks that it changes."""
        return [*([self.first] if self.first is not None else []), *(held.block for held in self.others)]

    @property
    def changed(self) -> list[Block]:
        """The same, each once."""
        return list(dict.fromkeys(self.blocks))

    @property
    def element_keys(self) -> list[str]:
        """Of its one element."""
        return [self.key]

    def moved(self, key: str, element: Tensor, tensors: Blocks) -> Blocks:
        """The blocks that an element changes, changed; the given ones stay, and weights do."""
        return {block: self.seen(block, element, tensors[block], tensors.__getitem__) for block in self.changed}

    @property
    def plainly(self) -> list[Block]:
        """Those of them that hold the vector itself, and not what a weight makes of it."""
        return [block for block in self.blocks if all(h.via is None for h in self.others if h.block == block)]

    @property
    def looked_at(self) -> list[Block]:
        """The same, and the weights through which it reaches them."""
        return [*self.blocks, *(held.via for held in self.others if held.via is not None)]

    @property
    def together(self) -> list[list[Block]]:
        """The blocks that must be there at once: weights and what they are added to."""
        return [[held.via, held.block] for held in self.others if held.via is not None]

    @property
    def entries(self) -> int:
        """How many numbers the vector has."""
        return prod(self.spec.sizes.get(name, 1) for name in self.along)

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the vector; of a number, none."""
        return (self.entries,) if self.along else ()

    def value(self, stored: Callable[[Block], Tensor]) -> Tensor:
        """What the first block holds, with what shifts may have taken from it: [width] or a number; float64."""
        assert self.first is not None
        total = _mean(self.first, self.carry.first, stored(self.first).double())
        for shift, parts in self.traded:
            if shift.via is None:
                other = shift if parts[shift.bias] != self.first else shift.swapped()
                view, atoms = bias_view(self.spec, other, parts[other.bias], stored(parts[other.bias]).double())
                axes = [k for k, a in enumerate(atoms) if a.name in (other.along, "1")]
                moved = view.mean(axes) if axes and view.numel() else view
            else:
                bias, via = parts[shift.bias], parts[shift.via]
                view, atoms = bias_view(self.spec, shift, bias, stored(bias).double())
                through = paid_through(self.spec, shift, parts, stored(via).double(), atoms)
                moved = (through @ free_part(shift, view, atoms).flatten()).reshape(-1)
            total = total + (moved.mean() if not total.ndim else moved.flatten())
        return total

    def seen(self, block: Block, v: Tensor, tensor: Tensor, stored: Callable[[Block], Tensor]) -> Tensor:
        """A block where the first one has v more.

        Args:
            block: any block.
            v: the vector, or a number.
            tensor: the block; not changed.
            stored: other blocks.
        """
        if block == self.first:
            return _raised(block, self.carry.first, tensor, v)
        for held in self.others:
            if held.block == block:
                much = v.double() * -held.holder.factor
                if held.via is None:
                    tensor = _raised(block, held.holder, tensor, much)
                else:
                    names = self.along or {str(self.carry.first.along)}  # a number stands all along it
                    made = _read(self.spec, held, stored(held.via).double(), much, names)
                    tensor = tensor.clone()
                    part = _part(self.spec, held, tensor)
                    part += made.reshape(part.shape).to(part)
        return tensor

    @property
    def along(self) -> set[str]:
        """The atoms of the axis along which the vector lies; none of a number."""
        axis = _kept(self.axes, self.carry.first)
        return set() if axis is None else {a.name for a in atoms((self.axes[axis],))}


def carried(spec: Spec, blocks: Sequence[Block]) -> list[Carried]:
    """What may be carried among the blocks of a model: where the first one and others are there."""
    named = Named(blocks)
    places = ((carry, at) for carry in spec.carries for at, _ in named.every(carry.first))
    vectors = (_carried(spec, carry, at, blocks, named) for carry, at in places)
    return [vector for vector in vectors if vector is not None and vector.others]


def carried_in_unit(spec: Spec, keys: Collection[str], blocks: Sequence[Block]) -> list[Carried]:
    """What some elements move of the blocks of a unit, which may have no more than a part of them."""
    vectors, named = [], Named(blocks)
    for carry in spec.carries:
        for key in keys:
            if ElementKey.of(key).name == CARRY + carry.name:
                at = ElementKey.of(key).scope(
                    [index for number in numbers(carry.first.name) for index in number.indices]
                )
                if (vector := _carried(spec, carry, at, blocks, named)) is not None:
                    vectors.append(vector)
    return vectors


def _carried(
    spec: Spec, carry: Carry, at: Mapping[str, int], blocks: Sequence[Block], named: Named
) -> Carried | None:
    """A vector of one layer, or of none; None of a line that there is not."""
    lines = ((line, line.canonical({i: at.get(i, 0) for i in line.indices})) for line in spec.lines)
    there = [(line, name) for line, name in lines if carry.first.layer(name) == at]
    line, name = there[0] if there else (None, "")
    if line is None or line.axes is None:
        return None
    others = tuple(held for holder in carry.others for held in _held(holder, named, at))
    key = ElementKey.at(CARRY + carry.name, at.values())
    first = named.get(name)
    traded = () if first is None else _traded(spec, first, blocks)
    return Carried(key, carry, spec, line.axes, first, others, traded)


def _held(holder: Holder, named: Named, at: Mapping[str, int]) -> list[Held]:
    """The blocks that one holder stands for, in a layer or in all."""
    weights = {tuple(sorted(m.items())): b for n, b in named.items() if (m := holder.via_layer(n)) is not None}
    holders = []
    for layer, block in named.every(holder):
        if any(layer.get(k, v) != v for k, v in at.items()):
            continue
        via = weights.get(tuple(sorted(layer.items())))
        if holder.via is None or via is not None:
            row = None if holder.at is None else next(iter(at.values()))
            holders.append(Held(replace(holder, row=row), block, via))
    return holders


def _traded(spec: Spec, first: Block, blocks: Sequence[Block]) -> tuple[tuple[Shift, Mapping[str, Block]], ...]:
    """The shifts that put something into a block, or trade with it."""
    by_name = {block.line.name: block for block in blocks if block.scope == first.scope}
    shifts = []
    for shift in spec.shifts:
        names = [name for name in (shift.bias, shift.into, shift.via) if name is not None]
        mine = shift.into == first.line.name or (shift.trades and shift.bias == first.line.name)
        if mine and all(name in by_name for name in names):
            shifts.append((shift, {name: by_name[name] for name in names}))
    return tuple(shifts)


def _kept(axes: tuple[Axis, ...], holder: Holder) -> int | None:
    """The axis along which a tensor holds the vector; None where it holds a number."""
    for k, axis in enumerate(axes):
        names = [a.name for a in atoms((axis,))]
        if not {holder.along, holder.at} & {*names} and not all(name.isdigit() for name in names):
            return k
    return None


def _mean(block: Block, holder: Holder, tensor: Tensor) -> Tensor:
    """What a block holds on average of the rows that hold it."""
    part, kept = _rows(block, holder, tensor), _kept(block.axes or (), holder)
    rest = [k for k in range(part.ndim) if k != kept]
    return part.mean(rest) if rest else part


def _raised(block: Block, holder: Holder, tensor: Tensor, v: Tensor) -> Tensor:
    """A block that holds v more, in the same dtype."""
    raised = tensor.clone()
    part = _rows(block, holder, raised)
    kept = _kept(block.axes or (), holder) if v.ndim else None
    part += v.reshape([-1 if k == kept else 1 for k in range(part.ndim)]).to(part)
    return raised


def _rows(block: Block, holder: Holder, tensor: Tensor) -> Tensor:
    """The view of the rows, and of the coordinates, that hold it."""
    layer = None if holder.row is None else (holder.row, holder.row + 1)
    for axis, rows in ((holder.along, holder.rows), (holder.over, holder.coordinates), (holder.at, layer)):
        if rows is not None:
            tensor = tensor[(slice(None),) * block.axis_of(axis) + (slice(*rows),)]
    return tensor


def _part(spec: Spec, held: Held, tensor: Tensor) -> Tensor:
    """The view of the part of a block that holds what a weight makes of the vector."""
    if held.holder.part is None:
        return tensor
    return next(view for (view,), _, number in leaves(spec, held.block, tensor) if number == held.holder.part)


def _read(spec: Spec, held: Held, weight: Tensor, v: Tensor, names: set[str]) -> Tensor:
    """What a weight, or a part of it, makes of the vector along some axes, or of a number all along them."""
    assert held.via is not None

    def through(rows: Tensor) -> Tensor:
        return rows @ v.expand(rows.shape[-1])

    if held.holder.via_part is None:
        axis = next(k for k, axis_names in enumerate(held.via.names_by_axis) if names <= axis_names)
        return through(weight.movedim(axis, -1))
    for (view,), leaf, number in leaves(spec, held.via, weight):
        if number == held.holder.via_part:
            axis = next(k for k, a in enumerate(leaf) if a.name in names)
            return through(view.movedim(axis, -1))
    raise AssertionError(f"{held.via.key} has no part {held.holder.via_part}")

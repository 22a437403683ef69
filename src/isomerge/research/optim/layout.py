"""All parameters that a continuous symmetry moves, as one flat vector; every tensor with typed axes is a view.
Elements of one space in all layers at once are parts of another.

Layers are stacked: the query weights of all layers are one view ``[layer, head, row, column]``, so that one
batched product serves them all. Whatever has the shape of the parameters (updates, gradients, moments) is such a
vector.

A flat vector of elements has a part for every family: matrices ``[element, *batch, n, n]`` for GL, numbers
``[element, *batch, n]`` for scales, pairs ``(a, b)`` for the complex numbers ``a + ib`` that commute with rotary
positions. The same vector serves tangents (the Lie algebra) and group elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.research.optim.binding import Binding, scopes_of
from isomerge.symmetry.alignment import element_key
from isomerge.symmetry.axes import Atom, views
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.spec import Shift, Space
from isomerge.symmetry.stage import find_shifts

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


KINDS = {"GL": "matrix", "Scale": "scale", "PositiveScale": "scale", "Complex": "complex"}


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a flat vector of elements."""

    keys: tuple[str, ...]
    """The element key of every layer."""
    shape: tuple[int, ...]
    offset: int

    def of(self, elements: Tensor) -> Tensor:
        """The part of a flat vector, a view of ``shape``."""
        return elements[self.offset : self.offset + prod(self.shape)].view(self.shape)


@dataclass(frozen=True, eq=False)
class Family(Part):
    """One space in all layers; ``[element, *batch, n, n]``, without the last n, or with 2 there."""

    space: Space
    batch: tuple[str, ...]
    touches: list[Touch] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the space."""
        return self.space.name

    @property
    def kind(self) -> str:
        """``matrix``, ``scale`` or ``complex``."""
        return KINDS[self.space.group_name]

    @property
    def n(self) -> int:
        """The length of the axis that an element acts on."""
        return self.shape[-1]

    def grams(self, x: Tensor, *, free: bool = True) -> tuple[Tensor, Tensor]:
        """The self-Grams of the plain and of the dual side at parameters [parameters]; without biases that a shift
        moves where ``free`` is False.

        Matrices: ``sum X X^T``, ``[element, *batch, n, n]``. Numbers: the sums of squares along their axis, of the
        family's shape; of complex numbers the squared norms, in the place of the real part.
        """
        sides = [x.new_zeros(self.offset + prod(self.shape)) for _ in range(2)]
        for touch in self.touches:
            if free or not touch.free:
                touch.add_gram(sides[touch.dual], touch.at.of(x), touch.at.of(x))
        return self.of(sides[0]), self.of(sides[1])


@dataclass(frozen=True, eq=False)
class Touch:
    """A leaf that the elements of a family act on."""

    family: Family
    leaf: Leaf
    dual: bool
    at: View
    """The leaf; for matrices as ``[element, *batch, *others, n, columns]``, else in its own order of axes."""
    coefficient: View
    """The elements, broadcast against ``at``; of complex numbers the real parts."""
    summed: tuple[int, ...]
    """The axes of ``at`` along which an element is constant; of matrices without columns."""
    axis: int
    """The axis of ``at`` that is acted on."""
    free: bool
    """Whether the leaf is a bias that a shift moves as well."""

    @property
    def imaginary(self) -> View:
        """The imaginary parts of complex elements, broadcast against the leaf."""
        c = self.coefficient
        return View(c.size, c.stride, c.offset + 1)

    def add_gram(self, grams: Tensor, x: Tensor, y: Tensor) -> None:
        """Add ``x y^T`` of leaves arranged like ``at`` to Grams [elements]; of complex numbers the real part."""
        product = x @ y.mT if self.family.kind == "matrix" else x * y
        self.coefficient.of(grams).add_(total(product, self.summed))


@dataclass(frozen=True, eq=False)
class Shifted(Part):
    """An additive gauge of a bias in all layers: ``bias + d``, and what it carries, ``into - W d``; d is
    ``[layer, *bias]``."""

    shift: Shift
    bias: View
    """``[layer, *bias]``."""
    into: View | None
    """``[layer, *outputs]``; None where softmax drops the bias."""
    via: View | None
    """W as ``[layer, *outputs, *bias, *others]``; heads that share values are the others, and are summed."""

    def carry(self, x: Tensor, w: Tensor | None, d: Tensor, sign: int) -> None:
        """Add ``W d``, or take it from, what it is carried into in x [parameters]; nothing where W is None."""
        if w is not None and self.into is not None:
            into = self.into.of(x)
            into.add_((w @ d.flatten(1).unsqueeze(-1)).view(into.shape), alpha=sign)


def families(binding: Binding, layout: Layout) -> tuple[list[Family], list[Shifted], int]:
    """The families and shifts of a module, and the length of a flat vector of elements."""
    spec, families, offset = binding.spec, [], 0
    for name, space in spec.spaces.items():
        scopes = scopes_of(spec, space, binding.blocks)
        batch = spec.batch(space)
        shape = [len(scopes), *(spec.sizes[i] for i in batch), spec.sizes[name]]
        if KINDS[space.group_name] == "matrix":
            shape.append(spec.sizes[name])
        keys = tuple(element_key(spec, space, dict(zip(spec.scope(space), s, strict=True))) for s in scopes)
        family = Family(keys, tuple(shape), offset, space, batch)
        offset += prod(shape)
        family.touches.extend(_touches(family, layout, spec.scope(space)))
        families.append(family)
    shifts, offset = _shifts(binding, layout, offset)
    return families, shifts, offset


def _touches(family: Family, layout: Layout, scope: Sequence[str]) -> list[Touch]:
    touches = []
    for leaf in layout.leaves:
        if family.name in leaf.names:
            keys = {f"{[layer[i] for i in scope]}" for layer in leaf.scopes}
            if len(keys) != family.shape[0]:
                raise IsomergeError(
                    f"{leaf.line} is not in every layer in which {family.name} acts: "
                    "name the other spaces in spaces="
                )
            place = _matrix if family.kind == "matrix" else _numbers
            free = any(s.bias == leaf.line and (s.block or 0) == leaf.part for s in layout.spec.shifts)
            touches.append(place(family, leaf, free))
    return touches


def _strides(family: Family, leaf: Leaf) -> dict[int, tuple[int, int]]:
    """Size and stride of every named index of a family's elements, by its axis in a leaf."""
    names = enumerate(zip([LAYER, *family.batch], family.shape, strict=False))
    own = {leaf.names.index(name): (size, prod(family.shape[k + 1 :])) for k, (name, size) in names}
    if family.shape[0] == 1:
        own.pop(0)
    return own


def _numbers(family: Family, leaf: Leaf, free: bool) -> Touch:
    """Scales and complex numbers: broadcast over the leaf as it is."""
    own, axis = _strides(family, leaf), leaf.names.index(family.name)
    if family.kind == "scale":
        own[axis] = (family.n, 1)
    size = tuple(own.get(k, (1, 0))[0] for k in range(len(leaf.names)))
    stride = tuple(own.get(k, (1, 0))[1] for k in range(len(leaf.names)))
    summed = tuple(k for k in range(len(leaf.names)) if k not in own)
    view = View(size, stride, family.offset)
    return Touch(family, leaf, leaf.atoms[axis].dual, leaf.view, view, summed, axis, free)


def _matrix(family: Family, leaf: Leaf, free: bool) -> Touch:
    """GL: elements first, then whatever shares them, then rows and columns of one batched product."""
    own, axis = _strides(family, leaf), leaf.names.index(family.name)
    rest = [k for k in range(len(leaf.names)) if k not in own and k != axis]
    columns = sorted(rest, key=lambda k: leaf.view.size[k])[-1:]  # none in a bias
    others = [k for k in rest if k not in columns]
    at = leaf.view.permuted([*own, *others, axis, *columns])
    if not columns:
        at = View((*at.size, 1), (*at.stride, 1), at.offset)
    size = (*(s for s, _ in own.values()), *(1 for _ in others), family.n, family.n)
    stride = (*(s for _, s in own.values()), *(0 for _ in others), family.n, 1)
    summed = tuple(range(len(own), len(own) + len(others)))
    coefficient = View(size, stride, family.offset)
    return Touch(family, leaf, leaf.atoms[axis].dual, at, coefficient, summed, len(size) - 2, free)


def _shifts(binding: Binding, layout: Layout, offset: int) -> tuple[list[Shifted], int]:
    by_shift: dict[Shift, list[str]] = {}
    for shift, key, _ in find_shifts(binding.spec, binding.blocks):
        if not shift.constant:  # see `additions`
            by_shift.setdefault(shift, []).append(key)
    shifted = []
    for shift, keys in by_shift.items():
        bias = _leaf(layout, shift.bias, shift.block or 0)
        into = via = None
        if shift.into is not None and shift.via is not None:
            target, weight = _leaf(layout, shift.into, 0), _leaf(layout, shift.via, 0)
            first = [weight.names.index(name) for name in (*target.names, *bias.names[1:])]
            others = [k for k in range(len(weight.names)) if k not in first]
            into, via = target.view, weight.view.permuted([*first, *others])
        shifted.append(Shifted(tuple(keys), bias.view.size, offset, shift, bias.view, into, via))
        offset += prod(bias.view.size)
    return shifted, offset


def total(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The sum over axes, which stay with length one."""
    return x.sum(axes, keepdim=True) if axes else x


def _leaf(layout: Layout, line: str, part: int) -> Leaf:
    return next(leaf for leaf in layout.leaves if leaf.line == line and leaf.part == part)

"""What transformers makes of a checkpoint's tensors on loading, read off its own conversions.

Transformers 5 renames tensors, and fuses what files store one by one: experts are stacked, gates and ups
concatenated, some are transposed. The conversion that it would run on the weights is run on the numbers of their
elements instead: where a number comes out is where the element lies, whatever operations were in between. The
numbers of large tensors (a layer's experts) would take a multiple of their memory: they are followed axis by axis.

Tensors of a live module are put together from stored ones, with gradients to these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from isomerge.checkpoint.own_class import own_class_of
from isomerge.errors import IsomergeError

Shapes = Mapping[str, tuple[int, ...]]
LARGE = 1 << 22
"""Elements of one conversion beyond which it is followed axis by axis where that can be: 32 MB of numbers."""
FEW = 2
"""Of the elements along another axis then: enough to see a step."""


@dataclass(frozen=True)
class Conversion:
    """Where stored tensors are in a live module, all by their own names."""

    whole: dict[str, str] = field(default_factory=dict)
    """From stored tensors to the live tensors that they are, under another name or their own."""
    fused: dict[str, list[tuple[str, Piece]]] = field(default_factory=dict)
    """From live tensors that are made of others to these, each with its piece."""


_KNOWN: WeakKeyDictionary[nn.Module, tuple[Shapes, Conversion]] = WeakKeyDictionary()


def conversion_of(module: nn.Module, shapes: Shapes) -> Conversion:
    """What became of the tensors of a checkpoint in a module that transformers loads from it.

    Stored tensors that the module does not have are left out, and so are live tensors that no file stores.

    Args:
        module: of transformers.
        shapes: of the stored tensors, by name.

    Raises:
        IsomergeError: a conversion that does more than move elements, or one that this version of transformers
            hides.
    """
    known = _KNOWN.get(module)
    if known is None or known[0] != shapes:
        known = _KNOWN[module] = (dict(shapes), _followed(module, shapes))
    return known[1]


@dataclass(frozen=True)
class LiveNames:
    """What a stored tensor is called in a live module."""

    names: tuple[str, ...]
    """Its own name there, or those of all tensors that a conversion makes of it and others; the module may have
    none of them."""
    pattern: str | None = None
    """The pattern of the conversion; None where the tensor is taken as it is."""


def live_names(module: nn.Module, stored: Iterable[str]) -> dict[str, LiveNames]:
    """What transformers calls stored tensors in a module, in the order in which it stacks them.

    Args:
        module: of transformers; values are not read.
        stored: the names of the stored tensors.

    Raises:
        IsomergeError: this version of transformers hides its conversions.
    """
    try:
        from transformers.core_model_loading import dot_natural_key, rename_source_key
    except ImportError as error:
        raise _hidden(module, error) from None
    renamings, converters = _conversions(module)
    live: Any = module.state_dict(keep_vars=True)
    prefix: Any = getattr(module, "base_model_prefix", "")
    of_pattern = {pattern: x for x in converters for pattern in x.source_patterns}
    live_of: dict[str, LiveNames] = {}
    for name in sorted(stored, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, prefix, live)
        if target not in live and name in live:
            target, pattern = rename_source_key(name, [], [], prefix, live)
        if pattern is None:
            live_of[name] = LiveNames((target,))
        else:
            targets = of_pattern[pattern].target_patterns
            live_of[name] = LiveNames(
                tuple(dict.fromkeys([target, *(target.replace(targets[0], t) for t in targets)])), pattern
            )
    return live_of


def _conversions(module: nn.Module) -> tuple[list[Any], list[Any]]:
    """The renamings and the converters of a module's class."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming
    except ImportError as error:
        raise _hidden(module, error) from None
    every: Any = get_model_conversion_mapping(module)  # type: ignore[arg-type]
    return [x for x in every if isinstance(x, WeightRenaming)], [x for x in every if isinstance(x, WeightConverter)]


def _hidden(module: nn.Module, error: ImportError) -> IsomergeError:
    return IsomergeError(
        f"this version of transformers does not say how it loads {type(module).__name__} ({error}): update it, or "
        "match without running models"
    )


def _followed(module: nn.Module, shapes: Shapes) -> Conversion:
    if own_class_of(module) is not None:  # loaded by name
        return Conversion({name: name for name in shapes})
    _, converters = _conversions(module)
    of_pattern = {pattern: x for x in converters for pattern in x.source_patterns}
    live: Any = module.state_dict(keep_vars=True)
    whole: dict[str, str] = {}
    groups: dict[str, list[tuple[str, str]]] = {}
    for stored, place in live_names(module, shapes).items():
        if place.names[0] in live and place.pattern is None:
            whole[stored] = place.names[0]
        elif place.names[0] in live:
            groups.setdefault(place.names[0], []).append((str(place.pattern), stored))
    follow = _Follower(module, live, shapes, of_pattern)
    fused: dict[str, list[tuple[str, Piece]]] = {}
    for name, members in groups.items():
        for target, stored, piece in follow(name, members):
            fused.setdefault(target, []).append((stored, piece))
    return Conversion(whole, fused)


class _Follower:
    """Runs conversions on the numbers of elements; layers that are alike are followed once."""

    def __init__(
        self, module: nn.Module, live: Mapping[str, Tensor], shapes: Shapes, of_pattern: Mapping[str, Any]
    ) -> None:
        self.module, self.live, self.shapes, self.of_pattern = module, live, shapes, of_pattern
        self.known: dict[Any, list[Piece]] = {}

    def __call__(self, name: str, members: list[tuple[str, str]]) -> Iterator[tuple[str, str, Piece]]:
        """Live tensors, stored tensors and their pieces of one conversion.

        Args:
            name: of the live tensor, the first where there are several.
            members: patterns and stored tensors, in the order of transformers.
        """
        sizes = [(pattern, self.shapes[stored]) for pattern, stored in members]
        key = (tuple(sizes), tuple(self.live[name].shape))
        if key in self.known:
            for (_, stored), piece in zip(members, self.known[key], strict=True):
                yield name, stored, piece
            return
        large = sum(prod(shape) for _, shape in sizes) > LARGE
        pieces = (self._by_axis(name, members) if large else None) or self._at_once(name, members)
        if {target for target, _, _ in pieces} == {name}:
            self.known[key] = [piece for _, _, piece in pieces]
        yield from pieces

    def _at_once(self, name: str, members: list[tuple[str, str]]) -> list[tuple[str, str, Piece]]:
        """By the numbers of all elements."""
        targets, starts = self._numbers(name, members, [self.shapes[stored] for _, stored in members])
        return [
            (target, stored, piece)
            for target, inverse in self._places(name, targets, starts[-1])
            for (_, stored), a, b in zip(members, starts, starts[1:], strict=False)
            if (piece := _piece(inverse[a:b], self.shapes[stored], targets[target], a)) is not None
        ]

    def _by_axis(self, name: str, members: list[tuple[str, str]]) -> list[tuple[str, str, Piece]] | None:
        """By the numbers of the elements along one axis at a time, and `FEW` along the others; None where stored
        tensors are no boxes of the live ones, side by side, that fill them."""
        shapes = [self.shapes[stored] for _, stored in members]
        runs: dict[tuple[str, int], list[_Box]] = {}
        for axis in range(rank := max(map(len, shapes))):
            small = [tuple(n if k == axis else min(n, FEW) for k, n in enumerate(shape)) for shape in shapes]
            try:
                targets, starts = self._numbers(name, members, small)
            except IsomergeError:  # the sizes count
                return None
            for target, numbers in targets.items():
                if target not in self.live or not _is_numbering(numbers, starts[-1]):
                    return None
                inverse = _inverse(numbers, starts[-1])
                for number, shape in enumerate(small):
                    part = inverse[starts[number] : starts[number + 1]]
                    if bool((part >= 0).any()):
                        box = _Box.of(part.view(shape), tuple(numbers.shape))
                        if box is None:
                            return None
                        runs.setdefault((target, number), []).append(box)
        pieces, sides = [], dict[str, list[list[tuple[int, int]]]]()
        for (target, number), boxes in runs.items():
            shape, live = shapes[number], tuple(self.live[target].shape)
            corner, axes = _one_corner(boxes, live), boxes[0].axes
            if corner is None or len(boxes) < rank or any(box.axes != axes for box in boxes):
                return None
            along = {axis: n for axis, n in zip(axes, shape, strict=True) if axis is not None}
            sides.setdefault(target, []).append([(x, x + along.get(k, 1)) for k, x in enumerate(corner)])
            steps = _rows(live)[0]
            strides = tuple(0 if axis is None else steps[axis] for axis in axes)
            offset = sum(x * step for x, step in zip(corner, steps, strict=True))
            pieces.append((target, members[number][1], Piece(shape, _rows(shape), (strides, offset))))
        filled = all(_fill(boxes, tuple(self.live[target].shape)) for target, boxes in sides.items())
        return pieces if filled and len(pieces) == len(members) else None

    def _numbers(
        self, name: str, members: list[tuple[str, str]], shapes: Sequence[tuple[int, ...]]
    ) -> tuple[dict[str, Tensor], list[int]]:
        """The numbers of the elements of stored tensors of these shapes where they are in live tensors, and where
        each stored tensor's numbers begin."""
        converter, starts = deepcopy(self.of_pattern[members[0][0]]), [0]
        for (pattern, stored), shape in zip(members, shapes, strict=True):
            numbers = torch.arange(starts[-1], starts[-1] + torch.Size(shape).numel()).view(shape)
            converter.add_tensor(name, stored, pattern, numbers)
            starts.append(starts[-1] + numbers.numel())
        try:
            made = converter.convert(name, model=self.module, config=self.module.config)
        except Exception as error:  # whatever an operation does with numbers that it does not expect
            raise self._refusal(name, members[0][1]) from error
        return {target: x[0] if isinstance(x, list) else x for target, x in made.items()}, starts

    def _places(self, name: str, targets: Mapping[str, Tensor], total: int) -> Iterator[tuple[str, Tensor]]:
        """For every live tensor, the place in it of each stored element, -1 for those that are not in it."""
        seen = torch.zeros(total, dtype=torch.bool)
        for target, numbers in targets.items():
            fits = target in self.live and self.live[target].shape == numbers.shape
            if not fits or not _is_numbering(numbers, total):
                raise self._refusal(target, name)
            inverse = _inverse(numbers, total)
            seen |= inverse >= 0
            yield target, inverse
        # as many elements as there are, and every one somewhere: each is in one place
        if not bool(seen.all()) or sum(x.numel() for x in targets.values()) != total:
            raise self._refusal(name, name)

    def _refusal(self, name: str, stored: str) -> IsomergeError:
        import transformers

        return IsomergeError(
            f"transformers {transformers.__version__} makes {name} of {type(self.module).__name__} from {stored} "
            "in a way that cannot be followed: match by weights alone, without running the models"
        )


def _is_numbering(numbers: Tensor, total: int) -> bool:
    """Whether a converted tensor consists of numbers of elements, of which there are so many."""
    return numbers.dtype == torch.int64 and bool(numbers.numel() and numbers.min() >= 0 and numbers.max() < total)


def _inverse(numbers: Tensor, total: int) -> Tensor:
    """The place of each of so many elements among the numbers, -1 for those that are not there."""
    inverse = torch.full((total,), -1)
    inverse[numbers.flatten()] = torch.arange(numbers.numel())
    return inverse


@dataclass(frozen=True)
class _Box:
    """Where a stored tensor is in a live one, one element beside the other."""

    corner: tuple[int, ...]
    """Along the axes of the live tensor."""
    axes: tuple[int | None, ...]
    """Those of the live tensor along which the stored one's run; None: it has one element along it."""
    shape: tuple[int, ...]
    """Of the live tensor."""

    @classmethod
    def of(cls, places: Tensor, shape: tuple[int, ...]) -> _Box | None:
        """The box of a stored tensor whose elements are at these places of a live tensor; None where it is none."""
        view, steps = _view(places), _rows(shape)[0]
        if view is None or view[1] < 0 or any(stride and stride not in steps for stride in view[0]):
            return None
        corner = tuple(view[1] // step % n for step, n in zip(steps, shape, strict=True))
        wide = [stride if n > 1 else None for stride, n in zip(view[0], places.shape, strict=True)]
        # axes of one element have the step of one before them
        axes = tuple(None if stride is None else steps.index(stride) for stride in wide)
        return cls(corner, axes, shape)


def _one_corner(boxes: Sequence[_Box], live: tuple[int, ...]) -> tuple[int, ...] | None:
    """The corner in a live tensor, from boxes in smaller ones, each of which has some axes as long as they are;
    None where these do not tell one."""
    corner = []
    for axis, length in enumerate(live):
        places = {box.corner[axis] for box in boxes if len(box.shape) == len(live) and box.shape[axis] == length}
        if len(places) != 1:
            return None
        corner += places
    return tuple(corner)


def _fill(boxes: Sequence[Sequence[tuple[int, int]]], live: tuple[int, ...]) -> bool:
    """Whether boxes, from where to where along every axis, lie in a tensor side by side and fill it."""
    begin, end = torch.tensor(boxes).unbind(-1)
    meet = ((begin[:, None] < end) & (begin < end[:, None])).all(-1).sum()
    inside = bool((begin >= 0).all()) and bool((end <= torch.tensor(live)).all())
    return inside and int(meet) == len(boxes) and int((end - begin).prod(-1).sum()) == prod(live)


def _piece(inverse: Tensor, shape: tuple[int, ...], numbers: Tensor, start: int) -> Piece | None:
    """The piece of one stored tensor in one live one; None where there is none.

    Args:
        inverse: [n], where its elements are in the live tensor, -1 for nowhere.
        shape: of the stored tensor.
        numbers: of the elements of the live tensor.
        start: the number of the stored tensor's first element.
    """
    inside = inverse >= 0
    if not bool(inside.any()):
        return None
    if bool(inside.all()) and (view := _view(inverse.view(shape))) is not None:
        return Piece(shape, _rows(shape), view)
    if int(inside.sum()) == numbers.numel() and (view := _view(numbers - start)) is not None:
        return Piece(tuple(numbers.shape), view, _rows(tuple(numbers.shape)))
    return Piece(elements=(inside.nonzero().squeeze(1), inverse[inside]))


def _rows(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """The strides and the offset of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides)), 0


def _view(places: Tensor) -> tuple[tuple[int, ...], int] | None:
    """The strides and the offset of a view whose elements are at these places; None where there are no such."""
    offset, strides = int(places.flatten()[0]), []
    wanted = torch.tensor(offset)
    for axis, size in enumerate(places.shape):
        index = [0] * places.ndim
        index[axis] = min(1, size - 1)
        strides.append(int(places[tuple(index)]) - offset)
        rest = [1] * (places.ndim - axis - 1)
        wanted = wanted + (torch.arange(size) * strides[-1]).view(size, *rest)
    return (
        (tuple(strides), offset)
        if min(strides, default=0) >= 0 and torch.equal(wanted.expand_as(places), places)
        else None
    )


@dataclass(frozen=True)
class Piece:
    """Which elements of a contiguous stored tensor are which of a contiguous live one: two views of one size.

    Stacks, concatenations, transposes and chunks are such views; what is not has the positions of its elements.
    """

    size: tuple[int, ...] = ()
    stored: tuple[tuple[int, ...], int] = ((), 0)
    """Strides and offset in the stored tensor."""
    live: tuple[tuple[int, ...], int] = ((), 0)
    """Strides and offset in the live tensor."""
    elements: tuple[Tensor, Tensor] | None = None
    """Positions in the stored and in the live tensor, int64 [n] each; then the views say nothing."""

    def span(self, step: int) -> tuple[int, int]:
        """Of the parts of the live tensor, of ``step`` elements each, the first and the last that it is in."""
        if self.elements is not None:
            return int(self.elements[1].min()) // step, int(self.elements[1].max()) // step
        strides, offset = self.live
        last = offset + sum((size - 1) * stride for size, stride in zip(self.size, strides, strict=True))
        return offset // step, last // step

    def moved(self, by: int) -> Piece:
        """The same in a live tensor that has so many elements more before it."""
        if self.elements is not None:
            return replace(self, elements=(self.elements[0], self.elements[1] + by))
        return replace(self, live=(self.live[0], self.live[1] + by))

    def put(self, stored: Tensor, live: Tensor) -> None:
        """Copy from the stored tensor into the live one, in place."""
        stored = stored.contiguous()
        if self.elements is not None:
            stored_places, live_places = (x.to(live.device) for x in self.elements)
            live.view(-1)[live_places] = stored.view(-1)[stored_places].to(live)
        else:
            _viewed(live, self.size, *self.live).copy_(_viewed(stored, self.size, *self.stored))

    def take(self, live: Tensor, stored: Tensor) -> None:
        """Copy from the live tensor into the stored one, in place: the inverse of `put`."""
        live = live.contiguous()
        if self.elements is not None:
            stored_places, live_places = (x.to(live.device) for x in self.elements)
            stored.view(-1)[stored_places] = live.view(-1)[live_places]
        else:
            _viewed(stored, self.size, *self.stored).copy_(_viewed(live, self.size, *self.live))


def _viewed(x: Tensor, size: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
    """A view of a contiguous tensor, which may itself begin anywhere in its memory."""
    return x.as_strided(size, strides, int(x.storage_offset()) + offset)


class _Assembled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pieces: Sequence[Piece], shape: tuple[int, ...], *stored: Tensor) -> Tensor:
        ctx.pieces, ctx.shapes = pieces, [x.shape for x in stored]
        whole = stored[0].new_empty(shape)
        for piece, x in zip(pieces, stored, strict=True):
            piece.put(x, whole)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad, parts = grads[0].contiguous(), []
        for piece, shape in zip(ctx.pieces, ctx.shapes, strict=True):
            piece.take(grad, part := grad.new_zeros(shape))
            parts.append(part)
        return None, None, *parts


def assembled(pieces: Sequence[Piece], shape: tuple[int, ...], stored: Sequence[Tensor]) -> Tensor:
    """A live tensor [shape] from stored ones, each with its piece; together they fill it. Differentiable once."""
    return _Assembled.apply(pieces, shape, *stored)  # type: ignore[return-value]

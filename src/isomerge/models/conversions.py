"""What transformers makes of a checkpoint's tensors on loading, read off its own conversions.

Transformers 5 renames tensors, and fuses what files store one by one: experts are stacked, gates and ups
concatenated, some are transposed. The conversion that it would run on the weights is run on the numbers of their
elements instead: where a number comes out is where the element lies, whatever operations were in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from isomerge.checkpoint.own_class import own_class_of
from isomerge.errors import IsomergeError
from isomerge.models.assembled import Piece

Shapes = Mapping[str, tuple[int, ...]]


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
        targets, starts = self._numbers(name, members)
        pieces = [
            (target, stored, piece)
            for target, inverse in self._places(name, targets, starts[-1])
            for (_, stored), a, b in zip(members, starts, starts[1:], strict=False)
            if (piece := _piece(inverse[a:b], self.shapes[stored], targets[target], a)) is not None
        ]
        if list(targets) == [name]:
            self.known[key] = [piece for _, _, piece in pieces]
        yield from pieces

    def _numbers(self, name: str, members: list[tuple[str, str]]) -> tuple[dict[str, Tensor], list[int]]:
        """The numbers of stored elements where they are in live tensors, and where each stored tensor's numbers
        begin."""

        converter, starts = deepcopy(self.of_pattern[members[0][0]]), [0]
        for pattern, stored in members:
            shape = self.shapes[stored]
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
            fits = target in self.live and self.live[target].shape == numbers.shape and numbers.dtype == torch.int64
            if not fits or not numbers.numel() or numbers.min() < 0 or numbers.max() >= total:
                raise self._refusal(target, name)
            inverse = torch.full((total,), -1)
            inverse[numbers.flatten()] = torch.arange(numbers.numel())
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

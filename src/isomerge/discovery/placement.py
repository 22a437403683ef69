"""Where stored tensors live in a module: under another name, transposed, or as a part of a fused parameter.

transformers renames and fuses tensors between disk and memory (experts, old names of layers). Random weights tell
which is which: equal numbers are the same tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

View = Callable[["Tensor"], "Tensor"]


@dataclass(frozen=True)
class Place:
    """A parameter and the part of it that is one stored tensor."""

    parameter: str
    view: View


def places_of(stored: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Place]:
    """Where every stored tensor lives; what is found nowhere is left out.

    Args:
        stored: the tensors on disk by name; random, so that no two are equal.
        parameters: the module's parameters by name.
    """

    places: dict[str, Place] = {}
    for name, value in stored.items():
        own = parameters.get(name)
        if own is not None and own.shape == value.shape and torch.equal(own, value):
            places[name] = Place(name, _whole)
    for name, value in stored.items():
        if name in places or not value.is_floating_point():
            continue
        place = next(
            (p for p in _candidates(parameters, value) if torch.equal(p.view(parameters[p.parameter]), value)), None
        )
        if place is not None:
            places[name] = place
    return places


@dataclass(frozen=True)
class Joined:
    """Parameters of which the rows, in some order, are one stored tensor."""

    parameters: tuple[str, ...]
    order: Tensor
    """Which row of the parameters, one after the other, each stored row is."""

    def of(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The stored tensor, of parameters (or what is as long as they are) by name."""
        return torch.cat([tensors[name] for name in self.parameters])[self.order]

    def put(self, value: Tensor, parameters: Mapping[str, Tensor]) -> None:
        """Write a stored tensor into the parameters."""
        rows = torch.empty_like(value)
        rows[self.order] = value
        lengths = [parameters[name].shape[0] for name in self.parameters]
        for name, part in zip(self.parameters, rows.split(lengths), strict=True):
            parameters[name].copy_(part)


def joined_places(
    stored: Mapping[str, Tensor], places: Mapping[str, Place], parameters: Mapping[str, Tensor]
) -> dict[str, Joined]:
    """The stored tensors without a place of which the class computes with the parts: fused queries, keys and values
    that it takes apart.

    Args:
        stored: the tensors on disk by name; random, so that no two rows are equal.
        places: of those that live in one parameter.
        parameters: the module's parameters by name.
    """
    taken = {place.parameter for place in places.values()}
    free = {name: p.detach() for name, p in parameters.items() if name not in taken and p.ndim}
    joined: dict[str, Joined] = {}
    for name, value in stored.items():
        if name in places or not value.ndim or not value.is_floating_point():
            continue
        alike = {n: p for n, p in free.items() if p.shape[1:] == value.shape[1:]}
        numbers = {row: k for k, row in enumerate(_rows(value))}
        order = {n: [numbers.get(row) for row in _rows(p)] for n, p in alike.items()}
        parts = tuple(n for n, rows in order.items() if None not in rows)
        at = torch.tensor([row for n in parts for row in order[n]], dtype=torch.long)
        if len(at) == len(value):
            joined[name] = Joined(parts, at.argsort())
    return joined


def _rows(tensor: Tensor) -> list[bytes]:
    """The rows of a tensor, to be compared bit by bit."""
    return [row.numpy().tobytes() for row in tensor.contiguous()]


def _whole(tensor: Tensor) -> Tensor:
    return tensor


def _candidates(parameters: Mapping[str, Tensor], value: Tensor) -> Iterator[Place]:
    """The parts of parameters that have a tensor's shape: the whole, one expert of many, and halves of either."""
    shape = tuple(value.shape)
    for name, own in parameters.items():
        picks: list[View] = []
        if own.ndim == value.ndim:
            picks = [_whole]
        elif own.ndim == value.ndim + 1:
            picks = [_pick(i) for i in range(own.shape[0])]
        for pick in picks:
            for turn in (_whole, _turned) if value.ndim == 2 else (_whole,):
                part = turn(pick(own))
                if tuple(part.shape) == shape:
                    yield Place(name, _chain(pick, turn))
                elif part.ndim and tuple(part.shape[1:]) == shape[1:] and part.shape[0] > shape[0]:
                    for start in range(0, part.shape[0] - shape[0] + 1, shape[0]):
                        yield Place(name, _chain(pick, turn, _cut(start, shape[0])))


def _pick(i: int) -> View:
    return lambda t: t[i]


def _turned(tensor: Tensor) -> Tensor:
    return tensor.mT


def _cut(start: int, length: int) -> View:
    return lambda t: t.narrow(0, start, length)


def _chain(*steps: View) -> View:
    def view(tensor: Tensor) -> Tensor:
        for step in steps:
            tensor = step(tensor)
        return tensor

    return view

"""What no declared group explains of a null space: its dimensions by the fewest lines of a spec that they move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import Any

import torch
from torch import Tensor

from isomerge.discovery.redundancy_point import Point
from isomerge.symmetry.axes import show
from isomerge.symmetry.language.spec import Line

NONE = 1e-6
"""Lengths of parts of vectors of length one at most this are zero: tangents come from differences,
exact to 1e-8."""
INDEPENDENT = 1e-9
"""Squared singular values above this count, of rows of length one; the error of tangents, squared, is 1e-16."""
TOGETHER = 3
"""The most lines that are looked at together."""
GROUPS = 600
"""The most groups of lines that are looked at: each takes a hundredth of a second."""


@dataclass(frozen=True)
class Left:
    """Dimensions that no declared group explains, by the lines that they move."""

    dimensions: int
    lines: tuple[str, ...]
    along: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By line: the axes along which what moves is constant (a mean that a norm takes away)."""

    def report(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "dimensions": self.dimensions,
            "lines": list(self.lines),
            "constant_along": {k: list(v) for k, v in self.along.items()},
        }


def span_of(rows: Tensor) -> Tensor:
    """An orthonormal basis [rank, parameters] of what rows span, each of length one before."""
    sizes = rows.norm(dim=1, keepdim=True)
    moving = (sizes > NONE**2).squeeze(1)
    return beyond(rows[moving] / sizes[moving], rows[:0])


def beyond(rows: Tensor, known: Tensor) -> Tensor:
    """An orthonormal basis of what rows of length one span modulo an orthonormal basis of what is known."""
    if not len(rows):
        return rows
    rest = rows - (rows @ known.mT) @ known
    values, vectors = torch.linalg.eigh(rest @ rest.mT)
    kept = values > INDEPENDENT
    basis = (vectors[:, kept].mT @ rest) / values[kept].sqrt()[:, None]
    return torch.linalg.qr(basis.mT).Q.mT if len(basis) else basis


def unexplained(point: Point, null: Tensor, declared: Tensor) -> Iterator[Left]:
    """What is not explained, by the fewest lines that it can be moved in; what is constant along an axis first."""
    known, lines = declared, point.lines()
    for line, axis, constant in _constants(point, lines):
        if len(known) == len(null):
            return
        more = beyond(_met(null, constant), known)
        if len(more):
            yield Left(len(more), (line.name,), {line.name: (axis,)})
            known = torch.cat([known, more])
    parts = {line: null[:, mask] @ null[:, mask].mT for line, mask in lines.items()}
    identity = torch.eye(len(null), dtype=null.dtype)
    for count in range(1, TOGETHER + 1):
        if comb(len(lines), count) > GROUPS:
            break
        for group in combinations(lines, count):
            if len(known) == len(null):
                return
            values, vectors = torch.linalg.eigh(identity - torch.stack([parts[line] for line in group]).sum(0))
            more = beyond(vectors[:, values < NONE**2].mT @ null, known)
            if len(more):
                yield Left(len(more), tuple(line.name for line in group))
                known = torch.cat([known, more])
    if rest := len(null) - len(known):
        yield Left(rest, ())


def _met(null: Tensor, constant: Tensor) -> Tensor:
    """An orthonormal basis of what two orthonormal bases have in common."""
    values, vectors = torch.linalg.eigh((null @ constant.mT) @ (constant @ null.mT))
    return vectors[:, values > 1 - NONE**2].mT @ null


def _constants(point: Point, lines: Mapping[Line, Tensor]) -> Iterator[tuple[Line, str, Tensor]]:
    """For every line and axis, an orthonormal basis of what is constant along that axis of that line's tensors."""
    for line in lines:
        names = [n for n in point.names if point.seen.matches[n].line is line]
        for k, axis in enumerate(line.axes or ()):
            rows = []
            for name in names:
                shape = point.seen.specimen.stored[name].shape
                if k >= len(shape) or shape[k] < 2 or 0 in shape:
                    continue
                rest = [n for i, n in enumerate(shape) if i != k]
                count = int(torch.tensor(rest).prod()) if rest else 1
                tensor = torch.eye(count, dtype=torch.float64).reshape(count, *rest).unsqueeze(k + 1)
                directions = torch.zeros(count, point.whole, dtype=torch.float64)
                directions[:, point.spans[name]] = tensor.expand(count, *shape).reshape(count, -1) / shape[k] ** 0.5
                rows.append(directions[:, point.read])
            if rows:
                whole = torch.cat(rows)
                yield line, show(axis), whole[whole.norm(dim=1) > 0.99]

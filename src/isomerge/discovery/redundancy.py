"""Is the declared symmetry group the whole one? The completeness law, at a generic point of a tiny random model.

The null space of d(outputs)/d(parameters) at a generic point is the tangent space of the orbit of *all* continuous
symmetries of the function. The declared groups span a part of it: the derivative of their action, taken through the
real action. Where its dimension is the smaller one, symmetries are missing from the spec, and what they move is named.

Everything is float64 (see `precision`): norms and softmaxes in float32 would leave 1e-6, in which directions hide. The
overall scale of a residual stream is nearly a symmetry, broken by the norms' eps: its singular value is 1e-4 of the
largest, nine orders of magnitude above that of a true symmetry, and it does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from isomerge.discovery.bound_specimen import BoundSpecimen
from isomerge.discovery.building import first_line, make_specimen
from isomerge.discovery.precision import double_precision
from isomerge.discovery.shrinking import Scale
from isomerge.discovery.specimen import Specimen, run
from isomerge.discovery.specimen_inputs import covering_inputs
from isomerge.errors import IsomergeError
from isomerge.evidence.law import with_streams
from isomerge.evidence.outputs import returned
from isomerge.matching.frame import folded_gains
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import atoms, show
from isomerge.symmetry.language.spec import Line, Spec
from isomerge.symmetry.stage import find_shifts, shift_atoms
from isomerge.symmetry.units import elements_of

NULL = 1e-10
"""Singular values of the Jacobian at most this share of the largest one are zero: rounding leaves 1e-15 to 1e-12, what
is nearly a symmetry 1e-5 and more."""
STEP = 1e-4
"""The step of the central differences by which the declared action is derived; its error is the step's square."""
DERIVED = 1e-6
"""Singular values of derived tangents at most this share of the largest one are zero, and so is their push to
outputs: a hundred times the error of the differences."""
MOST = 4_000
"""Parameters of a specimen whose Jacobian is decomposed: 4,000 take two minutes on two cores."""
TINY = Scale(2, 2, 1, 4, 0, 12, 3, 22, 6, 12)
"""How small the specimens are: about 1,500 parameters."""
LENGTHS = (12, 11, 10, 9, 8)
"""Lengths of inputs that are tried: the longest one reaches all places."""
ROWS, ENOUGH = 40, 1.5
"""Rows of every input at least, and how many outputs there are for each parameter."""
TOGETHER = 3
"""The most lines that are looked at together to name what is left."""


@dataclass(frozen=True)
class Left:
    """Dimensions that no declared group explains, by the lines that they move."""

    dimensions: int
    lines: tuple[str, ...]
    along: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By line: the axes along which what moves is constant (a mean that a norm takes away, a constant that moves)."""

    def report(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "dimensions": self.dimensions,
            "lines": list(self.lines),
            "constant_along": {k: list(v) for k, v in self.along.items()},
        }


@dataclass(frozen=True)
class Redundancy:
    """How many dimensions of the parameters change no output, and how many the declared groups explain."""

    parameters: int
    true: int
    declared: int
    gap: tuple[float, float]
    """The least singular value that is not zero, and the largest that is, as shares of the largest of all."""
    left: tuple[Left, ...]

    @property
    def complete(self) -> bool:
        """Whether no continuous symmetry is missing."""
        return self.true == self.declared

    def report(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "parameters": self.parameters,
            "true": self.true,
            "declared": self.declared,
            "complete": self.complete,
            "gap": list(self.gap),
            "left": [left.report() for left in self.left],
        }


def tiny_specimen(config: Any, seed: int = 0) -> Specimen:
    """A specimen small enough for its Jacobian, whose last input covers its parameters.

    Args:
        config: the real configuration object (see `isomerge.discovery.building.real_config`).
        seed: of weights and inputs.

    Raises:
        IsomergeError: no such model can be built or run.
    """
    specimen = make_specimen(config, TINY, seed, untied=False)
    parameters = sum(t.numel() for t in specimen.stored.values() if t.is_floating_point())
    made = specimen.module.config
    first: Exception | None = None
    for length in LENGTHS:
        try:
            one = _outputs(specimen.module, covering_inputs(specimen.module, made, TINY, seed, ROWS, length)).numel()
            rows = ROWS + int(ENOUGH * parameters * ROWS / max(one, 1))
            specimen.inputs.append(covering_inputs(specimen.module, made, TINY, seed, rows, length))
            _outputs(specimen.module, specimen.inputs[-1])
        except Exception as error:  # whatever the code of a model raises for lengths that it refuses
            first = first or error
            continue
        return specimen
    raise IsomergeError(
        f"a tiny {type(specimen.module).__name__} does not run on many inputs ({type(first).__name__}: "
        f"{first_line(first) if first else ''})"
    )


def _outputs(module: Any, given: Mapping[str, Tensor]) -> Tensor:
    """All that a class returns by default, flat, float64."""
    with double_precision():
        values = [v for v in returned(run(module, given)).values() if v.is_floating_point()]
    return torch.cat([v.double().reshape(-1) for v in values])


def measure_redundancy(seen: BoundSpecimen) -> Redundancy:
    """Count the dimensions that change no output, and those that the declared groups explain.

    Args:
        seen: a specimen of at most `MOST` parameters, of which the last input has more outputs than there are
            parameters. Its module is left with its gains folded into their readers.

    Raises:
        IsomergeError: the model is too large, some of its tensors are stored otherwise than the class computes with
            them, or a declared tangent changes outputs (the law does not hold).
    """
    point = _Point(seen)
    jacobian = point.jacobian()
    null, gap, largest = _null_space(jacobian)
    tangents = point.tangents()
    pushed = jacobian @ tangents.mT
    if tangents.numel() and float(pushed.norm(dim=0).max() / largest) > DERIVED:
        worst = int(pushed.norm(dim=0).argmax())
        raise IsomergeError(
            f"the declared space {point.owners[worst]} changes outputs to first order: it is no symmetry of "
            f"{type(seen.specimen.module).__name__} (isomerge prove tells more)"
        )
    declared = _span(tangents)
    return Redundancy(
        point.size, len(null), len(declared), gap, tuple(_left(point, null, declared)) if len(null) > len(declared) else ()
    )


class _Point:
    """The parameters of a specimen with its gains folded, flat; those whose rows no input can reach are left out."""

    def __init__(self, seen: BoundSpecimen) -> None:
        self.seen = seen
        specimen = seen.specimen
        if missing := [n for n, t in specimen.stored.items() if t.is_floating_point() and n not in specimen.places]:
            raise IsomergeError(
                f"tensor {missing[0]} is stored otherwise than {type(specimen.module).__name__} computes with it: its "
                "redundancy cannot be counted"
            )
        kept = {name for name in seen.kept if name in seen.spec.streams}
        largest = with_streams(seen.spec)
        for name in kept:
            largest = largest.with_group(name, seen.spec.spaces[name].group_name)
        self.spec: Spec = largest.restrict(
            [*(n for n in largest.spaces if n not in seen.kept), *(s.name for s in largest.shifts)]
        )
        self.blocks = seen.fresh()
        if folds := [n for n in self.spec.gains if n in self.spec.spaces]:
            whole = folded_gains(self.spec.restrict([*folds, *self.spec.streams]), seen.blocks, self.blocks.__getitem__)
            whole.act(self.blocks)
        self.names = [n for n, t in specimen.stored.items() if t.is_floating_point() and n in seen.matches]
        named = self._named(self.blocks)
        with torch.no_grad():
            for name in self.names:
                specimen.live(name).copy_(named[name])
        self.spans: dict[str, slice] = {}
        start = 0
        for name in self.names:
            self.spans[name] = slice(start, start + named[name].numel())
            start += named[name].numel()
        self.owners: list[str] = []
        self.whole = start
        if start > MOST:
            raise IsomergeError(f"a model of {start:,} parameters is too large for its Jacobian: at most {MOST:,}")
        self.read: Tensor = torch.ones(start, dtype=torch.bool)

    @property
    def size(self) -> int:
        """Parameters that inputs can reach."""
        return int(self.read.sum())

    def _named(self, blocks: Mapping[Any, Tensor]) -> dict[str, Tensor]:
        found = {self.seen.names[n]: t for block, x in blocks.items() for n, t in block.split(x)}
        return {**{n: self.seen.specimen.stored[n] for n in self.names_of_stored() if n not in found}, **found}

    def names_of_stored(self) -> list[str]:
        """The names of the specimen's tensors of numbers."""
        return [n for n, t in self.seen.specimen.stored.items() if t.is_floating_point()]

    def flat(self, named: Mapping[str, Tensor]) -> Tensor:
        """Stored tensors as one vector, those that inputs reach."""
        return torch.cat([named[n].double().reshape(-1) for n in self.names])[self.read]

    # ---------------------------------------------------------------- outputs

    def jacobian(self) -> Tensor:
        """Random combinations of the outputs derived by the parameters [rows, parameters], a few more rows than
        parameters."""
        specimen = self.seen.specimen
        module = specimen.module
        for part in module.modules():
            if isinstance(part, torch.nn.Embedding):
                part.padding_idx = None  # its row would get no gradient, and look like a symmetry
        parameters = dict(module.named_parameters(remove_duplicate=True))
        wanted = [p for p in parameters.values() if p.is_floating_point()]
        for p in wanted:
            p.requires_grad_(True)
        outputs = _outputs(module, specimen.inputs[-1])
        if outputs.numel() < 1.2 * self.whole:
            raise IsomergeError(
                f"{outputs.numel():,} outputs are too few to tell {self.whole:,} parameters apart: give more inputs"
            )
        rng = torch.Generator().manual_seed(0)
        count = self.whole + 40
        rows = torch.empty(count, self.whole, dtype=torch.float64)
        for row in range(count):
            weights = torch.randn(outputs.numel(), generator=rng, dtype=torch.float64)
            slopes = torch.autograd.grad(outputs, wanted, weights, retain_graph=True, allow_unused=True)
            by_name = {
                name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(parameters.items(), slopes, strict=True)
            }
            rows[row] = torch.cat(
                [specimen.places[n].view(by_name[self._parameter(n, by_name)]).reshape(-1) for n in self.names]
            )
        for p in wanted:
            p.requires_grad_(False)
        self.read = self._reached(rows)
        return rows[:, self.read]

    def _parameter(self, name: str, parameters: Mapping[str, Tensor]) -> str:
        """The parameter that a stored tensor is a part of, under the first of its names."""
        own = self.seen.specimen.places[name].parameter
        if own in parameters:
            return own
        tensor = self.seen.specimen.parameters[own]
        return next(n for n, p in self.seen.specimen.module.named_parameters() if p is tensor)

    def _reached(self, rows: Tensor) -> Tensor:
        """Which numbers an input can reach: not the rows of tokens and places that none of them has."""
        sizes = rows.norm(dim=0)
        unread = sizes <= NULL * sizes.max()
        reached = torch.ones_like(unread)
        for name, span in self.spans.items():
            shape = self.seen.specimen.stored[name].shape
            here = unread[span].reshape(shape)
            if len(shape) < 2 or bool(here.all()):
                continue
            axes = self.seen.matches[name].line.axes or ()
            for axis in range(len(shape)):
                if axis < len(axes) and any(a.name in self.seen.spec.spaces for a in atoms((axes[axis],))):
                    continue  # of an axis on which a group acts no part is merely unseen
                rest = [k for k in range(len(shape)) if k != axis]
                gone = here.permute(axis, *rest).flatten(1).all(1)
                index = gone.reshape([-1 if k == axis else 1 for k in range(len(shape))]).expand(shape)
                reached[span] &= ~index.reshape(-1)
        return reached

    # --------------------------------------------------------------- declared

    def tangents(self) -> Tensor:
        """The derivatives of the declared action at the identity [generators, parameters]."""
        found = [(owner, self._derived(key, g, identity)) for owner, key, g, identity in self._generators()]
        self.owners = [owner for owner, _ in found]
        return torch.stack([t for _, t in found]) if found else torch.zeros(0, self.size, dtype=torch.float64)

    def _derived(self, key: str, generator: Tensor, identity: Tensor) -> Tensor:
        ends = []
        for sign in (1, -1):
            blocks = {block: x.clone() for block, x in self.blocks.items()}
            Alignment(self.spec, {key: identity + sign * STEP * generator}).act(blocks)
            ends.append(self.flat(self._named(blocks)))
        return (ends[0] - ends[1]) / (2 * STEP)

    def _generators(self) -> Iterator[tuple[str, str, Tensor, Tensor]]:
        """Space, element key, generator and identity, for every dimension of every element."""
        elements: dict[str, Any] = {}
        for block in self.seen.blocks:
            for key, space in elements_of(self.spec, block).items():
                elements.setdefault(key, space)
        for key, space in elements.items():
            n, batch = self.spec.sizes[space.name], tuple(self.spec.sizes[i] for i in self.spec.batch(space))
            identity, basis = space.group.identity(batch, n), space.group.generators(n)
            for at in range(identity[..., 0].numel() if not batch else int(torch.tensor(batch).prod())):
                if not batch and at:
                    break
                for generator in basis:
                    whole = torch.zeros_like(identity).reshape(-1, *generator.shape)
                    whole[at] = generator
                    yield space.name, key, whole.reshape(identity.shape), identity
        for shift, key, _ in find_shifts(self.spec, self.seen.blocks):
            shape = [self.spec.sizes[a.name] for a in shift_atoms(self.spec, shift)]
            zero = torch.zeros(shape, dtype=torch.float64)
            for at in range(zero.numel()):
                one = zero.clone().reshape(-1)
                one[at] = 1
                yield shift.name, key, one.reshape(shape), zero

    # ---------------------------------------------------------------- by line

    def lines(self) -> dict[Line, Tensor]:
        """By line, which of the read parameters are its."""
        found: dict[Line, Tensor] = {}
        for name in self.names:
            line = self.seen.matches[name].line
            mask = found.setdefault(line, torch.zeros(self.whole, dtype=torch.bool))
            mask[self.spans[name]] = True
        return {line: mask[self.read] for line, mask in found.items()}


def _null_space(jacobian: Tensor) -> tuple[Tensor, tuple[float, float], float]:
    """An orthonormal basis [dimensions, parameters] of what changes no output, the gap, and the largest pivot.

    By QR with pivoting, a tenth of the time of singular values: the pivots show the gap as these do.
    """
    from scipy.linalg import qr, solve_triangular

    if not bool(jacobian.isfinite().all()):
        raise IsomergeError("the derivatives of a tiny random model's outputs are not finite: nothing can be counted")
    triangle, order = qr(jacobian.numpy(), mode="r", pivoting=True, check_finite=False)
    pivots = abs(triangle.diagonal())
    rank = int((pivots > NULL * pivots[0]).sum())
    gap = (float(pivots[rank - 1] / pivots[0]), float(pivots[rank] / pivots[0]) if rank < len(pivots) else 0.0)
    count = triangle.shape[1] - rank
    basis = torch.zeros(triangle.shape[1], count, dtype=torch.float64)
    if count:
        carried = solve_triangular(triangle[:rank, :rank], triangle[:rank, rank:], check_finite=False)
        basis[torch.from_numpy(order[:rank])] = -torch.from_numpy(carried)
        basis[torch.from_numpy(order[rank:]), torch.arange(count)] = 1
        basis = torch.linalg.qr(basis).Q
    return basis.mT.contiguous(), gap, float(pivots[0])


def _span(rows: Tensor) -> Tensor:
    """An orthonormal basis [rank, parameters] of what rows span, each of length one before."""
    sizes = rows.norm(dim=1, keepdim=True)
    moving = (sizes > STEP**2).squeeze(1)
    return _beyond(rows[moving] / sizes[moving], rows[:0])


def _beyond(rows: Tensor, known: Tensor) -> Tensor:
    """An orthonormal basis of what rows of length one span modulo an orthonormal basis of what is known."""
    if not len(rows):
        return rows
    rest = rows - (rows @ known.mT) @ known
    values, vectors = torch.linalg.eigh(rest @ rest.mT)
    kept = values > DERIVED * max(float(values[-1]), DERIVED)
    basis = (vectors[:, kept].mT @ rest) / values[kept].sqrt()[:, None]
    return torch.linalg.qr(basis.mT).Q.mT if len(basis) else basis


def _left(point: _Point, null: Tensor, declared: Tensor) -> Iterator[Left]:
    """What is not explained, by the fewest lines that it can be moved in; what is constant along an axis first."""
    known, lines = declared, point.lines()
    for line, axis, constant in _constants(point, lines):
        more = _beyond(_met(null, constant), known)
        if len(more):
            yield Left(len(more), (line.name,), {line.name: (axis,)})
            known = torch.cat([known, more])
    parts = {line: null[:, mask] @ null[:, mask].mT for line, mask in lines.items()}
    one = torch.eye(len(null), dtype=null.dtype)
    for count in range(1, TOGETHER + 1):
        for group in combinations(lines, count):
            if len(known) == len(null):
                return
            values, vectors = torch.linalg.eigh(one - torch.stack([parts[line] for line in group]).sum(0))
            more = _beyond(vectors[:, values < DERIVED**2].mT @ null, known)
            if len(more):
                yield Left(len(more), tuple(line.name for line in group))
                known = torch.cat([known, more])
    if rest := len(null) - len(known):
        yield Left(rest, ())


def _met(null: Tensor, constant: Tensor) -> Tensor:
    """An orthonormal basis of what two orthonormal bases have in common."""
    values, vectors = torch.linalg.eigh((null @ constant.mT) @ (constant @ null.mT))
    return vectors[:, values > 1 - DERIVED**2].mT @ null


def _constants(point: _Point, lines: Mapping[Line, Tensor]) -> Iterator[tuple[Line, str, Tensor]]:
    """For every line and axis, an orthonormal basis of what is constant along that axis of that line's tensors."""
    for line in lines:
        names = [n for n in point.names if point.seen.matches[n].line is line]
        for k, axis in enumerate(line.axes or ()):
            rows = []
            for name in names:
                shape = point.seen.specimen.stored[name].shape
                if k >= len(shape) or shape[k] < 2:
                    continue
                rest = [n for i, n in enumerate(shape) if i != k]
                count = int(torch.tensor(rest).prod()) if rest else 1
                tensor = torch.eye(count, dtype=torch.float64).reshape(count, *rest).unsqueeze(k + 1)
                here = torch.zeros(count, point.whole, dtype=torch.float64)
                here[:, point.spans[name]] = tensor.expand(count, *shape).reshape(count, -1) / shape[k] ** 0.5
                rows.append(here[:, point.read])
            if rows:
                whole = torch.cat(rows)
                yield line, show(axis), whole[whole.norm(dim=1) > 0.99]


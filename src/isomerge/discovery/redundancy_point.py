"""A tiny random model as a point among all of its class: its Jacobian, and the tangents of the declared action.

A form (`isomerge.models.layer_norm_form`) is a map of the weights that leaves the function as it is. What `verify`
does not see through it is the null space of its derivative: counted from the form itself, so that no direction is
counted that `verify` would not accept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor

from isomerge.checkpoint.in_memory import in_memory
from isomerge.discovery.proving import BoundSpecimen
from isomerge.errors import IsomergeError
from isomerge.evidence.law import with_streams
from isomerge.matching.frame import folded_gains
from isomerge.models.layer_norm_form import layer_norm_form
from isomerge.models.recognised import Model, View
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import Concat
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.spec import Line, Space, Spec
from isomerge.symmetry.stage import find_shifts, shift_shape
from isomerge.symmetry.units import elements_of

UNREACHED = 1e-10
"""A parameter whose derivatives are at most this share of the largest ones is reached by no input."""
STEP = 1e-4
"""The step of the central differences by which the declared action is derived; its error is the step's square."""
MOST = 5_000
"""Parameters of a specimen whose Jacobian is decomposed: that of 5,000 takes two minutes and a gigabyte."""
TOGETHER = 32
"""Combinations of outputs that are derived at once."""
MORE = 40
"""How many more combinations of outputs are derived than there is to be told."""
ENOUGH = 1.2
"""How many outputs there must be for each parameter: fewer would look like symmetries."""
CHUNK = 256
"""Directions that are derived at once: a tenth of a megabyte each."""
ZERO = 1e-10
"""Singular values at most this are zero; those of a projection are one, or near it where gains differ."""


class Point:
    """The parameters of a specimen with its gains folded, flat; rows that no input can reach are left out."""

    def __init__(self, seen: BoundSpecimen) -> None:
        self.seen = seen
        specimen = seen.specimen
        buffers = {name for name, _ in specimen.module.named_buffers()} - specimen.places.keys()
        numbers = {n: t for n, t in specimen.stored.items() if t.is_floating_point()}
        self.numbers = {n: t for n, t in numbers.items() if n not in buffers}
        """The stored tensors of numbers, but for those that are no parameters (which experts are asked first)."""
        if missing := [n for n in self.numbers if n not in specimen.places and n not in specimen.joined]:
            raise IsomergeError(
                f"tensor {missing[0]} is stored otherwise than {type(specimen.module).__name__} computes with "
                "it: its redundancy cannot be counted"
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
            whole = folded_gains(
                self.spec.restrict([*folds, *self.spec.streams, *self.spec.turned_latents]),
                seen.blocks,
                self.blocks.__getitem__,
            )
            whole.act(self.blocks)
        frozen = self._frozen()
        self.names = [n for n in self.numbers if n in seen.matches and n not in frozen]
        named = self._named(self.blocks)
        with torch.no_grad():
            for name in self.names:
                specimen.put(name, named[name])
        ends = list(accumulate((named[n].numel() for n in self.names), initial=0))
        self.spans = {n: slice(a, b) for n, a, b in zip(self.names, ends[:-1], ends[1:], strict=True)}
        """Where each tensor lies in the flat vector."""
        self.owners: list[str] = []
        """The space or shift of each tangent."""
        self.whole = ends[-1]
        if self.whole > MOST:
            raise IsomergeError(
                f"a model of {self.whole:,} parameters is too large for its Jacobian: at most {MOST:,}"
            )
        self.read: Tensor = torch.ones(self.whole, dtype=torch.bool)
        self.unread: list[str] = []
        """The tensors that stand in no way to any output: the class stores them and does not run them."""

    def _frozen(self) -> set[str]:
        """The tensors that are stored and not trained, such as sinusoids, where nothing moves them."""
        specimen, parameters = self.seen.specimen, self.seen.specimen.parameters
        if not any(p.requires_grad for p in parameters.values()):
            return set()
        held = {n for n, place in specimen.places.items() if not parameters[place.parameter].requires_grad}
        lines = {n: self.seen.matches[n].line for n in held & self.seen.matches.keys()}
        return {n for n, line in lines.items() if not line.names & {*self.spec.spaces}}

    @property
    def size(self) -> int:
        """Parameters that inputs can reach."""
        return int(self.read.sum())

    def _named(self, blocks: Mapping[Any, Tensor]) -> dict[str, Tensor]:
        return self.numbers | {self.seen.names[n]: t for block, x in blocks.items() for n, t in block.split(x)}

    def flat(self, named: Mapping[str, Tensor]) -> Tensor:
        """Stored tensors as one vector, those that inputs reach."""
        return torch.cat([named[n].double().reshape(-1) for n in self.names])[self.read]

    # ---------------------------------------------------------------- outputs

    def jacobian(self) -> Tensor:
        """Random combinations of the outputs derived by the parameters [rows, parameters], a few more rows than
        parameters."""
        rows = self._combinations(self.whole + MORE)
        self.read = self._reached(rows)
        return rows[:, self.read]

    def changes(self, directions: Tensor) -> Tensor:
        """What directions [count, parameters] change of random combinations of the outputs [rows, count]."""
        return self._combinations(len(directions) + MORE)[:, self.read] @ directions.mT

    def _combinations(self, count: int) -> Tensor:
        """So many random combinations of the outputs derived by all parameters."""
        specimen = self.seen.specimen
        module = specimen.module
        for part in module.modules():
            if isinstance(part, torch.nn.Embedding):
                part.padding_idx = None  # its row would get no gradient, and look like a symmetry
        parameters = {n: p for n, p in module.named_parameters() if p.is_floating_point()}
        numbers = {id(p): name for name, p in parameters.items()}
        # of the names of one that is tied
        first = {name: numbers[id(p)] for name, p in specimen.parameters.items() if p.is_floating_point()}
        for p in parameters.values():
            p.requires_grad_(True)
        rng = torch.Generator().manual_seed(0)
        rows, idle = [], set(parameters)
        for inputs, share in self._shares(count):
            outputs = specimen.flat_output(inputs)
            for start in range(0, share, TOGETHER):
                batch = min(TOGETHER, share - start)
                weights = torch.randn(batch, outputs.numel(), generator=rng, dtype=torch.float64)
                slopes = _slopes(outputs, parameters, weights)
                idle -= slopes.keys()
                by_name = {
                    n: slopes[n] if n in slopes else p.new_zeros(batch, *p.shape) for n, p in parameters.items()
                }
                for at in range(batch):
                    each = {name: by_name[own][at] for name, own in first.items()}
                    rows.append(torch.cat([specimen.part_of(n, each).reshape(-1) for n in self.names]))
        self.unread = [n for n in self.names if idle.issuperset(first[own] for own in specimen.owners(n))]
        for p in parameters.values():
            p.requires_grad_(False)
        return torch.stack(rows)

    def _shares(self, count: int) -> list[tuple[Any, int]]:
        """How many of so many combinations, or a few more, are of the outputs for each input: those of one input
        reach its rows alone, and are derived through them alone."""
        specimen = self.seen.specimen
        with torch.no_grad():
            sizes = [specimen.flat_output(inputs).numel() for inputs in specimen.many]
        if (whole := sum(sizes)) < ENOUGH * self.whole:
            raise IsomergeError(
                f"{whole:,} outputs are too few to tell {self.whole:,} parameters apart: give more inputs"
            )
        return [(inputs, ceil(count * size / whole)) for inputs, size in zip(specimen.many, sizes, strict=True)]

    def _reached(self, rows: Tensor) -> Tensor:
        """Which numbers an input can reach: not the rows of tokens and places that none of them has, nor those of
        units that none of them switches on. Of an axis with parts one may be free (a key's bias): it counts."""
        sizes = rows.norm(dim=0)
        unread = sizes <= UNREACHED * sizes.max()
        reached = torch.ones_like(unread)
        for name in self.unread:
            reached[self.spans[name]] = False
        for name, span in self.spans.items():
            shape = self.seen.specimen.stored[name].shape
            idle = unread[span].reshape(shape)
            if bool(idle.all()):  # run, and free: a key's bias
                continue
            axes = self.seen.matches[name].line.axes or ()
            for axis in range(len(shape)):
                if axis < len(axes) and isinstance(axes[axis], Concat):
                    continue
                rest = [k for k in range(len(shape)) if k != axis]
                gone = idle.permute(axis, *rest).flatten(1).all(1) if rest else idle
                index = gone.reshape([-1 if k == axis else 1 for k in range(len(shape))]).expand(shape)
                reached[span] &= ~index.reshape(-1)
        return reached

    # --------------------------------------------------------------- declared

    def tangents(self) -> Tensor:
        """The derivatives of the declared action at the identity [generators, parameters]."""
        derived = [(owner, self._derived(key, g, identity)) for owner, key, g, identity in self._generators()]
        self.owners = [owner for owner, _ in derived]
        return torch.stack([t for _, t in derived]) if derived else torch.zeros(0, self.size, dtype=torch.float64)

    def _derived(self, key: str, generator: Tensor, identity: Tensor) -> Tensor:
        ends = []
        for sign in (1, -1):
            blocks = {block: x.clone() for block, x in self.blocks.items()}
            Alignment(self.spec, {key: identity + sign * STEP * generator}).act(blocks)
            ends.append(self.flat(self._named(blocks)))
        return (ends[0] - ends[1]) / (2 * STEP)

    def _generators(self) -> Iterator[tuple[str, str, Tensor, Tensor]]:
        """Space, element key, generator and identity, for every dimension of every element."""
        elements: dict[str, Space] = {}
        for block in self.seen.blocks:
            for key, space in elements_of(self.spec, block).items():
                elements.setdefault(key, space)
        for key, space in elements.items():
            n, batch = self.spec.sizes[space.name], tuple(self.spec.sizes[i] for i in self.spec.batch(space))
            identity, basis = space.group.identity(batch, n), space.group.generators(n)
            for at in range(prod(batch)):
                for generator in basis:
                    whole = torch.zeros_like(identity).reshape(-1, *generator.shape)
                    whole[at] = generator
                    yield space.name, key, whole.reshape(identity.shape), identity
        for shift, key, _ in find_shifts(self.spec, self.seen.blocks):
            shape = shift_shape(self.spec, shift)
            zero = torch.zeros(shape, dtype=torch.float64)
            for at in range(zero.numel()):
                unit = zero.clone().reshape(-1)
                unit[at] = 1
                yield shift.name, key, unit.reshape(shape), zero

    def form_tangents(self) -> Tensor:
        """What `verify` does not see by reading the model in a form of the same function [directions, parameters]:
        the moves of LayerNorm."""
        if (form := form_of(self.seen)) is None:
            return torch.zeros(0, self.size, dtype=torch.float64)
        zero = {n: torch.zeros_like(t) for n, t in self.numbers.items()}
        rows = []
        for moved in form_tangents(form, self.blocks):
            named = {self.seen.names[n]: t for block, x in moved.items() for n, t in block.split(x)}
            rows.append(self.flat(zero | named))
        return torch.stack(rows) if rows else torch.zeros(0, self.size, dtype=torch.float64)

    # ---------------------------------------------------------------- by line

    def lines(self) -> dict[Line, Tensor]:
        """By line, which of the read parameters are its."""
        masks: dict[Line, Tensor] = {}
        for name in self.names:
            line = self.seen.matches[name].line
            mask = masks.setdefault(line, torch.zeros(self.whole, dtype=torch.bool))
            mask[self.spans[name]] = True
        return {line: mask[self.read] for line, mask in masks.items()}


def _slopes(outputs: Tensor, parameters: Mapping[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    """Combinations [rows, outputs] of outputs derived by parameters, [rows, ...] each; without those on which none
    depends."""
    grad = partial(torch.autograd.grad, retain_graph=True, allow_unused=True)
    wanted = list(parameters.values())
    try:
        slopes = grad(outputs, wanted, weights, is_grads_batched=True)
    except RuntimeError:  # an operation that cannot be derived many times at once
        each = [grad(outputs, wanted, row) for row in weights]
        slopes = [None if part[0] is None else torch.stack(part) for part in zip(*each, strict=True)]
    return {name: slope for name, slope in zip(parameters, slopes, strict=True) if slope is not None}


def form_of(seen: BoundSpecimen) -> View | None:
    """The form in which `verify` reads a specimen; None where it has none."""
    checkpoint = in_memory(seen.specimen.stored, seen.specimen.config, ref=type(seen.specimen.module).__name__)
    return layer_norm_form(Model(checkpoint, seen.spec, seen.matches, seen.declared)) or None


def form_tangents(form: View, blocks: Mapping[Block, Tensor]) -> list[dict[Block, Tensor]]:
    """Directions of the blocks, one each, that together span what the form does not see.

    Args:
        form: the form.
        blocks: where it is derived: all blocks of a model, float64.

    Returns:
        By direction, what it adds to each block that it moves.
    """
    names = [block for block, x in blocks.items() if x.is_floating_point()]
    sizes = [blocks[block].numel() for block in names]
    flat = torch.cat([blocks[block].double().reshape(-1) for block in names])

    def parts(vector: Tensor) -> dict[Block, Tensor]:
        pieces = zip(names, vector.split(sizes), strict=True)
        return {block: piece.reshape(blocks[block].shape) for block, piece in pieces}

    def formed(vector: Tensor) -> Tensor:
        stored = parts(vector)
        return torch.cat([form.applied(b, stored.__getitem__).reshape(-1) for b in stored])

    slopes = torch.func.jacrev(formed, chunk_size=CHUNK)(flat)
    changed = (slopes - torch.eye(len(flat), dtype=flat.dtype)).abs()
    moving = (changed.amax(0) > 0) | (changed.amax(1) > 0)
    unseen = _null_space(slopes[:, moving])
    whole = torch.zeros(len(unseen), len(flat), dtype=flat.dtype)
    whole[:, moving] = unseen
    return [parts(row) for row in whole]


def _null_space(slopes: Tensor) -> Tensor:
    """An orthonormal basis [dimensions, columns] of what a matrix maps to zero."""
    values, vectors = torch.linalg.eigh(slopes.mT @ slopes)
    return vectors[:, values <= ZERO].mT

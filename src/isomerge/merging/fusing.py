"""How a fusion is applied to work units, with the net under all methods: no merged tensor is written that its
method cannot explain.

A result that is not finite, or larger than its method's bound (`isomerge.fusion.bounds`), comes of statistics that
do not fit, of rounding, or of a mistake in a method: it stops the run before the output appears.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import isfinite
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from isomerge.checkpoint.tensor_place import PlacedTensor
from isomerge.errors import IsomergeError
from isomerge.fusion.bounds import Inputs, Size, anything_near, in_layers, size_of
from isomerge.fusion.fusion import Fusion
from isomerge.fusion.linear import linear
from isomerge.fusion.method_options import Option, Values
from isomerge.fusion.registry import Method
from isomerge.models.recognised import Model
from isomerge.models.stored_form import StoredForm
from isomerge.models.unit_plan import Plan
from isomerge.passes import NotFiniteError, Pass
from isomerge.records import Record
from isomerge.run.first_reading import FirstReading, FirstReadings
from isomerge.run.unit_work import Fused
from isomerge.solve.pairs.pair import Blocks, CommonGains, UnitResult
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block, layer_of, stacked_axes, stacks_of
from isomerge.symmetry.units import Unit

if TYPE_CHECKING:
    from isomerge.merging.fusion_statistics import FusionStatistics

NAMED = 3
"""Tensors that a note names."""
ROUNDING = 1.01
"""What rounding to a half precision, and sums in float32, may add to a size."""


@dataclass(frozen=True)
class Way:
    """What a block's pieces pass through: where they go, and the first reading that they come from (None: read
    already)."""

    form: StoredForm | None
    reading: FirstReading | None
    notes: list[tuple[str, str]]
    """Takes what the method says of tensors."""


class FusionReport(Record):
    """What a report says of a fusion."""

    method: str
    weights: Sequence[float | None] | None
    """Of the models that are fused; None: the method has none."""
    parameters: Values
    """The others, in the middle of the stack."""
    base: bool
    """Whether the first model is what the others are taken from."""
    seed: int | None
    kept_from_first: Sequence[str]
    """Tensors that not all models have."""


@dataclass(frozen=True, eq=False)
class Fuser:
    """Applies a fusion to work units."""

    fusion: Fusion
    plan: Plan
    donor: Model
    """Names tensors."""
    statistics: FusionStatistics | None
    """Of the run's models, where the method asks for them."""
    dtype: torch.dtype
    """The working dtype."""
    places: Sequence[int] = ()
    """Where the run's models are in what solvers give, the anchor first; empty: in the same order."""
    moved_by: Sequence[Alignment | None] | None = None
    """What has moved the run's models, in order, before their units are read: statistics of the models as they are
    stored must follow. None: units come with what moves them."""
    gains: CommonGains | None = None
    """The gains that all models take on, where streams were turned; blocks come with the anchor's."""
    notes: Sequence[str] = ()
    """What is to be told of its parameters."""

    @cached_property
    def _depths(self) -> dict[str, int]:
        return stacks_of(self.donor.blocks)

    @cached_property
    def _after(self) -> frozenset[str]:
        """The lines behind the layers."""
        ranks = {line.name: number for number, line in enumerate(self.donor.spec.lines)}
        stacked = [ranks[block.line.name] for block in self.donor.blocks if self._layer(block)[1] is not None]
        return frozenset(name for name, rank in ranks.items() if stacked and rank > min(stacked))

    def fuse(
        self,
        unit: Unit,
        blocks: list[Blocks],
        by: list[Alignment | None],
        first: FirstReadings,
        *,
        form: StoredForm | None = None,
    ) -> Fused:
        """The blocks that are written of one unit, from those of every model in the run's order and what moved
        them.

        Those of ``first`` are read here, piece by piece as they are fused where that can be. A block comes in one
        of three forms: as the `PlacedTensor` of what was written already (a method that is fused piece by piece,
        where ``form`` knows a place for the block); in the output dtype, rounded once (such a method without a
        place); or in the working dtype, to be converted by the caller (all other methods, and what does not fit
        into the output dtype).
        """
        if self.places:
            blocks, by = [blocks[k] for k in self.places], [by[k] for k in self.places]
        by = by if self.moved_by is None else list(self.moved_by)
        if self.gains is not None:
            if self.fusion.method.compares:  # sizes mean something where gains are folded
                blocks = [self.gains.fold.applied(self._every_working(part)) for part in blocks]
            fused = self._fused(unit, blocks, by, {}, None)
            there = self.gains.take if self.fusion.method.compares else self.gains.written
            made = {block: t for block, t in fused.items() if not isinstance(t, PlacedTensor)}
            fused.update(there.applied(self._every_working(made)))
            return fused
        return self._fused(unit, blocks, by, first, form)

    def _fused(
        self,
        unit: Unit,
        blocks: list[Blocks],
        by: list[Alignment | None],
        first: FirstReadings,
        form: StoredForm | None,
    ) -> Fused:
        fused = Fused()
        apart = [block for block in first if not self._reads(block, len(blocks))]
        for block in apart:
            first[block].read()
        if self.fusion.method.unit:
            blocks = [self._every_working(part) for part in blocks]
            fused.update(self._by_unit(unit, blocks))
        for block in unit.blocks:
            tensors = [part[block] for part in blocks]
            if not tensors[0].is_floating_point():
                fused[block] = tensors[0]
            elif block not in fused:
                way = Way(form, None if block in apart else first.get(block), fused.notes)
                fused[block] = self._by_block(block, tensors, by, way)
        return fused

    def _reads(self, block: Block, count: int) -> bool:
        """Whether a block's tensors of all models are fused piece by piece, so that they are read by the way."""
        fused = [self.fusion.start + self.count(block, number) for number in range(len(block.canonical))]
        return self.fusion.method.elementwise and self.fusion.first != "donor" and set(fused) == {count}

    def _every_working(self, part: Blocks) -> Blocks:
        return {block: self._working(t) for block, t in part.items()}

    def _working(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def parameters(self, block: Block, number: int = 0) -> Values:
        """The method's parameters for a block, or for one of the stored tensors that it is made of."""
        stack, layer = self._layer(block, number)
        after, depth = self.is_after(block), self._depths.get(stack, 1)
        name, fusion = self.name(block, number), self.fusion
        parameters = fusion.parameters.at(fusion.method, name, layer, after=after, depth=depth)
        if "depth" in fusion.method.placed:
            parameters["depth"] = fusion.parameters.depth(layer, after=after, depth=depth)
        if "stacked" in fusion.method.placed:
            parameters["stacked"] = stacked_axes(block, self.donor.spec)
        return parameters

    def _layer(self, block: Block, number: int = 0) -> tuple[str, int | None]:
        """The stack of a block, and the layer of one of its tensors that slices are of: where one of several stacks
        is sliced, another one's layers are outside."""
        stack, layer = layer_of(block, number)
        pieces = self.fusion.parameters.pieces if len(self._depths) > 1 else ()
        return stack, layer if not pieces or any(piece in stack for piece in pieces) else None

    def is_after(self, block: Block) -> bool:
        """Whether a block outside of the layers comes after them, as a head does."""
        return block.line.name in self._after

    def name(self, block: Block, number: int = 0) -> str:
        """The donor's name of a stored tensor."""
        canonical = block.canonical[number]
        return self.donor.names.get(canonical, canonical)

    def count(self, block: Block, number: int = 0) -> int:
        """How many models are fused in one of a block's stored tensors."""
        return self.fusion.parameters.count(self._layer(block, number)[1], after=self.is_after(block))

    def _by_block(
        self, block: Block, tensors: list[Tensor], by: list[Alignment | None], way: Way
    ) -> Tensor | PlacedTensor:
        """A block: each of its stored tensors for itself, as mergekit does; all at once where that is the same."""
        method, numbers = self.fusion.method, range(len(block.canonical))
        parameters = [self.parameters(block, number) for number in numbers]
        alike = all(g == parameters[0] for g in parameters[1:])
        if (
            not block.lead
            or method.unit
            or method.statistics
            or (method.elementwise and not method.random and method.select is None and alike)
        ):
            return self._by_tensor(block, parameters[0], tensors, by, way)
        each, out = [t.flatten(0, len(block.lead) - 1) for t in tensors], None
        for k in numbers:
            part = self._by_tensor(block, parameters[k], [t[k] for t in each], by, way, k)
            if out is None:
                out = torch.empty((len(numbers), *part.shape), dtype=part.dtype, device=part.device)
            elif part.dtype != out.dtype:  # one that does not fit into what is written: told by whoever writes
                out = out.to(self.dtype)
            out[k] = part
        assert out is not None
        return out.unflatten(0, block.lead)

    def _by_tensor(
        self,
        block: Block,
        parameters: Values,
        tensors: list[Tensor],
        by: list[Alignment | None],
        way: Way,
        number: int = 0,
    ) -> Any:
        """One stored tensor of every model, the ``number``-th of a block, or a whole block; its place where it was
        written."""
        fusion = self.fusion
        operands = tensors[fusion.start :][: self.count(block, number)]
        base = tensors[0] if fusion.first == "base" else None
        name = self.name(block, number)
        if fusion.method.elementwise:
            return self._in_pieces(block, parameters, operands, base, way, number)
        operands, base = list(map(self._working, operands)), None if base is None else self._working(base)
        seen = None
        if self.statistics is not None and fusion.method.statistics is not None:
            seen = self.statistics.given(fusion.method.statistics, block, by[fusion.start :])[: len(operands)]
        notes: list[str] = []
        merged = self.apply(
            operands, parameters, base=base, statistics=seen, name=block.canonical[number], notes=notes
        )
        way.notes.extend((name, words) for words in notes)
        if not block.line.infinite:
            inputs = Inputs([[t] for t in operands], None if base is None else [base])
            check_explained(fusion.method, merged, inputs, parameters, name)
        return merged

    def apply(
        self,
        tensors: list[Tensor],
        parameters: Values,
        *,
        base: Tensor | None,
        statistics: Any,
        name: str,
        notes: list[str] | None = None,
    ) -> Tensor:
        """The method's result for one tensor of every model, in the working dtype; ``name`` seeds a random
        method."""
        method, rng = self.fusion.method, self._rng(name)
        if method.unit:  # what a method of units leaves is averaged
            return linear(tensors, weight=parameters.get("weight", [1.0] * len(tensors)))
        return method.fuse(tensors, parameters, base=base, rng=rng, statistics=statistics, notes=notes, name=name)

    def _rng(self, name: str) -> Generator | None:
        """Of a random method, for a tensor."""
        method = self.fusion.method
        return generator(self.fusion.seed, method.name, name) if method.random else None

    def _in_pieces(
        self, block: Block, parameters: Values, tensors: list[Tensor], base: Tensor | None, way: Way, number: int
    ) -> Tensor | PlacedTensor:
        """A method that needs no more than a piece of every model in the working dtype."""
        form = way.form
        narrow, place = (None, None) if form is None else (form.written_dtype(block), form.place(block))
        named = None if block.line.infinite else self.name(block, number)
        fill = partial(self._fill, parameters, tensors, base, way.reading, named, block.canonical[number])
        if place is not None and place.shape == tensors[0].shape:
            with suppress(NotFiniteError):
                fill(place)
                return place.placed()
        elif narrow is not None:
            with suppress(NotFiniteError):
                return fill(torch.empty(tensors[0].shape, dtype=narrow))
        # what does not fit is left to whoever tells what is wrong
        return fill(torch.empty(tensors[0].shape, dtype=self.dtype), finite=False)

    def _fill(
        self,
        parameters: Values,
        tensors: list[Tensor],
        base: Tensor | None,
        first: FirstReading | None,
        name: str | None,
        canonical: str,
        out: Any,
        *,
        finite: bool = True,
    ) -> Any:
        """The method's result, in a tensor or at its place in a file; where there is a ``name``, it must be
        explained. Raises NotFiniteError where it must be ``finite`` and is not."""
        method, start = self.fusion.method, [] if base is None else [base]
        selection = method.selection(tensors, parameters, base, self._rng(canonical))
        every = [*tensors, *start]
        reading = Pass(every, self.dtype) if first is None else first.reading(every, self.dtype)

        def merged(parts: list[Tensor]) -> Tensor:
            origin = None if base is None else parts.pop()
            return method.fuse(parts, parameters, base=origin, selection=selection, name=name)

        with suppress(*([] if finite else [NotFiniteError])):
            reading.run(method.entries_of(parameters, len(tensors), self.dtype, selection) or merged, out)
        if first is not None:
            first.took(reading)
        if name is not None:
            sizes = [Size(sums.square**0.5, sums.largest) for sums in [*reading.sums, reading.result]]
            inputs = Inputs([[t] for t in tensors], start or None, sizes[:-1])
            check_explained(method, sizes[-1], inputs, parameters, name)
        return out

    def _by_unit(self, unit: Unit, blocks: list[Blocks]) -> Blocks:
        first = next((block for block in unit.blocks if layer_of(block)[1] is not None), unit.blocks[0])
        method, options = self.fusion.method, self.options(first)
        blocks = blocks[self.fusion.start :][: self.count(first)]
        fused = method.fuse_unit(self.donor.spec, blocks, {o.keyword: v for o, v in options})
        self.check(fused, blocks, options)
        return fused

    def options(self, block: Block | None) -> list[tuple[Option, Any]]:
        """The method's options and their values, for a block or for a whole model, whose tensors all have the
        same."""
        parameters = self.parameters(self.plan.units[0].blocks[0] if block is None else block)
        return [(option, parameters[name]) for name, option in self.fusion.method.options.items()]

    def check(
        self,
        blocks: Mapping[Block, Tensor],
        models: Sequence[Blocks],
        options: Sequence[tuple[Option, Any]],
        *,
        repaired: bool = False,
    ) -> None:
        """Hold what is fused of a layer as a whole to what the method can explain, from the tensors of the models
        and its options; with ``repaired``, what REPAIR can.

        Raises:
            IsomergeError: naming the tensor and the method.
        """
        inputs = Inputs([[t for t in part.values() if t.is_floating_point()] for part in models])
        method, parameters = self.fusion.method, {option.name: value for option, value in options}
        method = replace(method, bound=in_layers) if repaired else method
        for block, tensor in blocks.items():
            if tensor.is_floating_point() and not block.line.infinite:
                check_explained(method, tensor, inputs, parameters, self.name(block))

    def described(self, count: int) -> FusionReport:
        """What a report says of the fusion of ``count`` models."""
        fusion = self.fusion
        middle = fusion.parameters.at(fusion.method, "", 1, depth=3)
        weights = fusion.weights(count)[fusion.start :] if "weight" in fusion.method.options else None
        return FusionReport(
            fusion.method.name,
            weights=weights,
            parameters={name: value for name, value in middle.items() if name != "weight"},
            base=fusion.first == "base",
            seed=fusion.seed if fusion.method.random else None,
            kept_from_first=[block.key for block in self.plan.alone],
        )

    def every_note(self, said: Iterable[tuple[str, str]]) -> list[str]:
        """What is to be told of the fusion, with what the method has ``said`` of tensors, by their names."""
        return [*self.plan.selection.notes, *self.fusion.notes, *self.notes, *_joined(said)]


def said_of(results: Sequence[Sequence[UnitResult]]) -> list[tuple[str, str]]:
    """What a method has said of tensors while units were fused."""
    return [note for of_solver in results for result in of_solver for note in result.notes]


def _joined(sentences: Iterable[tuple[str, str]]) -> list[str]:
    """What was said of tensors, one sentence for each thing that was said."""
    named: dict[str, list[str]] = {}
    for name, words in sorted(sentences):
        named.setdefault(words, []).append(name)
    return [f"{_listed(names)}: {words}" for words, names in named.items()]


def _listed(names: Sequence[str]) -> str:
    first = ", ".join(names[:NAMED])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"tensor{'s' if len(names) > 1 else ''} {first}{more}"


def generator(seed: int, *names: str) -> Generator:
    """A generator of its own for a tensor: the draws do not depend on what else is drawn, or by whom."""
    digest = hashlib.sha256(" ".join((str(seed), *names)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def check_explained(
    method: Method, result: Size | Tensor, inputs: Inputs, parameters: Mapping[str, Any], name: str
) -> None:
    """Refuse a result that its method cannot explain.

    Most results are no larger than one of the inputs, and then no more is measured.

    Args:
        method: what it is the result of.
        result: a tensor in any floating dtype, or its size.
        inputs: what the method was given.
        parameters: the method's options, as in `Method.fuse`.
        name: of the tensor, for the message.

    Raises:
        IsomergeError: naming the tensor and the method.
    """
    size = result if isinstance(result, Size) else size_of([result])
    if not isfinite(size.norm):
        raise IsomergeError(
            f"tensor {name} has NaN or infinite values as the method {method.name} computes it: its weights, "
            "parameters or statistics are too large or do not fit these models; choose others"
        )
    seen = Size(0.0, 0.0)
    for given in inputs.each():
        seen = Size(max(seen.norm, given.norm), max(seen.largest, given.largest))
        if _within(size, seen):
            return
    limit = bound_of(method, inputs, parameters)
    if not _within(size, limit):
        what, is_, most = "norm", size.norm, limit.norm
        if is_ <= ROUNDING * most:
            what, is_, most = "largest entry", size.largest, limit.largest
        raise IsomergeError(
            f"tensor {name} has a {what} of {is_:.3g} as the method {method.name} computes it, but its inputs and "
            f"parameters explain no more than {most:.3g}: such a model does not work, so none is written; choose "
            "another method, or look at its statistics and weights"
        )


def bound_of(method: Method, inputs: Inputs, parameters: Mapping[str, Any]) -> Size:
    """How large a result the method can explain."""
    values = method.values(parameters, len(inputs.tensors))
    if (size := method.explains(inputs, values)) is not None:
        return size
    defaults = method.values({}, len(inputs.tensors))
    return anything_near(inputs, {name: value for name, value in values.items() if value != defaults[name]})


def _within(size: Size, limit: Size) -> bool:
    return size.norm <= ROUNDING * limit.norm and size.largest <= ROUNDING * limit.largest

"""Taps: where activations are read, and which axes they have.

What comes out of a linear layer has the axis of its weight's rows, what goes into one has the axis of its columns,
and what comes out of a norm lies in the residual stream. So an activation matrix [samples, width] is one more
tensor with typed axes: a change of basis moves it as it moves weights, and matching needs its cross-Gram and
nothing else.

For a layer y = W x, RegMean needs E x x^T and K-FAC the two factors E x x^T and E g g^T with g = dL/dy. The input
has the axis of W's columns with plain and dual exchanged, as everywhere. A gradient moves against what it is the
gradient of, so g has the axis of W's rows exchanged as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.models.recognised import Model
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.parameter_places import places_of
from isomerge.observe.losses import outputs_of
from isomerge.records import Json
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import Atom, Axis, Concat, Product, atoms, views
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.spec import Spec

Place = tuple[str, str]
"""A submodule's name, or what else it is called by who watches it, and a side of it: ``in`` or ``out``."""


class SeenEnough(Exception):  # noqa: N818 (a signal, as StopIteration is)
    """Ends a forward pass: everything that was asked for has been seen."""


def run_until(
    module: nn.Module, batch: Mapping[str, Tensor], calls: Mapping[Place, int]
) -> dict[Place, list[Tensor]]:
    """What a module's places see of a batch, float64 [rows, width] without padding, one tensor per call.

    The forward pass ends as soon as every place was called as often as ``calls`` says; those that are called less
    often are there with fewer tensors.
    """
    rows: dict[Place, list[Tensor]] = {place: [] for place in calls}
    mask = batch.get("attention_mask")
    missing = dict(calls)

    def keep(place: Place, x: Tensor) -> None:
        rows[place].append(rows_of_tokens(x, mask))
        missing[place] -= 1
        if all(count <= 0 for count in missing.values()):
            raise SeenEnough

    with ExitStack() as hooks:
        for path, side in calls:
            watch(hooks, module.get_submodule(path), (path, side), keep)
        with suppress(SeenEnough):
            outputs_of(module, batch)
    return rows


def rows_of_tokens(x: Tensor, mask: Tensor | None) -> Tensor:
    """Activations [..., width] as float64 [rows, width], in memory of their own, without padding.

    Layers that read tokens one below the other ([examples * length, width]) are masked like others.
    """
    flat = x.detach().reshape(-1, x.shape[-1])
    if mask is not None and len(flat) == mask.numel():
        flat = flat[mask.to(flat.device).flatten() == 1]
    return flat.to(torch.float64, copy=True)


def watch(hooks: ExitStack, part: nn.Module, place: Place, see: Callable[[Place, Tensor], Any]) -> None:
    """While ``hooks`` lasts, call ``see`` with what one side of a submodule is given (first, or by name) or gives.

    What ``see`` returns for an output takes that output's place, unless it is None.
    """

    def before(_module: Any, inputs: tuple[Any, ...], named: Json) -> None:
        see(place, inputs[0] if inputs else next(iter(named.values())))

    def after(_module: Any, _given: Any, output: Any) -> Any:
        return see(place, output)

    handle = (
        part.register_forward_pre_hook(before, with_kwargs=True)
        if place[1] == "in"
        else part.register_forward_hook(after)
    )
    hooks.callback(handle.remove)


SAMPLE = Atom("sample")
# Rows that are kept of every tap: neuron matching needs about a thousand (docs/lab/experiments.md).
ROWS = 1024
TOKENS_PER_ROW = 32
"""Of text: rows that follow each other closely say little that is new, and reading texts takes time."""


@dataclass(frozen=True)
class Tap:
    """One place of a model: the weight it belongs to, its side, and the axis of what is read there."""

    key: str
    block: str
    """The canonical name of the weight (or gain)."""
    axis: Axis
    scope: tuple[tuple[str, int], ...]
    side: str
    """``in`` or ``out`` of the module."""

    def leaves(self, spec: Spec, *tensors: Tensor) -> Iterator[tuple[tuple[Tensor, ...], tuple[Atom, ...]]]:
        """The atom views of activation matrices [samples, width] of this tap."""
        yield from views(tensors, (SAMPLE, self.axis), spec.sizes)


def plain(axis: Axis, *, flip: bool = False) -> Axis:
    """An axis without marks of diagonals; ``flip`` exchanges plain and dual sides."""
    if isinstance(axis, Atom):
        return axis if axis.name.isdigit() else Atom(axis.name, axis.dual != flip)
    return type(axis)(tuple(plain(part, flip=flip) for part in axis.parts))


def plan_taps(model: Model, module: nn.Module) -> list[tuple[Tap, str]]:
    """The taps of a module, with the names of its submodules, in the order of the spec.

    Norms are read at their outputs, linear layers at outputs and inputs that do not lie in a residual stream (what
    does is read at the norms; sums of many writers say less).
    """
    return [
        (_tap(block, side, axis), path)
        for block, axes, path in whole_weights(model, module)
        for side, axis in _sides(model.spec, module.get_submodule(path), axes)
    ]


def plan_inputs(model: Model, module: nn.Module) -> list[tuple[Tap, str]]:
    """What the linear layers that read a residual stream are given: taps for Grams, not for matching.

    Layers that read the same tensor have a tap each; `plan_taps` has the norms that feed most of them.
    """
    spec = model.spec
    return [
        (tap, path)
        for tap, path, _ in plan_linears(model, module)
        if any(a.name in spec.streams for a in atoms((tap.axis,))) and _sized(tap.axis, spec)
    ]


def plan_linears(model: Model, module: nn.Module) -> list[tuple[Tap, str, int]]:
    """Every linear layer of a module that has a weight of its own.

    A head that is tied to the embeddings is left out: a product of its input says nothing about the table that it
    shares. Experts, which transformers keeps fused, are left out as well.

    Returns:
        The tap of the layer's input, the name of its submodule, and which axis of the weight reads the input (1 of
        ``nn.Linear``, 0 of ``Conv1D``), in the order of the spec.
    """
    linears = []
    for block, axes, path in whole_weights(model, module):
        axis = input_axis(module.get_submodule(path))
        if axis is not None and len(axes) == 2:
            linears.append((_tap(block, "in", plain(axes[axis], flip=True)), path, axis))
    return linears


def whole_weights(model: Model, module: nn.Module) -> Iterator[tuple[Block, tuple[Axis, ...], str]]:
    """The blocks that are the whole weight of a submodule, with their axes and the submodule's name."""
    names = places_of(module, model).names
    for block in model.blocks:
        place = names.get(block.canonical[0], "")
        if not block.lead and block.axes is not None and place.endswith(".weight"):
            yield block, block.axes, place.removesuffix(".weight")


def _tap(block: Block, side: str, axis: Axis) -> Tap:
    return Tap(f"{block.key}:{side}", block.key, axis, block.scope, side)


def input_axis(module: nn.Module) -> int | None:
    """The axis of a linear layer's weight that reads its input; None for modules that give anything but ``W x +
    b``.

    Routers of experts may be linear layers by class, and give scores and choices.
    """
    from transformers.pytorch_utils import Conv1D

    forward = type(module).forward
    return {nn.Linear.forward: 1, Conv1D.forward: 0}.get(forward)


def _sides(spec: Spec, module: nn.Module, axes: tuple[Axis, ...]) -> Iterator[tuple[str, Axis]]:
    if len(axes) == 1:
        if any(a.name in spec.streams for a in atoms(tuple(axes))):
            yield "out", plain(axes[0])
        return
    reads = input_axis(module)
    if reads is None or len(axes) != 2:
        return
    for side, axis in (("out", plain(axes[1 - reads])), ("in", plain(axes[reads], flip=True))):
        on_stream = any(a.name in spec.streams for a in atoms((axis,)))
        if is_mobile(spec, axis) and _sized(axis, spec) and not on_stream:
            yield side, axis


def _sized(axis: Axis, spec: Spec) -> bool:
    if isinstance(axis, (Product, Concat)):
        return all(_sized(part, spec) for part in axis.parts)
    return axis.name.isdigit() or axis.name in spec.sizes


@dataclass(frozen=True)
class Activations:
    """Activation matrices float32 [rows, width] by tap, of one model in its own coordinates."""

    taps: Mapping[str, Tap]
    values: Mapping[str, Tensor]
    fingerprint: str
    """Of the examples and of how rows were chosen: rows of two models belong together when theirs are equal."""

    def only(self, blocks: set[str]) -> Activations:
        """The taps of some blocks."""
        kept = {key: tap for key, tap in self.taps.items() if tap.block in blocks}
        return Activations(kept, {key: self.values[key] for key in kept}, self.fingerprint)

    def centred(self) -> Activations:
        """Every column with mean zero: additive gauges of biases are gone."""
        return Activations(self.taps, {k: x - x.mean(0) for k, x in self.values.items()}, self.fingerprint)

    def moved(self, alignment: Alignment) -> Activations:
        """The activations of the moved model, exactly, from those of the model that it moves (centred ones: biases'
        shifts are left out)."""
        moved = {}
        for key, x in self.values.items():
            tap, x = self.taps[key], x.clone()
            for (view,), view_atoms in tap.leaves(alignment.spec, x):
                alignment.act_on_view(view, view_atoms, dict(tap.scope))
            moved[key] = x
        return Activations(self.taps, moved, self.fingerprint)


@contextmanager
def listening(
    module: nn.Module, places: Sequence[tuple[str, str, str]], tell: Callable[[str, Tensor], None]
) -> Iterator[None]:
    """While it lasts, every run of the module tells what it has at some places, [..., width], as it gets there.

    Args:
        module: a live module.
        places: keys, submodules by name, and their sides (``in`` or ``out``).
        tell: is given keys and tensors.
    """
    with ExitStack() as hooks:
        for key, path, side in places:
            watch(hooks, module.get_submodule(path), (key, side), lambda place, x: tell(place[0], x))
        yield


def reading(
    module: nn.Module, places: Sequence[tuple[Tap, str]], into: dict[str, list[Any]]
) -> AbstractContextManager[None]:
    """While it lasts, every run of the module appends what its taps see ([..., width]) to ``into``."""

    def keep(key: str, x: Tensor) -> None:
        into.setdefault(key, []).append(x)

    return listening(module, [(tap.key, path, tap.side) for tap, path in places], keep)


def capture(
    model: Model, module: nn.Module, examples: Examples, *, rows: int = ROWS, batch_size: int = 16
) -> Activations:
    """Run a module over examples and keep up to ``rows`` rows of every tap, evenly spread over examples and
    positions.

    Padding is left out. Equal examples give equal rows for every model of one architecture.
    """
    return captured(module, plan_taps(model, module), examples, rows, batch_size)


def captured(
    module: nn.Module,
    places: Sequence[tuple[Tap, str]],
    examples: Examples,
    rows: int,
    batch_size: int,
    images: Collection[str] = (),
) -> Activations:
    """See `capture`, at some places of a module; ``images`` are the keys of taps that see [n, channels, height,
    width]."""
    rows_by_key: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for batch, share in shared_out(examples, rows, batch_size):
            seen: dict[str, list[Tensor]] = {}
            with reading(module, places, seen):
                outputs_of(module, batch)
            for key, parts in seen.items():
                for part in parts:
                    x = part.movedim(1, -1) if key in images else part
                    rows_by_key.setdefault(key, []).append(spread_rows(x, batch.get("attention_mask"), share))
    taps = {tap.key: tap for tap, _ in places if tap.key in rows_by_key}
    values = {key: torch.cat(rows_by_key.pop(key))[:rows] for key in taps}  # parts are let go
    return Activations(taps, values, pairing(examples, rows, batch_size))


def enough(examples: Examples, rows: int) -> Examples:
    """As many examples as so many rows are drawn from: one of each, or one of `TOKENS_PER_ROW` tokens of text."""
    ids = examples.tensors.get("input_ids")
    count = rows if ids is None else max(1, TOKENS_PER_ROW * rows // ids.shape[1])
    return examples.head(min(len(examples), count, rows))


def shared_out(examples: Examples, rows: int, batch_size: int) -> Iterator[tuple[dict[str, Tensor], int]]:
    """Batches without padding, and how many of ``rows`` rows are kept of each: as many as its share of the
    examples."""
    done = 0
    for batch in examples.without_padding(batch_size):
        first, done = done, done + len(next(iter(batch.values())))
        yield batch, rows * done // len(examples) - rows * first // len(examples)


def pairing(examples: Examples, rows: int, batch_size: int) -> str:
    """What decides which rows `capture` keeps; equal for two models whose rows belong together."""
    return f"{examples.fingerprint} {rows} {batch_size} unpadded"


def unpadded(x: Tensor, mask: Tensor | None) -> Tensor:
    """Activations [..., width] as [tokens, width], without padding."""
    if mask is not None and x.shape[:-1] == mask.shape:
        return x[mask.to(x.device) == 1]
    return x.reshape(-1, x.shape[-1])


def spread_rows(x: Tensor, mask: Tensor | None, count: int) -> Tensor:
    """Up to ``count`` rows [count, width] of activations [..., width], float32 on the CPU, without padding."""
    flat = unpadded(x, mask)
    if len(flat) > count:
        flat = flat[torch.linspace(0, len(flat) - 1, count, device=flat.device).round().long()]
    return flat.float().cpu().contiguous()


def gradient_tap(block: Block, axis: int) -> Tap:
    """The tap of the gradient with respect to what a layer gives; ``axis`` of its weight reads the input."""
    assert block.axes is not None
    return _tap(block, "gradient", plain(block.axes[1 - axis], flip=True))


def is_mobile(spec: Spec, axis: Axis) -> bool:
    """Whether a space acts on an axis."""
    return any(a.name in spec.spaces for a in atoms((axis,)))

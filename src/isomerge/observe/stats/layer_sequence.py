"""The linear layers of a live module, and the order in which it runs them: what changes a merged model from its
inputs to its outputs.

The order is found by running one example, not from an architecture: which layers read the same tensor, which add
what they give to a stream that a norm reads next, and which are the last ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from isomerge.errors import IsomergeError
from isomerge.observe.data.examples import Examples
from isomerge.observe.losses import outputs_of
from isomerge.observe.stats.taps import Place, SeenEnough, input_axis, watch

Shape = tuple[tuple[str, tuple[int, ...]], ...]
"""Of one example: the names of a module's inputs, each with its sizes."""


def shape_of(batch: Mapping[str, Tensor]) -> Shape:
    """The shape of every example of a batch."""
    return tuple(sorted((name, tuple(x.shape[1:])) for name, x in batch.items() if name != "labels"))


@dataclass(frozen=True)
class Layer:
    """One linear map of a module."""

    path: str
    """The submodule: a linear layer of torch, or transformers' ``Conv1D``."""
    rows: Mapping[Shape, tuple[int, ...]]
    """How many rows one example of a shape gives it, in every call of one forward pass."""
    adds_to: str | None = None
    """The norm whose input is a sum of this layer's output and other things."""
    completes: bool = False
    """Whether it is the last one to add to that sum."""
    head: bool = False
    """Whether no other layer or norm reads what comes of its output."""

    @property
    def calls(self) -> int:
        """How often it runs in one forward pass."""
        return len(next(iter(self.rows.values())))

    def fits(self, seen: Sequence[Tensor], batch: Mapping[str, Tensor]) -> bool:
        """Whether rows [n, width] from a batch, one tensor per call, are the same tokens in every model.

        They are when their number follows from that of examples alone, or from that of a table of positions. An
        expert is given as many as its router chooses.
        """
        count, mask = len(next(iter(batch.values()))), batch.get("attention_mask")
        wanted = self.rows.get(shape_of(batch), ())

        def sizes(rows: int) -> set[int]:
            padded = mask is not None and mask.numel() == count * rows
            return {int((mask == 1).sum()) if padded else count * rows, rows}

        return len(seen) == len(wanted) and all(len(x) in sizes(n) for x, n in zip(seen, wanted, strict=True))


@dataclass(frozen=True)
class Order:
    """The layers of a module: those of one group read the same tensor."""

    groups: tuple[tuple[Layer, ...], ...]
    kept: dict[str, str]
    """Linear layers that cannot be changed one after the other, and why."""


@dataclass(frozen=True)
class Rewritten:
    """A merged module after a pass over its layers."""

    layers: list[dict[str, Any]]
    """One row per changed layer, in order."""
    kept: dict[str, str]
    """Linear layers that are as they were, and why."""


def linear_modules(module: nn.Module) -> dict[str, nn.Module]:
    """The linear layers of a module by name, each once."""
    return {path: part for path, part in module.named_modules() if input_axis(part) is not None}


def matrix(layer: nn.Module) -> Tensor:
    """The weight [outputs, inputs] of a linear layer: a view, however it is stored."""
    weight: Any = layer.weight
    return weight.detach() if isinstance(layer, nn.Linear) else weight.detach().mT


# What is added to a layer's output arrives at a norm up to rounding: a sum's other terms may be a thousand times
# larger.
ARRIVED = 1e-3
# Inputs that differ by less than this fraction of their largest number differ by the order of sums on an
# accelerator.
ROUNDING = 1e-6


def find_order(module: nn.Module, examples: Examples) -> Order:
    """The order of a module's linear layers, from runs over the first example.

    Args:
        module: in eval mode.
        examples: what it reads; of the others, one of every shape is run to count rows.

    Raises:
        IsomergeError: the module cannot read them, or has no linear layer that runs.
    """
    with torch.no_grad():
        finder = _Finder(module, next(examples.head(1).without_padding(1)))
        groups = finder.groups()
        counted = finder.rows_of(examples)
    if not groups:
        raise IsomergeError(f"{type(module).__name__} runs no linear layer of its own: there is nothing to change")
    groups = tuple(tuple(replace(layer, rows={**layer.rows, **counted[layer.path]}) for layer in g) for g in groups)
    return Order(groups, finder.kept)


@dataclass(frozen=True)
class _Given:
    """What a layer or a norm was given in one call."""

    path: str
    tensor: Tensor
    """Kept so that its memory is not given to another one."""
    identity: tuple[Any, ...]
    value: Tensor
    """A copy: a module may write into what it has read."""


class _Finder:
    """What one example shows of a module."""

    def __init__(self, module: nn.Module, batch: Mapping[str, Tensor]) -> None:
        self.module, self.batch = module, batch
        self.linear = linear_modules(module)
        self.norms = {path: part for path, part in module.named_modules() if _is_norm(part)}
        self.seen: list[_Given] = []
        """What every layer and norm was given, call by call."""
        self._run(lambda place, x: self.seen.append(_Given(place[0], x, _identity(x), x.clone())))
        self.kept = self._unusable()

    def _run(self, see: Callable[[Place, Tensor], Any], changed: tuple[str, Any] | None = None) -> None:
        with ExitStack() as hooks:
            for path, part in {**self.linear, **self.norms}.items():
                watch(hooks, part, (path, "in"), see)
            if changed is not None:
                watch(hooks, self.linear[changed[0]], (changed[0], "out"), changed[1])
            with suppress(SeenEnough):
                outputs_of(self.module, self.batch)

    def _unusable(self) -> dict[str, str]:
        """The layers that do not run, or whose weights are used elsewhere too."""
        owners: dict[int, int] = {}
        for part in self.module.modules():
            for parameter in part._parameters.values():
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
        ran, reasons = {call.path for call in self.seen}, {}
        for path, part in self.linear.items():
            if owners[id(part.weight)] > 1:
                reasons[path] = "its weights are also used elsewhere"
            elif path not in ran:
                reasons[path] = "the first example does not reach it"
        return reasons

    def groups(self) -> tuple[tuple[Layer, ...], ...]:
        """The layers, grouped by the tensors that they read, each group where its first layer runs."""
        calls: dict[str, list[_Given]] = {}
        for call in self.seen:
            if call.path in self.linear and call.path not in self.kept:
                calls.setdefault(call.path, []).append(call)
        layers = {path: self._layer(path, xs) for path, xs in calls.items()}
        last = {layer.adds_to: path for path, layer in layers.items()}
        for path, layer in layers.items():
            if layer.adds_to is not None and last[layer.adds_to] == path:
                layers[path] = replace(layer, completes=True)
        first: dict[tuple[Any, ...], int] = {}
        number = {p: first.setdefault(tuple(x.identity for x in xs), len(first)) for p, xs in calls.items()}
        ordered = sorted(layers.values(), key=lambda layer: number[layer.path])
        return tuple(tuple(group) for _, group in groupby(ordered, key=lambda layer: number[layer.path]))

    def _layer(self, path: str, calls: Sequence[_Given]) -> Layer:
        rows = tuple(call.value.numel() // call.value.shape[-1] for call in calls)
        if len(calls) > 1:
            return Layer(path, {shape_of(self.batch): rows})
        target = self._target(path)
        runs = sum(call.path == target for call in self.seen)
        return Layer(path, {shape_of(self.batch): rows}, target if runs == 1 else None, head=target == "")

    def rows_of(self, examples: Examples) -> dict[str, dict[Shape, tuple[int, ...]]]:
        """The rows of every layer for the first example of each shape but the batch's own."""
        rows_of: dict[str, dict[Shape, tuple[int, ...]]] = {path: {} for path in self.linear}
        known = {shape_of(self.batch)}
        for batch in examples.without_padding(1):
            if (shape := shape_of(batch)) in known:
                continue
            known.add(shape)
            self.batch, calls = batch, {path: [] for path in self.linear}
            self._run(lambda place, x, calls=calls: calls.get(place[0], []).append(x.numel() // x.shape[-1]))
            for path, rows in calls.items():
                rows_of[path][shape] = tuple(rows)
        return rows_of

    def _target(self, path: str) -> str | None:
        """The norm at which something added to a layer's output arrives unchanged; empty when it arrives
        nowhere."""
        noise: list[Tensor] = []
        norms: list[str | None] = []
        number = -1

        def disturb(_place: Place, x: Tensor) -> Tensor:
            # a constant would be lost in a softmax, so every number gets another one
            drawn = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
            noise.append(drawn.to(x.device, x.dtype) * x.square().mean().sqrt().clamp_min(1e-6))
            return x + noise[0]

        def compare(place: Place, x: Tensor) -> None:
            nonlocal number
            number += 1
            if not noise:
                return
            old = self.seen[number].value if number < len(self.seen) else x[:0]
            same = number < len(self.seen) and self.seen[number].path == place[0] and old.shape == x.shape
            if same and (x.numel() == 0 or float((x - old).abs().max()) <= ROUNDING * float(old.abs().max())):
                return
            whole = same and place[0] in self.norms and x.shape == noise[0].shape
            far = float((x - old - noise[0]).abs().max()) if whole else 0.0
            norms.append(place[0] if whole and far <= ARRIVED * float(noise[0].abs().max()) else None)
            raise SeenEnough

        self._run(compare, (path, disturb))
        return norms[0] if norms else ""


def _identity(x: Tensor) -> tuple[Any, ...]:
    """Equal for two views of the same numbers, such as tokens in rows of one or two dimensions."""
    return x.data_ptr(), x._version, x.numel(), x.shape[-1], x.stride(-1)


def _is_norm(part: nn.Module) -> bool:
    """A module that scales units one by one: its parameters are vectors, and it has no parts."""
    own = list(part.parameters(recurse=False))
    return bool(own) and not list(part.children()) and all(p.ndim <= 1 for p in own)

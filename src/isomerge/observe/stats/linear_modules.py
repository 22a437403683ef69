"""The linear layers of a live module: their weights, what one example gives each to read, and what a pass over them
leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from isomerge.observe.stats.taps import input_axis

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

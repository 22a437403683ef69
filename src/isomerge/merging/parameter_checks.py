"""A fusion's parameters, looked at for every tensor before any is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from isomerge.errors import IsomergeError, is_overflow_error
from isomerge.fusion.method_options import Values
from isomerge.fusion.method_parameters import filter_names
from isomerge.merging.fusing import Fuser
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.units import Unit


def check_parameters(fuser: Fuser) -> None:
    """Refuse parameters that filters and gradients leave out for a tensor, that a method does not take together, or
    that differ among tensors which it merges at once.

    Raises:
        IsomergeError: naming the tensor.
    """
    method, tried, together = fuser.fusion.method, set[str](), dict[Any, tuple[str, str]]()
    for unit, block, number in _tensors(fuser):
        name = fuser.name(block, number)
        parameters, count = fuser.parameters(block, number), fuser.count(block, number)
        what, key = _merged_at_once(fuser, unit, block, number)
        first, theirs = together.setdefault(key, (name, repr(parameters)))
        if theirs != repr(parameters):
            raise IsomergeError(
                f"tensor {name}: the method {method.name} merges {what} at once, but parameters differ from those "
                f"of {first}: give one value for both"
            )
        if method.built_in and not method.forward and repr((parameters, count)) not in tried:
            tried.add(repr((parameters, count)))
            try:
                _try(fuser, parameters, count)
            except IsomergeError as error:
                raise IsomergeError(f"tensor {name}: {error}") from None
            except Exception as error:
                if not is_overflow_error(error):
                    raise
                raise IsomergeError(
                    f"tensor {name}: parameters of {method.name} leave the range of numbers of its dtype; give "
                    f"smaller ones"
                ) from None


def idle_density(fuser: Fuser) -> list[str]:
    """A note on a method that thins task vectors, where it keeps every entry."""
    name = "density"
    if name not in fuser.fusion.method.options or not fuser.fusion.method.built_in:
        return []
    for _, block, number in _tensors(fuser):
        values = fuser.parameters(block, number)[name]
        if any(value < 1 for value in (values if isinstance(values, (list, tuple)) else [values])):
            return []
    return [
        f"density is 1, so that {fuser.fusion.method.name} leaves no entry of a task vector out: "
        "a density of 0.5 keeps half of them"
    ]


def idle_filters(fuser: Fuser) -> list[str]:
    """A note on filters that are in no tensor's name: a part of the model that it does not have, or a slip. Slices,
    whose filters look into names of other layers as well, are left out."""
    parameters = fuser.fusion.parameters
    parts = parameters.slices
    if len(parts) > 1 or any(part.starts for part in parts):
        return []
    settings = [parameters.common, *(setting for part in parts for setting in (*part.sources, part.own))]
    values = (value for setting in settings for value in setting.values())
    wanted = dict.fromkeys(name for value in values for name in filter_names(value))
    if not wanted:
        return []
    names = [fuser.name(block, number) for _, block, number in _tensors(fuser)]
    idle = [part for part in wanted if not any(part in name for name in names)]
    return [f"the filter {', '.join(idle)} is in no tensor's name: what it says counts nowhere"] if idle else []


def _tensors(fuser: Fuser) -> Iterator[tuple[Unit, Block, int]]:
    for unit in fuser.plan.units:
        for block in unit.blocks:
            for number in range(len(block.canonical)):
                yield unit, block, number


def _merged_at_once(fuser: Fuser, unit: Unit, block: Block, number: int) -> tuple[str, Any]:
    """What a tensor is merged together with, in words, and a key of it."""
    method = fuser.fusion.method
    if method.forward:
        return "whole models", None
    if method.unit:
        return "what shares heads or neurons", unit.key
    if method.statistics is not None:
        return "all experts of a layer", block.key
    return "single tensors", (block.key, number)


def _try(fuser: Fuser, parameters: Values, count: int) -> None:
    """Merge a few random numbers by one of isomerge's own methods: it says so where it does not take its
    parameters."""
    first = fuser.fusion.first
    drawn = torch.randn(count + 1, 8, generator=torch.Generator().manual_seed(0), dtype=fuser.dtype)
    base, *tensors = drawn.unbind()
    fuser.apply(tensors, parameters, base=base if first == "base" else None, statistics=[None] * count, name="")

"""Data that are Python objects: batches, loaders of batches, functions that give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from isomerge.errors import IsomergeError
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.own_modules import LABELS, inputs_of


def as_data(data: Any, option: str, module: Any = None) -> str | Path | Examples | None:
    """Names of data and examples as they are; a function is called; batches are put together into examples.

    Args:
        given: what stands for data: None, a name, `Examples`, a function without arguments, a batch, or an iterable
            of batches, such as a DataLoader, which is read once and to its end. A batch is a mapping of tensors by
            the names of ``forward``'s arguments, with ``labels`` where there are some; or a pair of images [n,
            channels, height, width] and labels [n]; for a module of one's own what its forward takes: a tensor, or
            a tuple of them, the last one the labels where there is one more than forward needs.
        option: what errors name.
        module: a module of one's own that is given the data.

    Raises:
        IsomergeError: something else, no batch at all, or batches that do not fit together.
    """
    if data is None or isinstance(data, (str, Path, Examples)):
        return data
    if callable(data) and not isinstance(data, Iterable):
        data = data()
        if isinstance(data, (str, Path, Examples)):
            return data
    if isinstance(data, Mapping):
        data = [data]
    if not isinstance(data, Iterable):
        raise IsomergeError(
            f"{option} is a {type(data).__name__}: give a path, examples, batches, a DataLoader, or a function "
            f"that gives them"
        )
    named = _batch if module is None else partial(_own_batch, module)
    examples = _together([named(one, number, option) for number, one in enumerate(data)], option)
    return examples if module is None else Examples(examples.tensors, labelled="labels" in examples.tensors)


def _own_batch(module: Any, one: Any, number: int, option: str) -> dict[str, Any]:
    """A batch for a module of one's own, by the names of its forward's arguments."""
    if isinstance(one, Mapping):
        return _batch(one, number, option)
    parts = [one] if isinstance(one, torch.Tensor) else one
    kind = type(module).__name__
    if not isinstance(parts, (tuple, list)) or not all(isinstance(x, torch.Tensor) for x in parts):
        raise IsomergeError(
            f"{option}: batch {number} is a {type(one).__name__}: give tensors, tuples of them, or dicts of them, "
            f"as forward of {kind} takes them; texts alone are a list of them"
        )
    names, needed, _ = inputs_of(module)
    names = names or [f"input{k}" for k in range(len(parts))]
    count = len(parts) - (len(parts) > needed > 0)
    if not needed <= count <= len(names):
        raise IsomergeError(
            f"{option}: batch {number} has {len(parts)} tensors, and forward of {kind} takes {', '.join(names)}: "
            f"give these, and labels behind them where there are some"
        )
    labels = {LABELS: parts[-1]} if count < len(parts) else {}
    return {**dict(zip(names, parts[:count], strict=False)), **labels}


def _batch(one: Any, number: int, option: str) -> dict[str, Any]:
    """A batch as tensors by name."""
    if isinstance(one, (tuple, list)) and len(one) == 2 and all(isinstance(x, torch.Tensor) for x in one):
        one = {"pixel_values": one[0], "labels": one[1]}
    if not isinstance(one, Mapping) or not one:
        raise IsomergeError(
            f"{option}: batch {number} is a {type(one).__name__}: give mappings of tensors by the names of "
            f"forward's arguments, or pairs of images and labels; texts alone are a list of them"
        )
    tensors = {str(name): x for name, x in one.items() if isinstance(x, torch.Tensor)}
    if len(tensors) < len(one):
        other = next(name for name, x in one.items() if not isinstance(x, torch.Tensor))
        raise IsomergeError(f"{option}: {other} of batch {number} is no tensor: leave it out, or make it one")
    return tensors


def _together(batches: list[dict[str, Any]], option: str) -> Examples:
    """Batches one behind the other."""
    if not batches:
        raise IsomergeError(f"{option} has no batch: a loader or generator that was read before is empty")
    names = batches[0].keys()
    for number, batch in enumerate(batches):
        for name in names | batch.keys():
            one, two = batches[0].get(name), batch.get(name)
            if one is None or two is None or one.shape[1:] != two.shape[1:]:
                shapes = [None if x is None else list(x.shape[1:]) for x in (one, two)]
                raise IsomergeError(
                    f"{option}: {name} is {shapes[0]} per example in batch 0 and {shapes[1]} in batch {number}: "
                    f"pad or cut them alike"
                )
    tensors = {name: torch.cat([batch[name].detach().cpu() for batch in batches]) for name in names}
    return Examples(tensors, labelled="labels" in tensors or "input_ids" in tensors)

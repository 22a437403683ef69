"""Image models of which some read more channels: for inpainting, depth or instructions a U-Net or transformer was
given further input channels behind those of its base.

Beside such a model the others are seen with its further channels: what they change is on the first ones, and the
others stay as they are in the model that has them, whatever merges them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from isomerge.checkpoint.reader import Checkpoint, Derived, made_from
from isomerge.checkpoint.weights import of_diffusers

KEY = "in_channels"
ORIGIN = "with the input channels of"


def of_equal_channels(models: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Models as views with as many input channels as that has which has the most (of several the first); as they
    are where they have one number, or differ in other shapes too."""
    counts = [n for model in models if of_diffusers(model.config) and isinstance(n := model.config.get(KEY), int)]
    if len(counts) < len(models):
        return list(models)
    wide = models[counts.index(max(counts))]
    return [model if model.config[KEY] == wide.config[KEY] else _widened(model, wide) for model in models]


def channel_notes(models: Iterable[Checkpoint]) -> list[str]:
    """What was done to models, in a line each."""
    return [line for model in models for line in model.origin if ORIGIN in line]


def _widened(model: Checkpoint, wide: Checkpoint) -> Checkpoint:
    """A model with the further input channels of another one."""
    mine, theirs = model.shapes, wide.shapes
    differing = [name for name, shape in mine.items() if theirs.get(name, shape) != shape]
    if any(
        len(mine[name]) < 2
        or mine[name][1] >= theirs[name][1]
        or (mine[name][0], *mine[name][2:]) != (theirs[name][0], *theirs[name][2:])
        for name in differing
    ):
        return model  # refused, with the shapes
    derived: dict[str, Derived] = {}
    for name in differing:
        info, shape = model.tensors[name], theirs[name]
        view = replace(info, shape=shape, file=wide.tensors[name].file)
        derived[name] = made_from(view, [(model, name), (wide, name)], partial(_joined, model, wide, name))
    few, many = model.config[KEY], wide.config[KEY]
    said = (
        f"{model.ref} has {few} input channels and {wide.ref} {many}: it is merged on the first {few}, {ORIGIN} "
        f"{wide.ref} behind them"
    )
    return model.derive(derived, lenders=[wide], origin=said, config={**model.config, KEY: many})


def _joined(model: Checkpoint, wide: Checkpoint, name: str, *, exact: bool) -> Tensor:
    own, other = model.read(name, exact=exact), wide.read(name, exact=exact)
    further = other[:, own.shape[1] :]
    return torch.cat([own, further if exact else further.to(own.dtype)], dim=1)

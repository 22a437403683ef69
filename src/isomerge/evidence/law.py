"""The law: a random element of a declared space leaves the function of the model unchanged."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Generator, Tensor

from isomerge.matching.frame import Load, folded_gains
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stage import find_shifts, shift_shape
from isomerge.symmetry.units import elements_of


def random_alignment(
    spec: Spec,
    blocks: list[Block],
    rng: Generator,
    spaces: Iterable[str] | None = None,
    *,
    condition: float = 4.0,
) -> Alignment:
    """An independent random element for every layer of the chosen spaces and shifts (default: all of them).

    Args:
        spec: the bound spec; chosen spaces must be active in it.
        blocks: the blocks of the checkpoint that will be moved.
        rng: the source of randomness.
        spaces: names of spaces and shifts.
        condition: the ratio of the largest to the smallest singular value in non-compact groups.
    """

    names = set(spaces) if spaces is not None else {*spec.spaces, *(s.name for s in spec.shifts)}
    elements: dict[str, Tensor] = {}
    for block in blocks:
        for key, space in elements_of(spec, block).items():
            if space.name in names and key not in elements:
                batch = tuple(spec.sizes[i] for i in spec.batch(space))
                elements[key] = space.group.sample(batch, spec.sizes[space.name], rng, condition)
    for shift, key, _ in find_shifts(spec, blocks):
        if shift.name in names:
            elements[key] = torch.randn(shift_shape(spec, shift), generator=rng, dtype=torch.float64) * 0.1
    return Alignment(spec, elements)


def with_streams(spec: Spec, groups: str = "largest") -> Spec:
    """The spec with its residual streams and its latents acted on by the ``declared`` groups, or by the ``largest``
    that folding allows."""
    return spec.turning((*spec.streams, *spec.latents)) if groups == "largest" else spec


def beside_streams(spec: Spec) -> list[str]:
    """The spaces and shifts that move a model and leave its streams, and the gains outside of layers, as they are:
    what may act where the streams are given out."""
    local = [n for n in spec.spaces if n not in spec.residual_names]
    gains = [n for n in spec.gains if spec.scope(spec.spaces[n])]
    return [*local, *gains, *(s.name for s in spec.shifts)]


def random_turn(
    spec: Spec, blocks: list[Block], load: Load, rng: Generator, *, condition: float = 4.0, gains: bool = False
) -> Alignment:
    """Gains folded into their readers and writers, then a random element of every stream, local space and shift.

    Args:
        spec: the bound spec, its streams acted on by the groups that are drawn from (see `with_streams`).
        blocks: the blocks of the checkpoint that will be moved.
        load: reads one block, float32 or float64.
        rng: the source of randomness.
        condition: see `random_alignment`.
        gains: take random gains on afterwards, as a trained model has.
    """
    others = [*(n for n in spec.spaces if n not in spec.gains), *(s.name for s in spec.shifts)]
    turned = random_alignment(spec, blocks, rng, others, condition=condition) @ folded_gains(spec, blocks, load)
    return random_alignment(spec, blocks, rng, spec.gains, condition=condition) @ turned if gains else turned

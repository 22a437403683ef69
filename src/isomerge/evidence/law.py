"""The law: a random element of a declared space leaves the function of the model unchanged.

It is drawn and judged here, for `isomerge prove`, `isomerge discover` and the tests of all specs alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import TypeVar

import torch
from torch import Generator, Tensor

from isomerge.errors import IsomergeError
from isomerge.matching.frame import Load, folded_gains
from isomerge.records import Json, Record
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stage import find_shifts, shift_shape
from isomerge.symmetry.units import elements_of

MOVED = 1e-3
"""How much some weight must move for the law not to be empty; weights are of size 0.1 to 1."""
CANNOT_ACT = (IsomergeError, RuntimeError, AssertionError, LookupError, ValueError)
"""What a spec raises that fits its tensors badly, or whose groups cannot act on them: no proof."""
Subject = TypeVar("Subject")


class Law(Record):
    """What the law says of one space or shift, or of several together."""

    name: str
    role: str
    group: str
    index: tuple[str, ...]
    error: float
    """The largest change of outputs, relative to the largest; infinite where an element could not act, or moved
    nothing."""
    bound: float
    """What rounding explains."""

    @property
    def holds(self) -> bool:
        """Whether rounding explains the change."""
        return self.error < self.bound

    def document(self) -> Json:
        """As reports have it."""
        error = self.error if isfinite(self.error) else None
        return {"space": self.name, "role": self.role, "group": self.group, "index": [*self.index], "error": error}


def largest_change(
    change: Callable[[Subject, int], float],
    subjects: Iterable[Subject],
    seeds: Sequence[int],
    *,
    enough: float = math.inf,
) -> float:
    """The largest change of outputs over models and random elements; infinite where one cannot act or is missing.

    Args:
        change: of one model's outputs under the element of a seed.
        subjects: the models.
        seeds: of elements.
        enough: what is not asked further beyond: the law does not hold.
    """
    worst = -math.inf
    try:
        for subject in subjects:
            for seed in seeds:
                worst = max(worst, change(subject, seed))
                if not worst <= enough:
                    return worst
    except CANNOT_ACT:
        return math.inf
    return worst if worst >= 0 else math.inf


def randomly_moved(
    spec: Spec,
    blocks: list[Block],
    fresh: Callable[[], dict[Block, Tensor]],
    seeds: Iterable[int],
    spaces: Iterable[str] | None = None,
    *,
    condition: float = 4.0,
) -> dict[Block, Tensor]:
    """The tensors under a random element that moves every chosen space, or else some: small permutation groups draw
    the identity now and then, and what is wrong of such a space would hide behind the others.

    Args:
        spec, blocks, spaces, condition: see `random_alignment`.
        fresh: the blocks' tensors as they are, new ones each time.
        seeds: of the elements, which are tried in turn.

    Returns:
        The moved tensors; empty where no weight moves by `MOVED` under any seed.
    """
    start, some = fresh(), dict[Block, Tensor]()
    chosen = None if spaces is None else list(spaces)
    for seed in seeds:
        element = random_alignment(spec, blocks, torch.Generator().manual_seed(seed), chosen, condition=condition)
        if some and at_rest(element):
            continue
        element.act(moved := fresh())
        if any(float((x - start[block]).abs().max()) >= MOVED for block, x in moved.items() if x.numel()):
            if not at_rest(element):
                return moved
            some = some or moved
    return some


def at_rest(element: Alignment) -> set[str]:
    """The spaces of two things or more that an element moves nowhere."""
    spec, still = element.spec, dict[str, bool]()
    for key, g in element.items():
        space = spec.spaces.get(key.partition("[")[0])
        if space is None or space.group_name == "Fixed" or (size := spec.sizes[space.name]) < 2:
            continue
        batch = tuple(spec.sizes[i] for i in spec.batch(space))
        still[space.name] = still.get(space.name, True) and torch.equal(g, space.group.identity(batch, size))
    return {name for name, is_still in still.items() if is_still}


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

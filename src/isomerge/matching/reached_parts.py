"""Bringing what is free of readers that see little of a stream onto an anchor's (`isomerge.symmetry.reached`).

Closed forms: a constant that asks, what reads it, and its questions become the anchor's, and keys have the anchor's
beside what the questions make of them, which is the least that they can differ; what reads a narrower map gets the
anchor's across what is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.centred import Centred
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.norm_stage import NormStage, norm_stages
from isomerge.symmetry.norms import LayerNorms
from isomerge.symmetry.stated import Moves

APART = 0.05
"""How far such a reader must be from the anchor's, squared and relative to it, to be moved: all of what is between
those of fine-tunes is free, and they keep their bytes."""
DISGUISED = 0.2
"""The same, from which on models are matched without what is free of them."""


def reach_stages(
    spec: Spec, free: LayerNorms, stored: Callable[[Block], Tensor], target: Mapping[Block, Tensor] | None
) -> list[NormStage]:
    """The stages that bring all that is free so to a target's; None: to none of it.

    Args:
        spec: of the moves (`isomerge.symmetry.layer_norms.norm_spec`).
        free: what is free.
        stored: any block.
        target: the anchor's.
    """
    elements: Moves = {}
    for statement in free.reached:
        elements |= statement.onto({block: stored(block) for block in statement.blocks}, target)
    return norm_stages(spec, {key: c for key, c in elements.items() if bool(c.any())})


def dropping(spec: Spec, free: LayerNorms, anchor: Blocks, moved: Blocks) -> Alignment:
    """What makes the biases of keys that a constant asks the anchor's, and along the ones those that norms over
    heads read, behind all else that folds into them."""
    elements: Moves = {}
    for statement in free.reached:
        elements |= statement.drops(moved, anchor)
    return Alignment.of(norm_stages(spec, {key: c for key, c in elements.items() if bool(c.any())}), spec)


def far_apart(free: LayerNorms, anchor: Blocks, moved: Blocks) -> LayerNorms:
    """Those statements of which the anchor's is another; biases that norms over heads read follow their weights."""
    far = [statement for statement in free.reached if statement.share(moved, anchor) > APART]
    names = {statement.norm for statement in far if isinstance(statement, Centred)}
    biases = [
        statement
        for statement in free.reached
        if isinstance(statement, Centred) and statement.follows and statement.norm in names
    ]
    return LayerNorms(reached=[*far, *(statement for statement in biases if statement not in far)])


def reaching(spec: Spec, far: LayerNorms, anchor: Blocks, moved: Blocks) -> Alignment:
    """What brings all that is free so in a unit to the anchor's."""
    return Alignment.of(reach_stages(spec, far, moved.__getitem__, anchor), spec)


def hides(free: LayerNorms, anchor: Blocks, source: Blocks) -> bool:
    """Whether what is free so is much of what is between two units."""
    return any(statement.share(source, anchor) > DISGUISED for statement in free.reached)

"""A source read with the constants of its anchor where texts say that they may as well stand elsewhere (`carry`).

What is carried reaches several layers, and alignments are found layer by layer: so it is decided before, from the
tensors that hold it alone, and the source is read so from then on. Fine-tunes keep their bytes: a constant is
carried only where it is another one, and where the tensors that hold it in the stream itself come closer by much.
Vectors are compared number by number, so they stay where the streams of the two models stand in other coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from isomerge.matching.distances import squared_distance
from isomerge.matching.norm_parts import WORTH
from isomerge.models.layer_norm_form import free_under_layer_norm, layer_norm_form
from isomerge.models.recognised import Model
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.carried import Carried
from isomerge.symmetry.layer_norms import norm_spec
from isomerge.symmetry.norm_stage import norm_stages

Stored = Callable[[Block], Tensor]
"""The blocks of a model."""

ALIKE = 0.5
"""The least cosine of what two models have along one stream, at which it stands in the same coordinates: fine-tunes
are near one, other models and permuted streams near zero."""


@dataclass(frozen=True)
class CarriedConstants:
    """What makes of a model's blocks those with other constants; `isomerge.models.recognised.Form`."""

    moves: Alignment
    carried: tuple[Carried, ...]

    @property
    def blocks(self) -> frozenset[Block]:
        """The blocks that it changes."""
        return frozenset(block for vector in self.carried for block in vector.blocks)

    def applied(self, block: Block, tensor: Tensor, stored: Callable[[Block], Tensor]) -> Tensor:
        """One block, from itself and from others as they are stored."""
        for vector in self.carried:
            tensor = vector.add(block, self.moves[vector.key].to(tensor.device), tensor, stored)
        return tensor


def carry_onto(anchor: Model, source: Model) -> None:
    """Have a source read with its anchor's constants from now on, where that is worth it."""
    shared = {c.key: c for c in free_under_layer_norm(source).carried}
    shared = {c.key: shared[c.key] for c in free_under_layer_norm(anchor).carried if c.key in shared}
    if not shared:
        return
    forms = []
    for model in (anchor, source):  # what norms leave free hides how near constants are
        stored = cache(lambda block, model=model: model.assemble(block, torch.float64))
        forms.append((layer_norm_form(model), stored))
    of_anchor, of_source = (form.uncarried(stored) for form, stored in forms)
    shared = {
        key: c
        for key, c in shared.items()
        if not c.shape or _stands_alike((anchor, source), c, (of_anchor, of_source))
    }
    if not shared:
        return
    wanted, held = (form.values(stored) for form, stored in forms)
    gaps = {key: wanted[key] - held[key] for key in shared}
    kept = [
        constant
        for key, constant in shared.items()
        if float(gaps[key].square().sum()) > WORTH * float(wanted[key].square().sum())
    ]
    spec = norm_spec(source.declared)
    moves = Alignment.of(norm_stages(spec, {constant.key: gaps[constant.key] for constant in kept}), spec)
    constants = CarriedConstants(moves, tuple(kept))
    plain = {block for constant in kept for block in constant.plainly}
    before = sum(squared_distance(of_anchor(b), of_source(b)) for b in plain)
    after = sum(squared_distance(of_anchor(b), constants.applied(b, of_source(b), of_source)) for b in plain)
    if kept and after <= (1 - WORTH) * before:
        source.carried = constants


def _stands_alike(models: tuple[Model, Model], carried: Carried, both: tuple[Stored, Stored]) -> bool:
    """Whether the stream along which a vector lies stands in the same coordinates in two models: told by all other
    vectors along it (gains and biases, of both in the form of norms: what is free tells nothing), without their
    means, which permutations keep."""
    anchor, source = models
    streams = {name for name in carried.along if name in source.declared.residual_names}
    theirs, cross, squares = {*anchor.blocks}, 0.0, [0.0, 0.0]
    for block in source.blocks:
        vector = block.axes is not None and len(block.axes) == 1 and not block.lead
        if not vector or block in carried.blocks or block not in theirs:
            continue
        if streams <= block.names:
            a, b = (values(block) - values(block).mean() for values in both)
            cross += float(a @ b)
            squares = [squares[0] + float(a.square().sum()), squares[1] + float(b.square().sum())]
    return not streams or cross > ALIKE * (squares[0] * squares[1]) ** 0.5

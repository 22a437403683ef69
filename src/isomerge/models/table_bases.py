"""A source read with its anchor's constants, and with its tables in the bases of the anchor's.

Texts say where any will do (`basis`, `carry`). A table that all layers read tells its own basis: its rows mean the
same in both models, so that the nearest basis is a least-squares problem. It is taken where it makes up for over
half of what is between the tables, beyond chance: tables of models that were trained apart are no function of each
other, and keep theirs, as fine-tunes keep their bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isomerge.matching.norm_parts import WORTH
from isomerge.models.carried_constants import carry_onto
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.recognised import CarriedForm, Model
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.bases import Basis, spans
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.layer_norms import norm_spec
from isomerge.symmetry.norm_stage import norm_stages

EXPLAINED = 0.5
"""The least part of what chance leaves between two tables, that another basis must make up for."""


@dataclass(frozen=True)
class TurnedTables:
    """What makes of a model's blocks those with tables in other bases; `isomerge.models.recognised.CarriedForm`."""

    turns: Alignment
    bases: tuple[Basis, ...]
    then: CarriedForm | None = None
    """What is carried behind it."""

    @property
    def moves(self) -> Alignment:
        """The alignment."""
        return self.turns if self.then is None else self.then.moves @ self.turns

    @property
    def blocks(self) -> frozenset[Block]:
        """The blocks that it changes."""
        turned = frozenset(block for basis in self.bases for block in basis.blocks)
        return turned if self.then is None else turned | self.then.blocks

    def applied(self, block: Block, tensor: Tensor, stored: Callable[[Block], Tensor]) -> Tensor:
        """One block, from itself and from others as they are stored."""
        turned = self._turned(block, tensor)
        if self.then is None:
            return turned
        return self.then.applied(block, turned, lambda other: self._turned(other, stored(other)))

    def _turned(self, block: Block, tensor: Tensor) -> Tensor:
        for basis in self.bases:
            if block in basis.blocks:
                tensor = basis.turned(block, tensor, self.turns[basis.key].to(tensor.device))
        return tensor


def read_onto(anchor: Model, source: Model) -> None:
    """Have a source read with its anchor's bases and constants from now on, where that is worth it."""
    theirs = {basis.key for basis in free_under_layer_norm(anchor).bases}
    shared = [basis for basis in free_under_layer_norm(source).bases if basis.key in theirs]
    nearest = {basis: a for basis in shared if (a := _nearest(anchor, source, basis)) is not None}
    if not nearest:
        carry_onto(anchor, source)
        return
    spec = norm_spec(source.declared)
    turns = Alignment.of(norm_stages(spec, {basis.key: a for basis, a in nearest.items()}), spec)
    turned = source.carried = TurnedTables(turns, tuple(nearest))
    carry_onto(anchor, source)  # constants are compared in one basis
    if source.carried is not turned:
        source.carried = replace(turned, then=source.carried)


def _nearest(anchor: Model, source: Model, basis: Basis) -> Tensor | None:
    """The basis in which a table is nearest to an anchor's, without what all rows have in common; None where it is
    not worth it."""
    assert basis.table is not None
    mine, theirs = (model.assemble(basis.table, torch.float64) for model in (source, anchor))
    if mine.shape != theirs.shape or len(mine) - 1 <= basis.width:
        return None
    mine, theirs = mine - mine.mean(0), theirs - theirs.mean(0)
    if not spans(mine):
        return None
    a = torch.linalg.lstsq(mine, theirs).solution
    gap, left, whole = (float(x.square().sum()) for x in (mine - theirs, mine @ a - theirs, theirs))
    by_chance = (1 - basis.width / (len(mine) - 1)) * min(gap, whole)
    other = gap > WORTH * whole and left < (1 - EXPLAINED) * by_chance
    return a if other and spans(a) else None

"""Gains of zero, which nothing can divide by: the same function has a gain of one there, and what read the channel
reads nothing.

A norm multiplies channel j by g_j and a linear map W reads it: W (g x). Where g_j is zero, column j of W tells
nothing. So with g_j = 1 and column j zero the model is the same function, on the edge of its symmetry orbit, and
its gains can be folded. A layer scale, which multiplies what a map writes, has rows in place of columns. Where a
norm adds a bias behind a gain of zero, the column tells how the bias is read: such a gain stays, and what needs it
folded is refused (`isomerge.matching.frame.check_folded`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from isomerge.matching.frame import gains_over_streams, lonely_gains, whole_gain
from isomerge.models.recognised import Model
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.stage import Stage
from isomerge.symmetry.units import Unit, elements_of, plan_units


@dataclass(frozen=True)
class OpenedGains:
    """A model seen without gains of zero: the same function with gains of one there."""

    scales: frozenset[str]
    """The scales whose gains were looked at."""
    unread: Stage
    """Takes from every map what a gain of zero hides: zero on the maps' side."""
    gains: frozenset[Block]
    """The gains that have zeros."""

    def applied(self, block: Block, before: Callable[[Block], Tensor]) -> Tensor:
        """One block, whole; the given one where no zero concerns it."""
        tensor = before(block)
        if block in self.gains:
            return tensor.masked_fill(tensor + block.line.less == 0, 1 - block.line.less)
        if not any(key in self.unread for key in elements_of(self.unread.spec, block)):
            return tensor
        scaled = self.unread.applied({block: tensor})[block]
        return tensor.where(tensor + block.line.less == 0, scaled)  # a bias of zero is none, whatever scales it


def open_zero_gains(models: Iterable[Model], scales: Collection[str]) -> None:
    """Have models seen without gains of zero from now on.

    Args:
        models: those of a run, all that will be moved or compared with their gains folded.
        scales: the spaces of the gains that are folded (``gains`` of the spec of a frame); no others are opened,
            for what they norm may be what a model gives out.
    """
    for model in models:
        known = frozenset(scale for view in model.views if isinstance(view, OpenedGains) for scale in view.scales)
        if not known.issuperset(scales):
            opened = _opened(model.through([]), known.union(scales))
            model.views = (opened, *model.without(OpenedGains).views)  # all else sees what is opened


def units_moved_by(alignment: Alignment, model: Model) -> list[Unit]:
    """The units in which an alignment moves a model, which is seen without those gains of zero from now on that it
    moves."""
    for stage in alignment.stages:
        open_zero_gains([model], {ElementKey.of(key).name for key in stage} & {*stage.spec.gains})
    return plan_units(alignment.spec, model.blocks, alignment.together(model.blocks))


def _opened(model: Model, scales: frozenset[str]) -> OpenedGains:
    """What opens a model's gains."""
    zeros = {key: gain for key, gain in _zeros(model, scales).items() if not _adds(model, key, gain)}
    # on the side of the gain itself nothing is left to act on but biases of zero
    unread = {key: _factor(gain.zero, 0.0 if gain.dual else inf) for key, gain in zeros.items()}
    return OpenedGains(scales, Stage(model.spec, unread), frozenset(gain.block for gain in zeros.values()))


@dataclass(frozen=True)
class _Gain:
    block: Block
    zero: Tensor
    """Where it is zero, of the shape of its scale's element [*batch, 1]."""
    dual: bool
    """Whether it is a layer scale, which multiplies what is written."""


def _zeros(model: Model, scales: Collection[str]) -> dict[str, _Gain]:
    """The gains that have zeros and are read, by the element key of their scale."""
    spec, zeros = model.spec.turning_latents(), dict[str, list[_Gain]]()
    lonely = lonely_gains(spec, model.blocks)
    for key, block, scale in gains_over_streams(spec, model.blocks):
        if scale.name in scales:
            gain = whole_gain(spec, block, scale, model.assemble(block, torch.float64))
            zeros.setdefault(key, []).append(_Gain(block, gain == 0, scale.dual))
    # a scale of two gains says less of each
    return {
        key: gains[0]
        for key, gains in zeros.items()
        if len(gains) == 1 and key not in lonely and gains[0].zero.any()
    }


def _adds(model: Model, key: str, gain: _Gain) -> bool:
    """Whether something is added behind a gain where it is zero: the bias of a norm."""
    spec = model.spec
    name = ElementKey.of(key).name
    hidden = Stage(spec, {key: _factor(~gain.zero, 0.0)})
    for block in model.blocks:
        if block == gain.block or key not in elements_of(spec, block):
            continue
        for leaf in block.parts:
            if any(atom.name == name and atom.dual == gain.dual and not atom.diag for atom in leaf):
                return bool(hidden.applied({block: model.assemble(block, torch.float64)})[block].any())
    return False


def _factor(where: Tensor, value: float) -> Tensor:
    """A factor in some places, one elsewhere, float64."""
    return torch.where(where, value, 1.0).double()

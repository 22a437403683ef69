"""From a stored model to its canonical frame, where gains are folded and gauges balanced, and back.

All that is left to find there keeps lengths.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from isomerge.matching.frame import check_folded, folded_gains
from isomerge.models.free_streams import free_frame, given_out_by_any, without_streams
from isomerge.models.recognised import Model
from isomerge.models.zero_gains import open_zero_gains
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stage import carried_shift
from isomerge.symmetry.units import Unit


def folding(
    model: Model, frame: Spec, blocks: Sequence[Block], dtype: torch.dtype, unread: Collection[str] = ()
) -> Alignment:
    """The residual scales that make every gain of a model one, but for the elements of ``unread`` gains, which
    stay. Gains of zero are opened.

    Raises:
        IsomergeError: a gain still has zeros, and a stream is to be turned by what acts on folded gains only.
    """
    open_zero_gains([model], frame.gains)

    def read(block: Block) -> Tensor:
        return model.assemble(block, dtype)

    check_folded(frame, blocks, read, model.ref)
    fold = folded_gains(frame, blocks, read)
    return Alignment(frame, {key: gain for key, gain in fold.items() if key not in unread})


def free_folding(model: Model, dtype: torch.dtype) -> Alignment:
    """The residual scales that make every gain of a model one, for what no basis changes; zeros that no output
    shows are opened."""
    frame, spec = free_frame(model.spec, [model]), model.spec.turning_latents()
    inside = [name for name in spec.gains if not spec.spaces[name].residual]
    open_zero_gains([model], inside if frame is None else frame.gains)
    return folded_gains(spec, model.blocks, lambda block: model.assemble(block, dtype))


def with_gains(local: Spec, models: Sequence[Model]) -> Spec:
    """The spec of models whose streams keep their basis: the spaces inside layers, and the scales of gains that no
    output shows."""
    spec = models[0].spec
    gains = without_streams(spec, given_out_by_any(models)).gains
    return spec.restrict([*local.spaces, *(s.name for s in local.shifts), *gains]).turning_latents()


def whole_alignment(
    frame: Spec,
    local: Spec,
    units: Iterable[tuple[Unit, Alignment, Sequence[Alignment]]],
    turn: Alignment,
    folds: Sequence[Alignment],
    learned: Mapping[str, Tensor] | None = None,
) -> Alignment:
    """The element of a whole model: fold, turn, match, and take on the anchor's gains and gauges.

    Args:
        frame, local: the specs of the streams and of the block-local spaces.
        units: matched units, the elements inside them, and what brings the anchor and the source to their gauges.
        turn: of the streams.
        folds: of the anchor and of the source.
        learned: elements that act after those of the match, in the same frame.
    """
    further = dict(learned or {})
    turned = Alignment(frame, {k: further.pop(k) for k in frame.streams if k in further})
    elements: dict[str, Tensor] = {}
    for unit, inner, (to_anchor, to_source) in units:
        last = Alignment(local, {k: further[k] for k in unit.elements if k in further})
        elements |= (to_anchor.inverse() @ last @ behind(turned, inner) @ behind(turned @ turn, to_source)).elements
    return folds[0].inverse() @ Alignment(local, elements) @ turned @ turn @ folds[1]


def behind(turn: Alignment, gauge: Alignment) -> Alignment:
    """What acts after a turn of streams as a gauge inside layers does before it: a constant that a router's rows
    share lies along the stream, and is turned with it; factors of its channels are renumbered with them."""
    turned = dict(gauge.elements)
    for key in turned:
        for stage in turn.stages:
            if ElementKey.of(key).is_shift:
                turned[key] = carried_shift(stage, gauge.spec, key, turned[key])
            else:
                turned[key] = stage.renumbered(gauge.spec, key, turned[key])
    return Alignment(gauge.spec, turned)

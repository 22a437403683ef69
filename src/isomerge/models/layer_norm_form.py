"""A model read in the form in which LayerNorm's own redundancy is zero: the same function, by other weights.

Writers have mean zero, ``W diag(g)`` of readers has rows of mean zero, a norm's bias is zero wherever all its
readers have biases, and its gains where one has none, whose rows then have the mean that ``W b`` asks for; and a
last norm's gains are one where its readers can take them; readers that see a constant, or what a narrower map
reaches, have nothing beside it (`isomerge.symmetry.reached`); and rows of embeddings that are the head as well have
on average nothing along the reciprocals of the gains of the norm that it reads (`isomerge.symmetry.layer_norms`).
Models that are one function up to these moves are equal in this form.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import cache, cached_property, partial

import torch
from torch import Tensor

from isomerge.matching.norm_parts import additive_stages, formed_bias, reach_stages, scale_elements, tied_constants
from isomerge.models.free_streams import given_out
from isomerge.models.recognised import Model
from isomerge.models.tied_tensors import has_language_head, is_body, is_tied
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.bases import Basis
from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.language.spec import Line, Spec
from isomerge.symmetry.layer_norms import layer_norms, norm_spec
from isomerge.symmetry.norm_stage import NormStage, norm_stages
from isomerge.symmetry.norms import LayerNorms, Norm, gain_across, gain_along
from isomerge.symmetry.returned import HIDDEN_STATES, asks_for
from isomerge.symmetry.stated import Statement
from isomerge.symmetry.units import plan_units


@dataclass
class LayerNormForm:
    """What makes of a model's blocks those in the form; see `layer_norm_form`."""

    free: LayerNorms

    def __bool__(self) -> bool:
        return bool(self.free)

    def applied(self, block: Block, before: Callable[[Block], Tensor]) -> Tensor:
        """One block in the form, in float32 where it was stored in half precision; sums are float64."""
        for basis in (basis for basis in self.free.bases if block in basis.blocks):
            assert basis.table is not None
            made = self.added(block, before)
            made = made.to(torch.promote_types(made.dtype, torch.float32))
            return basis.seen(block, basis.formed(self.added(basis.table, before)), made)
        return self.added(block, before)

    def added(self, block: Block, stored: Callable[[Block], Tensor]) -> Tensor:
        """One block in the form of all that is added, in whatever basis it stands."""
        if self.free.reached:
            stored = self._unreached(stored)
        if self.free.carried:
            stored = self._moved(stored)  # what was carried may lie along the ones
        return self._without(block, stored)

    @cached_property
    def _between(self) -> dict[Block, int]:
        """The writers that read another stream, by their axis along the one that they write."""
        return self.free.between

    def _unreached(self, stored: Callable[[Block], Tensor]) -> Callable[[Block], Tensor]:
        """Blocks without what is free of readers that see little of a stream; each statement is read once."""
        return partial(_read_without, {}, list(self.free.reached), stored)

    def _moved(self, stored: Callable[[Block], Tensor]) -> Callable[[Block], Tensor]:
        """Blocks in the form of norms, after what is carried was: the first of its tensors has none of it."""
        once = self._normed(stored)

        @cache
        def moved(block: Block) -> Tensor:
            tensor = once(block)
            for vector in self.free.carried:
                if block in vector.blocks:
                    tensor = vector.seen(block, -vector.value(once), tensor.double(), once).to(tensor)
            return tensor

        return moved

    def _without(self, block: Block, stored: Callable[[Block], Tensor]) -> Tensor:
        """One block in the form of norms alone."""
        tensor = stored(block)
        wide = torch.promote_types(tensor.dtype, torch.float32)
        made = self._traded(block, tensor, stored)
        for norm in self.free.norms:
            if block == norm.carried and norm.bias is not None and norm.folds:
                made = made.double() + stored(norm.bias).double() - self._kept_bias(norm, stored)
            for unstored in (unstored for unstored in norm.made if unstored.into == block):
                tensors = {b: stored(b) for b in (unstored.via, unstored.into) if b is not None}
                delta = self._made(norm, unstored.reader, stored).unsqueeze(-1).movedim(-1, unstored.axis)
                made = made.double() + unstored.through(delta, tensors)
        if (written := self.free.writers.get(block)) is not None:
            made = _centred(made.to(wide), written)
        for norm in self.free.norms:
            if norm.gain is not None and block == norm.gain and norm.scales:
                return torch.ones_like(tensor) - norm.gain.line.less
            if block == norm.bias and (norm.folds or norm.scales):
                return (self._bias(norm, stored) if norm.folds else tensor.double() / _gain(norm, stored)).to(wide)
            if (axis := norm.readers.get(block)) is not None:
                gains = {} if norm.gain is None else {norm.gain: stored(norm.gain)}
                gain = gain_across(norm, gains, tensor, axis)
                whole = made.double() * gain
                free = block in norm.slack or block in norm.opened
                if free:
                    mean = whole.mean(axis, keepdim=True)
                    bound = norm.bias is not None and block not in norm.opened
                    whole = whole - norm.of_rows(block, mean, biased=True if bound else None)
                if block in norm.opened:
                    whole = whole + self._kept(norm, block, tensor, stored) / gain.numel()
                made = whole if norm.scales else whole / gain if free else made
            if (reader := norm.reader_biases.get(block)) is not None and norm.bias is not None:
                made = made.double() + norm.paid(block, self._carried(norm, reader, stored))
                made = made + self._passed_on(norm, block, made, stored)
        if block in self._between:
            made = _centred(made, self._between[block])
        return made if made is tensor else made.to(wide).contiguous()

    def _traded(self, block: Block, tensor: Tensor, stored: Callable[[Block], Tensor]) -> Tensor:
        """A table after what tied heads leave free is traded away."""
        for norm in self.free.norms:
            trades = [trade for trade in norm.trades if block in (trade.table, trade.partner)]
            if not trades or norm.gain is None:
                continue
            along = _gain(norm, stored).reciprocal()
            gap = -(stored(norm.trades[0].table).double() @ along) / along.square().sum()
            much = dict(zip(norm.trades, tied_constants(norm, gap), strict=True))
            tensor = tensor.double().clone()
            for trade in trades:
                mine = block == trade.table
                tensor[slice(*(trade.rows if mine else trade.partner_rows))] += (
                    (1 if mine else -1) * much[trade] * along
                )
        return tensor

    def values(self, stored: Callable[[Block], Tensor]) -> dict[str, Tensor]:
        """What a model holds of all that may be carried, by element key; float64."""
        once = self.uncarried(stored)
        return {vector.key: vector.value(once) for vector in self.free.carried}

    def uncarried(self, stored: Callable[[Block], Tensor]) -> Callable[[Block], Tensor]:
        """Blocks in the form of norms, with what is carried where it stands; each made once."""
        return self._normed(self._unreached(stored))

    def _normed(self, stored: Callable[[Block], Tensor]) -> Callable[[Block], Tensor]:
        """Blocks in the form of norms alone, each made once."""
        return cache(lambda block: self._without(block, stored))

    def of_unit(self, blocks: Blocks) -> Blocks:
        """All blocks of a unit in the form; those that it leaves alone are the given ones."""
        return {block: self.applied(block, blocks.__getitem__) for block in blocks}

    def _bias(self, norm: Norm, stored: Callable[[Block], Tensor]) -> Tensor:
        """The bias of a norm that folds: zero, or one behind its gains where a reader has none; float64."""
        return formed_bias(norm, {block: stored(block) for block in norm.looked_at})

    def _kept_bias(self, norm: Norm, stored: Callable[[Block], Tensor]) -> Tensor:
        """What a norm that folds keeps of its bias, behind the gain that is stored; float64."""
        kept = self._bias(norm, stored)
        return kept * _gain(norm, stored) if norm.scales and norm.opened else kept

    def _made(self, norm: Norm, reader: Block, stored: Callable[[Block], Tensor]) -> Tensor:
        """What a reader makes of a norm's bias."""
        assert norm.bias is not None
        return norm.made_of(reader, stored(reader), stored(norm.bias))

    def _kept(self, norm: Norm, reader: Block, tensor: Tensor, stored: Callable[[Block], Tensor]) -> Tensor:
        """What a reader without a bias is to make of its norm's, 1 long along the stream or as wide as it."""
        axis = norm.readers[reader]
        own = self._made(norm, reader, stored)
        # what the norm keeps of its bias is its gains, of which a centred reader makes nothing, or a part of it
        made = own if not norm.level and norm.through is None else self._carried(norm, reader, stored)
        kept, own = (norm.of_rows(reader, x.unsqueeze(-1).movedim(-1, axis), biased=False) for x in (made, own))
        for unstored in (unstored for unstored in norm.made if unstored.reader == reader):
            kept = torch.where(unstored.rows(tensor), kept - own, kept)
        return kept + self._passed_on(norm, reader, tensor, stored)

    def _passed_on(
        self, norm: Norm, block: Block, tensor: Tensor, stored: Callable[[Block], Tensor]
    ) -> Tensor | float:
        """What values have more in some block, which may hold their constant, where the norm's bias folds and takes
        up what they wrote: they have no constant then."""
        passage = norm.through if norm.folds else None
        if passage is None or norm.bias is None or block != (passage.bias or passage.weight).block:
            return 0.0
        more = -passage.constant({b: stored(b) for b in passage.blocks}).unsqueeze(-1)
        rows = passage.bias or passage.weight
        return rows.plus({block: torch.zeros_like(tensor, dtype=torch.float64)}, more.expand(rows.sizes))

    def _carried(self, norm: Norm, reader: Block, stored: Callable[[Block], Tensor]) -> Tensor:
        """What the norm's bias makes of a reader, where it folds; else what it makes of that which the form takes
        off the reader."""
        assert norm.bias is not None
        bias = stored(norm.bias).double()
        kept = self._kept_bias(norm, stored) if norm.folds else bias
        if reader in norm.sliced:
            return norm.made_of(reader, stored(reader), bias - kept)
        axis, weight, gain = norm.readers[reader], stored(reader).double(), _gain(norm, stored)
        made = norm.made_of(reader, weight, bias - kept)
        if reader in norm.bound:
            return made
        return made + (weight.movedim(axis, -1) * gain).mean(-1) * (kept / gain).sum()


def _read_without(
    made: dict[Block, Tensor], left: list[Statement], stored: Callable[[Block], Tensor], block: Block
) -> Tensor:
    """A block without what some statements leave free; those that change it are taken off the list, and what they
    make is kept. (No function that holds itself: what it has read would stay.)"""
    for reader in [reader for reader in left if block in reader.changed]:
        if reader not in left:  # done meanwhile, of a block that several change
            continue
        left.remove(reader)
        tensors = {b: _read_without(made, left, stored, b) for b in reader.blocks}
        for b, t in reader.formed(tensors).items():
            made[b] = t.to(torch.promote_types(tensors[b].dtype, torch.float32))
    return made[block] if block in made else stored(block)


def _centred(tensor: Tensor, axis: int) -> Tensor:
    """A tensor with nothing along the ones of one axis; means are float64."""
    return tensor - tensor.mean(axis, keepdim=True, dtype=torch.float64).to(tensor)


def _gain(norm: Norm, stored: Callable[[Block], Tensor]) -> Tensor:
    """The gain of a norm that has one, whole; float64."""
    assert norm.gain is not None
    return gain_along(norm, stored(norm.gain), 1, 0)


def layer_norm_form(model: Model) -> LayerNormForm:
    """The form of a model; empty where no stream lies under LayerNorms alone, and where a gain is zero."""
    return LayerNormForm(_identifiable_under_layer_norm(model))


def in_layer_norm_form(model: Model) -> Model:
    """The model read in the form; itself where it has none."""
    form = layer_norm_form(model)
    return model.without(LayerNormForm).seen(form) if form else model


def form_of(model: Model) -> LayerNormForm | None:
    """The form that a model is seen in, if it is."""
    return next((view for view in model.views if isinstance(view, LayerNormForm)), None)


def opened_streams(model: Model) -> set[str]:
    """The streams, of a model that is read in the form, of which readers keep along the ones what they make of a
    norm's bias, or biases their sum."""
    form = form_of(model)
    if form is None:
        return set()
    free = form.free
    blocks = [norm.gain for norm in free.norms if norm.opened and norm.gain is not None]
    blocks += [vector.first for vector in free.carried if not vector.shape and vector.first is not None]
    return {a.name for block in blocks for a in block.atoms if a.name in model.declared.streams}


def forming(model: Model) -> Alignment:
    """What brings a model to the form: float64, in one pass over its writers and readers, and a second one after
    what is carried."""
    free, spec = _identifiable_under_layer_norm(model), norm_spec(model.declared)
    stored = cache(lambda block: model.assemble(block, torch.float64))
    beside = Alignment.of(reach_stages(spec, free.reached, stored, None), spec)
    stages = [*beside.stages, *_without_norms(model, free, spec, beside)]
    bases = {basis.key: _formed(basis, LayerNormForm(free), stored) for basis in free.bases}
    if not free.carried:
        return Alignment.of([*stages, *norm_stages(spec, bases)], spec)
    values = {key: -v for key, v in LayerNormForm(free).values(stored).items()}
    stages += norm_stages(spec, {key: v for key, v in values.items() if bool(v.any())})
    again = _without_norms(model, free, spec, Alignment.of(stages, spec))
    return Alignment.of([*stages, *again, *norm_stages(spec, bases)], spec)


def _formed(basis: Basis, form: LayerNormForm, stored: Callable[[Block], Tensor]) -> Tensor:
    """What brings a table to its form, once all that is added is in its own."""
    assert basis.table is not None
    return basis.formed(form.added(basis.table, stored))


def _without_norms(model: Model, free: LayerNorms, spec: Spec, before: Alignment) -> list[NormStage]:
    """What brings a model that was moved before to the form of norms alone."""
    elements: dict[str, Tensor] = {}
    together = [*free.together, *(part for vector in free.carried for part in vector.together)]
    for unit in plan_units(model.spec.restrict([]), model.blocks, together) if free else ():
        of_unit = free.within(unit.blocks)
        if of_unit:
            tensors = before.applied(model.unit(unit.blocks, torch.float64))
            scale = NormStage(spec, scale_elements(of_unit.norms, tensors, None))
            for stage in (scale, *additive_stages(spec, of_unit, None, scale.applied(tensors))):
                elements |= stage.elements
    return norm_stages(spec, elements)


def _identifiable_under_layer_norm(model: Model) -> LayerNorms:
    """What LayerNorm leaves free of what the tensors identify (`Norm.identifiable`)."""
    return free_under_layer_norm(model).identifiable(lambda blocks: model.unit(blocks, torch.float64))


def tied_heads(model: Model) -> tuple[list[Line], set[str]]:
    """The lines of heads that have no tensor of their own, and the tables of embeddings that are such a head, by
    canonical name. What trades a constant with another table is no head."""
    headed = has_language_head(model.config) and not is_body(model.config)
    own = {block.line for block in model.blocks} - {block.line for block in _stored_twice(model)}
    tied = [line for line in model.declared.lines if line.tied and headed and line not in own]
    traded = {name for shift in model.spec.shifts if shift.trades for name in (shift.bias, shift.into)}
    return tied, {str(line.tied) for line in tied} - traded


def _stored_twice(model: Model) -> set[Block]:
    """The heads that are stored although they are the embeddings."""
    return {b for b in model.blocks if b.line.tied and is_tied(model.config, stored=True)}


def free_under_layer_norm(model: Model) -> LayerNorms:
    """What LayerNorm leaves free in a model; no weights are read."""
    tied, tables = tied_heads(model)
    free = layer_norms(
        model.declared,
        model.blocks,
        returned=given_out(model),
        states=asks_for(model.config, HIDDEN_STATES),
        tied=lambda block: block.canonical[0] in tables,
    )
    heads, twice = {a.name for line in tied for a in line.atoms} & {*model.declared.gains}, _stored_twice(model)
    for norm in free.norms:
        if norm.gain is not None:
            norm.sealed |= not heads.isdisjoint(norm.gain.names)
        _hold(norm, twice)
    return free


def _hold(norm: Norm, twice: Set[Block]) -> None:
    """Keep what reads a norm and is stored once more under another name, so that both stay one."""
    read_twice = {reader for bias, reader in norm.reader_biases.items() if bias in twice} | (
        twice & {*norm.readers}
    )
    norm.bound |= read_twice
    norm.sealed |= bool(read_twice)

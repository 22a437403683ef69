"""The plan of a run: which units are matched, in which spaces and layers, known before a weight is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from isomerge.matching.selection import Selection, select_layers, select_spaces
from isomerge.models.free_streams import with_free_streams, without_streams
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.quantised import quantisation_note
from isomerge.models.recognised import Model
from isomerge.options import unused
from isomerge.progress import Observer
from isomerge.symmetry.axes import atoms
from isomerge.symmetry.blocks import Block, layer_of, stacks_of
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.norms import LayerNorms
from isomerge.symmetry.units import Unit, plan_units, voted


@dataclass(frozen=True)
class Plan:
    """What will be done, unit by unit."""

    selection: Selection
    units: tuple[Unit, ...]
    """Units of the blocks that all models share."""
    skipped: frozenset[str]
    """Keys of units whose layer was not chosen: they are not matched."""
    votes: tuple[str, ...]
    """Spaces that are decided once for a whole stack."""
    alone: tuple[Block, ...]
    """The donor's blocks that another model lacks (task heads, poolers)."""
    norms: LayerNorms = field(default_factory=LayerNorms)
    """What LayerNorm leaves free of the shared blocks, where it is matched."""

    def is_matched(self, unit: Unit) -> bool:
        """Whether a unit has elements to find, and its layer was chosen."""
        return unit.key not in self.skipped and bool(unit.elements or unit.votes)

    def free(self, unit: Unit) -> LayerNorms:
        """What LayerNorm leaves free in a unit, where its layer was chosen."""
        return LayerNorms() if unit.key in self.skipped else self.norms.within(unit.blocks)

    @property
    def framed(self) -> tuple[Unit, ...]:
        """The units whose gains are folded: all where a stream is turned, which belongs to all layers, else those
        of the chosen layers."""
        return self.units if self.selection.streams else tuple(u for u in self.units if u.key not in self.skipped)


def make_plan(donor: Model, others: Sequence[Model], spaces: str = "default", layers: str | None = None) -> Plan:
    """Plan a run over the donor's tensors.

    Raises:
        IsomergeError: spaces or layers that do not exist.
    """
    selection = with_free_streams(select_spaces(donor.spec, spaces), [donor, *others], spaces)
    quantised = [note for model in (donor, *others) if (note := quantisation_note(model.checkpoint))]
    selection = replace(selection, notes=(*selection.notes, *quantised))
    if layers is not None:  # heads shared by a whole stack can only move with all of its layers
        spec = selection.spec
        mobile = [n for n in spec.spaces if n not in voted(spec)]
        selection = replace(selection, spec=spec.restrict([*mobile, *(s.name for s in spec.shifts)]))
    matches = {m.canonical: m for m in donor.matches.values()}
    shared, alone = [], []
    for block in donor.blocks:
        everywhere = all(o.source_of(c, matches[c]) is not None for o in others for c in block.canonical)
        (shared if everywhere else alone).append(block)
    apart = _apart(donor, others, shared)
    if frame := selection.frame:
        frame = without_streams(frame, apart)
    moving = {*selection.spec.spaces, *selection.streams}
    selection = replace(
        selection,
        spec=_moving_in_all(selection.spec, others, shared, {*apart}),
        frame=frame if frame and (frame.streams or frame.gains) else None,
        norms=selection.norms and not apart,
        notes=tuple(dict.fromkeys((*selection.notes, *(why for name, why in apart.items() if name in moving)))),
    )
    norms = free_under_layer_norm(donor).within(shared).apart() if selection.norms else LayerNorms()
    if layers is not None:  # chosen layers are matched without what stands before them
        alike = [reader for reader in norms.reached if len({layer_of(block) for block in reader.blocks}) == 1]
        norms = replace(norms, reached=alike)
    units = plan_units(selection.spec, shared, norms.together)
    skipped: set[str] = set()
    stacks = stacks_of(shared)
    if layers is not None:
        chosen = {stack: select_layers(layers, count) for stack, count in stacks.items()}
        for unit in units:
            for block in unit.blocks:
                wanted = chosen.get(layer_of(block)[0])
                if not block.layers or (wanted is not None and not wanted.issuperset(block.layers)):
                    skipped.add(unit.key)
    plan = Plan(
        selection, tuple(units), frozenset(skipped), tuple(sorted(voted(selection.spec))), tuple(alone), norms
    )
    if layers is not None and spaces != "none" and not any(map(plan.is_matched, units)):
        unused.note("layers", f"nothing in layers {layers} moves by --spaces {spaces}")
    return plan


def _moving_in_all(spec: Spec, others: Sequence[Model], shared: Sequence[Block], apart: set[str]) -> Spec:
    """The spec without what is ``apart``, and without the spaces and shifts that another model of the run keeps, as
    its class returns what is in them: a pooler's neurons are inside of a classifier, and outputs of the base
    model."""
    movable = {atom.name for block in shared for atom in block.atoms} & spec.spaces.keys()
    kept = apart | {name for name in movable for other in others if name not in other.spec.spaces}
    kept |= {name for name, space in spec.spaces.items() if kept & set(space.index)}
    for other in others:
        kept |= {s.name for s in spec.shifts} - {s.name for s in other.spec.shifts}
    return spec.without(kept) if kept else spec


def _apart(donor: Model, others: Sequence[Model], shared: Sequence[Block]) -> dict[str, str]:
    """Spaces on axes that mean something else in another model, as the rows of a pooler are the stream's in a bare
    body and neurons in a classifier: no element moves both. Each with a sentence why it stays."""
    apart: dict[str, str] = {}
    for other in others:
        lines = {match.canonical: match.line for match in other.matches.values()}
        for block in shared:
            name = block.canonical[0]
            mine, theirs = block.line, lines.get(name, block.line)
            why = (
                f"stays as it is: tensor {name} stands behind other parts in {donor.ref} ({mine.shown}) and in "
                f"{other.ref} ({theirs.shown})"
            )
            pairs = zip(mine.axes or (), theirs.axes or (), strict=False)
            axes = tuple(axis for pair in pairs if pair[0] != pair[1] for axis in pair)
            apart |= {atom.name: f"{atom.name} {why}" for atom in atoms(axes)}
    return apart


def unit_layer(unit: Unit) -> int | None:
    """The layer of a unit, None outside the stacks."""
    return layer_of(unit.blocks[0])[1]


def unit_bytes(model: Model, unit: Unit) -> int:
    """The stored bytes of a unit's tensors."""
    return sum(
        model.checkpoint.tensors[name].nbytes
        for block in unit.blocks
        for c in block.canonical
        if (name := model.names.get(c)) is not None
    )


def with_progress(model: Model, units: Sequence[Unit], observer: Observer, label: str = "") -> Iterator[Unit]:
    """Units one after the other; of each the observer is told before it comes, and of the bytes before it and in
    all."""
    total, seen = sum(unit_bytes(model, unit) for unit in units), 0
    for unit in units:
        observer(f"{label}{unit.key}", seen, total)
        seen += unit_bytes(model, unit)
        yield unit


def block_size(model: Model, block: Block) -> int:
    """The entries of a block."""
    stored = (model.checkpoint.tensors[name] for name in model.stored_names(block))
    return sum(prod(info.shape) for info in stored)

"""The plan of a run: units, layers, and what they will cost, known before a weight is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from isomerge.checkpoint.quantised import quantisation_note
from isomerge.engine.models import Model
from isomerge.errors import IsomergeError
from isomerge.matching.selection import Selection, select_layers, select_spaces
from isomerge.matching.streams import headless, names_stream
from isomerge.pieces import PIECE
from isomerge.symmetry.blocks import Block, layer_of, stacks_of
from isomerge.symmetry.ties import tied_lines
from isomerge.symmetry.units import Unit, plan_units, voted

# Passes over both models that matching the residual streams takes, as a rule of thumb for estimates.
PASSES = 12
HEADLESS = "this model has no head, so that its residual stream is what it gives out and must keep its basis"


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

    def is_matched(self, unit: Unit) -> bool:
        """Whether a unit has elements to find, and its layer was chosen."""
        return unit.key not in self.skipped and bool(unit.elements or unit.votes)


def make_plan(donor: Model, others: Sequence[Model], spaces: str = "default", layers: str | None = None) -> Plan:
    """Plan a run over the donor's tensors.

    Raises:
        IsomergeError: spaces or layers that do not exist.
    """
    selection = with_heads_only(select_spaces(donor.spec, spaces), [donor, *others], spaces)
    told = [note for model in (donor, *others) if (note := quantisation_note(model.checkpoint))]
    selection = replace(selection, notes=(*selection.notes, *told))
    if layers is not None:  # heads shared by a whole stack can only move with all of its layers
        spec = selection.spec
        mobile = [n for n in spec.spaces if n not in voted(spec)]
        selection = replace(selection, spec=spec.restrict([*mobile, *(s.name for s in spec.shifts)]))
    matches = {m.canonical: m for m in donor.matches.values()}
    shared, alone = [], []
    for block in donor.blocks:
        everywhere = all(o.source_of(c, matches[c]) is not None for o in others for c in block.canonical)
        (shared if everywhere else alone).append(block)
    units = plan_units(selection.spec, shared)
    skipped: set[str] = set()
    stacks = stacks_of(shared)
    if layers is not None:
        chosen = {stack: select_layers(layers, count) for stack, count in stacks.items()}
        for unit in units:
            for block in unit.blocks:
                wanted = chosen.get(layer_of(block)[0])
                if not block.layers or (wanted is not None and not wanted.issuperset(block.layers)):
                    skipped.add(unit.key)
    return Plan(selection, tuple(units), frozenset(skipped), tuple(sorted(voted(selection.spec))), tuple(alone))


def with_heads_only(selection: Selection, models: Sequence[Model], spaces: str) -> Selection:
    """The selection without residual streams where a model gives them out as they are.

    Raises:
        IsomergeError: the streams were asked for by name.
    """
    if selection.frame is None:
        return selection
    for model in models:
        if gives_out_streams(model):
            why = f"{model.ref}: {HEADLESS}"
            if any(names_stream(model.spec, word.strip()) for word in spaces.split(",")):
                raise IsomergeError(f"--spaces {spaces}: {why}; choose --spaces default")
            return replace(selection, frame=None, notes=(*selection.notes, why))
    return selection


def gives_out_streams(model: Model) -> bool:
    """Whether a model has no head, so that what its residual stream carries are its outputs."""
    tied = bool(tied_lines(model.spec, model.names, model.config))
    return headless(model.spec, list(model.names), model.config, tied)


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


FLOPS = 5e10
"""Multiplications and additions of one core in a second, in float32."""
RELATED = 1e-7
"""Seconds that matching takes per weight of models that the sketch can tell: 0.12 to 0.14 for a million, reading and writing
included (docs/performance.md)."""
LIBRARIES = 3.5e8
"""Bytes that torch and transformers take before a weight is read."""


def unit_memory(plan: Plan, unit: Unit, models: Sequence[Model], *, guard: bool, piecewise: bool = False) -> float:
    """What one unit takes while it is worked on, in bytes, from shapes alone: every model's tensors in the working dtype,
    with copies for the gauge and for the candidates of ``guard``, and the cross-Gram.

    Where nothing moves it and it is fused ``piecewise``, tensors are pages of their files, but for those that are stacked of
    several, and a twentieth of one is looked at closely (`isomerge.fusion.trimming`).
    """
    numel = sum(block_size(models[0], block) for block in unit.blocks)
    if piecewise and not plan.is_matched(unit) and plan.selection.frame is None:
        stacked = sum(block_size(models[0], block) for block in unit.blocks if block.lead)
        return 4.0 * ((len(models) + 1) * (stacked + min(numel, 4 * PIECE)) + 0.05 * numel)
    if not plan.is_matched(unit):
        return 4.0 * (len(models) + 1) * numel
    spec = plan.selection.spec
    wide = max((spec.sizes[k.partition("[")[0]] for k in unit.elements if not k.startswith("shift.")), default=0)
    return 4.0 * ((len(models) + (5 if guard else 3)) * numel + 2 * wide**2)


def estimate(
    plan: Plan, models: Sequence[Model], *, guard: bool, piecewise: bool = False, anchor: str = "first"
) -> dict[str, float]:
    """Peak memory (bytes) and time (seconds, one core) of a run, from shapes alone.

    Memory: the largest unit's (see `unit_memory`). Time: reading and writing at 1 GB/s, and the multiplications at 50 GFLOP/s;
    a rule of thumb. ``seconds`` expects neurons of which all pairs must be compared, as unrelated models need it;
    ``seconds_related`` those that the sketch pairs, as in fine-tunes of one model and in twins. With ``anchor`` none, all
    models of a unit are in memory, and every model is matched again and again (see `mean_effort`).
    """
    donor, sources = models[0], len(models) - 1
    largest = max((unit_memory(plan, u, models, guard=guard, piecewise=piecewise) for u in plan.units), default=0.0)
    flops, matched = _matching(plan, models, guard=guard)
    stored = sum(m.checkpoint.nbytes for m in models) + donor.checkpoint.nbytes
    numel = sum(block_size(donor, block) for unit in plan.units for block in unit.blocks)
    streams, wide = 0.0, 0
    if plan.selection.frame is not None:
        wide = max(plan.selection.spec.sizes[name] for name in plan.selection.frame.streams)
        streams = sources * PASSES * (4 * wide * numel + 20 * wide**3) / FLOPS
    more = related = 1.0
    kept, passes = (8.0 * numel, 2.0 * PASSES) if wide else (0.0, 0.0)
    if anchor == "none" and matched:
        from isomerge.engine.many_cost import mean_effort

        effort = mean_effort(len(models), PASSES if wide else None)
        once = sources * (PASSES if wide else 1)
        more, related = effort.matchings / once, effort.related / once
        kept, passes = 4.0 * numel * len(models), effort.passes
        largest = 2 * largest + 4.0 * wide**2 * len(models) * (
            len(models) + 1
        )  # where models were and are tried; crosses
    else:
        largest += 48.0 * wide**2
    if kept:
        from isomerge.engine.streams import CACHE

        largest += min(CACHE, kept)
        stored += sources * (2 if kept <= CACHE else passes) * donor.checkpoint.nbytes
    return {
        "memory": largest + LIBRARIES,
        "seconds": stored / 1e9 + more * (streams + flops / FLOPS),
        "seconds_related": stored / 1e9 + related * (streams + min(flops / FLOPS, RELATED * matched)),
        "read": float(stored),
    }


def _matching(plan: Plan, models: Sequence[Model], *, guard: bool) -> tuple[float, int]:
    """Multiplications that match every source once, all pairs of neurons compared, and how many weights are matched."""
    flops, matched = 0.0, 0
    for unit in filter(plan.is_matched, plan.units):
        numel = sum(block_size(models[0], block) for block in unit.blocks)
        names = (key.partition("[")[0] for key in unit.elements if not key.startswith("shift."))
        wide = max((plan.selection.spec.sizes[name] for name in names), default=0)
        flops += (len(models) - 1) * 2 * wide * numel * (3 if guard else 2)
        matched += (len(models) - 1) * numel
    return flops, matched


def block_size(model: Model, block: Block) -> int:
    """The entries of a block."""
    total = 0
    for canonical in block.canonical:
        n = 1
        for extent in model.checkpoint.tensors[model.names[canonical]].shape:
            n *= extent
        total += n
    return total

"""What a run will cost in memory and time, from shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from isomerge.errors import IsomergeError
from isomerge.models.peak_memory import CACHE
from isomerge.models.recognised import Model
from isomerge.models.unit_plan import Plan, block_size
from isomerge.pieces import PIECE
from isomerge.run.running_cost import Running, matching_memory
from isomerge.solve.match_options import WEIGHTS, Matching
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.units import Unit

# Passes over both models that matching the residual streams takes, as a rule of thumb.
PASSES = 12
FLOPS = 5e10
"""Multiplications and additions of one core in a second, in float32."""
RELATED = 1e-7
"""Seconds that matching takes per weight of models that the sketch can tell: 0.12 to 0.14 for a million, reading
and writing included (docs/lab/performance.md)."""
LIBRARIES = 3.5e8
"""Bytes that torch and transformers take before a weight is read."""


def unit_memory(plan: Plan, unit: Unit, models: Sequence[Model], *, guard: bool, piecewise: bool = False) -> float:
    """What one unit takes while it is worked on, in bytes, from shapes alone: every model's tensors in the working
    dtype, with copies for the gauge and for the candidates of ``guard``, and the cross-Gram.

    Where nothing moves it and it is fused ``piecewise``, tensors are pages of their files, but for those that are
    stacked of several.
    """
    numel = sum(block_size(models[0], block) for block in unit.blocks)
    if piecewise and not plan.is_matched(unit) and plan.selection.frame is None:
        stacked = sum(block_size(models[0], block) for block in unit.blocks if block.lead)
        return 4.0 * ((len(models) + 1) * (stacked + min(numel, 4 * PIECE)))
    if not plan.is_matched(unit):
        return 4.0 * (len(models) + 1) * numel
    return 4.0 * ((len(models) + (5 if guard else 3)) * numel + 2 * _widest(plan, unit) ** 2)


@dataclass(frozen=True)
class Needs:
    """What decides how much memory a run takes, beside its models."""

    guard: bool
    piecewise: bool = False
    """See `unit_memory`, as of ``guard``."""
    anchor: str = "first"
    """See `isomerge.merging.merge_request.MergeRequest`."""
    matching: Matching | None = None
    """What is looked at beside the weights."""
    fusing: float = 0.0
    """What a merge takes that runs models after the match (`isomerge.run.running_cost.fusing_memory`)."""


def memory_needed(plan: Plan, models: Sequence[Model], needs: Needs) -> tuple[float, Unit | None]:
    """Bytes without which a run cannot be, from shapes alone, and the unit that takes most of them: the libraries,
    the largest unit (`unit_memory`) and the cross-Grams of the residual streams. With ``anchor`` none, all models
    of a unit are in memory. Where running the models takes more than any unit, no unit is named.
    """
    anchor, matching = needs.anchor, needs.matching

    def memory(unit: Unit) -> float:
        return unit_memory(plan, unit, models, guard=needs.guard, piecewise=needs.piecewise)

    largest = max(plan.units, key=memory, default=None)
    need, wide = 0.0 if largest is None else memory(largest), _stream_width(plan)
    if anchor == "none" and any(map(plan.is_matched, plan.units)):
        # where models were and where they are tried, and the cross-Grams of all pairs
        need = 2 * need + 4.0 * wide**2 * len(models) * (len(models) + 1)
    else:
        need += 48.0 * wide**2
    peak, held = (0.0, 0.0) if matching is None else matching_memory(models, matching, anchor=anchor)
    if held:
        run = Running(models, matching or WEIGHTS)
        need += held - LIBRARIES + max(map(run.of_unit, plan.units), default=0.0)
    most = max(peak, needs.fusing)
    return (most, None) if most > LIBRARIES + need else (LIBRARIES + need, largest)


def room_for_units(plan: Plan, models: Sequence[Model], limit: int | None, needs: Needs) -> int:
    """How many bytes of units passes over whole models may keep: what a limit leaves, and no more than `CACHE`.

    Args:
        limit: bytes for the whole run; None: no limit.

    Raises:
        IsomergeError: the limit is less than what the run cannot be without.
    """
    if limit is None:
        return CACHE
    need, largest = memory_needed(plan, models, needs)
    if largest is None:
        less = "leave out what runs them, or give fewer --rows or a smaller --batch-size"
        check_bound(need, limit, "running the models", less)
    else:
        check_bound(need, limit, f"the unit of {largest.key}", "match fewer spaces")
    return min(CACHE, int(limit - need))


def check_bound(need: float, limit: int | None, named: str, less: str) -> None:
    """Refuse a run that needs more than it may take.

    Args:
        need: bytes, libraries included.
        limit: bytes for the whole run; None: no limit.
        named: what needs them.
        less: what would need less, as advice.

    Raises:
        IsomergeError: it needs more.
    """
    if limit is not None and need > limit:
        given = f"{limit / 1e9:.3g}GB" if limit >= 1e6 else f"{limit} bytes"
        raise IsomergeError(
            f"--max-memory {given} is too little: {named} needs about {ceil(need / 1e7) / 100:g} GB, "
            f"libraries included; give that, or {less}"
        )


def estimate(plan: Plan, models: Sequence[Model], needs: Needs, *, limit: int | None = None) -> dict[str, float]:
    """Peak memory (bytes) and time (seconds, one core) of a run, from shapes alone.

    Memory: see `memory_needed`; and the units that passes keep, within ``limit``. Time: reading and writing at 1
    GB/s, and the multiplications at 50 GFLOP/s; a rule of thumb. ``seconds`` expects neurons of which all pairs
    must be compared, as unrelated models need it; ``seconds_related`` those that the sketch pairs, as in fine-tunes
    of one model and in twins. With ``anchor`` none, every model is matched again and again (see `mean_effort`).

    Raises:
        IsomergeError: see `room_for_units`.
    """
    donor, sources, wide = models[0], len(models) - 1, _stream_width(plan)
    room = room_for_units(plan, models, limit, needs)
    memory = memory_needed(plan, models, needs)[0]
    flops, matched = _matching(plan, models, guard=needs.guard)
    stored = sum(m.checkpoint.nbytes for m in models) + donor.checkpoint.nbytes
    numel = sum(block_size(donor, block) for unit in plan.units for block in unit.blocks)
    streams = sources * PASSES * (4 * wide * numel + 20 * wide**3) / FLOPS
    more = related = 1.0
    kept, passes = (8.0 * numel, 2.0 * PASSES) if wide else (0.0, 0.0)
    if needs.anchor == "none" and matched:
        # merges without an anchor are rare, and their solver knows how long it takes
        from isomerge.solve.many.mean_solver import mean_effort

        effort = mean_effort(len(models), PASSES if wide else None)
        once = sources * (PASSES if wide else 1)
        more, related = effort.matchings / once, effort.related / once
        kept, passes = 4.0 * numel * len(models), effort.passes
    if kept:
        again = 2 if wide and needs.guard else 0  # layers are matched once more in place, both models read
        stored += sources * ((2 if kept <= room else passes) + again) * donor.checkpoint.nbytes
    matching = needs.matching
    if matching is not None and matching.needs_models:  # units are kept with their activations
        together = len(models) if needs.anchor == "none" else 2
        kept = max(kept, 8.0 * numel) + together * Running(models, matching).activations
    return {
        "memory": memory + min(room, kept),
        "seconds": stored / 1e9 + more * (streams + flops / FLOPS),
        "seconds_related": stored / 1e9 + related * (streams + min(flops / FLOPS, RELATED * matched)),
        "read": float(stored),
    }


def _stream_width(plan: Plan) -> int:
    """The width of the widest residual stream that is matched; 0 without."""
    frame = plan.selection.frame
    return 0 if frame is None else max((frame.sizes[name] for name in frame.streams), default=0)


def _matching(plan: Plan, models: Sequence[Model], *, guard: bool) -> tuple[float, int]:
    """Multiplications that match every source once, all pairs of neurons compared, and how many weights are
    matched."""
    flops, matched = 0.0, 0
    for unit in filter(plan.is_matched, plan.units):
        numel = sum(block_size(models[0], block) for block in unit.blocks)
        flops += (len(models) - 1) * 2 * _widest(plan, unit) * numel * (3 if guard else 2)
        matched += (len(models) - 1) * numel
    return flops, matched


def _widest(plan: Plan, unit: Unit) -> int:
    """The size of the largest space of a unit: of its cross-Gram, and of what is solved."""
    names = (ElementKey.of(key).name for key in unit.elements if not ElementKey.of(key).is_shift)
    return max((plan.selection.spec.sizes[name] for name in names), default=0)

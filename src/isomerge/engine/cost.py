"""What a run will cost in memory and time, from shapes alone."""

from __future__ import annotations

from collections.abc import Sequence

from isomerge.engine.canonical.units import CACHE
from isomerge.engine.many.effort import mean_effort
from isomerge.engine.models import Model
from isomerge.engine.plan import Plan, block_size
from isomerge.pieces import PIECE
from isomerge.symmetry.units import Unit

# Passes over both models that matching the residual streams takes, as a rule of thumb.
PASSES = 12
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
    return 4.0 * ((len(models) + (5 if guard else 3)) * numel + 2 * _widest(plan, unit) ** 2)


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
        effort = mean_effort(len(models), PASSES if wide else None)
        once = sources * (PASSES if wide else 1)
        more, related = effort.matchings / once, effort.related / once
        kept, passes = 4.0 * numel * len(models), effort.passes
        # where models were and where they are tried, and the cross-Grams of all pairs
        largest = 2 * largest + 4.0 * wide**2 * len(models) * (len(models) + 1)
    else:
        largest += 48.0 * wide**2
    if kept:
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
        flops += (len(models) - 1) * 2 * _widest(plan, unit) * numel * (3 if guard else 2)
        matched += (len(models) - 1) * numel
    return flops, matched


def _widest(plan: Plan, unit: Unit) -> int:
    """The size of the largest space of a unit: of its cross-Gram, and of what is solved."""
    names = (key.partition("[")[0] for key in unit.elements if not key.startswith("shift."))
    return max((plan.selection.spec.sizes[name] for name in names), default=0)

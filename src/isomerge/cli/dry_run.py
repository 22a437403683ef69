"""``--dry-run``: all checks, the plan and what it will cost; nothing is written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.cli.console import Voice, size_text, warn_fixed, write_json

if TYPE_CHECKING:
    from isomerge.engine.pairs.matching import Matching
    from isomerge.engine.plan import Plan


def print_plan(
    voice: Voice,
    refs: Sequence[Any],
    spaces: str,
    layers: str | None,
    spec: Path | None,
    allow_pickle: bool,
    json: Path | None,
    output: tuple[Path, str, str | None, bool],
    *,
    guard: bool,
    piecewise: bool = False,
    untie: bool = False,
    matching: Matching,
    heads: str = "average",
    anchor: str = "first",
    beside: Sequence[str] = (),
) -> None:
    """Print units, spaces, memory and time of a run over the first model's tensors.

    ``output`` is the output folder, the shard size, the dtype and whether the folder may be replaced: all checked.
    ``refs`` begin with the model that is written: the source of an alignment (``guard``), the anchor of a merge. ``beside``
    is what else the run takes time for that shapes do not tell.
    """
    from isomerge.checkpoint.partial import check_out
    from isomerge.checkpoint.size import parse_size
    from isomerge.engine.cost import estimate
    from isomerge.engine.inputs import check_data
    from isomerge.engine.merge.heads import arrange, head_lines, heads_of
    from isomerge.engine.models import check_compatible, recognise
    from isomerge.engine.pairs.baselines import OURS
    from isomerge.engine.plan import make_plan
    from isomerge.engine.stored_form import planned_tensors
    from isomerge.symmetry.fixed import fixed_parts

    out, shard_size, dtype, overwrite = output
    check_out(Path(os.path.expanduser(out)), force=overwrite)
    parse_size(shard_size)

    opening = {"spec_file": spec, "allow_pickle": allow_pickle, "untie": untie, "unmoved": spaces == "none"}
    models = [recognise(ref, **opening) for ref in refs]
    apart = head_lines(models[0].spec) if heads_of(heads, models).apart else ()
    check_compatible(models[0], models[1:], apart=apart)
    anchor_first = models[::-1] if guard else models
    matching.check(len(models) - 1, spaces)
    matching.check_files(anchor_first)
    check_data(matching, anchor_first[0])
    planned_tensors(models[0], dtype)
    _, plan = arrange(heads_of(heads, models), models, make_plan(models[0], models[1:], spaces, layers))
    cost = estimate(plan, models, guard=guard, piecewise=piecewise, anchor=anchor)
    fixed = fixed_parts(models[0].spec, models[0].matches.values()) if spaces != "none" else []
    warn_fixed(voice, fixed)
    looked = [k for k in ("data", "stats", "search", "learn") if getattr(matching, k)]
    looked += [f"match {matching.match}"] if matching.match != OURS else []
    left_out = [*looked, *beside]
    _say(voice, plan, cost, left_out)
    write_json(
        json,
        {
            "command": "dry-run",
            "models": [model.ref for model in models],
            **_record(plan),
            "fixed": fixed,
            "estimate": cost,
            "not_estimated": left_out,
        },
    )


def _record(plan: Plan) -> dict[str, Any]:
    """The plan as JSON tells it."""
    selection = plan.selection
    return {
        "units": len(plan.units),
        "matched": sum(map(plan.is_matched, plan.units)),
        "streams": selection.frame.stream_groups if selection.frame is not None else {},
        "notes": list(selection.notes),
    }


def _say(voice: Voice, plan: Plan, cost: dict[str, float], left_out: list[str]) -> None:
    """The plan and its cost in words."""
    record = _record(plan)
    for note in record["notes"]:
        voice.say(f"Note: {note}.")
    for name, group in record["streams"].items():
        voice.say(f"Residual stream {name}: {group}, in sweeps over both models before anything is written.")
    if left_out:
        voice.say(f"Not estimated, and not in the figures below: what {', '.join(left_out)} will take.")
    voice.say(
        f"{record['units']} work units, {record['matched']} matched over "
        f"{', '.join(plan.selection.spec.spaces) or 'nothing'}; about {size_text(cost['memory'])} of memory, "
        f"{_time_text(cost)} on one core. Nothing was written."
    )


def _time_text(cost: dict[str, float]) -> str:
    """The time; from and to where it depends on how close the models are."""
    if cost["seconds"] < max(2 * cost["seconds_related"], 1):
        return f"{cost['seconds']:.0f} s"
    return (
        f"{cost['seconds_related']:.0f} s (fine-tunes of one model, twins) to {cost['seconds']:.0f} s (unrelated)"
    )

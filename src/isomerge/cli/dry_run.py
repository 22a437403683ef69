"""``--dry-run``: all checks, the plan and what it will cost; nothing is written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from isomerge.cli.console import Voice, size_text, write_json

if TYPE_CHECKING:
    from isomerge.engine.solutions import Matching


def print_plan(
    voice: Voice,
    refs: Sequence[str],
    spaces: str,
    layers: str | None,
    spec: Path | None,
    allow_pickle: bool,
    json: Path | None,
    output: tuple[Path, str, str | None, bool],
    *,
    guard: bool,
    untie: bool = False,
    matching: Matching,
) -> None:
    """Print units, spaces, memory and time of a run over the first model's tensors.

    ``output`` is the output folder, the shard size, the dtype and whether the folder may be replaced: all checked.
    ``refs`` begin with the model that is written: the source of an alignment (``guard``), the anchor of a merge.
    """
    from isomerge.checkpoint.partial import check_out
    from isomerge.checkpoint.size import parse_size
    from isomerge.engine.inputs import check_data
    from isomerge.engine.models import check_compatible, recognise
    from isomerge.engine.plan import estimate, make_plan
    from isomerge.engine.run import planned_tensors

    out, shard_size, dtype, overwrite = output
    check_out(Path(os.path.expanduser(out)), force=overwrite)
    parse_size(shard_size)

    models = [recognise(ref, spec_file=spec, allow_pickle=allow_pickle, untie=untie) for ref in refs]
    check_compatible(models[0], models[1:])
    anchor_first = models[::-1] if guard else models
    matching.check(len(models) - 1, spaces)
    matching.check_files(anchor_first)
    check_data(matching, anchor_first[0])
    planned_tensors(models[0], dtype)
    plan = make_plan(models[0], models[1:], spaces, layers)
    cost = estimate(plan, models, guard=guard)
    active = [u for u in plan.units if plan.is_matched(u)]
    frame = plan.selection.frame
    groups = frame.stream_groups if frame is not None else {}
    for note in plan.selection.notes:
        voice.say(f"Note: {note}.")
    for name, group in groups.items():
        voice.say(f"Residual stream {name}: {group}, in sweeps over both models before anything is written.")
    if matching.needs_models:
        evidence = {
            "data": matching.data,
            "stats": matching.stats,
            "search": matching.search,
            "learn": matching.learn,
        }
        voice.say(
            f"Looked at beside weights: {', '.join(k for k, v in evidence.items() if v)}; its cost is not estimated."
        )
    voice.say(
        f"{len(plan.units)} work units, {len(active)} matched over {', '.join(plan.selection.spec.spaces) or 'nothing'}; "
        f"about {size_text(cost['memory'])} of memory, {cost['seconds']:.0f} s on one core. Nothing was written."
    )
    write_json(
        json,
        {
            "command": "dry-run",
            "models": list(refs),
            "units": len(plan.units),
            "matched": len(active),
            "streams": groups,
            "notes": list(plan.selection.notes),
            "estimate": cost,
        },
    )

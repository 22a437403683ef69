"""``isomerge merge`` of a recipe that makes experts of dense models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.options import MatchingOptions, OpeningOptions, OutputOptions, RunningOptions, TellingOptions

if TYPE_CHECKING:
    from isomerge.cli.console import Voice

FRAMES = {
    "base": "the base's own",
    "stored": "as it is stored",
    "same": "aligned already",
    "aligned": "aligned onto the base",
}


def make_experts(
    context: Any,
    voice: Voice,
    recipe: str,
    out: Path | None,
    *,
    opening: OpeningOptions,
    writing: OutputOptions,
    running: RunningOptions,
    telling: TellingOptions,
    matching: MatchingOptions,
    said: Mapping[str, Any],
    repair: str | None,
    dry_run: bool,
) -> None:
    """Plan or make it, and tell.

    Args:
        context: of the command, whose files must not be read and written at once.
        voice: what tells.
        recipe: the file.
        out: the folder.
        opening, writing, running, telling, matching: the command's options.
        said: those of the match that were said.
        repair: refused there.
        dry_run: whether it is planned alone.

    Raises:
        IsomergeError: the recipe is wrong, or its models do not fit together.
    """
    from isomerge.cli.console import tell_pushed, write_json
    from isomerge.cli.written import check_written
    from isomerge.commands.experts import planned_experts
    from isomerge.commands.experts_asked import experts_of
    from isomerge.errors import IsomergeError
    from isomerge.evidence.report.notebook import Report

    asked = experts_of(recipe, matching=matching, said=said, repair=repair, spec=opening.spec, dtype=writing.dtype)
    params = context.params
    check_written("merge", {**params, "models": params["models"][:1], "out": out}, asked.recipe.model_names())
    if out is None:
        raise IsomergeError("merge needs a folder to write: add -o OUT")
    how: dict[str, Any] = {"opening": opening, "writing": writing, "running": running}
    if dry_run:
        with planned_experts(asked, out, **how) as plan:
            document = plan.document()
            names = [model.ref for model in plan.models.values()]
        _tell(voice, document)
        voice.say("Nothing was written.")
        return write_json(telling.json, {"command": "dry-run", "models": names, **document})
    with voice.progress("experts") as observer, planned_experts(asked, out, **how, observer=observer) as plan:
        report = Report(plan.run())
    _tell(voice, report)
    voice.say(f"Wrote {out}: {len(report['experts'])} experts a layer, {report['experts_per_token']} per token.")
    tell_pushed(voice, writing)
    return write_json(telling.json, report)


def _tell(voice: Voice, report: Mapping[str, Any]) -> None:
    from isomerge.cli.console import size_text
    from isomerge.options import unused

    for note in report["notes"]:
        if note not in unused.notes():  # which are told at the end
            voice.warn(note)
    rows = []
    for name, what in (("experts", "expert"), ("shared_experts", "shared expert")):
        for number, row in enumerate(report[name]):
            moved = row.get("distance")
            gap = "" if moved is None else f"{moved['before']:.4g} -> {moved['after']:.4g}"
            rows.append([f"{what} {number}", row["model"], FRAMES[row["frame"]], gap])
    voice.table("", ["", "of", "frame", "distance to the base"], rows)
    parameters = report["parameters"]
    voice.say(
        f"{report['architecture']}, router by {report['gate_mode']}: {parameters['all']:,} parameters, of which a "
        f"token meets {parameters['per_token']:,}; {size_text(report['bytes'])}."
    )

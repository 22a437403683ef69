"""What the command line says of specs that are proven, or found: ``isomerge prove`` and ``discover``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from isomerge.cli.console import Voice
from isomerge.cli.door import call_of
from isomerge.errors import IsomergeError, own_code
from isomerge.options.requests import proving as asked_for

SHOWN = 5
"""Kinds of missing symmetries that are listed without -v, the largest ones."""


def run_prove(voice: Voice, asked: asked_for.Prove) -> dict[str, Any]:
    """The proof, of a module that a function of the user's own makes where one is named."""
    import isomerge

    if asked.module is not None:
        module, inputs = made_by(asked.module)
        asked = replace(asked, module=module, inputs=inputs)
    with voice.progress(asked.progress) as observer:
        return call_of(isomerge.prove)(asked, observer)


def tell_prove(voice: Voice, asked: asked_for.Prove, report: dict[str, Any]) -> int | None:
    """Space by space whether it is proven, and what is missing."""
    _tell_spaces(voice, report, [_row(law, "proven" if law["holds"] else "refuted") for law in report["laws"]])
    mutants = report["mutants"]
    voice.say(f"{mutants['rejected']} of {mutants['count']} texts with a line left out are rejected.")
    for mutant in mutants["survivors"]:
        voice.warn(
            f"space {mutant['space']} may as well leave out {mutant['line']}: nothing is proven of that line"
        )
    for larger in report["larger"]:
        voice.say(
            f"Space {larger['space']} could be {larger['group']}: that leaves the outputs as they are as well."
        )
    if report["kept"]:
        voice.say(
            f"{report['class']} returns {', '.join(report['kept'])}, which keep their bases and are not tried."
        )
    if report["unread"]:
        voice.say(f"No output depends on {', '.join(report['unread'])}: nothing is proven of them.")
    _tell_completeness(voice, report)
    voice.say(f"Verdict: {report['verdict']}.")
    return None if report["proven"] else 1


def _tell_completeness(voice: Any, report: dict[str, Any]) -> None:
    """How many dimensions change no output, how many of them are declared, and what is not."""
    counted = report["redundancy"]
    if counted is None:
        voice.say(f"Whether symmetries are missing was not counted: {report['redundancy_note']}.")
    else:
        said = "nothing continuous is missing" if counted["complete"] else "the others are not declared"
        voice.say(
            f"{counted['true']:,} of {counted['parameters']:,} dimensions of a tiny model change no output, "
            f"{counted['declared']:,} by declared groups: {said}."
        )
        if not counted["clear"]:
            voice.warn("what counts and what does not lie close together here: the count is no proof")
        rows = sorted(counted["left"], key=lambda row: -row["dimensions"])
        shown = rows if voice.verbose else rows[:SHOWN]
        if shown:
            voice.table(
                "", ["dimensions", "not declared: they move", "constant along"], [_left(row) for row in shown]
            )
        if len(rows) > len(shown):
            voice.say(f"{len(rows) - len(shown)} more kinds are listed with -v, and in the JSON.")
    for axis in report["inner"]:
        voice.say(
            f"Between {axis['writer']} and {axis['reader']} an axis of length {axis['size']} may be moved by "
            f"{axis['group']}, which is not declared."
        )


def _left(row: dict[str, Any]) -> list[str]:
    """What is not declared, by the names of tensors inside of their layers."""
    along = sorted({axis for axes in row["constant_along"].values() for axis in axes})
    lines = [line.rpartition("}.")[2] for line in row["lines"]]
    return [str(row["dimensions"]), " and ".join(lines) or "more than three lines at once", ", ".join(along)]


def made_by(reference: str) -> tuple[Any, Any]:
    """The module and the inputs that a function of the user's own returns.

    Args:
        reference: ``FILE.py:FUNCTION``.

    Raises:
        IsomergeError: there is no such file or function, or it returns something else.
    """
    import runpy

    file, _, name = reference.rpartition(":")
    said = f"--module {reference}"
    if not file or not Path(file).is_file():
        raise IsomergeError(f"{said}: there is no file {file or reference}: give FILE.py:FUNCTION")
    with own_code(f"{said}: it fails"):
        function = runpy.run_path(file).get(name)
        if not callable(function):
            raise IsomergeError(f"{said}: {file} has no function {name}: give FILE.py:FUNCTION")
        made = function()
    if not isinstance(made, tuple) or len(made) != 2 or not hasattr(made[0], "named_parameters"):
        raise IsomergeError(f"{said}: {name}() gives no (module, inputs): let it return a module and its inputs")
    return made


def tell_discover(voice: Voice, asked: asked_for.Discover, report: dict[str, Any]) -> None:
    """Space by space whether it is proven, and the spec."""
    rows = [_row(space, "proven", report["checked"].get(space["space"])) for space in report["proven"]]
    _tell_spaces(voice, report, [*rows, *(_row(space, "rejected") for space in report["rejected"])])
    if "all" in report["checked"]:
        voice.say(f"All together, on fresh models: outputs change by {report['checked']['all']:.1e}.")
    if report["coverage"] is not None:
        voice.say(f"The spec describes all {report['coverage']} tensors of {asked.model}.")
    if report["fixed"]:
        voice.warn(
            f"nothing acts on {len(report['fixed'])} kinds of tensors, they stay fixed: "
            f"{', '.join(report['fixed'])}"
        )
    if asked.out is not None:
        voice.say(f"Wrote {asked.out}; use it with --spec {asked.out}.")
    else:
        voice.say("")
        voice.say(report["spec"].rstrip())


def _tell_spaces(voice: Voice, report: dict[str, Any], rows: list[list[str]]) -> None:
    """On what tiny model elements of the spaces were tried, and what came out."""
    voice.say(f"{report['model']}: {report['model_type']}, run as a tiny random {report['class']}")
    voice.table("", ["space", "role", "group", "per", "verdict", "outputs changed by"], rows)


def _row(space: dict[str, Any], verdict: str, again: float | None = None) -> list[str]:
    """One line of the table; the error of a space that was tried ``again`` is the larger one of both."""
    error = space["error"] if space["error"] is None or again is None else max(space["error"], again)
    shown = "cannot act" if error is None else f"{error:.1e}"
    return [space["space"], space["role"], space["group"], ", ".join(space["index"]), verdict, shown]

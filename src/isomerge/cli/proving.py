"""What the command line says of specs that are proven, or found: ``isomerge prove`` and ``discover``."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.cli.console import Voice
from isomerge.cli.door import call_of
from isomerge.errors import IsomergeError, own_code
from isomerge.options.requests import proving as asked_for

if TYPE_CHECKING:
    from isomerge.api.proving import DiscoverReport, ProveReport
    from isomerge.discovery.completeness import Completeness
    from isomerge.discovery.redundancy import Left
    from isomerge.evidence.law import Law

SHOWN = 5
"""Kinds of missing symmetries that are listed without -v, the largest ones."""


def run_prove(voice: Voice, asked: asked_for.Prove) -> ProveReport:
    """The proof, of a module that a function of the user's own makes where one is named."""
    import isomerge

    if asked.module is not None:
        module, inputs = made_by(asked.module)
        asked = replace(asked, module=module, inputs=inputs)
    with voice.progress(asked.progress) as observer:
        return call_of(isomerge.prove)(asked, observer)


def tell_prove(voice: Voice, asked: asked_for.Prove, report: ProveReport) -> int | None:
    """Space by space whether it is proven, and what is missing."""
    trial = report.trial
    rows = [_row(law, "proven" if law.holds else "refuted") for law in trial.laws]
    _tell_spaces(voice, report.model, trial.model_type, trial.module, rows)
    rejected = len(trial.mutants) - len(trial.survivors)
    voice.say(f"{rejected} of {len(trial.mutants)} texts with a line left out are rejected.")
    for mutant in trial.survivors:
        voice.warn(f"space {mutant.space} may as well leave out {mutant.line}: nothing is proven of that line")
    for larger in trial.larger:
        voice.say(f"Space {larger.name} could be {larger.group}: that leaves the outputs as they are as well.")
    if trial.kept:
        voice.say(f"{trial.module} returns {', '.join(trial.kept)}, which keep their bases and are not tried.")
    if trial.unread:
        voice.say(f"No output depends on {', '.join(trial.unread)}: nothing is proven of them.")
    _tell_completeness(voice, report.completeness)
    voice.say(f"Verdict: {report.verdict}.")
    return None if trial.proven else 1


def _tell_completeness(voice: Voice, completeness: Completeness) -> None:
    """How many dimensions change no output, how many of them are declared, and what is not."""
    counted = completeness.redundancy
    if counted is None:
        voice.say(f"Whether symmetries are missing was not counted: {completeness.redundancy_note}.")
    else:
        said = "nothing continuous is missing" if counted.complete else "the others are not declared"
        voice.say(
            f"{counted.true:,} of {counted.parameters:,} dimensions of a tiny model change no output, "
            f"{counted.declared:,} by declared groups: {said}."
        )
        if not counted.clear:
            voice.warn("what counts and what does not lie close together here: the count is no proof")
        rows = sorted(counted.left, key=lambda left: -left.dimensions)
        shown = rows if voice.verbose else rows[:SHOWN]
        if shown:
            voice.table(["dimensions", "not declared: they move", "constant along"], [_left(row) for row in shown])
        if len(rows) > len(shown):
            voice.say(f"{len(rows) - len(shown)} more kinds are listed with -v, and in the JSON.")
    for axis in completeness.inner:
        voice.say(
            f"Between {axis.writer} and {axis.reader} an axis of length {axis.size} may be moved by {axis.group}, "
            f"which is not declared."
        )


def _left(left: Left) -> list[str]:
    """What is not declared, by the names of tensors inside of their layers."""
    along = sorted({axis for axes in left.constant_along.values() for axis in axes})
    lines = [line.rpartition("}.")[2] for line in left.lines]
    return [str(left.dimensions), " and ".join(lines) or "more than three lines at once", ", ".join(along)]


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


def tell_discover(voice: Voice, asked: asked_for.Discover, report: DiscoverReport) -> None:
    """Space by space whether it is proven, and the spec."""
    about = report.about
    rows = [_row(law, "proven", about.errors.get(law.name, 0.0)) for law in about.proven.values()]
    rows += [_row(law, "rejected") for law in about.rejected.values()]
    _tell_spaces(voice, report.model, about.draft.model_type, about.module, rows)
    if "all" in about.errors:
        voice.say(f"All together, on fresh models: outputs change by {about.errors['all']:.1e}.")
    if report.coverage is not None:
        voice.say(f"The spec describes all {report.coverage} tensors of {asked.model}.")
    if about.fixed:
        voice.warn(
            f"nothing acts on {len(about.fixed)} kinds of tensors, they stay fixed: {', '.join(about.fixed)}"
        )
    if asked.out is not None:
        voice.say(f"Wrote {asked.out}; use it with --spec {asked.out}.")
    else:
        voice.say("")
        voice.say(about.text.rstrip())


def _tell_spaces(voice: Voice, model: str, kind: str, module: str, rows: list[list[str]]) -> None:
    """On what tiny model elements of the spaces were tried, and what came out."""
    voice.say(f"{model}: {kind}, run as a tiny random {module}")
    voice.table(["space", "role", "group", "per", "verdict", "outputs changed by"], rows)


def _row(law: Law, verdict: str, again: float = 0.0) -> list[str]:
    """One line of the table; the error of a space that was tried ``again`` is the larger one of both."""
    error = max(law.error, again)
    shown = f"{error:.1e}" if isfinite(error) else "cannot act"
    return [law.name, law.role, law.group, ", ".join(law.index), verdict, shown]

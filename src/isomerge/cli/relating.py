"""What the command line says of a model in relational form: ``isomerge relational``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isomerge.cli.console import Voice
from isomerge.options.requests.relating import Relational

if TYPE_CHECKING:
    from isomerge.commands.relating import RelationalReport


def plan_relational(voice: Voice, asked: Relational) -> RelationalReport:
    """The conversion, which shows whether it can be done."""
    from isomerge.commands.relating import planned_relational

    with voice.progress(asked.progress), planned_relational(asked) as planned:
        report = planned.report
    voice.say(f"{_sizes(report)}. Nothing was written.")
    return report


def run_relational(voice: Voice, asked: Relational) -> RelationalReport:
    """The model, converted and written."""
    from isomerge.commands.relating import planned_relational

    with voice.progress(asked.progress), planned_relational(asked) as planned:
        report = planned.run()
    voice.say(f"Wrote {asked.out}: {_sizes(report)}.")
    voice.say(f'isomerge.research.relational.load("{asked.out}") reads it.')
    return report


def _sizes(report: RelationalReport) -> str:
    return f"{report.layers} layers, {report.heads} heads, {report.anchors} anchors, {report.parameters} parameters"

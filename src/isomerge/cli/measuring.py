"""What the command line says of models that are run on data: ``isomerge barrier``, ``eval``, ``report``, ``stats``
and ``generate``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from isomerge.cli.console import Voice, tell_verdict, warn_fixed
from isomerge.cli.door import call_of
from isomerge.cli.dry_run import tell_cost
from isomerge.evidence.report.numerals import size_text
from isomerge.options.requests import measuring as asked_for
from isomerge.records import Json

if TYPE_CHECKING:
    from isomerge.commands.evaluating import EvaluateReport
    from isomerge.evidence.barrier import LineReport, PlaneReport
    from isomerge.observe.live.generated import GenerateReport
    from isomerge.observe.losses import Losses
    from isomerge.observe.stats.gathering import StatsReport
    from isomerge.run.connectivity import BarrierReport


def plan_barrier(voice: Voice, asked: asked_for.Barrier) -> Json:
    """What it will take."""
    from isomerge.commands.measuring import planned_barrier
    from isomerge.run.connectivity import check_labelled

    with planned_barrier(asked) as planned:
        check_labelled(planned.examples)
        return tell_cost(voice, planned)


def tell_barrier(voice: Voice, asked: asked_for.Barrier, report: BarrierReport) -> None:
    """The losses of the models and between them."""
    warn_fixed(voice, report.fixed)
    if report.untied:
        voice.say(f"Untied in memory, as another model has a head of its own: {', '.join(report.untied)}.\n")
    voice.say(*(f"Note: {note}." for note in report.notes))
    _ends(voice, report)
    if report.lines is not None:
        _lines(voice, report.lines)
    else:
        _planes(voice, report.planes or ())
    tell_verdict(voice, report.verdict)
    if asked.png is not None:
        voice.say(f"Picture: {asked.png}")


def _percent(accuracy: float | None) -> str:
    return "-" if accuracy is None or isnan(accuracy) else f"{100 * accuracy:.1f} %"


def _ends(voice: Voice, report: BarrierReport) -> None:
    """The models themselves, and their ensemble."""
    ends = report.lines[0].line.ends if report.lines else (report.planes or [])[0].plane.ends
    together = report.ensemble
    named = [*zip(report.models, ends, strict=True), ("ensemble of them", (together.loss, together.accuracy))]
    rows = [[name, f"{loss:.4f}", _percent(accuracy)] for name, (loss, accuracy) in named]
    voice.table([f"{report.data.examples} examples", f"loss ({report.unit})", "accuracy"], rows)


def _lines(voice: Voice, lines: Sequence[LineReport]) -> None:
    """A row per line."""
    columns = ["from A to B", "barrier", "(Verma)", "(range)", "midpoint", "highest", "at", "accuracy"]
    rows = []
    for each in lines:
        (at, highest), (loss, accuracy) = each.line.worst, each.line.midpoint
        figures = [*each.line.barriers.values(), loss, highest]
        rows.append([each.name, *(f"{x:.4f}" for x in figures), f"{at:.2f}", _percent(accuracy)])
    voice.say("")
    voice.table(columns, rows)
    if voice.verbose:
        names = [each.name for each in lines]
        steps = zip(lines[0].line.points, *(each.line.losses for each in lines), strict=True)
        voice.say("")
        voice.table(["loss at", *names], [[f"{at:.3f}", *(f"{x:.4f}" for x in losses)] for at, *losses in steps])
    voice.say(
        "\nbarrier: above the straight line between the ends (Entezari); (Verma): above their mean; (range): "
        "highest less lowest.\nmidpoint and accuracy are those of the average of the two models."
    )


def _planes(voice: Voice, planes: Sequence[PlaneReport]) -> None:
    """A row per plane."""
    columns = ["plane through A, B, C", "average", "accuracy", "highest inside", "lowest", "at"]
    rows = []
    for each in planes:
        (loss, accuracy), (least, x, y) = each.plane.centroid, each.plane.lowest
        row = [each.name, f"{loss:.4f}", _percent(accuracy), f"{each.plane.highest_inside[0]:.4f}"]
        rows.append([*row, f"{least:.4f}", f"({x:.3g}, {y:.3g})"])
    voice.say("")
    voice.table(columns, rows)
    voice.say(
        "\naverage: of the three models; highest inside: on the triangle between them; lowest: on the whole grid. "
        "Coordinates are\ndistances in the weights: A is (0, 0), B lies on the first axis."
    )


def tell_evaluate(voice: Voice, asked: asked_for.Evaluate, report: EvaluateReport) -> None:
    """Tables with a row for each model."""
    if (data := report.data) is not None:
        rows = [[each.model, *_figures(each.losses)] for each in report.models if each.losses is not None]
        voice.table([f"{data.examples} examples", f"loss ({report.unit})", "accuracy", "perplexity"], rows)
    for task in report.tasks:
        results = [(each.model, (each.tasks or {})[task]) for each in report.models]
        names = list(dict.fromkeys(name for _, result in results for name in result))
        rows = [[model, *_scores(result, names)] for model, result in results]
        voice.table([task, *names], rows)


def _figures(losses: Losses) -> list[str]:
    accuracy, perplexity = losses.accuracy, losses.perplexity
    return [
        f"{losses.loss:.4f}",
        "" if accuracy is None else f"{100 * accuracy:.1f} %",
        "" if perplexity is None else f"{perplexity:.4g}",
    ]


def _scores(result: Mapping[str, float], names: list[str]) -> list[str]:
    return [f"{result[name]:.4f}" if name in result else "" for name in names]


def run_report(voice: Voice, asked: asked_for.Report) -> Json:
    """The page, written; its verdict, told."""
    import isomerge
    from isomerge.evidence.report.page import PAGE
    from isomerge.files import check_file

    where = asked.page or Path(asked.out) / PAGE
    if asked.page is not None:
        check_file(asked.page, f"--out {asked.page}", overwrite=True)
    with voice.progress(asked.progress) as observer:
        made = call_of(isomerge.report)(asked, observer)
    made.save(where)
    verdict = made.verdict
    voice.say(f"{verdict.title}.", style="bold")
    voice.say(verdict.text)
    for step in verdict.steps:
        voice.say(f"- {step.text}" + (f"\n    {step.command}" if step.command else ""))
    voice.say(f"Wrote {where} ({size_text(len(made.html.encode()))}).")
    return {
        "command": "report",
        "level": verdict.level.name.lower(),
        "verdict": verdict.title,
        "text": verdict.text,
        "next": verdict.steps,
        "measured": made.measured,
    }


def plan_stats(voice: Voice, asked: asked_for.Stats) -> Json:
    """What it will take."""
    from isomerge.commands.measuring import planned_stats

    with planned_stats(asked) as planned:
        return tell_cost(voice, planned)


def tell_stats(voice: Voice, asked: asked_for.Stats, report: StatsReport) -> None:
    """What was gathered."""
    if voice.verbose:
        voice.table(["read at", "tokens"], [[key, str(count)] for key, count in report.tokens.items()])
    parts = [f"{report.rows} rows at {report.taps} places"] if report.rows else []
    parts += [kind for kind in report.kinds if kind != "activations"]
    voice.say(f"Wrote {asked.out}: {', '.join(parts)}, from {report.examples} examples, {size_text(report.bytes)}.")


def plan_generate(voice: Voice, asked: asked_for.Generate) -> Json:
    """What it will take."""
    from isomerge.commands.measuring import planned_generate

    with planned_generate(asked) as planned:
        return tell_cost(voice, planned)


def tell_generate(voice: Voice, asked: asked_for.Generate, report: GenerateReport) -> None:
    """What was written."""
    shape, made = " x ".join(map(str, next(iter(report.shapes.values()))[1:])), report.file
    unit = "tokens" if made.kind == "texts" else "pixels"
    voice.say(f"Wrote {asked.out}: {made.examples} {made.kind} of {shape} {unit}, {size_text(report.bytes)}.")

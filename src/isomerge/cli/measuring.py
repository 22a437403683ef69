"""What the command line says of models that are run on data: ``isomerge barrier``, ``eval``, ``report``, ``stats``
and ``generate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isomerge.cli.console import Voice, size_text, tell_verdict, warn_fixed
from isomerge.cli.door import call_of
from isomerge.cli.dry_run import tell_cost
from isomerge.options.requests import measuring as asked_for


def plan_barrier(voice: Voice, asked: asked_for.Barrier) -> dict[str, Any]:
    """What it will take."""
    from isomerge.commands.measuring import planned_barrier
    from isomerge.run.connectivity import check_labelled

    with planned_barrier(asked) as planned:
        check_labelled(planned.examples)
        return tell_cost(voice, planned)


def tell_barrier(voice: Voice, asked: asked_for.Barrier, report: dict[str, Any]) -> None:
    """The losses of the models and between them."""
    warn_fixed(voice, report["fixed"])
    if report["untied"]:
        voice.say(f"Untied in memory, as another model has a head of its own: {', '.join(report['untied'])}.\n")
    for note in report["notes"]:
        voice.say(f"Note: {note}.")
    _ends(voice, report)
    if "lines" in report:
        _lines(voice, report)
    else:
        _planes(voice, report)
    tell_verdict(voice, report["verdict"])
    if asked.png is not None:
        voice.say(f"Picture: {asked.png}")


def _percent(accuracy: float | None) -> str:
    return "-" if accuracy is None else f"{100 * accuracy:.1f} %"


def _ends(voice: Voice, report: dict[str, Any]) -> None:
    """The models themselves, and their ensemble."""
    stored = report["lines"][0]["ends"] if "lines" in report else report["planes"][0]["corners"]
    rows = [
        [name, f"{end['loss']:.4f}", _percent(end["accuracy"])]
        for name, end in zip(report["models"], stored, strict=True)
    ]
    together = report["ensemble"]
    rows.append(["ensemble of them", f"{together['loss']:.4f}", _percent(together["accuracy"])])
    voice.table("", [f"{report['data']['examples']} examples", f"loss ({report['unit']})", "accuracy"], rows)


def _lines(voice: Voice, report: dict[str, Any]) -> None:
    """A row per line."""
    columns = ["from A to B", "barrier", "(Verma)", "(range)", "midpoint", "highest", "at", "accuracy"]
    rows = []
    for line in report["lines"]:
        high, middle = line["highest"], line["midpoint"]
        figures = [*line["barrier"].values(), middle["loss"], high["loss"]]
        accuracy = _percent(middle["accuracy"])
        rows.append([line["name"], *(f"{x:.4f}" for x in figures), f"{high['at']:.2f}", accuracy])
    voice.say("")
    voice.table("", columns, rows)
    if voice.verbose:
        names = [line["name"] for line in report["lines"]]
        steps = zip(report["lines"][0]["points"], *(line["losses"] for line in report["lines"]), strict=True)
        voice.say("")
        voice.table(
            "", ["loss at", *names], [[f"{at:.3f}", *(f"{x:.4f}" for x in losses)] for at, *losses in steps]
        )
    voice.say(
        "\nbarrier: above the straight line between the ends (Entezari); (Verma): above their mean; (range): "
        "highest less lowest.\nmidpoint and accuracy are those of the average of the two models."
    )


def _planes(voice: Voice, report: dict[str, Any]) -> None:
    """A row per plane."""
    columns = ["plane through A, B, C", "average", "accuracy", "highest inside", "lowest", "at"]
    rows = []
    for plane in report["planes"]:
        low = plane["lowest"]
        rows.append(
            [
                plane["name"],
                f"{plane['centroid']['loss']:.4f}",
                _percent(plane["centroid"]["accuracy"]),
                f"{plane['highest_inside']['loss']:.4f}",
                f"{low['loss']:.4f}",
                f"({low['x']:.3g}, {low['y']:.3g})",
            ]
        )
    voice.say("")
    voice.table("", columns, rows)
    voice.say(
        "\naverage: of the three models; highest inside: on the triangle between them; lowest: on the whole grid. "
        "Coordinates are\ndistances in the weights: A is (0, 0), B lies on the first axis."
    )


def tell_evaluate(voice: Voice, asked: asked_for.Evaluate, report: dict[str, Any]) -> None:
    """Tables with a row for each model."""
    if "unit" in report:
        rows = [[row["model"], f"{row['loss']:.4f}", *_accuracies(row)] for row in report["models"]]
        columns = [f"{report['examples']} examples", f"loss ({report['unit']})", "accuracy", "perplexity"]
        voice.table("", columns, rows)
    for task in report["tasks"]:
        names = list(dict.fromkeys(name for row in report["models"] for name in row["tasks"][task]))
        rows = [[row["model"], *_scores(row["tasks"][task], names)] for row in report["models"]]
        voice.table("", [task, *names], rows)


def _accuracies(row: dict[str, Any]) -> list[str]:
    accuracy, perplexity = row["accuracy"], row["perplexity"]
    return [
        "" if accuracy is None else f"{100 * accuracy:.1f} %",
        "" if perplexity is None else f"{perplexity:.4g}",
    ]


def _scores(result: dict[str, float], names: list[str]) -> list[str]:
    return [f"{result[name]:.4f}" if name in result else "" for name in names]


def run_report(voice: Voice, asked: asked_for.Report) -> dict[str, Any]:
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
    voice.say(f"{verdict.title}.", "bold")
    voice.say(verdict.text)
    for step in verdict.steps:
        voice.say(f"- {step.text}" + (f"\n    {step.command}" if step.command else ""))
    voice.say(f"Wrote {where} ({size_text(len(made.html.encode()))}).")
    steps = [{"text": step.text, "command": step.command} for step in verdict.steps]
    return {
        "command": "report",
        "level": verdict.level.name.lower(),
        "verdict": verdict.title,
        "text": verdict.text,
        "next": steps,
        "measured": list(made.measured),
    }


def plan_stats(voice: Voice, asked: asked_for.Stats) -> dict[str, Any]:
    """What it will take."""
    from isomerge.commands.measuring import planned_stats

    with planned_stats(asked) as planned:
        return tell_cost(voice, planned)


def tell_stats(voice: Voice, asked: asked_for.Stats, report: dict[str, Any]) -> None:
    """What was gathered."""
    if voice.verbose:
        voice.table("", ["read at", "tokens"], [[key, str(count)] for key, count in report["tokens"].items()])
    parts = [f"{report['rows']} rows at {report['taps']} places"] if report["rows"] else []
    parts += [kind for kind in report["kinds"] if kind != "activations"]
    voice.say(
        f"Wrote {asked.out}: {', '.join(parts)}, from {report['examples']} examples, {size_text(report['bytes'])}."
    )


def plan_generate(voice: Voice, asked: asked_for.Generate) -> dict[str, Any]:
    """What it will take."""
    from isomerge.commands.measuring import planned_generate

    with planned_generate(asked) as planned:
        return tell_cost(voice, planned)


def tell_generate(voice: Voice, asked: asked_for.Generate, report: dict[str, Any]) -> None:
    """What was written."""
    shape = " x ".join(map(str, next(iter(report["shapes"].values()))[1:]))
    unit = "tokens" if report["kind"] == "texts" else "pixels"
    voice.say(
        f"Wrote {asked.out}: {report['examples']} {report['kind']} of {shape} {unit}, {size_text(report['bytes'])}."
    )

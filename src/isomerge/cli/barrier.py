"""``isomerge barrier``: the loss between models, and so whether a merge is possible."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isomerge.cli.grouped import grouped
from isomerge.options import DryRunOptions, ExamplesOptions, MemoryOptions, OpeningOptions, TellingOptions

if TYPE_CHECKING:
    from isomerge.cli.console import Voice


@grouped
def barrier(
    a: Annotated[str, typer.Argument(help="The anchor: a folder or hub id.")],
    b: Annotated[str, typer.Argument(help="The model at the other end of the line.")],
    c: Annotated[str | None, typer.Argument(help="A third one: the plane through the three is measured.")] = None,
    *,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            help="Labelled examples: a folder of images or text, .jsonl, .csv, .parquet, text, .safetensors, a "
            "data set of the package datasets (name:split), or a Python function (module:function).",
        ),
    ],
    spaces: Annotated[
        list[str] | None,
        typer.Option(
            help="Also after alignment of these spaces (as in isomerge align); repeat it for several curves. "
            "If not given, what the models need; none for the models as stored alone."
        ),
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(help="Also after alignment by this published way, git-rebasin or otfusion; repeat it."),
    ] = None,
    aligned: Annotated[
        list[str] | None,
        typer.Option(
            "--aligned", help="Also the line from A to this checkpoint, aligned by other means; repeat it."
        ),
    ] = None,
    points: Annotated[int, typer.Option(help="Points on a line, both ends included; odd.")] = 25,
    grid: Annotated[int, typer.Option(help="Points along each side of the plane.")] = 21,
    examples: ExamplesOptions,
    batch_size: Annotated[int, typer.Option(help="Examples that a model reads at a time.")] = 32,
    png: Annotated[Path | None, typer.Option("--png", help="Draw the curves, or the plane, to this file.")] = None,
    opening: OpeningOptions,
    memory: MemoryOptions,
    planning: DryRunOptions,
    telling: TellingOptions,
) -> None:
    """Measure the loss on the line from A to B (or the plane through A, B, C), as stored and aligned."""
    import isomerge
    from isomerge.cli.console import Voice, tell_verdict, warn_fixed, write_json
    from isomerge.cli.dry_run import tell_cost
    from isomerge.commands.measuring import planned_barrier
    from isomerge.run.connectivity import check_labelled

    voice = Voice(telling.quiet, telling.verbose)
    arguments: dict[str, Any] = {
        "data": data,
        "points": points,
        "grid": grid,
        "spaces": spaces or None,
        "match": match or [],
        "aligned": aligned or [],
        "batch_size": batch_size,
        "limit": examples.limit,
        "length": examples.length,
        "device": examples.device,
        "png": png,
        "spec": opening.spec,
        "allow_pickle": opening.allow_pickle,
        "max_memory": memory.max_memory,
    }
    if planning.dry_run:
        with planned_barrier([a, b] if c is None else [a, b, c], **arguments) as planned:
            check_labelled(planned.examples)
            return tell_cost(voice, telling.json, planned)
    with voice.progress("measuring") as observer:
        report = isomerge.barrier(a, b, c, **arguments, observer=observer)
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
    if png is not None:
        voice.say(f"Picture: {png}")
    return write_json(telling.json, report)


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

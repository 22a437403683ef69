"""``isomerge report``: one page for people on what a merge or an alignment did."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isomerge.cli.grouped import grouped
from isomerge.options import OpeningOptions, ReportOptions


@grouped
def report(
    out: Annotated[Path, typer.Argument(help="The folder that isomerge merge or isomerge align wrote.")],
    page: Annotated[
        Path | None, typer.Option("--out", "-o", help="The HTML file to write; OUT/report.html if not given.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Labelled examples (as in isomerge barrier): also measure the loss between the models, as stored "
            "and as they were moved, and that of the merge."
        ),
    ] = None,
    barrier: Annotated[
        list[Path] | None, typer.Option(help="Show a measured line: a file of isomerge barrier --json; repeat it.")
    ] = None,
    points: Annotated[int, typer.Option(help="With --data: points on a line, both ends included; odd.")] = 11,
    limit: Annotated[int | None, typer.Option(help="With --data: use no more than so many examples.")] = None,
    length: Annotated[int, typer.Option(help="With --data: tokens per example of text.")] = 128,
    batch_size: Annotated[int, typer.Option(help="With --data: examples that a model reads at a time.")] = 32,
    device: Annotated[str, typer.Option(help="With --data: where the models run, cpu or cuda.")] = "cpu",
    *,
    opening: OpeningOptions,
    telling: ReportOptions,
) -> None:
    """Write one self-contained HTML page on OUT: what was merged, how far apart the models are, and whether it
    works."""
    import isomerge
    from isomerge.cli.console import Voice, size_text, write_json
    from isomerge.evidence.report.page import PAGE
    from isomerge.files import check_file

    voice = Voice(telling.quiet)
    where = page or out / PAGE
    if page is not None:
        check_file(page, f"--out {page}", overwrite=True)
    with voice.progress("measuring") as observer:
        made = isomerge.report(
            out, barrier=barrier or [], data=data, points=points, batch_size=batch_size, limit=limit, length=length,
            device=device, spec=opening.spec, allow_pickle=opening.allow_pickle, observer=observer,
        )  # fmt: skip
    made.save(where)
    verdict = made.verdict
    voice.say(f"{verdict.title}.", "bold")
    voice.say(verdict.text)
    for step in verdict.steps:
        voice.say(f"- {step.text}" + (f"\n    {step.command}" if step.command else ""))
    voice.say(f"Wrote {where} ({size_text(len(made.html.encode()))}).")
    steps = [{"text": step.text, "command": step.command} for step in verdict.steps]
    write_json(
        telling.json,
        {
            "command": "report",
            "level": verdict.level.name.lower(),
            "verdict": verdict.title,
            "text": verdict.text,
            "next": steps,
            "measured": list(made.measured),
        },
    )

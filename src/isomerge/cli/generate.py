"""``isomerge generate``: examples for matching where there are no data."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from isomerge.cli import options as o
from isomerge.cli.grouped import grouped
from isomerge.options import (
    DryRunOptions,
    FileOptions,
    LengthOptions,
    MemoryOptions,
    OpeningOptions,
    TellingOptions,
)


@grouped
def generate(
    models: Annotated[list[str], typer.Argument(help="All models that will be matched: folders or hub ids.")],
    out: o.OutFile,
    limit: Annotated[int, typer.Option(help="How many examples.")] = 1024,
    *,
    examples: LengthOptions,
    batch_size: Annotated[int, typer.Option(help="Texts that a model writes at a time.")] = 64,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    opening: OpeningOptions,
    memory: MemoryOptions,
    writing: FileOptions,
    planning: DryRunOptions,
    telling: TellingOptions,
) -> None:
    """Write examples for --data and --learn where you have none: language models write texts, classifiers of images
    get noise."""
    import isomerge
    from isomerge.cli.console import Voice, size_text, write_json
    from isomerge.cli.dry_run import tell_cost
    from isomerge.commands.measuring import planned_generate

    voice = Voice(telling.quiet, telling.verbose)
    arguments: dict[str, Any] = {
        "out": out,
        "limit": limit,
        "length": examples.length,
        "batch_size": batch_size,
        "device": examples.device,
        "seed": seed,
        "spec": opening.spec,
        "allow_pickle": opening.allow_pickle,
        "overwrite": writing.overwrite,
        "max_memory": memory.max_memory,
    }
    if planning.dry_run:
        with planned_generate(models, **arguments) as planned:
            return tell_cost(voice, telling.json, planned)
    with voice.progress("writing examples") as observer:
        report = isomerge.generate(models, **arguments, observer=observer)
    shape = " x ".join(map(str, next(iter(report["shapes"].values()))[1:]))
    unit = "tokens" if report["kind"] == "texts" else "pixels"
    voice.say(
        f"Wrote {out}: {report['examples']} {report['kind']} of {shape} {unit}, {size_text(report['bytes'])}."
    )
    return write_json(telling.json, report)

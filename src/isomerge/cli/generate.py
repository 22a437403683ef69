"""``isomerge generate``: examples for matching where there are no data."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from isomerge.cli import options as o


def generate(
    models: Annotated[list[str], typer.Argument(help="All models that will be matched: folders or hub ids.")],
    out: o.OutFile,
    limit: Annotated[int, typer.Option(help="How many examples.")] = 1024,
    length: o.Length = 128,
    batch_size: Annotated[int, typer.Option(help="Texts that a model writes at a time.")] = 64,
    device: o.Device = "cpu",
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    spec: o.SpecFile = None,
    allow_pickle: o.Pickle = False,
    max_memory: o.MaxMemory = None,
    overwrite: o.ForceFile = False,
    dry_run: o.DryRun = False,
    json: o.Json = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Write examples for --data and --learn where you have none: language models write texts, classifiers of images get noise."""
    import isomerge
    from isomerge.api.planning import planned_generate
    from isomerge.cli.console import Voice, size_text, write_json
    from isomerge.cli.dry_run import tell_cost

    voice = Voice(quiet, verbose)
    given: dict[str, Any] = {
        "out": out, "limit": limit, "length": length, "batch_size": batch_size, "device": device, "seed": seed,
        "spec": spec, "allow_pickle": allow_pickle, "force": overwrite, "max_memory": max_memory,
    }  # fmt: skip
    if dry_run:
        with planned_generate(models, **given) as planned:
            return tell_cost(voice, json, planned)
    with voice.progress("writing examples", steps=True) as observer:
        report = isomerge.generate(models, **given, observer=observer)
    shape = " x ".join(map(str, next(iter(report["shapes"].values()))[1:]))
    unit = "tokens" if report["kind"] == "texts" else "pixels"
    voice.say(
        f"Wrote {out}: {report['examples']} {report['kind']} of {shape} {unit}, {size_text(report['bytes'])}."
    )
    return write_json(json, report)

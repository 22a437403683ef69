"""``isomerge stats``: what a model's activations and gradients say, gathered once for every later match and
merge."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from isomerge.cli import options as o
from isomerge.cli.grouped import grouped
from isomerge.options import (
    DryRunOptions,
    ExamplesOptions,
    FileOptions,
    MemoryOptions,
    OpeningOptions,
    TellingOptions,
)


@grouped
def stats(
    model: Annotated[str, typer.Argument(help="The model to run: a folder or hub id.")],
    data: Annotated[
        str,
        typer.Option(
            "--data",
            help="Examples, no labels needed (but for --fisher-labels given): a folder of images or text, .jsonl, "
            ".csv, .parquet, text, .safetensors, a data set of the package datasets (name:split), or a Python "
            "function (module:function).",
        ),
    ],
    out: o.OutFile,
    kinds: Annotated[
        str,
        typer.Option(
            help="What is gathered: activations and regmean (Grams), which matching reads; fisher (diagonal) and "
            "kfac (Kronecker factors), which the merge methods of these names read."
        ),
    ] = "activations,regmean",
    fisher_labels: Annotated[
        str | None,
        typer.Option(
            help="Of fisher and kfac: given labels (the default where there are some), sampled from the model's "
            "own prediction, or expected over all classes."
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option(help="Rows of activations that are kept of every place in the model.")
    ] = 1024,
    *,
    examples: ExamplesOptions,
    batch_size: Annotated[int, typer.Option(help="Examples read at a time; equal for models to be matched.")] = 16,
    dtype: Annotated[str, typer.Option(help="Of the rows: float32, or float16 in half the size.")] = "float32",
    seed: Annotated[int, typer.Option(help="Of sampled labels.")] = 0,
    opening: OpeningOptions,
    memory: MemoryOptions,
    writing: FileOptions,
    planning: DryRunOptions,
    telling: TellingOptions,
) -> None:
    """Run MODEL over data once and write the statistics that matching and merging need; align and merge read
    them."""
    import isomerge
    from isomerge.cli.console import Voice, size_text, write_json
    from isomerge.cli.dry_run import tell_cost
    from isomerge.commands.measuring import planned_stats

    voice = Voice(telling.quiet, telling.verbose)
    arguments: dict[str, Any] = {
        "data": data,
        "out": out,
        "rows": rows,
        "limit": examples.limit,
        "length": examples.length,
        "batch_size": batch_size,
        "device": examples.device,
        "dtype": dtype,
        "kinds": kinds,
        "seed": seed,
        "spec": opening.spec,
        "allow_pickle": opening.allow_pickle,
        "overwrite": writing.overwrite,
        "max_memory": memory.max_memory,
    }
    if planning.dry_run:
        with planned_stats(model, **arguments, labels=fisher_labels) as planned:
            return tell_cost(voice, telling.json, planned)
    with voice.progress("reading activations") as observer:
        report = isomerge.stats(model, **arguments, fisher_labels=fisher_labels, observer=observer)
    if telling.verbose:
        voice.table("", ["read at", "tokens"], [[key, str(count)] for key, count in report["tokens"].items()])
    parts = [f"{report['rows']} rows at {report['taps']} places"] if report["rows"] else []
    parts += [kind for kind in report["kinds"] if kind != "activations"]
    voice.say(f"Wrote {out}: {', '.join(parts)}, from {report['examples']} examples, {size_text(report['bytes'])}.")
    return write_json(telling.json, report)

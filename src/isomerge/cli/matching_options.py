"""What a match may look at beside the weights: one declaration of the options for every command that aligns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isomerge.cli.composed import with_options

if TYPE_CHECKING:
    from isomerge.cli.console import Voice

DATA = "Folder or file of images, text, JSON lines, parquet or safetensors, a data set, or module:function."
PANEL = "Matching with data"


def _option(words: str, *names: str) -> Any:
    return typer.Option(*names, help=words, rich_help_panel=PANEL)


def _declared(
    data: Annotated[str | None, _option(f"Match activations on these examples as well. {DATA}")] = None,
    stats_src: Annotated[
        list[Path] | None, _option("Activations from a file of `isomerge stats`, one per model that is moved.")
    ] = None,
    stats_anchor: Annotated[Path | None, _option("The anchor's file of `isomerge stats`.")] = None,
    evidence: Annotated[str, _option("With activations, what counts: both, activations or weights.")] = "both",
    functional: Annotated[
        bool,
        _option(
            "With --data or --learn, which run the models, match neurons once more by what averaging a pair would cost; files of statistics "
            "do not tell that.",
            "--functional/--no-functional",
        ),
    ] = True,
    input_metric: Annotated[
        bool,
        _option(
            "With data or statistics, match inside layers by the change of their outputs: weights count by the covariance of what they "
            "read.",
            "--input-metric",
        ),
    ] = False,
    search: Annotated[
        float | None, _option("Search forward for so many SECONDS on --data, without gradients.")
    ] = None,
    learn: Annotated[str | None, _option(f"Learn the match by gradient on these examples. {DATA}")] = None,
    learn_effort: Annotated[str, _option("How long to learn: quick (300 steps) or thorough (3000).")] = "quick",
    learn_target: Annotated[
        str,
        _option(
            "labels, or distill (the models' own predictions, no labels needed); auto: the next token for text, else distill."
        ),
    ] = "auto",
    steps: Annotated[int | None, _option("Learning steps, instead of --learn-effort.")] = None,
    learn_permutations: Annotated[
        bool, _option("Learn permutations as well (straight-through).", "--learn-permutations")
    ] = False,
    batch_size: Annotated[int | None, _option("Examples per learning step.")] = None,
    device: Annotated[str, _option("Where units are matched and models run: cpu, cuda, ...")] = "cpu",
    precision: Annotated[str, _option("float32, or bfloat16 for mixed precision.")] = "float32",
    gradient_checkpointing: Annotated[
        bool, _option("Learn in less memory and more time.", "--gradient-checkpointing")
    ] = False,
    limit: Annotated[int | None, _option("Read no more than so many examples.")] = None,
    length: Annotated[int, _option("Tokens per example of text.")] = 128,
    rows: Annotated[int, _option("Rows of activations that are kept of every place in a model.")] = 1024,
    seed: Annotated[int, _option("Of everything that is drawn.")] = 0,
    match: Annotated[
        str,
        _option(
            "isomerge, or a published baseline: git-rebasin, otfusion; for merges also ot-wts, ot-acts, ot-acts-emd, which do "
            "not preserve functions."
        ),
    ] = "isomerge",
) -> dict[str, Any]:
    return {
        "data": data,
        "stats_src": [str(file) for file in stats_src or ()],
        "stats_anchor": None if stats_anchor is None else str(stats_anchor),
        "evidence": evidence,
        "functional": functional,
        "input_metric": input_metric,
        "search": search,
        "learn": learn,
        "learn_effort": learn_effort,
        "learn_target": learn_target,
        "steps": steps,
        "permutations": learn_permutations,
        "batch_size": batch_size,
        "device": device,
        "precision": precision,
        "gradient_checkpointing": gradient_checkpointing,
        "limit": limit,
        "length": length,
        "rows": rows,
        "seed": seed,
        "match": match,
    }


def beside_recipe(block: Mapping[str, Any], matching: Mapping[str, Any], context: typer.Context) -> dict[str, Any]:
    """The options of a recipe's ``align:`` block, replaced by those that were given on the command line.

    Args:
        block: of the recipe.
        matching: the options of the command, with defaults where nothing was given.
        context: of the command, which knows what was given: a value may be the default.
    """
    given = {"permutations" if name == "learn_permutations" else name for name in given_names(context)}
    return {**_declared(), **block, **{name: value for name, value in matching.items() if name in given}}


def given_names(context: typer.Context) -> set[str]:
    """The parameters of a command that its user gave, whatever their values."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {
        name for name, source in sources.items() if source is not None and not source.name.startswith("DEFAULT")
    }


def tell_files(voice: Voice, matching: Mapping[str, Any]) -> None:
    """Say what a match by files of statistics leaves out beside one by data, where it leaves something out."""
    by_data = matching["data"] is not None or matching["learn"] is not None
    if matching["stats_src"] and matching["functional"] and matching["evidence"] == "both" and not by_data:
        voice.say(
            "Note: files of statistics do not tell what averaging a pair of neurons costs; neurons are matched as by --data "
            "with --no-functional."
        )


def with_matching(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options above; its parameter ``matching`` gets them as a dict for `isomerge.align`."""
    return with_options(_declared, "matching", last=True)(command)

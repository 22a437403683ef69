"""What is merged and how: the options of ``isomerge merge`` that a recipe says instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from isomerge.cli import options as o
from isomerge.cli.composed import with_options
from isomerge.cli.matching_options import given_names


def _declared(
    method: Annotated[str, typer.Option(help="How aligned weights are fused; see isomerge methods.")] = "linear",
    weights: Annotated[
        str | None, typer.Option(help="One number per model, such as 0.7,0.3; equal by default.")
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(
            "--base-model",
            help="What task vectors are taken from; it gives config and tokenizer. All align onto it. Methods that know no base merge it "
            "with the models, as mergekit does.",
        ),
    ] = None,
    merge_base: Annotated[
        bool,
        typer.Option(
            "--merge-base/--no-merge-base",
            help="Whether methods that know no base merge a --base-model that is not among the models; else it gives config and tokenizer "
            "alone.",
        ),
    ] = True,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            "-p",
            help="A parameter of the method, such as density=0.5, or density=0.5,0.3 per model.",
        ),
    ] = None,
    stats: Annotated[
        list[Path] | None,
        typer.Option(
            help="For methods that need statistics: one file of isomerge stats per model, in their order."
        ),
    ] = None,
    tokenizer_source: Annotated[
        str | None,
        typer.Option("--tokenizer-source", help="Where vocabularies differ, the output's: base, union or a model."),
    ] = None,
    source_base: Annotated[
        list[str] | None,
        typer.Option(
            help="What the models were tuned from (one for all, or one each), where it is not --base-model."
        ),
    ] = None,
    heads: Annotated[
        str,
        typer.Option(
            help="Classifier heads: average, copy (the first model's), keep:MODEL, or separate (all, in folders of their own)."
        ),
    ] = "average",
    align: Annotated[
        bool | None,
        typer.Option(
            "--align/--no-align",
            help="Align all before fusing, or none; by default those that are not aligned already, as fine-tunes of one base are.",
        ),
    ] = None,
    anchor: Annotated[
        str,
        typer.Option(
            help="What the models are aligned onto: the first model, or none of them (their common mean)."
        ),
    ] = "first",
    onto: Annotated[
        str | None, typer.Option("--onto", help="The model that all are aligned onto, where it is not the first.")
    ] = None,
    spaces: o.Spaces = None,
    layers: o.Layers = None,
    untie: o.Untie = False,
) -> dict[str, Any]:
    return {
        "method": method,
        "weights": _weights(weights),
        "parameters": _parameters(parameter or []),
        "base_model": base_model,
        "merge_base": merge_base,
        "stats": [str(file) for file in stats or ()],
        "tokenizer_source": tokenizer_source,
        "source_bases": source_base or [],
        "align": "auto" if align is None else align,
        "anchor": anchor,
        "onto": onto,
        "spaces": spaces,
        "layers": layers,
        "untie": untie,
        "heads": heads,
    }


def said(context: typer.Context) -> list[str]:
    """Those of the options that a user gave, whatever their values, as they are written."""
    names = [name for name in inspect.signature(_declared).parameters if name in given_names(context)]
    return [
        f"--no-{name.replace('_', '-')}" if context.params[name] is False else f"--{name.replace('_', '-')}"
        for name in names
    ]


def with_method(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options above; its parameter ``given`` gets them as a dict for `isomerge.merge`."""
    return with_options(_declared, "given", last=False)(command)


def check_models(models: list[str]) -> None:
    """Refuse numbers among the models: lists of numbers are one text.

    Raises:
        IsomergeError: naming the first, and how it is written.
    """
    from isomerge.errors import IsomergeError

    for model in models:
        try:
            float(model)
        except ValueError:
            continue
        if not Path(model).exists():
            raise IsomergeError(
                f"{model} is taken for a model: several numbers are joined by commas, without spaces, such as --weights 0.5,0.5 or "
                "-p density=0.5,0.3"
            )


def _weights(text: str | None) -> list[float] | None:
    from isomerge.errors import IsomergeError

    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise IsomergeError(f"--weights {text}: give one number per model, such as 0.7,0.3") from None


def _parameters(texts: list[str]) -> dict[str, Any]:
    """``name=value`` with a YAML value; values with commas are one per model."""

    from isomerge.errors import IsomergeError
    from isomerge.merging.recipe.yaml_text import plain_value

    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name and value):
            raise IsomergeError(f"--parameter {text}: write name=value, such as density=0.5")
        try:
            parts = [plain_value(part) for part in ([value] if value[0] in "[{" else value.split(","))]
        except ValueError as error:
            raise IsomergeError(f"--parameter {text}: {value} is no value ({error})") from None
        found[name] = parts if len(parts) > 1 else parts[0]
    return found

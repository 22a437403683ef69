"""``isomerge merge-lora``: LoRA adapters merged into one adapter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isomerge.cli import options as o
from isomerge.cli.grouped import given_names, grouped
from isomerge.options import AdapterOptions, FolderOptions, TellingOptions
from isomerge.options.option import spelled

if TYPE_CHECKING:
    from isomerge.cli.console import Voice


@grouped
def merge_lora(
    context: typer.Context,
    adapters: Annotated[
        list[str], typer.Argument(help="LoRA adapters (folders or hub ids) for one base; or one RECIPE.yml.")
    ],
    out: o.Out,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read .bin weights (with weights_only); safetensors are safer.")
    ] = False,
    *,
    merging: AdapterOptions,
    writing: FolderOptions,
    telling: TellingOptions,
) -> None:
    """Merge LoRA adapters into one adapter, as peft's add_weighted_adapter does; the base is not read.

    For one model of base and adapters, whole: isomerge merge BASE+A BASE+B.
    """
    import isomerge
    from isomerge.cli.console import Voice, write_json

    is_recipe = adapters[0].endswith((".yml", ".yaml"))
    if is_recipe:
        _check_alone(context, adapters)
    report = isomerge.merge_lora(
        adapters[0] if is_recipe else adapters,
        out=out,
        **({} if is_recipe else merging.given()),
        allow_pickle=allow_pickle,
        overwrite=writing.overwrite,
    )
    _tell(Voice(telling.quiet, telling.verbose), report, out)
    write_json(telling.json, report)


def _check_alone(context: typer.Context, adapters: list[str]) -> None:
    """Refuse what a recipe says itself.

    Raises:
        IsomergeError: naming it.
    """
    from isomerge.errors import IsomergeError

    if len(adapters) > 1:
        raise IsomergeError(f"{adapters[0]}: a recipe names its adapters: leave {adapters[1]} out")
    said = given_names(context)
    if words := [spelled(name, about) for name, (_, about) in AdapterOptions.declared().items() if name in said]:
        raise IsomergeError(
            f"{adapters[0]}: a recipe says what is merged and how: leave out {', '.join(words)}, and "
            "change the recipe"
        )


def _tell(voice: Voice, report: dict[str, Any], out: Path) -> None:
    modules: dict[str, dict[str, Any]] = report["modules"]
    if voice.verbose:
        rows = [
            [name, str(len(row["adapters"])), str(row["rank"]), f"{row['norm']:.4g}", f"{row['distance']:.4g}"]
            for name, row in modules.items()
        ]
        voice.table("", ["module", "adapters", "rank", "norm of the sum", "distance from it"], rows)
    for note in report["notes"]:
        voice.warn(note)
    names = ", ".join(report["adapters"])
    voice.say(
        f"Wrote {out}: {report['method']} merge of {names}, {len(modules)} modules of rank {report['rank']} or "
        f"less; {report['share']:.2%} from the weighted sum of the updates (Frobenius), which --method cat gives."
    )

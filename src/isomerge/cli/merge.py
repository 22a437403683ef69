"""``isomerge merge``: align the rest onto the first, then fuse."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from isomerge.cli import options as o
from isomerge.cli.matching_options import beside_recipe, with_matching


@with_matching
def merge(
    models: Annotated[
        list[str], typer.Argument(help="Models (folders or hub ids), the anchor first; or one RECIPE.yml.")
    ],
    out: o.Out,
    matching: dict[str, Any],
    method: Annotated[str, typer.Option(help="How aligned weights are fused.")] = "linear",
    weights: Annotated[
        str | None, typer.Option(help="One number per model, such as 0.7,0.3; equal by default.")
    ] = None,
    align: Annotated[bool, typer.Option("--align/--no-align", help="Align before fusing.")] = True,
    anchor: Annotated[
        str,
        typer.Option(
            help="What the models are aligned onto: the first model, or none of them (their common mean)."
        ),
    ] = "first",
    spaces: o.Spaces = None,
    layers: o.Layers = None,
    untie: o.Untie = False,
    spec: o.SpecFile = None,
    allow_pickle: o.Pickle = False,
    out_shard_size: o.ShardSize = "5GB",
    dtype: o.Dtype = None,
    overwrite: o.Force = False,
    dry_run: o.DryRun = False,
    json: o.Json = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Align the models, merge them, and write an ordinary Hugging Face checkpoint."""
    import isomerge
    from isomerge.cli.console import Voice, distance_table, stream_table, write_json
    from isomerge.cli.dry_run import print_plan
    from isomerge.engine.commands import check_aligned, check_merge
    from isomerge.engine.many_solutions import check_anchor
    from isomerge.engine.solutions import matching_of
    from isomerge.errors import IsomergeError
    from isomerge.evidence.misalignment import misalignment

    voice = Voice(quiet, verbose)
    numbers = _weights(weights)
    if len(models) == 1 and models[0].endswith((".yml", ".yaml")):
        given = (method, numbers, align, anchor, spaces, layers, untie)
        if given != ("linear", None, True, "first", None, None, False):
            raise IsomergeError(
                f"{models[0]}: a recipe says what is merged and how; put --method, --weights, --align, --anchor, --spaces, --layers and --untie into it"
            )
        models, method, numbers, align, anchor, spaces, layers, untie, dtype, block = _from_recipe(models[0], dtype)
        matching = beside_recipe(block, matching)
    check_merge(len(models), method, numbers)
    how = matching_of(**matching)
    check_aligned(align, how)
    check_anchor(anchor, how, how.spaces(spaces))
    if dry_run:
        return print_plan(
            voice, models, how.spaces(spaces) if align else "none", layers, spec, allow_pickle, json,
            (out, out_shard_size, dtype, overwrite), guard=False, untie=untie, matching=how,
        )  # fmt: skip
    if not align:
        for problem in misalignment(models, spec=spec, allow_pickle=allow_pickle, untie=untie):
            voice.warn(problem)
    with voice.progress("merging") as observer:
        report = isomerge.merge(
            models, out=out, method=method, weights=numbers, align=align, anchor=anchor, spaces=spaces, layers=layers, untie=untie, spec=spec,
            allow_pickle=allow_pickle, shard_size=out_shard_size, dtype=dtype, force=overwrite, observer=observer, **matching,
        )  # fmt: skip
    stream_table(voice, report)
    distance_table(voice, report["distance"])
    if report["kept_from_first"]:
        voice.say(
            f"Kept from {models[0]}, as not all models have them: {', '.join(report['kept_from_first'][:6])}."
        )
    voice.say(f"Wrote {out}: {method} merge of {', '.join(models)}{'' if align else ', not aligned'}.")
    return write_json(json, report)


def _weights(text: str | None) -> list[float] | None:
    from isomerge.errors import IsomergeError

    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise IsomergeError(f"--weights {text}: give one number per model, such as 0.7,0.3") from None


def _from_recipe(path: str, dtype: str | None):
    from isomerge.fusion.recipe import read_recipe

    recipe = read_recipe(Path(path))
    weights = [entry.parameters.weight for entry in recipe.models]
    if not recipe.parameters.normalize and sum(weights) != 1:
        from isomerge.errors import IsomergeError

        raise IsomergeError(f"{path}: `parameters.normalize: false` needs weights that sum to one here")
    names = [entry.model for entry in recipe.models]
    block = recipe.align
    how = (block.enabled, block.anchor, block.spaces, block.layers, block.untie)
    return names, recipe.merge_method, weights, *how, dtype or recipe.dtype, block.matching()

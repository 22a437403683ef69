"""``isomerge merge``: align the rest onto the first, then fuse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isomerge.cli import options as o
from isomerge.cli.matching_options import beside_recipe, with_matching

if TYPE_CHECKING:
    from isomerge.cli.console import Voice
    from isomerge.engine.merge_job import MergeJob


@with_matching
def merge(
    models: Annotated[
        list[str],
        typer.Argument(help="Models (folders, hub ids, model+lora), the anchor first; or one RECIPE.yml and OUT."),
    ],
    matching: dict[str, Any],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write; must not exist or be empty.")
    ] = None,
    method: Annotated[str, typer.Option(help="How aligned weights are fused; see isomerge methods.")] = "linear",
    weights: Annotated[
        str | None, typer.Option(help="One number per model, such as 0.7,0.3; equal by default.")
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(
            "--base-model",
            help="What task vectors are taken from; it gives config and tokenizer. All align onto it.",
        ),
    ] = None,
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
    repair: Annotated[
        str | None, typer.Option(help="Re-normalise the merged model's activations on these examples (REPAIR).")
    ] = None,
    heads: Annotated[
        str,
        typer.Option(
            help="Classifier heads: average, copy (the first model's), keep:MODEL, or separate (all, in folders of their own)."
        ),
    ] = "average",
    align: Annotated[bool, typer.Option("--align/--no-align", help="Align before fusing.")] = True,
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
    """Align the models, merge them, and write an ordinary Hugging Face checkpoint.

    A recipe is mergekit's YAML; it aligns where it has a block `align:` (or `align: true`).
    """
    import isomerge
    from isomerge.cli.console import Voice, write_json

    voice = Voice(quiet, verbose)
    given = {
        "method": method,
        "weights": _weights(weights),
        "parameters": _parameters(parameter or []),
        "base_model": base_model,
        "stats": [str(file) for file in stats or ()],
        "tokenizer_source": tokenizer_source,
        "source_bases": source_base or [],
    }
    given |= {"align": align, "anchor": anchor, "onto": onto, "spaces": spaces, "layers": layers, "untie": untie}
    given |= {"heads": heads}
    job, how = _job(models, given, int(matching["seed"]))
    if job.recipe is not None:
        out, dtype = _out_of_recipe(models, out), dtype or job.options["dtype"]
        given, matching = {}, beside_recipe(job.matching, matching)
    if out is None:
        from isomerge.errors import IsomergeError

        raise IsomergeError("merge needs a folder to write: add -o OUT")
    if _prepare(
        voice, job, how, matching, (spec, allow_pickle), (out, out_shard_size, dtype, overwrite), dry_run, json
    ):
        return None
    with voice.progress("merging") as observer:
        report = isomerge.merge(
            models[0] if job.recipe is not None else models, out=out, spec=spec, allow_pickle=allow_pickle,
            repair=repair, shard_size=out_shard_size, dtype=dtype, force=overwrite, observer=observer, **given, **matching,
        )  # fmt: skip
    _tell(voice, job, report, out)
    return write_json(json, report)


def _job(models: list[str], given: dict[str, Any], seed: int) -> tuple[MergeJob, dict[str, Any]]:
    """What is asked for, and how it is aligned."""
    from isomerge.engine.merge_job import job_of_models, job_of_recipe
    from isomerge.errors import IsomergeError

    how = {name: given[name] for name in ("align", "anchor", "onto", "spaces", "layers", "untie", "heads")}
    method = {name: value for name, value in given.items() if name not in how}
    if not models[0].endswith((".yml", ".yaml")):
        return job_of_models(models, seed=seed, **method), how
    silent = {
        "method": "linear",
        "weights": None,
        "parameters": {},
        "base_model": None,
        "stats": [],
        "tokenizer_source": None,
        "source_bases": [],
    }
    silent |= {"align": True, "anchor": "first", "onto": None, "spaces": None, "layers": None, "untie": False}
    silent |= {"heads": "average"}
    if given != silent:
        raise IsomergeError(
            f"{models[0]}: a recipe says what is merged and how; put --method, --weights, --parameter, --base-model, --stats, --tokenizer-source, --source-base, --align, --anchor, --onto, --spaces, --layers, --heads and --untie into it"
        )
    job = job_of_recipe(models[0], seed=seed)
    return job, {name: job.options[name] for name in how}


def _out_of_recipe(models: list[str], out: Path | None) -> Path | None:
    """``isomerge merge RECIPE.yml OUT``, as mergekit's users write it."""
    from isomerge.errors import IsomergeError

    if len(models) > 2 or (len(models) == 2 and out is not None):
        raise IsomergeError(
            f"{models[0]}: a recipe names its models; give one folder to write beside it, and no more"
        )
    return Path(models[1]) if len(models) == 2 else out


def _prepare(
    voice: Voice,
    job: MergeJob,
    how: dict[str, Any],
    matching: dict[str, Any],
    opening: tuple[Path | None, bool],
    output: tuple[Path, str, str | None, bool],
    dry_run: bool,
    json: Path | None,
) -> bool:
    """All checks before anything is read; prints the plan of a dry run (and is then True), or warns."""
    from isomerge.cli.dry_run import print_plan
    from isomerge.engine.many_solutions import check_anchor
    from isomerge.engine.merge_checks import check_aligned
    from isomerge.engine.merge_job import opened
    from isomerge.engine.solutions import matching_of
    from isomerge.evidence.misalignment import misalignment

    match, (spec, allow_pickle) = matching_of(**matching), opening
    check_aligned(how["align"], match, job.fusion)
    check_anchor(how["anchor"], match, match.spaces(how["spaces"]))
    if dry_run:
        spaces = match.spaces(how["spaces"]) if how["align"] else "none"
        print_plan(
            voice, opened(job, spec=spec, allow_pickle=allow_pickle), spaces, how["layers"], spec, allow_pickle, json, output, guard=False,
            untie=how["untie"], matching=match, heads=how["heads"],
        )  # fmt: skip
    elif not how["align"] and len(job.models) > 1:
        for problem in misalignment(
            opened(job, spec=spec, allow_pickle=allow_pickle),
            spec=spec,
            allow_pickle=allow_pickle,
            untie=how["untie"],
            heads=how["heads"],
        ):
            voice.warn(problem)
    return dry_run


def _tell(voice: Voice, job: MergeJob, report: dict[str, Any], out: Path) -> None:
    from isomerge.cli.console import distance_table, stream_table

    for note in job.fusion.notes:
        voice.warn(note)
    if "match" in report and not all(found.get("preserves_function", True) for found in report["match"]["sources"]):
        voice.warn(
            f"--match {report['match']['name']} does not preserve functions: the transported models are other models"
        )
    stream_table(voice, report)
    distance_table(voice, report["distance"])
    names = report["models"]
    if report["kept_from_first"]:
        voice.say(f"Kept from {names[0]}, as not all models have them: {', '.join(report['kept_from_first'][:6])}.")
    voice.say(
        f"Wrote {out}: {report['method']} merge of {', '.join(names)}{'' if report['align'] else ', not aligned'}."
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
    import yaml

    from isomerge.errors import IsomergeError

    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name and value):
            raise IsomergeError(f"--parameter {text}: write name=value, such as density=0.5")
        parts = (
            [yaml.safe_load(part) for part in value.split(",")] if value[0] not in "[{" else [yaml.safe_load(value)]
        )
        found[name] = parts if len(parts) > 1 else parts[0]
    return found

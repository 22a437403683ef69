"""``isomerge merge``: align the rest onto the first, then fuse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isomerge.cli import options as o
from isomerge.cli.matching_options import beside_recipe, tell_files, with_matching
from isomerge.cli.merge_options import check_models, said, with_method
from isomerge.cli.running_options import with_running

if TYPE_CHECKING:
    from isomerge.cli.console import Voice
    from isomerge.merging.merge_job import MergeJob
    from isomerge.solve.match_options import Matching


@with_matching
@with_method
@with_running
def merge(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(help="Models (folders, hub ids, model+lora), the anchor first; or one RECIPE.yml and OUT."),
    ],
    given: dict[str, Any],
    matching: dict[str, Any],
    running: dict[str, Any],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write; must not exist or be empty.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Also write OUT/report.html, a page for people (see isomerge report).")
    ] = False,
    repair: Annotated[
        str | None, typer.Option(help="Re-normalise the merged model's activations on these examples (REPAIR).")
    ] = None,
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
    from isomerge.api.merging import planned
    from isomerge.cli.console import Voice, write_json
    from isomerge.cli.dry_run import tell_merge
    from isomerge.cli.written import check_written
    from isomerge.evidence.report.page import PAGE
    from isomerge.merging.recipe.recipe_words import told_in_keys
    from isomerge.observe.data.refused_data import check_given

    voice = Voice(quiet, verbose)
    check_given(repair, "--repair")
    job, how = _job(models, given, said(context), int(matching["seed"]))
    if job.recipe is not None:
        named = (job.models, job.stacks, job.stats, job.source_bases, list(job.matching.values()))
        check_written("merge", {**context.params, "out": _out_of_recipe(models, out)}, named)
        out, dtype = _out_of_recipe(models, out), dtype or job.options["dtype"]
        given, matching = {}, beside_recipe(job.matching, matching, context)
    spec = spec or job.options.get("spec")
    if out is None:
        from isomerge.errors import IsomergeError

        raise IsomergeError("merge needs a folder to write: add -o OUT")
    options = {"shard_size": out_shard_size, "dtype": dtype, "force": overwrite, **running}
    opening = {"spec": spec, "allow_pickle": allow_pickle, "untie": how.pop("untie")}
    how["repair"] = repair or job.options.get("repair")
    with told_in_keys(models[0], job.recipe, matching):
        match = _checked(voice, job, how, matching)
        if dry_run:
            with planned(job, how, match, out, options, opening) as plan:
                tell_merge(voice, json, plan, _beside(job, how["repair"]))
            return tell_files(voice, matching)
    with voice.progress("merging") as observer:
        found = isomerge.merge(
            models[0] if job.recipe is not None else models, out=out, spec=spec, allow_pickle=allow_pickle,
            repair=repair, shard_size=out_shard_size, dtype=dtype, force=overwrite, observer=observer,
            **given, **matching, **running,
        )  # fmt: skip
    tell_files(voice, matching)
    _tell(voice, job, found, out)
    if report:
        voice.say(f"Report: {isomerge.report(out, spec=spec).save(out / PAGE)}")
    return write_json(json, found)


def _job(
    models: list[str], given: dict[str, Any], options: list[str], seed: int
) -> tuple[MergeJob, dict[str, Any]]:
    """What is asked for, and how it is aligned; ``options`` are those of the method that were given."""
    from isomerge.errors import IsomergeError
    from isomerge.merging.merge_job import job_of_models
    from isomerge.merging.recipe.recipe_job import job_of_recipe

    how = {name: given[name] for name in ("align", "anchor", "onto", "spaces", "layers", "untie", "heads")}
    method = {name: value for name, value in given.items() if name not in how}
    check_models(models)
    if not models[0].endswith((".yml", ".yaml")):
        return job_of_models(models, seed=seed, **method), how
    if options:
        raise IsomergeError(
            f"{models[0]}: a recipe says what is merged and how: leave out {', '.join(options)}, and change the recipe"
        )
    job = job_of_recipe(models[0])
    return job, {name: job.options[name] for name in how}


def _out_of_recipe(models: list[str], out: Path | None) -> Path | None:
    """``isomerge merge RECIPE.yml OUT``, as mergekit's users write it."""
    from isomerge.errors import IsomergeError

    if len(models) > 2 or (len(models) == 2 and out is not None):
        raise IsomergeError(
            f"{models[0]}: a recipe names its models; give one folder to write beside it, and no more"
        )
    return Path(models[1]) if len(models) == 2 else out


def _checked(voice: Voice, job: MergeJob, how: dict[str, Any], matching: dict[str, Any]) -> Matching:
    """The match that is asked for, checked before anything is read, as far as that goes; ``how`` gets the number of the model that
    all are aligned onto."""
    from isomerge.merging.merge_checks import check_aligned, learned_apart
    from isomerge.merging.merge_job import number_of
    from isomerge.solve.many.mean_solutions import check_anchor
    from isomerge.solve.match_checks import matching_of

    match = matching_of(**matching)
    how["onto"] = number_of(how["onto"], job) if job.recipe is None else how["onto"]
    align = bool(how["align"])
    check_aligned(align, match, job.fusion, len(job.models), how["anchor"])
    check_anchor(how["anchor"], match, how["spaces"] or "")
    for note in learned_apart(align, match, job.fusion, len(job.models), how["anchor"]):
        voice.warn(note)
    return match


def _beside(job: MergeJob, repair: str | None) -> list[str]:
    """What a merge takes time for beside matching and averaging."""
    method = job.fusion.method
    looked = [f"method {method.name}"] if method.forward or (method.statistics and not job.stats) else []
    return looked if repair is None else [*looked, "repair"]


def _tell(voice: Voice, job: MergeJob, report: dict[str, Any], out: Path) -> None:
    from isomerge.cli.console import distance_table, stream_table, tell_verdict, warn_fixed
    from isomerge.cli.evidence import evidence_lines

    for note in job.fusion.notes:
        voice.warn(note)
    if "match" in report and not all(found.get("preserves_function", True) for found in report["match"]["sources"]):
        voice.warn(
            f"--match {report['match']['name']} does not preserve functions: the transported models are other models"
        )
    if report["align"]:
        warn_fixed(voice, report["fixed"])
    stream_table(voice, {**report, "notes": [note for note in report["notes"] if note not in job.fusion.notes]})
    distance_table(voice, report["distance"])
    for line in evidence_lines(report):
        voice.say(line)
    tell_verdict(voice, report["verdict"])
    names = report["models"]
    if report["kept_from_first"]:
        voice.say(f"Kept from {names[0]}, as not all models have them: {', '.join(report['kept_from_first'][:6])}.")
    voice.say(
        f"Wrote {out}: {report['method']} merge of {', '.join(names)}{'' if report['align'] else ', not aligned'}."
    )

"""``isomerge merge``: align the rest onto the first, then fuse."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isomerge.cli.grouped import given_names, grouped
from isomerge.options import (
    DryRunOptions,
    FusingOptions,
    MatchingOptions,
    OpeningOptions,
    OutputOptions,
    RunningOptions,
    SpacesOptions,
    TellingOptions,
)

if TYPE_CHECKING:
    from isomerge.cli.console import Voice
    from isomerge.commands.merging import Merge
    from isomerge.commands.pipeline_merges import ComponentMerge, PipelineMerge
    from isomerge.commands.step_merges import StepMerge
    from isomerge.errors import IsomergeError
    from isomerge.merging.merge_job import MergeJob


@grouped
def merge(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(
            help="Models (folders, pipelines, hub ids, model+lora), the anchor first; or one RECIPE.yml and OUT."
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder to write; must not exist or be empty.",
            rich_help_panel="What most runs need",
        ),
    ] = None,
    intermediate_dir: Annotated[
        Path | None,
        typer.Option(
            "--intermediate-dir",
            "-I",
            help="Of a recipe of several steps: where all but the last are written, by their names; OUT.steps by "
            "default.",
            rich_help_panel="Output",
        ),
    ] = None,
    fusing: FusingOptions,
    moving: SpacesOptions,
    report: Annotated[
        bool,
        typer.Option(
            "--report/--no-report",
            help="Write OUT/report.html, a page for people (see isomerge report).",
            rich_help_panel="Output",
        ),
    ] = True,
    repair: Annotated[
        str | None,
        typer.Option(
            help="Re-normalise the merged model's activations on these examples (REPAIR).", rich_help_panel="Method"
        ),
    ] = None,
    opening: OpeningOptions,
    writing: OutputOptions,
    planning: DryRunOptions,
    telling: TellingOptions,
    running: RunningOptions,
    matching: MatchingOptions,
) -> None:
    """Align the models, merge them, and write an ordinary Hugging Face checkpoint.

    A recipe is mergekit's YAML; it aligns where it has a block `align:` (or `align: true`). One of mergekit-moe's
    makes a mixture of experts of dense models.
    """
    from isomerge.cli.console import Voice, write_json
    from isomerge.cli.method_words import check_models, parameters_of, said_of_method
    from isomerge.commands.step_merges import run_steps, step_merges
    from isomerge.errors import IsomergeError

    voice = Voice(telling.quiet, telling.verbose)
    check_models(models)
    recipe = models[0] if models[0].endswith((".yml", ".yaml")) else None
    if recipe is not None and (options := said_of_method(context)):
        raise IsomergeError(
            f"{recipe}: a recipe says what is merged and how: leave out {', '.join(options)}, and change the recipe"
        )
    if recipe is not None:
        out = _out_of_recipe(models, out)
    door = _Door(
        context,
        voice,
        FusingOptions() if recipe is not None else replace(fusing, parameters=parameters_of(fusing.parameters)),
        SpacesOptions() if recipe is not None else moving,
        matching,
        repair,
        opening,
        running,
        report,
        telling.json if planning.dry_run else None,
    )
    said = {name: context.params[name] for name in given_names(context) & {*MatchingOptions.declared(), "dtype"}}
    if recipe is not None and _makes_experts(recipe):
        from isomerge.cli.experts import make_experts
        from isomerge.options.unused import note

        if intermediate_dir is not None:
            note("intermediate_dir", "one model is made, not several steps of a recipe")
        how: dict[str, Any] = {"opening": opening, "writing": writing, "running": running, "telling": telling}
        how |= {"matching": matching, "said": said, "repair": repair, "dry_run": planning.dry_run}
        return make_experts(context, voice, str(recipe), out, **how)
    steps = step_merges(recipe or models, out, intermediate_dir, {**said, "repair": repair}, opening)
    if planning.dry_run:
        return _plan_steps(door, steps, writing) if steps else door.plan(recipe or models, out, writing)
    if not steps:
        return write_json(telling.json, door.run(recipe or models, out, writing))
    result = run_steps(steps, lambda step: door.run(step.step, step.out, step.writing(writing)), writing.overwrite)
    return write_json(telling.json, result)


def _makes_experts(recipe: str) -> bool:
    from isomerge.merging.recipe.schema import makes_experts

    return makes_experts(recipe)


@dataclass(frozen=True)
class _Door:
    """What all merges of one command have in common."""

    context: typer.Context
    voice: Voice
    fusing: FusingOptions
    moving: SpacesOptions
    matching: MatchingOptions
    repair: str | None
    opening: OpeningOptions
    running: RunningOptions
    report: bool
    json: Path | None
    """Where a plan is written to."""

    def asked(self, source: Any, out: Path | None, writing: OutputOptions) -> tuple[Merge, Path]:
        """What is asked for of models, a recipe or a step of one, and where it goes; warnings are told."""
        from isomerge.cli.written import check_written
        from isomerge.commands.merging import merge_of
        from isomerge.errors import IsomergeError

        by_recipe = not isinstance(source, list)
        names = given_names(self.context) if by_recipe else MatchingOptions.declared().keys()
        asked = merge_of(
            source,
            fusing=self.fusing,
            moving=self.moving,
            matching=self.matching,
            said={name: value for name, value in self.matching.given().items() if name in names},
            repair=self.repair,
            spec=self.opening.spec,
            dtype=writing.dtype,
        )
        if by_recipe:
            job, params = asked.job, self.context.params
            named = (job.models, job.stacks, job.stats, job.source_bases, list(job.matching.values()))
            check_written("merge", {**params, "models": params["models"][:1], "out": out}, named)
        if out is None:
            raise IsomergeError("merge needs a folder to write: add -o OUT")
        for note in asked.notes():
            self.voice.warn(note)
        if asked.select is not None:
            from isomerge.commands.layer_selection import check_selection

            check_selection(asked)
        return asked, out

    def files(self, asked: Merge) -> MatchingOptions:
        """The options of the match as they count."""
        return replace(self.matching, **{name: asked.said[name] for name in asked.said})

    def pipeline(self, source: Any, out: Path | None, writing: OutputOptions) -> PipelineMerge | None:
        """What becomes of the components of pipelines, told; None where no model is one."""
        from isomerge.cli.console import tell_lines
        from isomerge.commands.pipeline_merges import pipeline_merge
        from isomerge.errors import IsomergeError

        how: dict[str, Any] = {"fusing": self.fusing, "moving": self.moving, "opening": self.opening}
        more = {**self.matching.given(), "repair": self.repair, "report": self.report}
        merge = pipeline_merge(source, out, **how, writing=writing, more=more)
        if merge is not None:
            if self.opening.spec is not None:
                raise IsomergeError("--spec describes one model: merge that component's folders by themselves")
            tell_lines(self.voice, merge.lines())
        return merge

    def within(self, component: ComponentMerge) -> _Door:
        """The same door for one component."""
        return replace(self, fusing=component.fusing or self.fusing, moving=component.moving or self.moving)

    def plan(self, source: Any, out: Path | None, writing: OutputOptions) -> None:
        """Plan a merge, and tell the plan."""
        from isomerge.errors import IsomergeError

        if (pipeline := self.pipeline(source, out, writing)) is None:
            self._plan(source, out, writing)
            return
        if self.json is not None:
            raise IsomergeError("the components are planned one by one: leave --json out of --dry-run")
        for component in pipeline.components:
            if component.source is not None:
                self.voice.say(f"{component.name}:")
                self.within(component)._plan(component.source, pipeline.out / component.name, writing)

    def _plan(self, source: Any, out: Path | None, writing: OutputOptions) -> None:
        from isomerge.cli.console import tell_files
        from isomerge.cli.dry_run import tell_merge
        from isomerge.commands.merging import planned_merge

        asked, out = self.asked(source, out, writing)
        with planned_merge(asked, out, opening=self.opening, writing=writing, running=self.running) as plan:
            tell_merge(self.voice, self.json, plan)
        tell_files(self.voice, self.files(asked))

    def run(self, source: Any, out: Path | None, writing: OutputOptions) -> dict[str, Any]:
        """Merge, write and tell; the report."""
        if (pipeline := self.pipeline(source, out, writing)) is None:
            return self._run(source, out, writing)
        from isomerge.commands.pipeline_runs import run_pipeline

        def one(component: ComponentMerge, place: Path, own: OutputOptions) -> dict[str, Any]:
            shown = pipeline.place(component.name)
            return self.within(component)._run(component.source, place, own, shown)

        result = run_pipeline(pipeline, writing, one)
        self.voice.say(f"Wrote {pipeline.out}: {pipeline.told}")
        return result

    def _run(
        self, source: Any, out: Path | None, writing: OutputOptions, shown: Path | None = None
    ) -> dict[str, Any]:
        """The same of one model, which will stand in ``shown``, where that is not ``out``."""
        from isomerge.cli.console import tell_files, tell_lines, tell_pushed
        from isomerge.commands.merging import planned_merge
        from isomerge.errors import IsomergeError
        from isomerge.evidence.report.notebook import Report

        voice = self.voice
        asked, out = self.asked(source, out, writing)
        how: dict[str, Any] = {"opening": self.opening, "writing": writing, "running": self.running}
        if asked.select is not None:
            from isomerge.commands.layer_selection import with_selected_layers

            with voice.progress("selecting layers") as observer:
                asked = with_selected_layers(asked, **how, observer=observer)
        with voice.progress("merging") as observer, planned_merge(asked, out, **how, observer=observer) as plan:
            decided = plan.decided()
            if voice.is_watched:  # else with the result
                tell_lines(voice, decided)
            result = Report(plan.run())
            page = _page(out, asked.spec) if self.report else None  # before the folder is pushed
        if not voice.is_watched:
            tell_lines(voice, decided)
        tell_files(voice, self.files(asked))
        shown = shown or out
        _tell(voice, asked.job, result, shown)
        if isinstance(page, IsomergeError):
            voice.warn(f"no report was written: {page}")
        else:
            voice.say(
                f"Report: {shown / page.name}."
                if page
                else f"isomerge report {shlex.quote(str(shown))} writes a page on it."
            )
        tell_pushed(voice, writing)
        return result


def _plan_steps(door: _Door, steps: Sequence[StepMerge], writing: OutputOptions) -> None:
    """Plan every step whose inputs are there, and name the others."""
    from isomerge.errors import IsomergeError

    if door.json is not None:
        raise IsomergeError(
            f"{steps[0].step.path}: the steps are planned one by one: leave --json out of --dry-run"
        )
    kept = {step.step.name for step in steps if step.kept}
    for step in steps:
        if waits := [name for name in step.step.needs if name not in kept]:
            door.voice.say(f"{step.step.title}: planned when {', '.join(waits)} is written.")
        elif step.kept and not writing.overwrite:
            door.voice.say(f"{step.step.title}: {step.out} is there, made by the same recipe, and is kept.")
        else:
            door.voice.say(f"{step.step.title}:")
            door.plan(step.step, step.out, step.writing(writing))


def _page(out: Path, spec: str | Path | None) -> Path | IsomergeError:
    """Writes the page on a merge; what stood in the way, as the merge itself is complete."""
    from isomerge.errors import IsomergeError
    from isomerge.evidence.report.folder import read_output
    from isomerge.evidence.report.page import PAGE, page_of

    try:
        return page_of(read_output(out, spec=spec)).save(out / PAGE)
    except IsomergeError as error:
        return error


def _out_of_recipe(models: Sequence[str], out: Path | None) -> Path | None:
    """``isomerge merge RECIPE.yml OUT``, as mergekit's users write it."""
    from isomerge.errors import IsomergeError

    if len(models) > 2 or (len(models) == 2 and out is not None):
        raise IsomergeError(
            f"{models[0]}: a recipe names its models; give one folder to write beside it, and no more"
        )
    return Path(models[1]) if len(models) == 2 else out


def _tell(voice: Voice, job: MergeJob, report: dict[str, Any], out: Path) -> None:
    from isomerge.cli.console import distance_table, scan_table, stream_table, tell_verdict, warn_fixed
    from isomerge.cli.evidence import evidence_lines
    from isomerge.merging.finishing import other_models

    warned = [*job.fusion.notes, *other_models(report["checksums"])]
    for note in warned:
        voice.warn(note)
    if "match" in report and not all(one.get("preserves_function", True) for one in report["match"]["sources"]):
        voice.warn(
            f"--match {report['match']['name']} does not preserve functions: the transported models are other "
            f"models"
        )
    if report["align"]:
        warn_fixed(voice, report["fixed"])
    stream_table(voice, {**report, "notes": [note for note in report["notes"] if note not in warned]})
    distance_table(voice, report["distance"])
    for line in evidence_lines(report):
        voice.say(line)
    tell_verdict(voice, report["verdict"])
    if "layer_scan" in report:
        scan_table(voice, report["layer_scan"], report["measured"]["unit"])
    if report["measured"] is not None:
        from isomerge.merging.measured import measured_line

        voice.say(measured_line(report["measured"]))
    names = report["models"]
    if report["kept_from_first"]:
        voice.say(f"Kept from {names[0]}, as not all models have them: {', '.join(report['kept_from_first'][:6])}.")
    voice.say(
        f"Wrote {out}: {report['method']} merge of {', '.join(names)}{'' if report['align'] else ', not aligned'}."
    )

"""What the command line says of merges: ``isomerge merge`` and ``layershuffle``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.cli.console import (
    Voice,
    distance_table,
    scan_table,
    stream_table,
    tell_files,
    tell_verdict,
    warn_fixed,
)
from isomerge.cli.door import check_alone
from isomerge.cli.evidence import evidence_lines
from isomerge.cli.written import check_places
from isomerge.errors import IsomergeError
from isomerge.evidence.report.numerals import size_text
from isomerge.options import FusingOptions, MatchingOptions, OutputOptions, SpacesOptions, unused
from isomerge.options.requests import merging as asked_for
from isomerge.records import Json

if TYPE_CHECKING:
    from isomerge.commands.experts import Mixture, MixtureReport
    from isomerge.commands.merge_door import MergeDoor
    from isomerge.commands.pipeline_merges import PipelineMerge
    from isomerge.merging.finishing import MergeReport
    from isomerge.merging.merge_plan import MergePlan
    from isomerge.merging.merge_request import MergeRequest
    from isomerge.progress import Observer
    from isomerge.records import Record

FRAMES = {
    "base": "the base's own",
    "stored": "as it is stored",
    "same": "aligned already",
    "aligned": "aligned onto the base",
}


def run_merge(voice: Voice, asked: asked_for.Merge) -> Record | Json:
    """Merge, write and tell; the report."""
    return _door(voice, asked).run()


def plan_merge(voice: Voice, asked: asked_for.Merge) -> Json | None:
    """Plan every part whose inputs are there, and name the others; the report, where it is one merge."""
    door = _door(voice, asked)
    if door.makes_experts():
        from isomerge.cli.dry_run import tell_about

        with door.planned_experts() as plan:
            names = [model.ref for model in plan.models.values()]
            return tell_about(voice, names, plan.about, plan.notes, _tell_experts)
    if not (steps := door.steps()):
        return _plan(door, voice, door.asked.models, door.asked.out, asked.writing)
    if asked.telling.json is not None:
        raise IsomergeError(
            f"{steps[0].step.path}: the steps are planned one by one: leave --json out of --dry-run"
        )
    kept = {step.step.name for step in steps if step.kept}
    for step in steps:
        if waits := [name for name in step.step.needs if name not in kept]:
            voice.say(f"{step.step.title}: planned when {', '.join(waits)} is written.")
        elif step.kept and not asked.writing.overwrite:
            voice.say(f"{step.step.title}: {step.out} is there, made by the same recipe, and is kept.")
        else:
            voice.say(f"{step.step.title}:")
            _plan(door, voice, step.step, step.out, step.writing(asked.writing))
    return None


def run_layershuffle(voice: Voice, asked: asked_for.Layershuffle) -> Record | Json:
    """Draw, merge, write and tell; the report."""
    from isomerge.commands.layershuffle import shuffled

    shuffle = shuffled(asked)
    return shuffle.run(_Teller(voice, shuffle.merge))


def plan_layershuffle(voice: Voice, asked: asked_for.Layershuffle) -> Json | None:
    """The recipe that was drawn, and the plan of its merge."""
    from isomerge.commands.layershuffle import shuffled

    shuffle = shuffled(asked)
    voice.say(shuffle.text.rstrip())
    report = _plan(shuffle.door(_Teller(voice, shuffle.merge)), voice, shuffle.recipe, asked.out, asked.writing)
    shuffle.write()
    return report


def _plan(
    door: MergeDoor, voice: Voice, source: Any, out: str | Path | None, writing: OutputOptions
) -> Json | None:
    """Plan a merge, and tell the plan; its report, where it is not of pipelines."""
    if (pipeline := door.pipeline(source, out, writing)) is None:
        return _plan_models(door, voice, source, out, writing)
    if door.asked.telling.json is not None:
        raise IsomergeError("the components are planned one by one: leave --json out of --dry-run")
    for component in pipeline.components:
        if component.source is not None:
            voice.say(f"{component.name}:")
            within = door.within(component)
            _plan_models(within, voice, component.source, pipeline.out / component.name, writing)
    return None


def _plan_models(
    door: MergeDoor, voice: Voice, source: Any, out: str | Path | None, writing: OutputOptions
) -> Json:
    from isomerge.cli.dry_run import tell_merge
    from isomerge.commands.merge_door import place
    from isomerge.commands.merging import planned_merge

    merge = door.merge_of(source, out, writing)
    with planned_merge(merge, place(out), door.means(writing)) as plan:
        report = tell_merge(voice, plan)
    tell_files(voice, _matching(door.asked, merge))
    return report


def _door(voice: Voice, asked: asked_for.Merge) -> MergeDoor:
    """What runs the merge that is asked for, and tells of it.

    Raises:
        IsomergeError: what is no model among the models, or an option that a recipe says.
    """
    from isomerge.commands.merge_door import MergeDoor

    models: Any = asked.models
    _check_models(models)
    if models[0].endswith((".yml", ".yaml")):
        check_alone(models[0], asked, FusingOptions, SpacesOptions)
        out = _out_of_recipe(models, asked.out)
        asked = replace(asked, models=models[0], out=out, fusing=FusingOptions(), moving=SpacesOptions())
    else:
        fusing = replace(asked.fusing, parameters=_parameters_of(asked.fusing.parameters))
        asked = replace(asked, fusing=fusing, said=asked.said | MatchingOptions.declared().keys())
    return MergeDoor(asked, _Teller(voice, asked))


@dataclass
class _Teller:
    """What the command line tells of a merge."""

    voice: Voice
    asked: asked_for.Merge
    page: Path | IsomergeError | None = None
    """The page of what was merged last, or why there is none."""
    part: bool = False
    """Whether that was a part of a pipeline, which stands nowhere before all parts do."""

    def observed(self, what: str) -> AbstractContextManager[Observer]:
        """A progress bar."""
        return self.voice.progress(what)

    def before(self, merge: Any, source: Any, out: str | Path | None) -> None:
        """Checks of files that a recipe names, and warnings."""
        from isomerge.commands.merge_door import place
        from isomerge.merging.merge_checks import notes_before
        from isomerge.merging.merge_request import MergeRequest

        if not isinstance(source, list):
            check_places(asked_for.Merge, {**self.asked.given(), "out": out}, merge.reads())
        place(out)
        if not isinstance(merge, MergeRequest):
            return
        self.voice.warn(*notes_before(merge))
        if merge.select_layers is not None:
            from isomerge.commands.layer_selection import check_selection

            check_selection(merge)

    def pipeline(self, pipeline: PipelineMerge) -> None:
        """A line for each component that is not merged as asked."""
        if self.asked.opening.spec is not None:
            raise IsomergeError("--spec describes one model: merge that component's folders by themselves")
        self.voice.say(*pipeline.lines())

    def run(self, merge: MergeRequest, plan: MergePlan, out: Path, shown: Path) -> MergeReport:
        """What was decided, and the page, before the folder is pushed."""
        from isomerge.merging.merge_run import run_plan

        decided = plan.decided()
        if self.voice.is_watched:  # else with the result
            self.voice.say(*decided)
        report = run_plan(plan)
        self.page = _page(out, merge.spec, shown) if self.asked.report else None
        self.part = shown != out
        if not self.voice.is_watched:
            self.voice.say(*decided)
        return report

    def after(self, merge: MergeRequest, report: MergeReport, out: Path) -> None:
        """What was merged, how far apart the models are, and what that means."""
        tell_files(self.voice, _matching(self.asked, merge))
        _tell(self.voice, merge, report, out.name if self.part else f"Wrote {out}")
        if isinstance(self.page, IsomergeError):
            self.voice.warn(f"no report was written: {self.page}")
        elif self.page is not None:
            self.voice.say(f"Report: {out / self.page.name}.")
        else:
            self.voice.say(f"isomerge report {shlex.quote(str(out))} writes a page on it.")

    def assembled(self, pipeline: PipelineMerge) -> None:
        """The pipeline in a line."""
        self.voice.say(f"Wrote {pipeline.out}: {pipeline.summary}")

    def experts(self, report: MixtureReport) -> None:
        """The experts, and what a token meets of them."""
        about = report.about
        _tell_experts(self.voice, about, report.notes)
        count, meets = len(about.experts), about.experts_per_token
        self.voice.say(f"Wrote {self.asked.out}: {count} experts a layer, {meets} per token.")


def _matching(asked: asked_for.Merge, merge: MergeRequest) -> MatchingOptions:
    """The options of the match as they count."""
    return replace(asked.matching, **merge.said)


def _page(out: Path, spec: str | Path | None, shown: Path) -> Path | IsomergeError:
    """Writes the page on a merge; what stood in the way, as the merge itself is complete."""
    from isomerge.evidence.report.folder import read_output
    from isomerge.evidence.report.page import PAGE, page_of

    try:
        return page_of(replace(read_output(out, spec=spec), folder=shown)).save(out / PAGE)
    except IsomergeError as error:
        return error


def _out_of_recipe(models: Sequence[str], out: str | Path | None) -> str | Path | None:
    """``isomerge merge RECIPE.yml OUT``, as mergekit's users write it."""
    if len(models) > 2 or (len(models) == 2 and out is not None):
        raise IsomergeError(
            f"{models[0]}: a recipe names its models; give one folder to write beside it, and no more"
        )
    return Path(models[1]) if len(models) == 2 else out


def _check_models(models: list[str]) -> None:
    """Refuse numbers among the models: lists of numbers are one text.

    Raises:
        IsomergeError: naming the first, and how it is written.
    """
    for model in models:
        try:
            float(model)
        except ValueError:
            continue
        if not Path(model).exists():
            raise IsomergeError(
                f"{model} is taken for a model: several numbers are joined by commas, without spaces, such as "
                "--weights 0.5,0.5 or -p density=0.5,0.3"
            )


def _parameters_of(texts: Any) -> dict[str, object]:
    """``name=value`` with a YAML value; values with commas are one per model."""
    from isomerge.checkpoint.yaml_text import plain_value

    values: dict[str, object] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (equals and name and value):
            raise IsomergeError(f"--parameter {text}: write name=value, such as density=0.5")
        if re.fullmatch(r"-?0,(?![01]$)\d+", value):
            one, two = f"{name}={value.replace(',', '.')}", f"{name}=[{value}]"
            raise IsomergeError(f"--parameter {text}: write {one} for one number, or {two} for two")
        try:
            parts = [plain_value(part) for part in ([value] if value[0] in "[{" else value.split(","))]
        except ValueError as error:
            raise IsomergeError(f"--parameter {text}: {value} is no value ({error})") from None
        values[name] = parts if len(parts) > 1 else parts[0]
    return values


def _tell(voice: Voice, merge: MergeRequest, report: MergeReport, made: str) -> None:
    from isomerge.run.provenance import other_models

    warned = [*merge.fusion.notes, *other_models(report.checksums)]
    voice.warn(*warned)
    match, measured = report.match, report.measured
    if match is not None and not all(source.get("preserves_function", True) for source in match.sources):
        voice.warn(f"--match {match.name} does not preserve functions: the transported models are other models")
    names, kept = report.run.models, report.fusion.kept_from_first
    several = len(names) > 1  # one alone is moved onto nothing, and far from nothing
    if several and report.is_moved:
        warn_fixed(voice, report.run.fixed)
    notes = [note for note in report.notes if note not in warned]
    stream_table(voice, notes, report.streams, report.verdict)
    if several:
        distance_table(voice, report.moves.distance)
    voice.say(*evidence_lines(report.streams, report.mean))
    tell_verdict(voice, report.verdict)
    if report.layer_scan is not None and measured is not None:
        scan_table(voice, report.layer_scan, measured.unit)
    if measured is not None:
        voice.say(measured.line)
    if kept:
        voice.say(f"Kept from {names[0]}, as not all models have them: {', '.join(kept[:6])}.")
    how = "" if report.align else ", not aligned"
    given = [part.model for part in report.roles]  # as they were given, which matching onto the mean is not told
    names = sorted(names, key=lambda name: given.index(name) if name in given else len(given))
    voice.say(f"{made}: {report.fusion.method} merge of {', '.join(names)}{how}.")


def _tell_experts(voice: Voice, about: Mixture, notes: Sequence[str]) -> None:
    voice.warn(*(note for note in notes if note not in unused.notes()))  # which are told at the end
    rows = []
    for what, experts in (("expert", about.experts), ("shared expert", about.shared_experts)):
        for number, expert in enumerate(experts):
            moved = expert.frame.distance
            gap = "" if moved is None else f"{moved.before:.4g} -> {moved.after:.4g}"
            rows.append([f"{what} {number}", expert.model, FRAMES[expert.frame.frame], gap])
    voice.table(["", "of", "frame", "distance to the base"], rows)
    size = about.parameters
    voice.say(
        f"{about.architecture}, router by {about.gate_mode}: {size.every:,} parameters, of which a token meets "
        f"{size.per_token:,}; {size_text(about.bytes)}."
    )

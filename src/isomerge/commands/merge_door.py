"""A merge of whatever kind, as a door runs it: of models, of pipelines, of a recipe's steps, of experts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from isomerge.commands.merging import merge_of, planned_merge
from isomerge.commands.opening import Means
from isomerge.commands.pipeline_merges import ComponentMerge, PipelineMerge, pipeline_merge
from isomerge.commands.step_merges import StepMerge, run_steps, step_merges
from isomerge.errors import IsomergeError
from isomerge.merging.finishing import MergeReport
from isomerge.merging.merge_plan import MergePlan
from isomerge.merging.merge_request import MergeRequest
from isomerge.merging.merge_run import run_plan
from isomerge.merging.recipe.merge_recipe import recipe_text
from isomerge.merging.recipe.recipe_steps import Step
from isomerge.options import MatchingOptions, OutputOptions
from isomerge.options.fusing import check_alone
from isomerge.options.requests import merging as asked_for
from isomerge.options.unused import note
from isomerge.progress import Observer, quiet
from isomerge.records import Json, Record
from isomerge.run.absolute_names import lasting_ref

if TYPE_CHECKING:
    from isomerge.commands.experts import MixtureReport
    from isomerge.commands.experts_asked import ExpertsAsked


T = TypeVar("T")


@dataclass(frozen=True)
class Teller:
    """What a door tells of a merge beside its report: nothing, as of Python's."""

    observer: Observer = quiet

    def observed(self, what: str) -> AbstractContextManager[Observer]:
        """Who is told of the progress of a part."""
        return nullcontext(self.observer)

    def before(self, merge: MergeRequest | ExpertsAsked, source: Any, out: str | Path | None) -> None:
        """What is known before anything is opened."""

    def pipeline(self, pipeline: PipelineMerge) -> None:
        """What becomes of the components."""

    def run(self, merge: MergeRequest, plan: MergePlan, out: Path, shown: Path) -> MergeReport:
        """Runs a planned merge into ``out``, which will stand in ``shown``; its report."""
        return run_plan(plan)

    def after(self, merge: MergeRequest, report: MergeReport, out: Path) -> None:
        """All is written, and stands in ``out``."""

    def assembled(self, pipeline: PipelineMerge) -> None:
        """A pipeline is written."""

    def experts(self, report: MixtureReport) -> None:
        """Experts are written."""


@dataclass(frozen=True)
class MergeDoor:
    """Runs what is asked for, whatever it is."""

    asked: asked_for.Merge
    teller: Any = Teller()
    """A `Teller`, or what has its methods."""

    def run(self) -> Record | Json:
        """Merge and write; the report.

        Raises:
            IsomergeError: the models do not fit together, or an option is wrong; nothing is written.
        """
        asked = self.asked
        if self.makes_experts():
            return self.experts()
        if not (steps := self.steps()):
            return self.merged(asked.models, asked.out, asked.writing)
        return run_steps(
            steps,
            lambda step: self.merged(step.step, step.out, step.writing(asked.writing)),
            asked.writing.overwrite,
        )

    def makes_experts(self) -> bool:
        """Whether a recipe makes experts of dense models."""
        if not isinstance(self.asked.models, (str, Path)):
            return False
        from isomerge.merging.recipe.schema import makes_experts

        return makes_experts(self.asked.models)

    def steps(self) -> list[StepMerge]:
        """Those of a recipe of several steps."""
        asked, given = self.asked, self.asked.given()
        said = {name: given[name] for name in sorted(asked.said & {*MatchingOptions.declared(), "dtype"})}
        options = {**said, "repair": asked.repair}
        return step_merges(asked.models, asked.out, asked.intermediate_dir, options, asked.opening)

    def means(self, writing: OutputOptions, observer: Observer = quiet) -> Means:
        """How models are opened, written and worked on."""
        return Means(self.asked.opening, writing, self.asked.running, observer)

    @property
    def _said(self) -> Json:
        """The options of the match that were said."""
        values = self.asked.matching.given()
        return {name: value for name, value in values.items() if name in self.asked.said}

    def _with_evidence(self, make: Callable[..., T], writing: OutputOptions) -> Callable[..., T]:
        """What makes a request, given what is looked at beside the weights, what of it was said, and what goes
        before a recipe's words."""
        asked = self.asked
        how = partial(make, matching=asked.matching, said=self._said, repair=asked.repair)
        return partial(how, spec=asked.opening.spec, dtype=writing.dtype)

    def planned_experts(self, observer: Observer = quiet) -> AbstractContextManager[Any]:
        """Experts of dense models, planned."""
        # a mixture of experts is made by recipes of its own
        from isomerge.commands.experts import planned_experts
        from isomerge.commands.experts_asked import experts_of

        asked = self.asked
        assert isinstance(asked.models, (str, Path))
        if asked.intermediate_dir is not None:
            note("intermediate_dir", "one model is made, not several steps of a recipe")
        check_alone(asked.models, asked.fusing, asked.moving)
        experts = self._with_evidence(experts_of, asked.writing)(asked.models)
        self.teller.before(experts, asked.models, asked.out)
        return planned_experts(experts, place(asked.out), self.means(asked.writing, observer))

    def experts(self) -> MixtureReport:
        """Experts of dense models, written; the report."""
        with self.teller.observed("experts") as observer, self.planned_experts(observer) as plan:
            report = plan.run()
        self.teller.experts(report)
        return report

    def pipeline(self, source: Any, out: str | Path | None, writing: OutputOptions) -> PipelineMerge | None:
        """What becomes of the components of pipelines; None where no model is one."""
        asked = self.asked
        pipeline = pipeline_merge(
            source,
            out,
            fusing=asked.fusing,
            moving=asked.moving,
            opening=asked.opening,
            writing=writing,
            more={**asked.matching.given(), "repair": asked.repair, "report": asked.report},
        )
        if pipeline is not None:
            self.teller.pipeline(pipeline)
            pipeline = replace(pipeline, recipe=self._recipe(source))
        return pipeline

    def _recipe(self, source: Any) -> str:
        """The recipe that merges pipelines again."""
        if isinstance(source, (str, Path, Step)):
            from isomerge.merging.recipe.recipe_components import kept_recipe

            return kept_recipe(source, self._said)
        made = self._with_evidence(merge_of, self.asked.writing)
        request = made(source, fusing=self.asked.fusing, moving=self.asked.moving)
        return recipe_text(request, [lasting_ref(model) for model in request.models], request.spaces)

    def within(self, component: ComponentMerge) -> MergeDoor:
        """The same for one component."""
        fusing, moving = component.fusing or self.asked.fusing, component.moving or self.asked.moving
        return replace(self, asked=replace(self.asked, fusing=fusing, moving=moving))

    def merged(self, source: Any, out: str | Path | None, writing: OutputOptions) -> Record | Json:
        """One merge, of models or of pipelines, written; its report."""
        if (pipeline := self.pipeline(source, out, writing)) is None:
            return self.of_models(source, out, writing)
        # few models are pipelines
        from isomerge.commands.pipeline_runs import run_pipeline

        def run(component: ComponentMerge, folder: Path, own: OutputOptions) -> MergeReport:
            shown = pipeline.place(component.name)
            return self.within(component).of_models(component.source, folder, own, shown)

        report = run_pipeline(pipeline, writing, run)
        self.teller.assembled(pipeline)
        return report

    def merge_of(self, source: Any, out: str | Path | None, writing: OutputOptions) -> MergeRequest:
        """What is asked for of models, a recipe or a step of one."""
        asked = self.asked
        made = self._with_evidence(merge_of, writing)
        merge = made(source, fusing=asked.fusing, moving=asked.moving)
        self.teller.before(merge, source, out)
        return merge

    def of_models(
        self, source: Any, out: str | Path | None, writing: OutputOptions, shown: Path | None = None
    ) -> MergeReport:
        """A merge of models, not of pipelines, which will stand in ``shown``, where that is not ``out``."""
        merge, folder = self.merge_of(source, out, writing), place(out)
        if merge.select_layers is not None:
            from isomerge.commands.layer_selection import with_selected_layers

            with self.teller.observed("selecting layers") as observer:
                merge = with_selected_layers(merge, self.means(writing, observer))
        with (
            self.teller.observed("merging") as observer,
            planned_merge(merge, folder, self.means(writing, observer)) as plan,
        ):
            report = self.teller.run(merge, plan, folder, shown or folder)
        self.teller.after(merge, report, shown or folder)
        return report


def place(out: str | Path | None) -> Path:
    """Where the output goes. Raises IsomergeError where it goes nowhere."""
    if out is None:
        raise IsomergeError("merge needs a folder to write: add -o OUT")
    return Path(out)

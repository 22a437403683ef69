"""Models merged: what is asked for becomes a plan, and the plan runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from isomerge.checkpoint.weights import of_diffusers
from isomerge.commands.opening import destination, dtype_name, recognised
from isomerge.merging.job_models import by_token, opened
from isomerge.merging.merge_checks import check_aligned, learned_apart
from isomerge.merging.merge_job import MergeJob, job_of_models, joins, number_of
from isomerge.merging.merge_options import MergeOptions
from isomerge.merging.merge_plan import MergePlan
from isomerge.merging.merge_run import run_plan
from isomerge.merging.recipe.merge_recipe import recipe_text
from isomerge.merging.recipe.recipe_steps import Step
from isomerge.merging.recipe.recipe_words import told_in_keys
from isomerge.models.recognised import Model
from isomerge.observe.data.examples import Examples
from isomerge.observe.data.refused_data import check_given
from isomerge.options import (
    FusingOptions,
    MatchingOptions,
    OpeningOptions,
    OutputOptions,
    RunningOptions,
    SpacesOptions,
)
from isomerge.options.fusing import check_alone
from isomerge.options.requests import merging as asked_for
from isomerge.options.unused import note_idle
from isomerge.progress import Observer, quiet
from isomerge.run.absolute_names import lasting_ref
from isomerge.run.cost import estimate
from isomerge.solve.match_checks import check_anchor, files_of_matching, matching_of
from isomerge.solve.match_inputs import check_data
from isomerge.solve.match_options import Matching
from isomerge.solve.standing import check_align

HOW = ("align", "anchor", "onto", "spaces", "layers", "heads")
"""What a recipe says of the alignment, beside the evidence."""


@dataclass(frozen=True)
class Merge:
    """What a merge is asked for, by whatever door."""

    job: MergeJob
    how: Mapping[str, Any]
    """``align``, ``anchor``, ``onto`` (a number from 0), ``spaces``, ``layers``, ``heads`` and ``repair``."""
    untie: bool
    match: Matching
    said: Mapping[str, Any]
    """The options of the match that were said, for the recipe that is kept."""
    spec: str | Path | None
    dtype: str | None
    select: str | None = None
    """How the layers that are matched are selected (`isomerge.commands.layer_selection`)."""
    scan: Mapping[str, Any] | None = None
    """What was tried, where they were."""
    parents: bool = True
    """Whether the models that go in are measured as well."""

    def reads(self) -> list[Any]:
        """What is read, by name."""
        job = self.job
        return [job.models, job.stacks, job.stats, job.source_bases, list(job.matching.values())]

    def notes(self) -> list[str]:
        """What to tell before anything is opened.

        Raises:
            IsomergeError: options that contradict each other.
        """
        align, count = bool(self.how["align"]), len(self.job.models)
        with self.told():
            check_aligned(align, self.match, self.job.fusion, count, self.how["anchor"])
            check_anchor(self.how["anchor"], self.match, self.how["spaces"] or "")
        return learned_apart(align, self.match, self.job.fusion, count, self.how["anchor"])

    def told(self) -> AbstractContextManager[None]:
        """Errors inside name a recipe's keys, where there is one."""
        path = None if self.job.recipe is None else self.job.files[0]
        return told_in_keys(path, self.job.recipe, {**self.said, "repair": self.how["repair"]})

    @property
    def looks(self) -> list[str]:
        """What the run takes time for beside matching and averaging, and shapes do not tell."""
        method = self.job.fusion.method
        looked = [f"method {method.name}"] if method.forward or (method.statistics and not self.job.stats) else []
        return looked if self.how["repair"] is None else [*looked, "repair"]

    def recipe(self, refs: list[str], spaces: str, firm: bool) -> str:
        """The recipe that is kept with the output.

        Args:
            refs: what the models are called.
            spaces: those that are matched.
            firm: whether they must stand in it.
        """
        implied = spaces in ("none", self.match.spaces(None)) and self.how["spaces"] != "none"
        said = None if self.match.decides or (implied and not firm) else spaces  # else decided anew, and alike
        how = {**self.how, "untie": self.untie, "dtype": self.dtype, "spec": self.spec, "spaces": said}
        return recipe_text(self.job, refs, how, dict(self.said))


def merge_of(
    models: Sequence[Any] | str | Path | Step,
    *,
    fusing: FusingOptions,
    moving: SpacesOptions,
    matching: MatchingOptions,
    said: Mapping[str, Any],
    repair: str | Path | Examples | None = None,
    spec: str | Path | None = None,
    dtype: Any = None,
) -> Merge:
    """What is asked for, of models or of a recipe; nothing is opened.

    Args:
        models: the models, or one recipe file, or a step of one.
        fusing, moving: of the models; a recipe says them itself.
        matching: what is looked at beside the weights.
        said: those options of ``matching`` that were said, whatever their values: they count more than a recipe's.

    Raises:
        IsomergeError: an option is wrong, or a recipe says it.
    """
    check_given(repair, "--repair")
    dtype, select = dtype_name(dtype), None
    if isinstance(models, (str, Path, Step)):
        from isomerge.merging.recipe.recipe_job import job_of_recipe

        check_alone(models, fusing, moving)
        job = job_of_recipe(models, seed=said.get("seed"))
        how = {name: job.options[name] for name in HOW}
        untie, repair = job.options["untie"], repair or job.options["repair"]
        spec, dtype = spec or job.options["spec"], dtype or job.options["dtype"]
        said = {**job.matching, **said}
        matching = MatchingOptions.of(said)
    else:
        own = fusing.given()
        how = {"align": own.pop("align"), "anchor": own.pop("anchor"), "heads": own.pop("heads")}
        onto, select = own.pop("onto"), own.pop("select_layers")
        job = job_of_models(models, **own, seed=matching.seed or 0)
        how |= {"spaces": moving.spaces, "layers": moving.layers, "onto": number_of(onto, job)}
        untie = moving.untie
    how["repair"] = repair
    with told_in_keys(models, job.recipe, {**said, "repair": repair}):
        decides = how["spaces"] is None and how["layers"] is None
        match = matching_of(matching, decides=decides)
        said = {**said, **{name: getattr(match, name) for name in ("data", "learn") if name in said}}
        return Merge(job, how, untie, match, said, spec, dtype, select)


@dataclass(frozen=True)
class Merging:
    """A merge, planned."""

    plan: MergePlan
    looks: list[str]
    by_recipe: bool = False
    """Whether a recipe says what is merged."""

    def cost(self) -> dict[str, float]:
        """What it will take in memory and time; output and data are looked at.

        Raises:
            IsomergeError: what a run would refuse.
        """
        plan = self.plan
        plan.output.check([*plan.models, *plan.read])
        check_data(plan.options.matching, plan.models[0])
        return estimate(plan.plan, plan.models, limit=plan.output.max_memory, **plan.cost)

    def decided(self) -> list[str]:
        """What was decided, and how to decide otherwise, in a line each; none where all was said."""
        decision, vocabulary = self.plan.decision, self.plan.options.vocabulary
        lines = [] if decision is None else decision.lines(recipe=self.by_recipe)
        key = "tokenizer_source" if self.by_recipe else "--tokenizer-source"
        return lines + ([f"Decided: {vocabulary} ({key} says otherwise)."] if vocabulary else [])

    def run(self) -> dict[str, Any]:
        """Match, fuse and write; the report."""
        return run_plan(self.plan)


@contextmanager
def planned_merge(
    merge: Merge,
    out: str | Path,
    *,
    opening: OpeningOptions,
    writing: OutputOptions,
    running: RunningOptions,
    observer: Observer = quiet,
) -> Iterator[Merging]:
    """A merge as it will be run: opened, checked and planned, and nothing is written.

    Raises:
        IsomergeError: the models do not fit together, or an option is wrong.
    """
    with merge.told():
        tokens = by_token(merge.job, spec=merge.spec, allow_pickle=opening.allow_pickle)
    merge = replace(merge, job=tokens.job)
    job, how, match = merge.job, merge.how, merge.match
    with merge.told():
        check_align(how["align"])
        note_idle(asked_for.Merge, _asked(merge, out), _by_default())
        opening = replace(opening, spec=merge.spec)
        reads = (opening.spec, how["repair"], *files_of_matching(match), *job.stats, *job.files)
        with (
            _models_of(job, opening, untie=merge.untie, unmoved=not how["align"]) as (opened, origins),
            destination(
                out,
                replace(writing, dtype=merge.dtype),
                [*opened, *(base for base in origins if base is not None)],
                *reads,
                running=running,
                observer=observer,
            ) as output,
        ):
            named = [
                lasting_ref(m) if isinstance(m, (str, Path)) else f.ref
                for m, f in zip(job.models, opened, strict=True)
            ]
            more = {"matching": match, "stats": job.stats, "source_bases": origins, "kinship": _kinship}
            more |= {"scan": merge.scan, "parents": merge.parents, "checksums": job.checksums}
            more |= {"vocabulary": tokens.decided, "notes": (*tokens.notes, *_channels(opened))}
            options = MergeOptions(**how, **more, recipe=partial(merge.recipe, named))
            yield Merging(MergePlan(opened, output, job.fusion, options), merge.looks, job.recipe is not None)


def _channels(models: Sequence[Model]) -> list[str]:
    """What is told of image models with other numbers of input channels."""
    if not any(of_diffusers(model.config) for model in models):
        return []
    from isomerge.models.input_channels import told

    return told(model.checkpoint for model in models)


def _kinship(anchor: Model, model: Model) -> bool | None:
    """See `isomerge.quotient.kinship.kinship`, which is asked of models in another basis alone."""
    # and loaded for them: most merges are of relatives in one basis
    from isomerge.quotient.kinship import kinship

    return kinship(anchor, model)


def _asked(merge: Merge, out: Any) -> dict[str, Any]:
    """A merge's arguments by whatever door, and what decides whether they act: for `note_idle`."""
    job, match = merge.job, merge.match
    method = job.fusion.method
    arguments = {name: getattr(match, name) for name in MatchingOptions.declared() if hasattr(match, name)}
    arguments |= {name: merge.how[name] for name in ("align", "onto", "spaces", "layers", "repair")}
    seed = match.settings.seed if match.settings else 0
    return arguments | {
        "out": out,
        "may_learn": match.may_learn,
        "seed": seed or job.fusion.seed,
        "merge_base": job.merge_base,
        "stats": job.stats,
        "method": method.name,
        "base_model": job.base_named or None,
        "base_role": job.fusion.first if joins(method) else "model",
        "random": method.random,
        "method_statistics": method.statistics,
        "method_reads": method.forward or (method.statistics is not None and not job.stats),
    }


def _by_default() -> dict[str, Any]:
    """What `_asked` gives where nothing is said."""
    return {**asked_for.Merge.defaults(), "onto": 0}


@contextmanager
def _models_of(
    job: MergeJob, opening: OpeningOptions, *, untie: bool, unmoved: bool
) -> Iterator[tuple[list[Model], list[Model | None]]]:
    """The models of a merge, recognised, and what those that are fused were tuned from."""
    refs = opened(job, spec=opening.spec, allow_pickle=opening.allow_pickle)
    bases = [base for base in job.source_bases if base is not None]
    with recognised([*refs, *bases], opening, untie, unmoved=unmoved) as every:
        rest = iter(every[len(refs) :])
        yield every[: len(refs)], [None if base is None else next(rest) for base in job.source_bases]

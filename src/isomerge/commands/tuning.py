"""A recipe whose parameters are searched for: planned (opened, checked, costed, nothing written), then run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isomerge.commands.merging import merge_of, planned_merge
from isomerge.commands.opening import Means
from isomerge.commands.step_merges import asked_steps
from isomerge.errors import IsomergeError
from isomerge.merging.finishing import MergeReport
from isomerge.merging.merge_plan import MergePlan
from isomerge.merging.merge_request import MergeRequest
from isomerge.merging.merge_run import run_plan
from isomerge.merging.recipe.searched import SearchedRecipe, searched_recipe
from isomerge.models.recognised import Model
from isomerge.observe.data.examples import Examples
from isomerge.observe.data.live_data import as_data
from isomerge.observe.data.opening_data import check_limit
from isomerge.observe.live.accelerator import check_device
from isomerge.options import ExamplesOptions, FusingOptions, MatchingOptions, SpacesOptions
from isomerge.options.requests.tuning import Tune, TuningOptions
from isomerge.options.unused import note
from isomerge.progress import Observer, quiet
from isomerge.run.connectivity import check_labelled
from isomerge.run.forward_cost import Cost, Reading, reading_of, tune_cost
from isomerge.solve.match_inputs import data_for
from isomerge.tuning.by_layer import by_layer, in_groups
from isomerge.tuning.objective import LOSS, TASKS
from isomerge.tuning.sampling import GRADIENT, check_sampler, points_of
from isomerge.tuning.task_documents import TaskDocuments, split_tasks
from isomerge.tuning.trial_model import check_tunable
from isomerge.tuning.tuner import Judged, Search, Tuner
from isomerge.tuning.wanted_tasks import WantedTask, wanted_tasks


@dataclass(frozen=True)
class Tuning:
    """A search, planned."""

    merging: MergePlan
    tuner: Tuner
    running: Cost
    """Of running the module on examples."""

    def cost(self) -> dict[str, float]:
        """What it will take in memory and time, as far as shapes tell.

        Raises:
            IsomergeError: what a run would refuse.
        """
        costs, running = self.merging.cost(), self.running
        running.check(self.merging.output.max_memory)
        seconds = {name: costs[name] + running.seconds for name in ("seconds", "seconds_related")}
        return {**costs, "memory": max(costs["memory"], running.memory), **seconds}

    def run(self) -> MergeReport:
        """Align, search, judge and write; the report."""
        return run_plan(self.merging, self.tuner)


def tuning_recipe(recipe: str | Path, tuning: TuningOptions) -> SearchedRecipe:
    """A recipe and what is searched for in it, before anything is opened.

    Raises:
        IsomergeError: an option is wrong, or the recipe is, or has several steps.
    """
    tuning.check()
    if asked_steps(recipe) is not None:
        raise IsomergeError(f"{recipe}: tune searches for one merge, and this recipe has several steps: give one")
    preferred = "weight" if tuning.sampler == GRADIENT else None
    searched = searched_recipe(recipe, tuning.search, tuning.layer_groups, preferred)
    check_sampler(tuning.sampler, searched.dimensions)
    return searched


@contextmanager
def planned_tune(asked: Tune, observer: Observer = quiet) -> Iterator[Tuning]:
    """A search as it will be run: opened, checked and planned, and nothing is written; see `isomerge.tune`.

    Raises:
        IsomergeError: see there.
    """
    data, tuning, examples = asked.data, asked.tuning, asked.examples
    searched = tuning_recipe(asked.recipe, tuning)
    notes: list[str] = []
    if (evolved := searched.evolved) is not None and data is None and tuning.tasks is None:
        tuning = replace(tuning, tasks=evolved.wanted)
        tuning.check()
        examples = replace(examples, limit=evolved.limit if examples.limit is None else examples.limit)
        if evolved.not_done:
            notes.append(
                f"{asked.recipe}: {', '.join(f'`{name}`' for name in evolved.not_done)} changes nothing: tasks are "
                f"asked as their own files say, without a chat template, and the search begins at the mean"
            )
    check_device(examples.device)
    if data is not None and tuning.tasks is not None:
        raise IsomergeError("--data and --task both say what is measured: give one of them")
    if data is None and tuning.tasks is None:
        raise IsomergeError("nothing says what the merge is measured on: add --data DATA, or --task TASK")
    if tuning.tasks is None and tuning.task_path is not None:
        note("task_path", "no --task is named")
    wanted = wanted_tasks(tuning.tasks or ())
    named = {"--data": as_data(data, "--data"), "--judge-data": as_data(tuning.judge_data, "--judge-data")}
    merge = _merge_of(searched, asked, [d for d in named.values() if isinstance(d, (str, Path))])
    means = Means(asked.opening, asked.writing, asked.running, observer)
    with planned_merge(merge, asked.out, means, asked.given().keys()) as plan:
        searched = (by_layer if tuning.by == "layer" else in_groups)(searched, plan.fuser)
        check_tunable(plan, {d.option for d in searched.dimensions})
        plan.output.check([*plan.models, *plan.read])
        judged = _judged(named, wanted, plan.donor, tuning, examples)
        how = Search(
            min(tuning.trials, points_of(searched.dimensions)) if tuning.sampler == "grid" else tuning.trials,
            tuning.sampler,
            tuning.seed,
            tuning.batch_size,
            examples.device,
            tuning.timeout,
            tuning.rate,
            TASKS if wanted else tuning.objective,
        )
        tuner = Tuner(searched, how, judged, notes=notes)
        tuner.stamp(plan).check(plan.output.out)
        cost = tune_cost(
            plan.donor,
            plan.models,
            _reading(judged.search),
            _reading(judged.judge),
            how.trials,
            tuning.batch_size,
            gradients=how.sampler == GRADIENT,
        )
        yield Tuning(plan, tuner, cost)


def _merge_of(searched: SearchedRecipe, asked: Tune, reads: list[str | Path]) -> MergeRequest:
    """The merge with the recipe's own values."""
    merge = merge_of(
        searched.filled(),
        fusing=FusingOptions(),
        moving=SpacesOptions(),
        matching=MatchingOptions(),
        said={},
        spec=asked.opening.spec,
        dtype=asked.writing.dtype,
    )
    return replace(merge, files=(*merge.files, *map(str, reads)))


def _reading(part: Examples | TaskDocuments) -> Reading:
    return part.reading if isinstance(part, TaskDocuments) else reading_of(part)


def _judged(
    named: Mapping[str, Any],
    wanted: Sequence[WantedTask],
    donor: Model,
    tuning: TuningOptions,
    how: ExamplesOptions,
) -> Judged:
    """What is searched on, and what is held out.

    Raises:
        IsomergeError: data that cannot be read, have no labels, or are too few to hold some out.
    """
    if wanted:
        check_limit(how.limit)
        parts = {"path": tuning.task_path, "limit": how.limit, "share": tuning.judge_share, "seed": tuning.seed}
        return Judged(*split_tasks(wanted, donor.checkpoint, **parts))
    examples_of: dict[str, Examples] = {}
    for option, data in named.items():
        if data is None:
            continue
        examples = data_for(donor.checkpoint, data, limit=how.limit, length=how.length, option=option)
        if tuning.objective == LOSS and not examples.labelled:
            check_labelled(examples if option == "--data" else None)
        examples_of[option] = examples
    whole = examples_of["--data"]
    if "--judge-data" in examples_of:
        return Judged(whole, examples_of["--judge-data"])
    search, judge = whole.split(1 - tuning.judge_share, seed=tuning.seed)
    return Judged(search, judge)

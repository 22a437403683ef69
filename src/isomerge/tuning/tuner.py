"""The search: aligned once, every trial merged and measured in memory, and the best one chosen.

A trial is a step of the unfinished output (`isomerge.checkpoint.resume`): a run that was killed repeats what its
sampler had asked, with the losses that were measured, and goes on."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from isomerge.checkpoint.output_folder import BLOBS, unfinished_root
from isomerge.errors import IsomergeError, UnfinishedError
from isomerge.evidence.card import TUNED
from isomerge.files import disk_errors, write_whole
from isomerge.fusion.fusion import Fusion
from isomerge.merging.merge_plan import MergePlan
from isomerge.merging.merge_run import Chosen
from isomerge.merging.recipe.recipe_request import request_of_recipe
from isomerge.merging.recipe.searched import SearchedRecipe
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.substitution import module_as_told
from isomerge.observe.losses import Measure
from isomerge.records import Json, Record, inline, optional
from isomerge.run.connectivity import DataReport
from isomerge.run.unit_work import UnitSolver
from isomerge.run.writing_run import StreamWriter
from isomerge.tuning.harness import version
from isomerge.tuning.objective import CHANCE, ENTROPY, LOSS, NATS, TASKS, measured
from isomerge.tuning.operands import Operands, align_once
from isomerge.tuning.picture import PICTURE, search_picture
from isomerge.tuning.sampling import GRADIENT, study_of, version_of
from isomerge.tuning.slopes import Slopes
from isomerge.tuning.task_documents import SCORE, Score, TaskDocuments
from isomerge.tuning.trial_model import TrialModel
from isomerge.tuning.wanted_tasks import WantedTask

Values = Mapping[str, Any]
"""By the names of dimensions."""
STAMP = "tune-stamp.json"
UNLIKE = {
    "merge": "another recipe, other models, or other options of the output",
    "search": "other ranges, another sampler or another seed",
    "data": "other examples or tasks, or others of them held out",
}
"""How parts of a `Stamp` differ, in words."""


@dataclass(frozen=True)
class Search:
    """How the search is done."""

    trials: int
    sampler: str
    seed: int
    batch_size: int
    device: str
    timeout: float | None = None
    rate: float = 0.03
    """Of steps along the gradient, in shares of ranges."""
    objective: str = LOSS


@dataclass(frozen=True)
class Judged:
    """Examples, or documents of tasks, that are searched on, and those that are held out for the judgement."""

    search: Examples | TaskDocuments
    judge: Examples | TaskDocuments


class Point(Record):
    """Values that were tried, and what the merge is worth with them."""

    values: Values
    loss: float | None = None
    """None: they were refused. Of tasks the score, below 0."""
    accuracy: float | None = None
    units_merged: int = 0
    seconds: float = 0.0
    gradient: Mapping[str, float] | None = optional()
    score: float | None = optional()
    tasks: Mapping[str, float] | None = optional()
    """The summands of the score."""
    refused: str | None = optional()
    repeats: bool | None = optional()
    """True of a point that was measured before."""

    @property
    def searched(self) -> float | None:
        """What was searched on: the loss, or the score."""
        return self.loss if self.score is None else self.score

    def shown(self, *, scored: bool) -> Json:
        """As reports have it, without what another run of the same search would tell otherwise."""
        left_out = ("seconds", "units_merged", "gradient", *(("loss", "accuracy") if scored else ()))
        shown = {key: value for key, value in self.document().items() if key not in left_out}
        return {SCORE: None, **shown} if scored else shown


class Clock(Record):
    """How long a search took, and what was not done again: what a run that was killed in between tells otherwise,
    so that it stands in no file of the output."""

    seconds: Mapping[str, float]
    """``aligning`` units, all ``trials``, and one ``trial``."""
    reused: Mapping[str, Any]


class Tuned(Record):
    """What was searched for, and what came out."""

    sampler: str
    objective: str
    seed: int
    searched: Sequence[Json]
    data: Mapping[str, DataReport]
    """``search`` and ``judge``."""
    unit: str
    search_unit: str
    start: Json
    """The recipe's own values: ``search``, what was searched on, and ``judge``, on what was held out."""
    best: Json
    models: Sequence[Json]
    """The same of each alone."""
    trials: Sequence[Json]
    sentence: str
    notes: Sequence[str]
    rate: float | None = optional()
    """Of steps along the gradient."""
    tasks: Sequence[WantedTask] | None = optional()
    """What the score is the sum of."""
    harness: str | None = optional()
    """The version that asks them."""
    clock: Clock | None = inline(None)


@dataclass(frozen=True)
class Stamp:
    """What trials depend on, in three parts: an unfinished search of something else is never mixed with them, and
    never thrown away unasked."""

    merge: str
    search: str
    data: str

    def document(self) -> dict[str, str]:
        """Digests of the parts."""
        return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in asdict(self).items()}

    def write(self, path: Path) -> None:
        """Keep it with the unfinished output."""
        with disk_errors(path):
            write_whole(path, json.dumps(self.document()).encode())

    def check(self, out: Path) -> None:
        """Refuse to take the place of the unfinished search of something else.

        Args:
            out: the output folder, beside which the unfinished one lies.

        Raises:
            IsomergeError: saying what differs.
        """
        folder = unfinished_root(out)
        try:
            stamped: Any = json.loads((folder / BLOBS / STAMP).read_bytes())
        except (OSError, ValueError):
            return
        own = self.document()
        other = [
            said for name, said in UNLIKE.items() if not isinstance(stamped, dict) or stamped.get(name) != own[name]
        ]
        if other:
            raise IsomergeError(
                f"{folder} has an unfinished search with {'; '.join(other)}: give the same command to go on with "
                f"it, choose another output folder, or remove that one"
            )


@dataclass(frozen=True)
class Tuner:
    """Chooses a merge's parameters by search (`isomerge.merging.merge_run.Choice`)."""

    recipe: SearchedRecipe
    """What is searched for."""
    how: Search
    """In how many trials."""
    data: Judged
    """On what."""
    notes: Sequence[str] = ()

    def stamp(self, plan: MergePlan) -> Stamp:
        """What the trials depend on, in parts."""
        data = self.data
        return Stamp(
            merge=plan.key(),
            search=json.dumps(self._identity(), sort_keys=True),
            data=f"{data.search.fingerprint} {data.judge.fingerprint}",
        )

    def _identity(self) -> list[Any]:
        """What decides which trials are made, and what they are worth."""
        how, dimensions = self.how, [d.document() for d in self.recipe.dimensions]
        identity: list[Any] = [dimensions, how.sampler, how.seed, version_of(how.sampler)]
        return [*identity, how.objective, *([how.rate] if how.sampler == GRADIENT else [])]

    def key(self, plan: MergePlan) -> str:
        """What the output depends on; the number of trials may grow from one run to the next."""
        return hashlib.sha256(json.dumps(self.stamp(plan).document(), sort_keys=True).encode()).hexdigest()

    def __call__(self, plan: MergePlan, stream: StreamWriter, used: Sequence[UnitSolver]) -> Chosen:
        """Align, search and judge; the best fusion, and what gives the aligned units once more."""
        if stream.done("stamp") is None:
            self.stamp(plan).write(stream.writer.blob(STAMP))
            stream.commit("stamp", {})
        began = time.monotonic()
        operands = align_once(plan, stream, used)
        aligned = time.monotonic() - began
        model = TrialModel(plan, stream, operands, device=self.how.device, batch_size=self.how.batch_size)
        slopes = None
        if self.how.sampler == GRADIENT:
            slopes = Slopes(plan, operands, self.recipe.dimensions, self.fusion, self.recipe.start)
        points = self._searched(model, stream, slopes)
        best = min(points, key=lambda point: inf if point.loss is None else point.loss)
        judged = self._judged(model, plan, stream, points[0], best)
        operands.check_unchanged()
        del model
        tuned = self._outcome(points, best, judged)
        files = {
            TUNED: (json.dumps(tuned.document(), indent=2, sort_keys=True) + "\n").encode(),
            PICTURE: search_picture(tuned.document()),
        }
        clock = Clock(_seconds(points, aligned), _reused(points, operands, len(plan.plan.units)))
        outcome = replace(tuned, clock=clock)
        return Chosen(self.fusion(best.values), operands.solvers(), tuned, outcome, tuned.notes, files)

    # -------------------------------------------------------------------------------------------- the trials

    def _searched(self, model: TrialModel, stream: StreamWriter, slopes: Slopes | None) -> list[Point]:
        """The recipe's own values, and those of every trial, as far as time goes."""
        study = study_of(self.recipe.dimensions, self.how.sampler, self.how.seed, self.how.rate)
        ended = time.monotonic() + (self.how.timeout or inf)
        measure = partial(self._measured, model, slopes)
        start = self._point(measure, stream, "start", self.recipe.start)
        if start.loss is None:
            raise IsomergeError(f"{self.recipe.path}: the recipe's own values cannot be merged: {start.refused}")
        study.know(self.recipe.start, start.loss, start.gradient)
        points, known = [start], {_key(start.values): start}
        chosen = stream.done("chosen")
        count = self.how.trials if chosen is None else chosen["trials"]
        for number in range(count):
            if chosen is None and stream.done(f"trial {number}") is None and time.monotonic() > ended:
                break
            if (values := study.ask()) is None:
                break
            stream.observer("trials", number, count)
            point = self._point(measure, stream, f"trial {number}", values, known.get(_key(values)))
            study.tell(point.loss, point.gradient)
            points.append(point)
            known.setdefault(_key(values), point)
        if chosen is None:
            stream.commit("chosen", {"trials": len(points) - 1})
        return points

    def _unmade(self, points: Sequence[Point]) -> list[str]:
        """Why there were no more trials, where there were fewer than asked for."""
        if (made := len(points) - 1) >= self.how.trials:
            return []
        why = "--timeout was over"
        if self.how.sampler == "grid":
            why = "the grid has no more points"
        elif self.how.sampler == GRADIENT and points[-1].loss is None:
            why = "the last one was refused, and no gradient leads on"
        return [f"{made} of {self.how.trials} trials were made: {why}"]

    def _point(
        self,
        measure: Callable[[Values], Point],
        stream: StreamWriter,
        name: str,
        values: Values,
        known: Point | None = None,
    ) -> Point:
        """One point, measured, or as it was measured before."""
        record = stream.done(name)
        if record is not None:
            if record["values"] != values:
                raise UnfinishedError(
                    f"{stream.output.out}: the trials of the unfinished search cannot be repeated ({name} was "
                    f"{record['values']}, and is {values}): remove {stream.writer.folder}"
                )
            return Point(**record)
        again = None if known is None else replace(known, units_merged=0, seconds=0.0, repeats=True)
        point = again or measure(values)
        stream.commit(name, point.document())
        return point

    def _measured(self, model: TrialModel, slopes: Slopes | None, values: Values) -> Point:
        began, point = time.monotonic(), Point(values)
        try:
            point = replace(point, units_merged=model.merge(self.fusion(values)))
            if slopes is None or isinstance(self.data.search, TaskDocuments):
                measure = model.measure(self.data.search, self.how.objective)
            else:
                measure, slope = model.descent(self.data.search, self.how.objective, slopes, values)
                point = replace(point, gradient=slope)
            point = replace(point, loss=measure.loss, accuracy=measure.accuracy, **_score(measure))
        except IsomergeError as error:  # values that do not go together, or a model that gives no numbers
            point = replace(point, refused=error.sentence)
        return replace(point, seconds=time.monotonic() - began)

    def fusion(self, values: Values) -> Fusion:
        """Of the recipe with some values."""
        return request_of_recipe(self.recipe.filled(values)).fusion

    # -------------------------------------------------------------------------------------------- the judgement

    @property
    def _judging(self) -> str:
        """What is measured on the examples that were held out: the loss, wherever they have labels."""
        return LOSS if self.data.judge.labelled else self.how.objective

    def _judged(self, model: TrialModel, plan: MergePlan, stream: StreamWriter, start: Point, best: Point) -> Json:
        """The best values, the recipe's own and every model alone, on the examples that were held out."""
        record = stream.done("judged")
        if record is not None:
            return record
        judged: Json = {}
        for name, point in (("best", best), ("start", start)):
            stream.observer(f"judging: {name}", len(judged), 2 + len(plan.read))
            model.merge(self.fusion(point.values))
            measure = model.measure(self.data.judge, self._judging)
            judged[name] = {"search": point.searched, "judge": _figures(measure)}
            judged |= {"unit": measure.unit}
        judged["search_unit"] = NATS if self.how.objective == ENTROPY else judged["unit"]
        judged["models"] = []
        for number, alone in enumerate({model.ref: model for model in plan.models}.values()):
            stream.observer(f"judging: {alone.ref}", 2 + number, 2 + len(plan.read))
            try:
                module = module_as_told(alone, self.how.device)
                parts = ((self.data.search, self.how.objective), (self.data.judge, self._judging))
                measures = [measured(module, part, self.how.batch_size, what) for part, what in parts]
            except IsomergeError as error:  # such as a base without a head
                judged["models"].append(
                    {"model": alone.ref, "search": None, "judge": None, "refused": error.sentence}
                )
                continue
            searched = _score(measures[0]).get(SCORE, measures[0].loss)
            judged["models"].append({"model": alone.ref, "search": searched, "judge": _figures(measures[1])})
        stream.commit("judged", judged)
        return judged

    def _outcome(self, points: Sequence[Point], best: Point, judged: Json) -> Tuned:
        """What is said of the search."""
        how, searched, start = self.how, self.data.search, points[0]
        sentence, doubts = verdict_of(judged, own=best is start)
        refused = [point.refused for point in points if point.loss is None]
        notes = [*self.notes, *self._unmade(points)]
        if refused:
            notes.append(
                f"{len(refused)} of {len(points) - 1} trials were refused, the first because: {refused[0]}"
            )
        scored = how.objective == TASKS
        asks = isinstance(searched, TaskDocuments)
        trial = next(k for k, point in enumerate(points) if point is best)
        parts = {"search": searched, "judge": self.data.judge}
        return Tuned(
            sampler=how.sampler,
            objective=how.objective,
            seed=how.seed,
            searched=[d.document() for d in self.recipe.dimensions],
            data={part: DataReport(len(examples), examples.fingerprint) for part, examples in parts.items()},
            unit=judged["unit"],
            search_unit=judged["search_unit"],
            start={"values": start.values, **judged["start"]},
            best={"values": best.values, "trial": trial, **judged["best"]},
            models=judged["models"],
            trials=[point.shown(scored=scored) for point in points[1:]],
            sentence=sentence,
            notes=[*notes, *doubts, *([CHANCE] if self._judging == ENTROPY else [])],
            rate=how.rate if how.sampler == GRADIENT else None,
            tasks=searched.wanted if asks else None,
            harness=version() if asks else None,
        )


def verdict_of(judged: Mapping[str, Any], *, own: bool) -> tuple[str, list[str]]:
    """One sentence on the values found, and what it doubts as notes.

    Args:
        judged: ``best`` and ``start`` (``judge.loss``, or ``judge.score`` of tasks, more of which is better),
            ``models`` (``model``, ``judge`` or None), ``unit``.
        own: whether the best values are the recipe's own.
    """
    figures = judged["best"]["judge"]
    key, sign, read = (SCORE, -1, "documents") if SCORE in figures else ("loss", 1, "examples")
    best, start = figures[key], judged["start"]["judge"][key]
    rows = [(row["judge"][key], row["model"]) for row in judged["models"] if row["judge"] is not None]
    models = sorted(rows, key=lambda row: sign * row[0])
    doubts = []
    if own:
        doubts.append(
            f"no trial was better than the recipe's own values on the {read} of the search, and these are written"
        )
    elif sign * best >= sign * start:
        doubts.append(
            f"on the held-out {read} the values found ({best:.4g}) are no better than the recipe's own "
            f"({start:.4g})"
        )
    if models and sign * models[0][0] <= sign * best:
        figure, name = models[0]
        doubts.append(f"on the held-out {read} {name} alone ({figure:.4g}) is no worse than the merge ({best:.4g})")
    if doubts:
        text = "; ".join(doubts)
        return f"{text[0].upper()}{text[1:]}.", doubts
    said = f"a score of {best:.4g}" if key == SCORE else f"{best:.4g} {judged['unit']}"
    than = f" and {models[0][0]:.4g} of the best model alone" if models else ""
    return (
        f"On the held-out {read} the values found give {said}, against {start:.4g} of the recipe's own{than}.",
        [],
    )


def _seconds(points: Sequence[Point], aligned: float) -> dict[str, float]:
    measured = [point.seconds for point in points if not point.repeats]
    return {"aligning": aligned, "trials": sum(measured), "trial": sum(measured) / len(measured)}


def _reused(points: Sequence[Point], operands: Operands, units: int) -> Mapping[str, Any]:
    """What trials did not do again: units that were aligned once, those that a trial left as the one before had
    merged them, and points that were known."""
    return {
        "aligned_units": len(operands.results),
        "operands_on_disk": operands.on_disk,
        "units_merged": sum(point.units_merged for point in points),
        "units_left": sum(units - point.units_merged for point in points[1:]),
        "repeated_points": sum(1 for point in points if point.repeats),
    }


def _key(values: Values) -> str:
    return json.dumps(values, sort_keys=True)


def _score(measure: Measure) -> Json:
    """Of tasks the score and its summands; nothing of a loss."""
    return {SCORE: -measure.loss, "tasks": dict(measure.tasks)} if isinstance(measure, Score) else {}


def _figures(measure: Measure) -> Json:
    return _score(measure) or measure.losses.document()

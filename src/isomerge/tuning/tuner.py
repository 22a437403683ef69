"""The search: aligned once, every trial merged and measured in memory, and the best one chosen.

A trial is a step of the unfinished output (`isomerge.checkpoint.resume`): a run that was killed repeats what its
sampler had asked, with the losses that were measured, and goes on."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isomerge.errors import IsomergeError, UnfinishedError
from isomerge.evidence.card import TUNED
from isomerge.fusion.fusion import Fusion
from isomerge.merging.merge_plan import MergePlan
from isomerge.merging.recipe.recipe_request import request_of_recipe
from isomerge.merging.recipe.searched import SearchedRecipe
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.substitution import module_as_told
from isomerge.observe.losses import Measure
from isomerge.run.unit_work import UnitSolver
from isomerge.run.writing_run import StreamWriter
from isomerge.tuning.harness import version
from isomerge.tuning.objective import CHANCE, ENTROPY, LOSS, NATS, TASKS, measured
from isomerge.tuning.operands import Operands, align_once
from isomerge.tuning.picture import PICTURE, search_picture
from isomerge.tuning.sampling import GRADIENT, study_of, version_of
from isomerge.tuning.slopes import Slopes
from isomerge.tuning.stamp import STAMP, Stamp
from isomerge.tuning.task_documents import SCORE, Score, TaskDocuments
from isomerge.tuning.trial_model import TrialModel
from isomerge.tuning.verdict import verdict_of

Values = dict[str, Any]
"""By the names of dimensions."""


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


@dataclass
class Tuner:
    """Chooses a merge's parameters by search (`isomerge.merging.merge_run.Choice`).

    Args:
        recipe: what is searched for.
        how: in how many trials.
        data: on what.
    """

    recipe: SearchedRecipe
    how: Search
    data: Judged
    report: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    chosen: Fusion | None = None
    _slopes: Slopes | None = None
    """Where trials are steps along the gradient."""
    clock: dict[str, Any] = field(default_factory=dict)
    """How long it took and what was not done again: what a run that was killed in between tells otherwise, so that
    it stands in no file of the output."""

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

    def __call__(
        self, plan: MergePlan, stream: StreamWriter, used: Sequence[UnitSolver]
    ) -> tuple[Fusion, Sequence[UnitSolver]]:
        """Align, search and judge; the best fusion, and what gives the aligned units once more."""
        if stream.done("stamp") is None:
            self.stamp(plan).write(stream.writer.blob(STAMP))
            stream.commit("stamp", {})
        began = time.monotonic()
        operands = align_once(plan, stream, used)
        aligned = time.monotonic() - began
        model = TrialModel(plan, stream, operands, device=self.how.device, batch_size=self.how.batch_size)
        if self.how.sampler == GRADIENT:
            self._slopes = Slopes(plan, operands, self.recipe.dimensions, self._fusion, self.recipe.start)
        rows = self._searched(model, stream)
        best = min((row for row in rows if row["loss"] is not None), key=lambda row: row["loss"])
        judged = self._judged(model, plan, stream, rows, best)
        operands.check_unchanged()
        del model
        self.chosen = self._fusion(best["values"])
        self._tell(rows, best, judged)
        self.clock = {"seconds": _seconds(rows, aligned), "reused": _reused(rows, operands, len(plan.plan.units))}
        return self.chosen, operands.solvers()

    # -------------------------------------------------------------------------------------------- the trials

    def _searched(self, model: TrialModel, stream: StreamWriter) -> list[dict[str, Any]]:
        """A row for the recipe's own values, and one for every trial, as far as time goes."""
        study = study_of(self.recipe.dimensions, self.how.sampler, self.how.seed, self.how.rate)
        ended = time.monotonic() + (self.how.timeout or float("inf"))
        start = self._row(model, stream, "start", self.recipe.start)
        if start["loss"] is None:
            raise IsomergeError(f"{self.recipe.path}: the recipe's own values cannot be merged: {start['refused']}")
        study.know(self.recipe.start, start["loss"], start.get("gradient"))
        rows, known = [start], {_key(start["values"]): start}
        chosen = stream.done("chosen")
        count = self.how.trials if chosen is None else chosen["trials"]
        for number in range(count):
            if chosen is None and stream.done(f"trial {number}") is None and time.monotonic() > ended:
                break
            if (values := study.ask()) is None:
                break
            stream.observer("trials", number, count)
            row = self._row(model, stream, f"trial {number}", values, known.get(_key(values)))
            study.tell(row["loss"], row.get("gradient"))
            rows.append(row)
            known.setdefault(_key(values), row)
        made = len(rows) - 1
        if chosen is None:
            stream.commit("chosen", {"trials": made})
        if made < self.how.trials:
            self.notes.append(f"{made} of {self.how.trials} trials were made: {self._end(rows)}")
        return rows

    def _end(self, rows: Sequence[Mapping[str, Any]]) -> str:
        """Why there were no more trials."""
        if self.how.sampler == "grid":
            return "the grid has no more points"
        refused = self.how.sampler == GRADIENT and rows[-1]["loss"] is None
        return "the last one was refused, and no gradient leads on" if refused else "--timeout was over"

    def _row(
        self,
        model: TrialModel,
        stream: StreamWriter,
        name: str,
        values: Values,
        known: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """One point, measured, or as it was measured before."""
        record = stream.done(name)
        if record is not None:
            if record["values"] != values:
                raise UnfinishedError(
                    f"{stream.output.out}: the trials of the unfinished search cannot be repeated ({name} was "
                    f"{record['values']}, and is {values}): remove {stream.writer.folder}"
                )
            return record
        if known is not None:
            row = {**known, "units_merged": 0, "seconds": 0.0, "repeats": True}
        else:
            row = self._measured(model, values)
        stream.commit(name, row)
        return row

    def _measured(self, model: TrialModel, values: Values) -> dict[str, Any]:
        began, row = time.monotonic(), {"values": values, "loss": None, "accuracy": None, "units_merged": 0}
        try:
            row["units_merged"] = model.merge(self._fusion(values))
            if self._slopes is None or isinstance(self.data.search, TaskDocuments):
                measure = model.measure(self.data.search, self.how.objective)
            else:
                measure, slope = model.descent(self.data.search, self.how.objective, self._slopes, values)
                row["gradient"] = slope
            row |= {"loss": measure.loss, "accuracy": measure.accuracy, **_score(measure)}
        except IsomergeError as error:  # values that do not go together, or a model that gives no numbers
            row["refused"] = error.sentence
        return {**row, "seconds": time.monotonic() - began}

    def _fusion(self, values: Mapping[str, Any]) -> Fusion:
        return request_of_recipe(self.recipe.filled(values)).fusion

    # -------------------------------------------------------------------------------------------- the judgement

    @property
    def _judging(self) -> str:
        """What is measured on the examples that were held out: the loss, wherever they have labels."""
        return LOSS if self.data.judge.labelled else self.how.objective

    def _judged(
        self,
        model: TrialModel,
        plan: MergePlan,
        stream: StreamWriter,
        rows: Sequence[dict[str, Any]],
        best: dict[str, Any],
    ) -> dict[str, Any]:
        """The best values, the recipe's own and every model alone, on the examples that were held out."""
        record = stream.done("judged")
        if record is not None:
            return record
        judged: dict[str, Any] = {}
        for name, row in (("best", best), ("start", rows[0])):
            stream.observer(f"judging: {name}", len(judged), 2 + len(plan.read))
            model.merge(self._fusion(row["values"]))
            measure = model.measure(self.data.judge, self._judging)
            judged[name] = {"search": row.get(SCORE, row["loss"]), "judge": _figures(measure)}
            judged |= {"unit": measure.unit}
        judged["search_unit"] = NATS if self.how.objective == ENTROPY else judged["unit"]
        judged["models"] = []
        for number, one in enumerate({one.ref: one for one in plan.models}.values()):
            stream.observer(f"judging: {one.ref}", 2 + number, 2 + len(plan.read))
            try:
                module = module_as_told(one, self.how.device)
                parts = ((self.data.search, self.how.objective), (self.data.judge, self._judging))
                measures = [measured(module, part, self.how.batch_size, what) for part, what in parts]
            except IsomergeError as error:  # such as a base without a head
                judged["models"].append(
                    {"model": one.ref, "search": None, "judge": None, "refused": error.sentence}
                )
                continue
            searched = _score(measures[0]).get(SCORE, measures[0].loss)
            judged["models"].append({"model": one.ref, "search": searched, "judge": _figures(measures[1])})
        stream.commit("judged", judged)
        return judged

    def _tell(self, rows: Sequence[dict[str, Any]], best: dict[str, Any], judged: dict[str, Any]) -> None:
        """Fill the report, the notes and the files beside the output."""
        if refused := [row for row in rows if row["loss"] is None]:
            self.notes.append(
                f"{len(refused)} of {len(rows) - 1} trials were refused, the first because: {refused[0]['refused']}"
            )
        sentence, notes = verdict_of(judged, own=best is rows[0])
        self.notes += [*notes, *([CHANCE] if self._judging == ENTROPY else [])]
        scored = self.how.objective == TASKS
        left_out = (*CLOCK, "gradient", *(("loss", "accuracy") if scored else ()))
        plain = [
            {**({SCORE: None} if scored else {}), **{k: v for k, v in row.items() if k not in left_out}}
            for row in rows
        ]
        self.report |= {
            "sampler": self.how.sampler,
            "objective": self.how.objective,
            **({"rate": self.how.rate} if self.how.sampler == GRADIENT else {}),
            **self._tasks(),
            "seed": self.how.seed,
            "searched": [d.document() for d in self.recipe.dimensions],
            "data": {
                part: {"examples": len(examples), "fingerprint": examples.fingerprint}
                for part, examples in (("search", self.data.search), ("judge", self.data.judge))
            },
            "unit": judged["unit"],
            "search_unit": judged["search_unit"],
            "start": {"values": rows[0]["values"], **judged["start"]},
            "best": {
                "values": best["values"],
                "trial": next(k for k, row in enumerate(rows) if row is best),
                **judged["best"],
            },
            "models": judged["models"],
            "trials": plain[1:],
            "sentence": sentence,
            "notes": list(self.notes),
        }
        self.files |= {
            TUNED: (json.dumps(self.report, indent=2, sort_keys=True) + "\n").encode(),
            PICTURE: search_picture(self.report),
        }

    def _tasks(self) -> dict[str, Any]:
        """What the score is the sum of, and whose it is."""
        searched = self.data.search
        if not isinstance(searched, TaskDocuments):
            return {}
        return {"tasks": [one.document() for one in searched.wanted], "harness": version()}


CLOCK = ("seconds", "units_merged")
"""Of a row: what another run of the same search would tell otherwise."""


def _seconds(rows: Sequence[Mapping[str, Any]], aligned: float) -> dict[str, float]:
    """Of the alignment of units, of all trials, and of one."""
    measured = [row["seconds"] for row in rows if not row.get("repeats")]
    return {"aligning": aligned, "trials": sum(measured), "trial": sum(measured) / len(measured)}


def _reused(rows: Sequence[Mapping[str, Any]], operands: Operands, units: int) -> dict[str, Any]:
    """What trials did not do again: units that were aligned once, those that a trial left as the one before had
    merged them, and points that were known."""
    return {
        "aligned_units": len(operands.results),
        "operands_on_disk": operands.on_disk,
        "units_merged": sum(row["units_merged"] for row in rows),
        "units_left": sum(units - row["units_merged"] for row in rows[1:]),
        "repeated_points": sum(1 for row in rows if row.get("repeats")),
    }


def _key(values: Values) -> str:
    return json.dumps(values, sort_keys=True)


def _score(measure: Measure) -> dict[str, Any]:
    """Of tasks the score and its summands; nothing of a loss."""
    return {SCORE: -measure.loss, "tasks": dict(measure.tasks)} if isinstance(measure, Score) else {}


def _figures(measure: Measure) -> dict[str, Any]:
    return _score(measure) or {"loss": measure.loss, "accuracy": measure.accuracy, "perplexity": measure.perplexity}

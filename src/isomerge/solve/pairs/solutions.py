"""Solutions found by passes over whole models, before anything is written: streams, activations, search, learning.

Each stage starts from the one before it: weights (and activations) by block coordinate descent, then a forward-only
search, then learning by gradient. The result is one alignment per source, kept in the folder of the unfinished
output, so that an interrupted run goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from isomerge.errors import IsomergeError
from isomerge.observe.data.examples import Examples
from isomerge.progress import Observer
from isomerge.records import Json
from isomerge.solve.learn.learner import Learner
from isomerge.solve.learn.settings import LearnSettings
from isomerge.solve.learn.simplex import MatchedLine
from isomerge.solve.match_inputs import check_labels
from isomerge.solve.match_names import published
from isomerge.solve.match_options import OURS, Matching
from isomerge.solve.pairs.in_place import nearest_in_place
from isomerge.solve.pairs.input_metric import match_in_metric
from isomerge.solve.pairs.match_evidence import MatchEvidence
from isomerge.solve.pairs.pair import PairSolver
from isomerge.solve.pairs.rematch import match_functionally
from isomerge.solve.pairs.search import search_forward
from isomerge.solve.pairs.stream_descent import StreamSolver
from isomerge.solve.unfinished_run import UnfinishedRun, load_parts, save_parts
from isomerge.symmetry.alignment import Alignment


@dataclass
class Solver:
    """Solves one pair; ``state`` is where a learning run keeps its own."""

    pair: PairSolver
    evidence: MatchEvidence
    state: Path
    observer: Observer
    number: int = 0
    report: Json = field(default_factory=dict)

    def solve(self) -> Alignment:
        """The element of the whole source."""
        how, learn = self.evidence.matching, self.evidence.learned_from
        if learn is not None:
            check_labels(how, learn)
        anchor, source = self.evidence.of_anchor, self.evidence.of_source(self.pair.source, self.number)
        activations = None if anchor is None or source is None else (anchor, source)
        search = StreamSolver(self.pair, self.observer, activations, how.evidence)
        solution = search.solve()
        self.report = dict(solution.report)
        if how.input_metric:
            self.report["input_metric"] = self.matched_in_metric(search)
            solution.alignment = search.alignment()
        examples = self.evidence.examples
        if how.functional and examples is not None and how.evidence == "both":
            self.report["functional"] = self.matched_functionally(search, examples)
            solution.alignment = search.alignment()
        if how.search is not None and examples is not None:
            self.report["search"] = self.searched(search, examples, how.search)
            solution.alignment = search.alignment()
        if learn is None:
            if self.pair.guard and not how.needs_models:  # by weights alone, where nothing may end farther
                solution.alignment, self.report["in_place"] = nearest_in_place(
                    self.pair, solution.alignment, self.observer
                )
            return solution.alignment

        line = MatchedLine(search, how.settings or LearnSettings())
        try:
            learned = Learner(line, learn, self.state, self.observer).run()
        except IsomergeError as error:
            if not how.tentative:
                raise
            self.report["not_learned"] = str(error)
            return solution.alignment
        self.report["learned"] = learned.report
        return search.alignment(learned.elements[0])

    def matched_in_metric(self, solver: StreamSolver) -> list[str]:
        """Match inside layers again, by the change of their outputs; returns the units that were."""

        statistics = (
            self.evidence.moments_of_anchor,
            self.evidence.moments_of_source(self.pair.source, self.number),
        )
        self.observer("matching layers by the change of their outputs", 0, 1)
        return match_in_metric(solver, statistics, self.evidence.matching.evidence)

    def matched_functionally(self, solver: StreamSolver, examples: Examples) -> list[str]:
        """Match feed-forward layers once more, by what averaging their neurons costs; returns the units that
        were."""

        self.observer("matching neurons by what they compute", 0, 1)
        return match_functionally(solver, examples, self.evidence.matching.device)

    def searched(self, solver: StreamSolver, examples: Examples, seconds: float) -> Json:
        """Search forward from a solver's solution, once: an interrupted run takes its outcome, for learning from
        there."""

        kept = self.state.with_name(f"search-{self.number}.safetensors")
        report = load_places(kept, solver)
        if report is None:
            how = self.evidence.matching
            seed = how.settings.seed if how.settings else 0
            report = search_forward(solver, examples, seconds, self.observer, seed=seed, device=how.device)
            save_places(kept, solver, report)
        return report


def prepare_solutions(
    run: UnfinishedRun, solvers: Sequence[PairSolver], matching: Matching
) -> tuple[list[PairSolver], list[Json]]:
    """Solve every source whose match takes more than one unit at a time, once; the solvers with what is ``given``,
    and a report per source that was solved.

    Without residual streams, data or learning there is nothing to do: units are then matched as they are written.
    """
    if not solvers:  # one model alone
        return [], []
    if matching.match != OURS:
        return published().prepare_baseline(run, solvers, matching)
    reports, solved = [], list(solvers)
    evidence = MatchEvidence(matching, solvers[0].anchor, run.observer)
    for k, pair in enumerate(solvers):
        if pair.left or (pair.plan.selection.frame is None and not matching.needs_models):
            continue
        path, key = run.blob(f"solution-{k}.safetensors"), f"solution {k}"
        record = run.done(key)
        if record is None:
            state = run.blob(f"learning-{k}.safetensors")
            looked = pair if matching.needs_models else pair.undisguised()
            solver = Solver(looked, evidence, state, run.observer, k)
            given = solver.solve()
            given.save(path)
            run.commit(key, record := solver.report)
        else:
            given = Alignment.load(path, pair.source.spec)
        solved[k] = replace(pair, given=given, norms_stay="learned" in record)
        reports.append(record)
    return solved, reports


def save_places(path: Path, solver: StreamSolver, report: Json) -> None:
    """Write where a solver's source is (its streams and units), complete or not at all, with a report."""
    parts = {"turn": solver.turn.elements, **{f"in {unit}": elements for unit, elements in solver.inner.items()}}
    save_parts(path, parts, {"units": list(solver.inner), "report": report})


def load_places(path: Path, solver: StreamSolver) -> Json | None:
    """Bring a solver's source to where `save_places` has written that it is; returns the report, None without a
    file."""
    kept = load_parts(path)
    if kept is None:
        return None
    parts, about = kept
    solver.turn = Alignment(solver.frame, parts.get("turn"))
    solver.inner = {unit: parts.get(f"in {unit}", {}) for unit in about["units"]}
    return about["report"]

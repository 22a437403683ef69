"""Published ways to match, for comparison: Git Re-Basin, OTFusion, and the optimal-transport fusions, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from isomerge.progress import Observer
from isomerge.records import Json
from isomerge.research.baselines.rebasin import ActivationMatching, WeightMatching
from isomerge.research.baselines.transport_maps import METHODS, changed
from isomerge.research.baselines.transport_solver import TransportSolver, match_by_transport, transport_solutions
from isomerge.solve.match_names import BY_ACTIVATIONS, CENTRED, transport_of
from isomerge.solve.match_options import Matching
from isomerge.solve.pairs.match_evidence import MatchEvidence
from isomerge.solve.pairs.pair import PairSolver
from isomerge.solve.unfinished_run import UnfinishedRun
from isomerge.symmetry.alignment import Alignment

__all__ = ["METHODS", "changed", "prepare_baseline", "prepare_transport"]


def prepare_baseline(
    run: UnfinishedRun, solvers: Sequence[PairSolver], matching: Matching
) -> tuple[list[PairSolver], list[Json]]:
    """Match every source by an exact baseline, once; the solvers with what is ``given`` by it, and a report per
    source."""
    reports, solved = [], []
    evidence = MatchEvidence(matching, solvers[0].anchor, run.observer)
    for k, pair in enumerate(solvers):
        path, key = run.blob(f"solution-{k}.safetensors"), f"solution {k}"
        record = run.done(key)
        if record is None:
            given, record = _solve(pair, evidence, run.observer, k)
            given.save(path)
            run.commit(key, record)
        else:
            given = Alignment.load(path, pair.source.spec)
        solved.append(replace(pair, given=given))
        reports.append(record)
    return solved, reports


def _solve(pair: PairSolver, evidence: MatchEvidence, observer: Observer, number: int) -> tuple[Alignment, Json]:
    matching = evidence.matching
    if matching.match == "git-rebasin":
        seed = matching.settings.seed if matching.settings else 0
        return WeightMatching(pair, observer, seed=seed).solve()
    if matching.match in BY_ACTIVATIONS:
        anchor, source = evidence.of_anchor, evidence.of_source(pair.source, number)
        assert anchor is not None, "there are data"
        assert source is not None, "there are data"
        return ActivationMatching(pair, (anchor, source), observer, centred=matching.match == CENTRED).solve()
    return match_by_transport(pair, METHODS[matching.match], observer)


def prepare_transport(
    run: UnfinishedRun, pairs: Sequence[PairSolver], matching: Matching
) -> tuple[list[TransportSolver], list[Json]]:
    """The solvers of a fusion by optimal transport, with their maps made, and a report per source."""
    settings = transport_of(matching)
    assert settings is not None, "it is a way of optimal transport"
    solvers = [TransportSolver(pair, settings) for pair in pairs]
    return solvers, transport_solutions(run, solvers, matching)

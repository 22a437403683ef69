"""Published ways to match, for comparison: Git Re-Basin, OTFusion, and the optimal-transport fusions, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.solve.baselines.rebasin import match_by_rebasin
from isomerge.solve.baselines.transport_solver import (
    METHODS,
    TransportSolver,
    match_by_transport,
    transport_solutions,
)
from isomerge.solve.match_options import OURS, Matching
from isomerge.solve.pairs.pair import PairSolver
from isomerge.solve.unfinished_run import UnfinishedRun
from isomerge.symmetry.alignment import Alignment

EXACT = ("git-rebasin", "otfusion")
"""Their result is an element of the symmetry group."""
SOFT = ("ot-wts", "ot-acts", "ot-acts-emd")
"""Their result is a fusion: the transported source is another function."""
MATCHES = (OURS, *EXACT, *SOFT)


def check_match(matching: Matching) -> None:
    """Refuse an unknown way to match, and options that only ours has.

    Raises:
        IsomergeError: naming the option.
    """
    if matching.match not in MATCHES:
        raise IsomergeError(f"--match {matching.match}: choose from {', '.join(MATCHES)}")
    if matching.match == OURS:
        return
    looks = matching.match in ("ot-acts", "ot-acts-emd")
    others = {
        "--stats-src": matching.stats, "--learn": matching.learn, "--search": matching.search,
        "--input-metric": matching.input_metric,
    }  # fmt: skip
    if idle := [name for name, value in others.items() if value]:
        raise IsomergeError(f"{idle[0]} does not go with --match {matching.match}: leave one of them out")
    if looks and matching.data is None:
        raise IsomergeError(f"--match {matching.match} compares activations: add --data DATA")


def prepare_baseline(run: UnfinishedRun, solvers: Sequence[PairSolver], matching: Matching) -> list[dict[str, Any]]:
    """Match every source by an exact baseline, once; ``given`` of every solver is set. Returns a report per
    source."""
    reports = []
    for k, pair in enumerate(solvers):
        path, key = run.blob(f"solution-{k}.safetensors"), f"solution {k}"
        record = run.done(key)
        if record is None:
            pair.given, record = _solve(pair, matching, run)
            pair.given.save(path)
            run.commit(key, record)
        else:
            pair.given = Alignment.load(path, pair.source.spec)
        reports.append(record)
    return reports


def _solve(pair: PairSolver, matching: Matching, run: UnfinishedRun) -> tuple[Alignment, dict[str, Any]]:
    observer = run.observer
    if matching.match == "git-rebasin":
        seed = matching.settings.seed if matching.settings else 0
        return match_by_rebasin(pair, observer, seed=seed)

    return match_by_transport(pair, observer=observer)


def prepare_transport(
    run: UnfinishedRun, pairs: Sequence[PairSolver], matching: Matching
) -> tuple[list[TransportSolver], list[dict[str, Any]]]:
    """The solvers of a fusion by optimal transport, with their maps made, and a report per source."""

    solvers = [TransportSolver(pair, METHODS[matching.match]) for pair in pairs]
    return solvers, transport_solutions(run, solvers, matching)

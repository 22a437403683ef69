"""The options of a match, checked before anything is read."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.accelerator import CPU, check_device
from isomerge.observe.read_files import paths_read
from isomerge.observe.stats.statistics_header import check_statistics
from isomerge.options.unused import note
from isomerge.solve.baselines.baselines import check_match
from isomerge.solve.canonical.canonical_units import SHARES
from isomerge.solve.match_options import OURS, Matching


def check_matching(matching: Matching, sources: int, spaces: str = "") -> None:
    """Refuse contradictions before anything is read.

    Raises:
        IsomergeError: naming the options.
    """
    check_match(matching)
    if matching.match != OURS and spaces.startswith("paper"):
        raise IsomergeError(
            f"--spaces {spaces} is another algorithm than --match {matching.match}: choose one of them"
        )
    if matching.needs_models and spaces.startswith("paper"):
        raise IsomergeError(
            f"--spaces {spaces} is an algorithm of weights alone: leave the data out, or choose other spaces"
        )
    if matching.device != CPU:  # else torch would be imported for a check that cannot fail
        check_device(matching.device)
    if matching.stats and len(matching.stats) != sources + 1:
        raise IsomergeError(
            f"{len(matching.stats)} statistics files are given, but there are {sources + 1} models: name one for each"
        )
    if matching.stats and matching.data:
        raise IsomergeError("--data and --stats-src are two sources of activations: choose one")
    if matching.evidence not in SHARES:
        raise IsomergeError(f"--evidence {matching.evidence}: choose from {', '.join(SHARES)}")
    if matching.evidence != "both" and not (matching.data or matching.stats or matching.learn):
        raise IsomergeError(
            f"--evidence {matching.evidence} is a choice where there are activations: add --data DATA, or files of isomerge stats"
        )
    if matching.rows < 1:
        raise IsomergeError(f"--rows {matching.rows}: at least 1 is needed")
    if matching.input_metric and not (matching.data or matching.stats or matching.learn):
        raise IsomergeError("--input-metric needs what layers read: add --data DATA, or files of isomerge stats")
    if matching.search is not None and not (matching.data or matching.learn):
        raise IsomergeError("--search needs examples to judge by: add --data DATA")
    if matching.search is not None and not (isfinite(matching.search) and matching.search > 0):
        raise IsomergeError(f"--search {matching.search}: give a time in seconds")


def check_statistics_files(matching: Matching, models: Sequence[Model]) -> None:
    """Refuse statistics files that are none, or of different data, before a weight is read.

    Args:
        matching: the options; its files are the anchor's, then one per source.
        models: the anchor, then the sources.
    """
    if matching.stats:
        check_statistics(matching.stats, models)


def files_of_matching(matching: Matching) -> tuple[Path, ...]:
    """The files and folders that a match reads beside the models."""
    return paths_read(matching.data, matching.learn, *matching.stats)


def matching_of(
    *,
    data: str | Path | Examples | None = None,
    stats_src: str | Path | Sequence[str | Path] | None = None,
    stats_anchor: str | Path | None = None,
    evidence: str = "both",
    search: float | None = None,
    learn: str | Path | Examples | None = None,
    learn_effort: str = "quick",
    learn_target: str = "auto",
    steps: int | None = None,
    functional: bool = True,
    permutations: bool = False,
    batch_size: int | None = None,
    device: str = "cpu",
    precision: str = "float32",
    gradient_checkpointing: bool = False,
    limit: int | None = None,
    length: int = 128,
    rows: int = 1024,
    seed: int = 0,
    match: str = "isomerge",
    input_metric: bool = False,
) -> Matching:
    """A `Matching` from the options of the command line.

    Args:
        data: examples to read activations from, or what `isomerge.observe.data.opening_data.open_data` opens.
        stats_src, stats_anchor: files of ``isomerge stats`` instead: the sources' and the anchor's.
        evidence: with activations: ``activations``, ``both`` (with weights), or ``weights``.
        search: seconds of forward-only search.
        learn: examples to learn from by gradient.
        learn_effort: ``quick`` or ``thorough``; ``steps`` overrides it.
        learn_target: ``labels``, ``distill`` or ``auto``.
        functional: with data, match neurons once more by what averaging a pair would cost.
        input_metric: with data or files, match inside layers by the change of their outputs (data-weighted Procrustes).
        permutations: learn permutations as well, by a straight-through assignment.
        batch_size: examples per learning step.
        device: where units are matched and models run.
        precision, gradient_checkpointing: how models run.
        limit, length, rows: examples, tokens per example, and activation rows that are kept.
        seed: of everything that is drawn.
        match: ``isomerge``, or a baseline: ``git-rebasin``, ``otfusion``, and for merges ``ot-wts``, ``ot-acts``, ``ot-acts-emd``.

    Raises:
        IsomergeError: an unknown or impossible value.
    """
    from isomerge.observe.data.refused_data import check_given
    from isomerge.solve.learn.settings import settings_of

    check_given(data, "--data")
    check_given(learn, "--learn")
    sources = [stats_src] if isinstance(stats_src, (str, Path)) else list(stats_src or ())
    if bool(sources) != bool(stats_anchor):
        raise IsomergeError("--stats-src and --stats-anchor belong together: give both")
    settings = settings_of(
        learn_effort, steps, target=learn_target, permutations=permutations, batch_size=batch_size, device=device,
        precision=precision, checkpointing=gradient_checkpointing, seed=seed,
    )  # fmt: skip
    given = {
        "--steps": steps is not None,
        "--batch-size": batch_size is not None,
        "--learn-effort": learn_effort != "quick",
        "--learn-target": learn_target != "auto",
        "--learn-permutations": permutations,
        "--precision": precision != "float32",
        "--gradient-checkpointing": gradient_checkpointing,
    }
    if learn is None and (idle := [name for name, asked in given.items() if asked]):
        raise IsomergeError(f"{idle[0]} is for learning: add --learn DATA")
    if steps is not None and learn_effort != "quick":
        note("learn_effort", "--steps says how long to learn")
    stats = (str(stats_anchor), *map(str, sources)) if sources else ()
    return Matching(
        data=data, stats=stats, evidence=evidence, learn=learn, settings=settings, search=search, limit=limit,
        length=length, rows=rows, functional=functional, match=match, input_metric=input_metric,
    )  # fmt: skip

"""The options of a match, checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model
from isomerge.observe.data.refused_data import check_given
from isomerge.observe.live.accelerator import CPU, check_device
from isomerge.observe.read_files import paths_read
from isomerge.options import MatchingOptions
from isomerge.options.unused import note
from isomerge.solve.learn.settings import NO_EFFORT, LearnSettings, check_settings, steps_of
from isomerge.solve.match_names import SOFT, check_match, reads_activations
from isomerge.solve.match_options import GENERATE, OURS, SHARES, Matching

ANCHORS = ("first", "none")
LOOKING = ("stats_src", "evidence", "functional", "input_metric", "search", "learn", "match")
"""Options that say how a match looks at data."""
LEARNING = (
    "steps",
    "batch_size",
    "learn_effort",
    "learn_target",
    "learn_permutations",
    "precision",
    "gradient_checkpointing",
)
"""Options that are of use with `learn` alone, in the order in which they are told of."""


def check_matching(matching: Matching, sources: int, spaces: str = "", *, models: Sequence[Model] = ()) -> None:
    """Refuse contradictions before anything is read.

    Args:
        matching: the options.
        sources: how many models are moved.
        spaces: what may move.
        models: those that make data, where they shall.

    Raises:
        IsomergeError: naming the options.
    """
    check_match(matching)
    if models and GENERATE in (matching.data, matching.learn):
        from isomerge.observe.live.generated import check_kinds

        check_kinds(models)
    if matching.match not in (OURS, *SOFT) and spaces.startswith("paper"):
        raise IsomergeError(
            f"--spaces {spaces} is another algorithm than --match {matching.match}: choose one of them"
        )
    if matching.needs_models and matching.match == OURS and spaces.startswith("paper"):
        raise IsomergeError(
            f"--spaces {spaces} is an algorithm of weights alone: leave the data out, or choose other spaces"
        )
    if matching.device != CPU:  # else torch would be imported for a check that cannot fail
        check_device(matching.device)
    if matching.stats and len(matching.stats) != sources + 1:
        raise IsomergeError(
            f"{len(matching.stats)} statistics files are given, but there are {sources + 1} models: name one "
            f"for each"
        )
    if matching.stats and matching.data:
        raise IsomergeError("--data and --stats-src are two sources of activations: choose one")
    if matching.evidence not in SHARES:
        raise IsomergeError(f"--evidence {matching.evidence}: choose from {', '.join(SHARES)}")
    if matching.evidence != "both" and not (matching.data or matching.stats or matching.learn):
        raise IsomergeError(
            f"--evidence {matching.evidence} is a choice where there are activations: add --data DATA, or files "
            f"of isomerge stats"
        )
    if matching.rows < 1:
        raise IsomergeError(f"--rows {matching.rows}: at least 1 is needed")
    if matching.input_metric and not (matching.data or matching.stats or matching.learn):
        raise IsomergeError("--input-metric needs what layers read: add --data DATA, or files of isomerge stats")
    if matching.search is not None and not (matching.data or matching.learn):
        raise IsomergeError("--search needs examples to judge by: add --data DATA")
    if matching.search is not None and not (isfinite(matching.search) and matching.search > 0):
        raise IsomergeError(f"--search {matching.search}: give a time in seconds")


def check_anchor(anchor: str, matching: Matching, spaces: str) -> None:
    """Refuse what a common mean cannot be matched by, before anything is read.

    Raises:
        IsomergeError: naming the options.
    """
    if anchor not in ANCHORS:
        raise IsomergeError(f"--anchor {anchor}: choose from {', '.join(ANCHORS)}")
    if anchor == "first":
        return
    if matching.match != OURS:
        raise IsomergeError(f"--match {matching.match} matches onto one anchor: leave --anchor none out")
    if matching.input_metric:
        raise IsomergeError("--input-metric moves one model at a time: leave --anchor none out")
    if matching.search is not None:
        raise IsomergeError("--search moves one model at a time: leave --anchor none out, or learn with --learn")


def check_statistics_files(matching: Matching, models: Sequence[Model]) -> None:
    """Refuse statistics files that are none, or of different data, before a weight is read.

    Args:
        matching: the options; its files are the anchor's, then one per source.
        models: the anchor, then the sources.
    """
    if matching.stats:
        from isomerge.observe.stats.statistics import check_statistics

        check_statistics(matching.stats, models)


def files_of_matching(matching: Matching) -> tuple[Path, ...]:
    """The files and folders that a match reads beside the models."""
    return paths_read(matching.data, matching.learn, *matching.stats)


def matching_of(options: MatchingOptions, *, decides: bool = False) -> Matching:
    """A `Matching` from the options of a command.

    Args:
        options: as they were said.
        decides: whether the command decides what data are for, where nothing says it.

    Raises:
        IsomergeError: an unknown or impossible value.
    """
    if options.data is not None or options.learn is not None:
        # where there are data, they may be Python's objects
        from isomerge.observe.data.live_data import as_data

        same = options.learn is options.data
        data = as_data(options.data, "--data")
        options = replace(options, data=data, learn=data if same else as_data(options.learn, "--learn"))
    for name in ("data", "learn"):
        ref = getattr(options, name)
        check_given(ref, f"--{name}")
        if ref == GENERATE and Path(GENERATE).exists():
            raise IsomergeError(
                f"--{name} {GENERATE} lets the models make their data, and there is a file or folder of that name "
                f"here: say ./{GENERATE} where you mean it, or rename it"
            )
    stats_src = options.stats_src
    sources = [stats_src] if isinstance(stats_src, (str, Path)) else list(stats_src or ())
    if bool(sources) != bool(options.stats_anchor):
        raise IsomergeError("--stats-src and --stats-anchor belong together: give both")
    settings = LearnSettings(
        steps_of(options.learn_effort, options.steps),
        target=options.learn_target,
        permutations=options.learn_permutations,
        batch_size=options.batch_size,
        device=options.device,
        precision=options.precision,
        checkpointing=options.gradient_checkpointing,
        seed=options.seed,
    )
    check_settings(settings)
    asked = [name for name in LEARNING if getattr(options, name) != getattr(MatchingOptions, name)]
    effort = options.learn_effort
    if options.learn is not None and effort == NO_EFFORT:
        raise IsomergeError("--learn-effort none learns nothing: leave it out, or --learn")
    decides = decides and options.data is not None and not _says_how(options)
    if options.learn is None and asked and not decides:
        raise IsomergeError(f"--{asked[0].replace('_', '-')} is for learning: add --learn DATA")
    if options.steps is not None and effort != "quick":
        note("learn_effort", "--steps says how long to learn")
    stats = (str(options.stats_anchor), *map(str, sources)) if sources else ()
    may_learn = decides and effort != NO_EFFORT
    return Matching(
        stats=stats,
        settings=settings,
        decides=decides,
        may_learn=may_learn,
        of_learning=tuple(asked) if may_learn else (),
        data=options.data,
        evidence=options.evidence,
        learn=options.learn,
        search=options.search,
        limit=options.limit,
        length=options.length,
        rows=options.rows,
        functional=options.functional,
        match=options.match,
        input_metric=options.input_metric,
        transport=_transport(options.transport),
    )


def _transport(said: Any) -> tuple[tuple[str, str], ...]:
    """Names and values of ``name=value`` texts, or of a mapping, as texts."""
    if isinstance(said, Mapping):
        return tuple((str(name), str(value)) for name, value in said.items())
    pairs = [str(text).partition("=") for text in said or ()]
    if wrong := next((name for name, equals, value in pairs if not (name and equals and value)), None):
        raise IsomergeError(f"--transport {wrong}: write name=value, such as residual=weighted_matrix")
    return tuple((name, value) for name, _, value in pairs)


def with_data_for_method(matching: Matching, spaces: str) -> Matching:
    """The same match, with its data for the method and for measuring alone where it looks at weights: the paper's
    algorithm, and baselines by weights."""
    looks = matching.learn or matching.search or matching.input_metric or matching.stats
    by_weights = spaces.startswith("paper") if matching.match == OURS else not reads_activations(matching)
    return (
        replace(matching, for_method=True) if matching.data is not None and by_weights and not looks else matching
    )


def _says_how(options: MatchingOptions) -> bool:
    """Whether anything is said of how data are looked at."""
    choices = ((getattr(options, name), getattr(MatchingOptions, name)) for name in LOOKING)
    return any(value != default and (default is not None or bool(value)) for value, default in choices)

"""What a match may look at and how it searches: the options of a match, checked before anything is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.data.examples import Examples
from isomerge.engine.accelerator import CPU, check_device, matching_device
from isomerge.engine.canonical.units import SHARES
from isomerge.engine.idle import note
from isomerge.engine.inputs import inputs_key, paths_read
from isomerge.engine.pairs.baselines import OURS, check_match
from isomerge.engine.stats.statistics_header import check_statistics
from isomerge.errors import IsomergeError

if TYPE_CHECKING:
    from isomerge.engine.learn.learning import LearnSettings
    from isomerge.engine.models import Model


@dataclass(frozen=True)
class Matching:
    """What a match may look at beside the weights.

    ``data`` is read through both models for activations, ``stats`` are files of `isomerge stats` instead (the anchor's,
    then one per source). ``learn`` is data to learn from by gradient, ``search`` seconds of forward-only search.
    """

    data: str | Path | Examples | None = None
    stats: tuple[str, ...] = ()
    evidence: str = "both"
    learn: str | Path | Examples | None = None
    settings: LearnSettings | None = None
    search: float | None = None
    limit: int | None = None
    length: int = 128
    rows: int = 1024
    functional: bool = True
    """Where data are given, match neurons once more by what averaging a pair would cost."""
    match: str = "isomerge"
    """By what: our own solvers, or a published baseline (`isomerge.engine.pairs.baselines`)."""
    input_metric: bool = False
    """Whether layers are matched inside by the change of their outputs (`isomerge.engine.pairs.metric`)."""

    def check(self, sources: int, spaces: str = "") -> None:
        """Refuse contradictions before anything is read.

        Raises:
            IsomergeError: naming the options.
        """
        check_match(self)
        if self.match != OURS and spaces.startswith("paper"):
            raise IsomergeError(
                f"--spaces {spaces} is another algorithm than --match {self.match}: choose one of them"
            )
        if self.needs_models and spaces.startswith("paper"):
            raise IsomergeError(
                f"--spaces {spaces} is an algorithm of weights alone: leave the data out, or choose other spaces"
            )
        if self.device != CPU:  # else torch would be imported for a check that cannot fail
            check_device(self.device)
        if self.stats and len(self.stats) != sources + 1:
            raise IsomergeError(
                f"{len(self.stats)} statistics files are given, but there are {sources + 1} models: name one for each"
            )
        if self.stats and self.data:
            raise IsomergeError("--data and --stats-src are two sources of activations: choose one")
        if self.evidence not in SHARES:
            raise IsomergeError(f"--evidence {self.evidence}: choose from {', '.join(SHARES)}")
        if self.evidence != "both" and not (self.data or self.stats or self.learn):
            raise IsomergeError(
                f"--evidence {self.evidence} is a choice where there are activations: add --data DATA, or files of isomerge stats"
            )
        if self.rows < 1:
            raise IsomergeError(f"--rows {self.rows}: at least 1 is needed")
        if self.input_metric and not (self.data or self.stats or self.learn):
            raise IsomergeError(
                "--input-metric needs what layers read: add --data DATA, or files of isomerge stats"
            )
        if self.search is not None and not (self.data or self.learn):
            raise IsomergeError("--search needs examples to judge by: add --data DATA")
        if self.search is not None and not (isfinite(self.search) and self.search > 0):
            raise IsomergeError(f"--search {self.search}: give a time in seconds")

    def check_files(self, models: Sequence[Model]) -> None:
        """Refuse statistics files that are none, or of different data, before a weight is read.

        Args:
            models: the anchor, then the sources.
        """
        if self.stats:
            check_statistics(self.stats, models)

    def key(self, anchor: Model) -> list[Any]:
        """What determines the match beside models and spaces: for the key of a run."""
        return inputs_key(self, anchor)

    def paths(self) -> tuple[Path, ...]:
        """The files and folders that the match reads beside the models."""
        return paths_read(self.data, self.learn, *self.stats)

    def spaces(self, asked: str | None) -> str:
        """The choice of spaces: what was asked for, else all of them when there is something to decide them by."""
        return asked if asked is not None else ("all" if self.needs_models or self.match != OURS else "default")

    @property
    def needs_models(self) -> bool:
        """Whether anything beside weights is looked at."""
        return bool(self.data or self.stats or self.learn or self.search)

    @property
    def device(self) -> str:
        """Where models run, and units are matched."""
        return self.settings.device if self.settings else CPU

    @property
    def matching_device(self) -> str:
        """Where units are matched: on the same device, if it has float64."""
        return CPU if self.device == CPU else matching_device(self.device)


WEIGHTS = Matching()


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
        data: examples to read activations from, or what `isomerge.data.opening.open_data` opens.
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
    from isomerge.data.given import check_given
    from isomerge.engine.learn.learning import settings_of

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
        data, stats, evidence, learn, settings, search, limit, length, rows, functional, match, input_metric
    )

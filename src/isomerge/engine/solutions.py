"""Solutions found by passes over whole models, before anything is written: streams, activations, search, learning.

Each stage starts from the one before it: weights (and activations) by block coordinate descent, then a forward-only
search, then learning by gradient. The result is one alignment per source, kept in the folder of the unfinished output,
so that an interrupted run goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.engine.pair import PairSolver
from isomerge.engine.streams import SHARES, StreamSolver
from isomerge.errors import IsomergeError
from isomerge.symmetry.alignment import Alignment

if TYPE_CHECKING:
    from isomerge.data.examples import Examples
    from isomerge.engine.learned import LearnSettings
    from isomerge.engine.models import Model
    from isomerge.engine.run import Observer, StreamWriter
    from isomerge.engine.taps import Activations


@dataclass(frozen=True)
class Matching:
    """What a match may look at beside the weights.

    ``data`` is read through both models for activations, ``stats`` are files of `isomerge stats` instead (the anchor's,
    then one per source). ``learn`` is data to learn from by gradient, ``search`` seconds of forward-only search.
    """

    data: str | None = None
    stats: tuple[str, ...] = ()
    evidence: str = "both"
    learn: str | None = None
    settings: LearnSettings | None = None
    search: float | None = None
    limit: int | None = None
    length: int = 128
    rows: int = 1024

    def check(self, sources: int) -> None:
        """Refuse contradictions before anything is read.

        Raises:
            IsomergeError: naming the options.
        """
        if self.stats and len(self.stats) != sources + 1:
            raise IsomergeError(
                f"{len(self.stats)} statistics files are given, but there are {sources + 1} models: name one for each"
            )
        if self.stats and self.data:
            raise IsomergeError("--data and --stats-src are two sources of activations: choose one")
        if self.evidence not in SHARES:
            raise IsomergeError(f"--evidence {self.evidence}: choose from {', '.join(SHARES)}")
        if self.search is not None and not (self.data or self.learn):
            raise IsomergeError("--search needs examples to judge by: add --data DATA")
        if self.search is not None and self.search <= 0:
            raise IsomergeError(f"--search {self.search}: give a time in seconds")

    def spaces(self, asked: str | None) -> str:
        """The choice of spaces: what was asked for, else all of them when there is something to decide them by."""
        return asked if asked is not None else ("all" if self.needs_models else "default")

    @property
    def needs_models(self) -> bool:
        """Whether anything beside weights is looked at."""
        return bool(self.data or self.stats or self.learn or self.search)


WEIGHTS = Matching()


def matching_of(
    *,
    data: str | None = None,
    stats_src: str | Sequence[str] | None = None,
    stats_anchor: str | None = None,
    evidence: str = "both",
    search: float | None = None,
    learn: str | None = None,
    learn_effort: str = "quick",
    learn_target: str = "auto",
    steps: int | None = None,
    permutations: bool = False,
    batch_size: int | None = None,
    device: str = "cpu",
    precision: str = "float32",
    checkpointing: bool = False,
    limit: int | None = None,
    length: int = 128,
    rows: int = 1024,
    seed: int = 0,
) -> Matching:
    """A `Matching` from the options of the command line.

    Args:
        data: examples to read activations from (see `isomerge.data.opening.open_data`).
        stats_src, stats_anchor: files of ``isomerge stats`` instead: the sources' and the anchor's.
        evidence: with activations: ``activations``, ``both`` (with weights), or ``weights``.
        search: seconds of forward-only search.
        learn: examples to learn from by gradient.
        learn_effort: ``quick`` or ``thorough``; ``steps`` overrides it.
        learn_target: ``labels``, ``distill`` or ``auto``.
        permutations: learn permutations as well, by a straight-through assignment.
        batch_size: examples per learning step.
        device, precision, checkpointing: where and how models run.
        limit, length, rows: examples, tokens per example, and activation rows that are kept.
        seed: of everything that is drawn.

    Raises:
        IsomergeError: an unknown or impossible value.
    """
    from isomerge.engine.learned import settings_of

    sources = [stats_src] if isinstance(stats_src, str) else list(stats_src or ())
    if bool(sources) != bool(stats_anchor):
        raise IsomergeError("--stats-src and --stats-anchor belong together: give both")
    settings = settings_of(
        learn_effort, steps, target=learn_target, permutations=permutations, batch_size=batch_size, device=device,
        precision=precision, checkpointing=checkpointing, seed=seed,
    )  # fmt: skip
    if learn is None and steps is not None:
        raise IsomergeError("--steps is for learning: add --learn DATA")
    stats = (str(stats_anchor), *map(str, sources)) if sources else ()
    return Matching(data, stats, evidence, learn, settings, search, limit, length, rows)


@dataclass
class Solver:
    """Solves one pair; ``state`` is where a learning run keeps its own."""

    pair: PairSolver
    matching: Matching
    state: Path
    observer: Observer
    number: int = 0
    report: dict[str, Any] = field(default_factory=dict)

    def solve(self) -> Alignment:
        """The element of the whole source."""
        how = self.matching
        search = StreamSolver(self.pair, self.observer, self.activations(), how.evidence)
        found = search.solve()
        self.report = dict(found.report)
        if how.search is not None:
            from isomerge.engine.search import search_forward

            self.report["search"] = search_forward(
                search, self.examples(how.data or how.learn), how.search, self.observer
            )
            found.alignment = search.alignment()
        if how.learn is None:
            return found.alignment
        from isomerge.engine.learned import Learner, LearnSettings, MatchedLine

        line = MatchedLine(search, how.settings or LearnSettings())
        learned = Learner(line, self.examples(how.learn), self.state, self.observer).run()
        self.report["learned"] = learned.report
        return search.alignment(learned.elements)

    def examples(self, ref: str | None) -> Examples:
        """Examples through the anchor's tokenizer or image processor."""
        from isomerge.data.opening import open_data

        assert ref is not None
        anchor, how = self.pair.anchor, self.matching
        return open_data(ref, anchor.checkpoint.folder, limit=how.limit, length=how.length, config=anchor.config)

    def activations(self) -> tuple[Activations, Activations] | None:
        """Centred activations of both models, from files or from runs over the same examples."""
        how, models = self.matching, (self.pair.anchor, self.pair.source)
        if how.stats:
            from isomerge.engine.statistics import read_activations

            files = (how.stats[0], how.stats[self.number + 1])
            a, b = (read_activations(Path(file), model) for file, model in zip(files, models, strict=True))
            if a.fingerprint != b.fingerprint:
                raise IsomergeError(
                    f"{files[0]} and {files[1]} are of different data: make both with the same --data, --limit and --length"
                )
            return a.centred(), b.centred()
        if not (how.data or how.learn):
            return None
        from isomerge.engine.taps import capture

        examples = self.examples(how.data or how.learn)
        examples = examples.head(min(len(examples), how.rows))
        a, b = (capture(model, self.module(model), examples, rows=how.rows).centred() for model in models)
        return a, b

    def module(self, model: Model) -> Any:
        """A live module."""
        from isomerge.engine.modules import load_module

        device = self.matching.settings.device if self.matching.settings else "cpu"
        self.observer(f"reading activations of {model.ref}", 0, 1)
        return load_module(model, device=device)


def prepare_solutions(
    stream: StreamWriter, solvers: Sequence[PairSolver], matching: Matching
) -> list[dict[str, Any]]:
    """Solve every source whose match takes more than one unit at a time, once; returns a report per source.

    Without residual streams, data or learning there is nothing to do: units are then matched as they are written.
    """
    reports = []
    for k, pair in enumerate(solvers):
        if pair.plan.selection.frame is None and not matching.needs_models:
            continue
        path, key = stream.writer.blob(f"solution-{k}.safetensors"), f"solution {k}"
        record = stream.done(key)
        if record is None:
            state = stream.writer.blob(f"learning-{k}.safetensors")
            solver = Solver(pair, matching, state, stream.output.observer, k)
            pair.given = solver.solve()
            pair.given.save(path)
            stream.writer.commit(key, record := solver.report)
        else:
            pair.given = Alignment.load(path, pair.source.spec)
        reports.append(record)
    return reports

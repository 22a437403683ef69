"""Solutions found by passes over whole models, before anything is written: streams, activations, search, learning.

Each stage starts from the one before it: weights (and activations) by block coordinate descent, then a forward-only
search, then learning by gradient. The result is one alignment per source, kept in the folder of the unfinished output,
so that an interrupted run goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.engine.inputs import check_labels, check_statistics, inputs_key, open_given
from isomerge.engine.pair import PairSolver
from isomerge.engine.places import load_places, save_places
from isomerge.engine.streams import SHARES, StreamSolver
from isomerge.errors import IsomergeError
from isomerge.symmetry.alignment import Alignment

if TYPE_CHECKING:
    from isomerge.data.examples import Examples
    from isomerge.engine.learning import LearnSettings
    from isomerge.engine.models import Model
    from isomerge.engine.run import Observer, StreamWriter
    from isomerge.engine.taps import Activations


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

    def check(self, sources: int, spaces: str = "") -> None:
        """Refuse contradictions before anything is read.

        Raises:
            IsomergeError: naming the options.
        """
        if self.needs_models and spaces.startswith("paper"):
            raise IsomergeError(
                f"--spaces {spaces} is an algorithm of weights alone: leave data away, or choose other spaces"
            )
        if self.settings is not None and self.settings.device != "cpu" and self.needs_models:
            from isomerge.engine.modules import check_device

            check_device(self.settings.device)
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
        permutations: learn permutations as well, by a straight-through assignment.
        batch_size: examples per learning step.
        device, precision, gradient_checkpointing: where and how models run.
        limit, length, rows: examples, tokens per example, and activation rows that are kept.
        seed: of everything that is drawn.

    Raises:
        IsomergeError: an unknown or impossible value.
    """
    from isomerge.engine.learning import settings_of

    sources = [stats_src] if isinstance(stats_src, (str, Path)) else list(stats_src or ())
    if bool(sources) != bool(stats_anchor):
        raise IsomergeError("--stats-src and --stats-anchor belong together: give both")
    settings = settings_of(
        learn_effort, steps, target=learn_target, permutations=permutations, batch_size=batch_size, device=device,
        precision=precision, checkpointing=gradient_checkpointing, seed=seed,
    )  # fmt: skip
    given = {
        "--steps": steps,
        "--learn-permutations": permutations,
        "--gradient-checkpointing": gradient_checkpointing,
    }
    if learn is None and (idle := [name for name, value in given.items() if value not in (None, False)]):
        raise IsomergeError(f"{idle[0]} is for learning: add --learn DATA")
    stats = (str(stats_anchor), *map(str, sources)) if sources else ()
    return Matching(data, stats, evidence, learn, settings, search, limit, length, rows, functional)


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
        learn = None if how.learn is None else self.examples(how.learn)
        if learn is not None:
            check_labels(how, learn)
        search = StreamSolver(self.pair, self.observer, self.activations(), how.evidence)
        found = search.solve()
        self.report = dict(found.report)
        if how.functional and (how.data or how.learn) and how.evidence == "both":
            self.report["functional"] = self.matched_functionally(search)
            found.alignment = search.alignment()
        if how.search is not None:
            self.report["search"] = self.searched(search, how.search)
            found.alignment = search.alignment()
        if learn is None:
            return found.alignment
        from isomerge.engine.learned import Learner
        from isomerge.engine.learning import LearnSettings
        from isomerge.engine.matched_line import MatchedLine

        line = MatchedLine(search, how.settings or LearnSettings())
        learned = Learner(line, learn, self.state, self.observer).run()
        self.report["learned"] = learned.report
        return search.alignment(learned.elements[0])

    def matched_functionally(self, solver: StreamSolver) -> list[str]:
        """Match feed-forward layers once more, by what averaging their neurons costs; returns the units that were."""
        from isomerge.engine.rematch import match_functionally

        self.observer("matching neurons by what they compute", 0, 1)
        device = self.matching.settings.device if self.matching.settings else "cpu"
        return match_functionally(solver, self.examples(self.matching.data or self.matching.learn), device)

    def searched(self, solver: StreamSolver, seconds: float) -> dict[str, Any]:
        """Search forward from a solver's solution, once: an interrupted run takes what was found, for learning from there."""
        from isomerge.engine.search import search_forward

        kept = self.state.with_name(f"search-{self.number}.safetensors")
        report = load_places(kept, solver)
        if report is None:
            how = self.matching
            device, seed = (how.settings.device, how.settings.seed) if how.settings else ("cpu", 0)
            examples = self.examples(how.data or how.learn)
            report = search_forward(solver, examples, seconds, self.observer, seed=seed, device=device)
            save_places(kept, solver, report)
        return report

    def examples(self, ref: str | Path | Examples | None) -> Examples:
        """Examples through the anchor's tokenizer or image processor."""
        assert ref is not None
        return open_given(ref, self.pair.anchor, self.matching)

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

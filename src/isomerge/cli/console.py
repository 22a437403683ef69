"""What people and machines see: progress, tables, JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from isomerge.errors import visible
from isomerge.files import write_whole
from isomerge.options import MatchingOptions, unused
from isomerge.plug_ins.command import with_used
from isomerge.records import Json, as_json

if TYPE_CHECKING:
    from rich.console import Console

    from isomerge.evidence.distance import Gap, Spread
    from isomerge.merging.merge_request import LayerScan
    from isomerge.progress import Observer
    from isomerge.run.run_verdict import RunVerdict
    from isomerge.symmetry.fixed import FixedPart

EVERY = 5.0
"""Seconds between lines of progress where stderr is no terminal."""
WIDEST = 10_000
"""Columns of a table for which there is room, whatever the terminal."""


NO_READER = 141
"""The exit code where whoever read stdout has left, which a shell gives as well (128 and SIGPIPE); 1 is `verify`'s
"different"."""


def leave_without_reader() -> NoReturn:
    """End where nobody reads stdout any more (``| head``), without a word."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(NO_READER)


def _console(**how: Any) -> Console:
    """What prints to stdout as it is told: no markup, no colours of its own."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, **how)
    console.on_broken_pipe = leave_without_reader
    return console


class Voice:
    """Prints tables to stdout and remarks to stderr, unless told to be quiet."""

    def __init__(self, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet, self.verbose = quiet, verbose

    @property
    def is_watched(self) -> bool:
        """Whether somebody sees progress, and what is said while a run lasts."""
        return not self.quiet and sys.stderr.isatty()

    def say(self, *lines: str, style: str | None = None) -> None:
        """Lines on stdout, as they are (brackets are no markup)."""
        for line in () if self.quiet else lines:
            _console(soft_wrap=True).print(visible(line, "\n"), style=style)

    def warn(self, *sentences: str) -> None:
        """Warnings on stderr; shown even when quiet."""
        for sentence in sentences:
            print(f"warning: {visible(sentence)}", file=sys.stderr)

    def note(self, text: str) -> None:
        """A remark on stderr, beside what the command prints."""
        if not self.quiet:
            print(visible(text), file=sys.stderr)

    def table(self, columns: list[str], rows: list[list[str]]) -> None:
        """A table, each row once; all columns but the first are numbers, never cut: a terminal breaks lines
        that are too long."""
        if self.quiet:
            return
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for number, column in enumerate(columns):
            table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
        for row in dict.fromkeys(map(tuple, rows)):
            table.add_row(*map(visible, row))
        console = _console()
        console.width = max(
            console.width, console.measure(table, options=console.options.update(width=WIDEST)).maximum
        )
        console.print(table, crop=False)

    @contextmanager
    def progress(self, what: str) -> Iterator[Observer]:
        """How far a run is, on stderr, as an observer of bytes or steps: a bar on a terminal, else a line every few
        seconds."""
        if self.quiet:
            yield lambda unit, done, total: None
            return
        if not self.is_watched:
            yield _Lines(what)
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(
            *columns, TextColumn("{task.fields[unit]}"), console=Console(stderr=True), transient=True
        ) as bar:
            task = bar.add_task(what, unit="", total=None)

            def observe(unit: str, done: int, total: int) -> None:
                phase, _, unit = unit.rpartition(": ")  # the phases of a residual stream tell their objective
                bar.update(task, description=phase or what, completed=done, total=total, unit=visible(unit[-48:]))

            yield observe


class _Lines:
    """An observer that prints a line after `EVERY` seconds, and again after as many."""

    def __init__(self, what: str) -> None:
        self.what, self.printed = what, monotonic()

    def __call__(self, unit: str, done: int, total: int) -> None:
        if total and monotonic() - self.printed >= EVERY:
            phase, _, unit = unit.rpartition(": ")
            said = f"{phase or self.what}: {done / total:.0%}" + (f", {unit}" if unit else "")
            print(visible(said), file=sys.stderr, flush=True)
            self.printed = monotonic()


def distance_table(voice: Voice, distance: Spread) -> None:
    """Distances before and after, in all, per part of the models, and (verbose) per space and layer; where nothing
    moved, one distance."""
    parts = distance.parts or {}
    parts = parts if len(parts) > 1 else {}  # one part alone is all
    moved = any(gap.after != gap.before for gap in (distance.total, *parts.values()))

    def row(name: str, gap: Gap) -> list[str]:
        before, norm = f"{gap.before:.6g}", f"{gap.norm:.6g}"
        change = f"{gap.after / gap.before - 1:+.1%}" if gap.before else ""
        return [name, before, f"{gap.after:.6g}", change, norm] if moved else [name, before, norm]

    columns = ["Frobenius distance", *(["before", "after", "change"] if moved else ["as stored"]), "norm"]
    rows = [row("all tensors", distance.total)] + [row(f"  {n}", gap) for n, gap in parts.items()]
    voice.table(columns, rows)
    layers = [
        row(f"  layer {n}" if n != "outside" else "  outside layers", gap) for n, gap in distance.layers.items()
    ]
    if voice.verbose:
        spaces = [row(f"  {n}", gap) for n, gap in distance.spaces.items()]
        voice.table(["per space", *columns[1:]], spaces)
        voice.table(["per layer", *columns[1:]], layers)


def stream_table(voice: Voice, notes: Sequence[str], streams: Sequence[Json], verdict: RunVerdict | None) -> None:
    """Notes on the choice of spaces, and what matching the residual streams gained, source by source."""
    elsewhere = [*unused.notes(), *([] if verdict is None else [verdict.sentence])]
    voice.say(*(f"Note: {note}." for note in notes if note not in elsewhere))
    rows = []
    for number, stream in enumerate(streams, 1):
        first, last = stream["objective"][0], stream["objective"][-1]
        groups = stream["groups"]
        whose = [f"{name}: " if voice.verbose or len(groups) > 1 else "" for name in groups]
        acting = [f"{name}{GROUPS.get(group, group)}" for name, group in zip(whose, groups.values(), strict=True)]
        groups = ", ".join(acting) or "kept; gains inside layers"
        name = groups if len(streams) == 1 else f"source {number}, {groups}"
        rows.append(
            [name, f"{first:.5g} -> {last:.5g}", f"{last / first - 1:+.1%}" if first else "", str(stream["sweeps"])]
        )
    if rows:
        voice.table(["Residual stream", "objective", "change", "sweeps"], rows)


GROUPS = {
    "O": "rotations",
    "OFixingOnes": "rotations that keep the mean",
    "Perm": "permutations",
    "SignedPerm": "signed permutations",
}
"""The symmetry groups of residual streams in words."""


def scan_table(voice: Voice, scan: LayerScan, unit: str) -> None:
    """The losses of merges with only some layers matched, and which were chosen."""
    rows = [
        [
            f"{each.layers}{' (chosen)' if each.layers == scan.chosen else ''}",
            f"{each.figures.loss:.4f}",
            "" if each.figures.accuracy is None else f"{100 * each.figures.accuracy:.1f} %",
        ]
        for each in scan.candidates
    ]
    voice.table(["Layers matched", f"loss ({unit})", "accuracy"], rows)


def tell_verdict(voice: Voice, verdict: RunVerdict | None) -> None:
    """What the models are to each other: a line where all is well, else warnings on stderr, and what to try."""
    if verdict is None:
        return
    if verdict.level == "good":
        voice.say(f"Verdict: {verdict.sentence.removesuffix('.')}.")
        return
    poor = [pair.sentence for pair in verdict.pairs if pair.level == verdict.level]
    voice.warn(*(poor if set(poor) <= set(verdict.sentence.split("; ")) else [verdict.sentence]))
    for step in verdict.next:
        voice.note(f"  {step.text}")
        if step.command:
            voice.note(f"    {step.command}")


def warn_fixed(voice: Voice, parts: Sequence[FixedPart]) -> None:
    """One warning that names the parts which alignment leaves as they are, where there are any."""
    from isomerge.symmetry.fixed import fixed_text

    if parts:
        voice.warn(fixed_text(parts))


def write_json(path: Path | None, report: Any) -> None:
    """Write a report for machines; ``-`` is standard output, as everywhere."""
    if path is None:
        return
    document = as_json(report)
    if isinstance(document, dict):
        with_used(unused.with_notes(document))
    text = json.dumps(document, indent=2, sort_keys=True)
    if str(path) == "-":
        print(text)
        return
    write_whole(path, f"{text}\n".encode())


def tell_files(voice: Voice, matching: MatchingOptions) -> None:
    """Say what a match by files of statistics leaves out beside one by data, where it leaves something out."""
    by_data = matching.data is not None or matching.learn is not None
    if matching.stats_src and matching.functional and matching.evidence == "both" and not by_data:
        voice.say(
            "Note: files of statistics do not tell what averaging a pair of neurons costs; neurons are matched as "
            "by --data with --no-functional."
        )

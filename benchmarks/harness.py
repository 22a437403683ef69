"""One way to measure, to keep what was measured, and to show it.

A benchmark has *cells*: names with settings, each measured once by a function of its settings. What is measured goes
to one JSON file below `benchmarks/results`, cell by cell, so that a run that was stopped goes on, and the text
between two marks of a page of the documentation is made from that file. Every command takes

    --list               cells and whether they are measured; measures nothing
    --only NAME ...      these cells anew (patterns such as 'llama*' as well)
    --minutes M          begin no cell after so long
    --part 0/2           every second cell, for one of two processes that share a file
    --page               write the page from the results, and measure nothing
    --check              measure cells again (those of --only, or all), compare their ratios with the committed ones,
                         write nothing, and end with 1 where one is worse
    --results FOLDER     keep results elsewhere, and leave the page alone
"""

from __future__ import annotations

import argparse
import fcntl
import fnmatch
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DATA = ROOT / "benchmarks" / "data"
DOCS = ROOT / "docs"
PACKAGES = ("isomerge", "torch", "transformers", "numpy", "scipy", "scikit-learn", "pot")
WORSE = 1.25
"""A ratio that is so many times the committed one is worse; quiet machines repeat ratios to a tenth."""
Cells = Mapping[str, Mapping[str, Any]]
"""Settings by name: the keyword arguments of what measures a cell."""


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that results depend on."""
    known = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            known[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return known


def write_whole(path: Path, text: str) -> None:
    """Write a file beside and rename it: it is whole at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Whoever else writes this file of results waits: the folder that it stands in is locked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


class Results:
    """A JSON file of measured cells, written whole after every cell.

    Args:
        path: the file; made with the first cell.
        settings: what all cells were measured with; they and the versions of packages are kept in the file, and a
            file of other settings is refused, because its cells do not compare. None: none are kept.
        inside: the key of the file below which the cells stand; empty where the file is nothing but cells.
        about: what stands beside the cells, made of them: totals, summaries.
    """

    def __init__(
        self,
        path: str | Path,
        settings: Mapping[str, Any] | None = None,
        *,
        inside: str = "cells",
        about: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
    ):
        self.path = Path(path)
        self.settings: dict[str, Any] | None = None if settings is None else json.loads(json.dumps(settings))
        self.inside, self.about = inside, about
        self.cells: dict[str, Any] = self._stored()

    def _stored(self) -> dict[str, Any]:
        """The cells on disk; those that another process wrote meanwhile are among them."""
        if not self.path.is_file():
            return {}
        stored = json.loads(self.path.read_text(encoding="utf-8"))
        before, now = stored.get("settings", {}), self.settings
        other = {k for k in before | now if before.get(k) != now.get(k)} if now is not None else set()
        if other:
            sys.exit(
                f"{self.path}: measured with another {', '.join(sorted(other))}; move the file away, or measure "
                f"as it was"
            )
        return stored[self.inside] if self.inside else stored

    def put(self, key: str, value: Any) -> None:
        """Add a cell and write the file.

        Raises:
            TypeError: JSON has no such value; the file is left as it was.
        """
        value = json.loads(json.dumps(value))
        with alone(self.path):
            self.cells = {**self._stored(), key: value}
            write_whole(self.path, json.dumps(self._document(), indent=1) + "\n")

    def _document(self) -> dict[str, Any]:
        if not self.inside:
            return self.cells
        kept = {} if self.settings is None else {"settings": self.settings, "versions": versions()}
        return {**kept, **(self.about(self.cells) if self.about else {}), self.inside: self.cells}


@dataclass(frozen=True)
class Section:
    """What stands between ``<!-- name: begin -->`` and ``<!-- name: end -->`` of a page.

    Args:
        page: the page, below `docs`.
        name: of the marks.
        body: the text, made of a benchmark's cells.
    """

    page: str
    name: str
    body: Callable[[dict[str, Any]], str]

    @property
    def path(self) -> Path:
        """The page's file."""
        return DOCS / self.page

    def within(self, text: str, cells: dict[str, Any]) -> str:
        """The page's text with the section made of these cells.

        Raises:
            ValueError: the page lacks the marks.
        """
        begin, end = f"<!-- {self.name}: begin -->", f"<!-- {self.name}: end -->"
        before, rest = text.split(begin)
        return f"{before}{begin}\n{self.body(cells)}\n{end}{rest.split(end)[1]}"

    def write(self, cells: dict[str, Any]) -> None:
        """Write the page anew."""
        write_whole(self.path, self.within(self.path.read_text(encoding="utf-8"), cells))


def always(value: Any, settings: Mapping[str, Any]) -> bool:
    """A cell that was measured is complete."""
    return True


@dataclass(frozen=True)
class Benchmark:
    """Cells, how one is measured, and where all go.

    Args:
        name: of the file below `benchmarks/results`, without its ending.
        cells: all cells by name, made of the command's options.
        measure: what a cell is, of its settings; any JSON value.
        resumes: whether a cell takes so long that `measure` is given what was measured of it before (``kept``, or
            None) and keeps what it has at any time (``keep(cell)``).
        inside, about, settings: as `Results` takes them.
        sections: parts of pages that are made of the cells.
        ratios: figures of a cell that `--check` compares, each against a yardstick that was measured with it, so
            that they hold on any machine; less is better.
        said: what is printed of a cell.
        complete: whether what is there of a cell is all that its settings ask for.
        options: adds the benchmark's own options to the command.
        before: done once before the first cell is measured.
    """

    name: str
    cells: Callable[[argparse.Namespace], Cells]
    measure: Callable[..., Any]
    resumes: bool = False
    inside: str = "cells"
    about: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None
    settings: Mapping[str, Any] | None = None
    sections: tuple[Section, ...] = ()
    ratios: Callable[[Any], Mapping[str, float]] | None = None
    said: Callable[[Any], str] = json.dumps
    complete: Callable[[Any, Mapping[str, Any]], bool] = always
    options: Callable[[argparse.ArgumentParser], Any] | None = None
    before: Callable[[argparse.Namespace], None] | None = None

    def results(self, folder: Path | None = None) -> Results:
        """What was measured so far, committed or in another folder."""
        return Results(
            (folder or RESULTS) / f"{self.name}.json", self.settings, inside=self.inside, about=self.about
        )

    def document(self) -> dict[str, Any]:
        """The whole committed file: cells, and what stands beside them."""
        return json.loads((RESULTS / f"{self.name}.json").read_text(encoding="utf-8"))

    def main(self, arguments: list[str] | None = None) -> None:
        """`main` for this benchmark alone; the help is the docstring of the module that measures."""
        main(self, arguments=arguments, about=sys.modules[self.measure.__module__].__doc__)

    def is_there(self, results: Results, name: str, settings: Mapping[str, Any]) -> bool:
        """Whether a cell was measured, and is all that its settings ask for."""
        return name in results.cells and self.complete(results.cells[name], settings)

    def measured(self, name: str, settings: Mapping[str, Any], results: Results, *, anew: bool) -> Any:
        """Measure a cell and keep it; what is there of one that takes long is gone on with, unless `anew`."""
        if self.resumes:
            kept = None if anew else results.cells.get(name)
            cell = self.measure(**settings, kept=kept, keep=lambda part: results.put(name, part))
        else:
            cell = self.measure(**settings)
        results.put(name, cell)
        return cell

    def worse(self, name: str, settings: Mapping[str, Any], committed: Any) -> list[str]:
        """Measure a cell again; the ratios that are worse than the committed ones, in words."""
        assert self.ratios is not None
        resuming: dict[str, Any] = {"kept": None, "keep": lambda part: None} if self.resumes else {}
        before, now = self.ratios(committed), self.ratios(self.measure(**settings, **resuming))
        words = {
            figure: f"{name}: {figure} is {ratio:.3g}, committed {before[figure]:.3g}"
            for figure, ratio in now.items()
        }
        print(*words.values(), sep="\n", flush=True)
        return [words[figure] for figure, ratio in now.items() if ratio > WORSE * before[figure]]


def main(*benchmarks: Benchmark, arguments: list[str] | None = None, about: str | None = None) -> None:
    """Read the command line, and list, measure, check or write.

    Args:
        benchmarks: of one, cells have their own names; of several, ``benchmark/cell``.
        arguments: the command's; None: of this process.
        about: the help.

    Raises:
        SystemExit: an unknown cell, or ratios that are worse.
    """
    asked = _asked(benchmarks, arguments, about)
    if not asked.page:
        cells = {
            f"{bench.name.rpartition('/')[2]}/{name}" if len(benchmarks) > 1 else name: (bench, name, settings)
            for bench in benchmarks
            for name, settings in bench.cells(asked).items()
        }
        number, parts = (int(word) for word in asked.part.split("/"))
        _run({name: cells[name] for name in chosen_of(cells, asked.only)[number::parts]}, asked)
    if asked.page or not (asked.list or asked.check or asked.results):
        for section, owner in {s: bench for bench in benchmarks for s in bench.sections}.items():
            section.write(owner.results().cells)
            print(f"docs/{section.page}: {section.name} is written", flush=True)


def _asked(benchmarks: Sequence[Benchmark], arguments: list[str] | None, about: str | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="cells and whether they are measured")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these cells anew, or patterns")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after so long")
    parser.add_argument("--part", default="0/1", metavar="K/N", help="every N-th cell from the K-th, from 0")
    parser.add_argument("--page", action="store_true", help="write the page and measure nothing")
    parser.add_argument("--check", action="store_true", help="compare ratios with the committed; write nothing")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="keep results there, and write no page")
    for bench in benchmarks:
        if bench.options is not None:
            bench.options(parser)
    asked = parser.parse_args(arguments)
    if asked.check and not any(bench.ratios for bench in benchmarks):
        parser.error("this benchmark has no ratios to check")
    return asked


def _run(cells: dict[str, tuple[Benchmark, str, Mapping[str, Any]]], asked: argparse.Namespace) -> None:
    """List, check or measure these cells."""
    opened = {bench.name: bench.results(asked.results) for bench, _, _ in cells.values()}
    there = {n: bench.is_there(opened[bench.name], cell, how) for n, (bench, cell, how) in cells.items()}
    if asked.list:
        print(*(f"{name}: {'measured' if there[name] else 'missing'}" for name in cells), sep="\n")
    elif asked.check:
        worse = []
        for name, (bench, cell, settings) in cells.items():
            if bench.ratios is not None and there[name]:
                worse += bench.worse(name, settings, opened[bench.name].cells[cell])
        if worse:
            sys.exit("worse: " + "; ".join(worse))
    else:
        _measure({name: cells[name] for name in cells if asked.only or not there[name]}, opened, asked)


def _measure(
    cells: dict[str, tuple[Benchmark, str, Mapping[str, Any]]],
    opened: dict[str, Results],
    asked: argparse.Namespace,
) -> None:
    """Measure these cells, one after the other."""
    until, began = time.monotonic() + 60 * asked.minutes, set()
    for number, (name, (bench, cell, settings)) in enumerate(cells.items(), 1):
        if time.monotonic() > until:
            print(f"{len(cells) - number + 1} cells are left; the same command goes on", flush=True)
            return
        if bench.before is not None and bench.name not in began:
            bench.before(asked)
        began.add(bench.name)
        start = time.perf_counter()
        figures = bench.measured(cell, settings, opened[bench.name], anew=bool(asked.only))
        seconds = time.perf_counter() - start
        print(f"[{number}/{len(cells)}] {name}: {bench.said(figures)} ({seconds:.1f} s)", flush=True)


def chosen_of(cells: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The cells that a command names, in their order; without names all.

    Raises:
        SystemExit: a name or pattern is of no cell.
    """
    cells, patterns = list(cells), list(patterns)
    for pattern in patterns:
        if pattern not in cells and not fnmatch.filter(cells, pattern):
            sys.exit(f"{pattern}: no cell of that name; --list names them")
    return [c for c in cells if not patterns or any(c == p or fnmatch.fnmatchcase(c, p) for p in patterns)]


def mean_spread(values: Iterable[float]) -> tuple[float, float]:
    """The mean and the sample standard deviation (0 for one value)."""
    numbers = [float(value) for value in values]
    return statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else 0.0


def table_rows(rows: Iterable[Iterable[str]]) -> str:
    """The lines of a table below its head."""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def markdown(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A table."""
    return f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n{table_rows(rows)}"


def quiet() -> None:
    """One thread, and none of what transformers says while it loads."""
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def reach_tests() -> None:
    """Let the tests' toys be imported."""
    if (tests := str(ROOT / "tests")) not in sys.path:
        sys.path.insert(0, tests)

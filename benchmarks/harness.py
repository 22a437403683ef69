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
    --results FILE       keep results elsewhere, and leave the page alone
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
from collections.abc import Callable, Iterable, Iterator, Mapping
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

    def has(self, key: str) -> bool:
        """Whether a cell was measured."""
        return key in self.cells

    def get(self, key: str, default: Any = None) -> Any:
        """A cell, or `default` where it was not measured."""
        return self.cells.get(key, default)

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
    inside: str = "cells"
    about: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None
    settings: Mapping[str, Any] | None = None
    sections: tuple[Section, ...] = ()
    ratios: Callable[[Any], Mapping[str, float]] | None = None
    said: Callable[[Any], str] = json.dumps
    complete: Callable[[Any, Mapping[str, Any]], bool] = always
    options: Callable[[argparse.ArgumentParser], None] | None = None
    before: Callable[[argparse.Namespace], None] | None = None

    @property
    def path(self) -> Path:
        """The committed results."""
        return RESULTS / f"{self.name}.json"

    def results(self, path: Path | None = None) -> Results:
        """What was measured so far, committed or in another file."""
        return Results(path or self.path, self.settings, inside=self.inside, about=self.about)

    def write_pages(self) -> None:
        """Every section from the committed results."""
        cells = self.results().cells
        for section in self.sections:
            section.write(cells)
            print(f"docs/{section.page}: {section.name} is written", flush=True)

    def main(self, arguments: list[str] | None = None) -> None:
        """Read the command line, and list, measure, check or write."""
        asked = self.parsed(arguments)
        if asked.page:
            return self.write_pages()
        cells, results = self.cells(asked), self.results(asked.results)
        chosen = chosen_of(cells, asked.only)
        number, parts = (int(word) for word in asked.part.split("/"))
        chosen = chosen[number::parts]
        if asked.list:
            for name in chosen:
                state = "measured" if self._is_there(results, name, cells[name]) else "missing"
                print(f"{name}: {state}")
            return None
        if asked.check:
            return self.check(cells, [name for name in chosen if results.has(name)], results)
        todo = [name for name in chosen if asked.only or not self._is_there(results, name, cells[name])]
        self.run(cells, todo, results, asked)
        if asked.results == self.path and todo and self.sections:
            self.write_pages()
        return None

    def parsed(self, arguments: list[str] | None) -> argparse.Namespace:
        """The command line; the help is the docstring of the module that measures."""
        told = sys.modules[self.measure.__module__].__doc__
        parser = argparse.ArgumentParser(description=told, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--list", action="store_true", help="cells and whether they are measured")
        parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these cells anew, or patterns")
        parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after so long")
        parser.add_argument("--part", default="0/1", metavar="K/N", help="every N-th cell from the K-th, from 0")
        parser.add_argument("--page", action="store_true", help="write the page and measure nothing")
        parser.add_argument("--check", action="store_true", help="compare ratios with the committed; write nothing")
        parser.add_argument("--results", type=Path, default=self.path, metavar="FILE", help="another file")
        if self.options is not None:
            self.options(parser)
        asked = parser.parse_args(arguments)
        if asked.check and self.ratios is None:
            parser.error("this benchmark has no ratios to check")
        return asked

    def _is_there(self, results: Results, name: str, settings: Mapping[str, Any]) -> bool:
        return results.has(name) and self.complete(results.get(name), settings)

    def run(self, cells: Cells, todo: list[str], results: Results, asked: argparse.Namespace) -> None:
        """Measure these cells and keep each."""
        until = time.monotonic() + 60 * asked.minutes
        if todo and self.before is not None:
            self.before(asked)
        for number, name in enumerate(todo, 1):
            if time.monotonic() > until:
                print(f"{len(todo) - number + 1} cells are left; the same command goes on", flush=True)
                break
            began = time.perf_counter()
            cell = self.measure(**cells[name])
            results.put(name, cell)
            seconds = time.perf_counter() - began
            print(f"[{number}/{len(todo)}] {name}: {self.said(cell)} ({seconds:.1f} s)", flush=True)

    def check(self, cells: Cells, chosen: list[str], results: Results) -> None:
        """Measure cells again and compare their ratios with the committed ones.

        Raises:
            SystemExit: one of them is worse.
        """
        assert self.ratios is not None
        worse = []
        for name in chosen:
            before, now = self.ratios(results.get(name)), self.ratios(self.measure(**cells[name]))
            for figure, ratio in now.items():
                told = f"{name}: {figure} is {ratio:.3g}, committed {before[figure]:.3g}"
                print(told, flush=True)
                worse += [told] if ratio > WORSE * before[figure] else []
        if worse:
            sys.exit("worse: " + "; ".join(worse))


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


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Lines of a table, with an empty one behind it."""
    head = list(head)
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


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

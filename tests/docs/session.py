"""Runs what a page shows: commands through the program's own entry point, in this process, and Python in one
namespace."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import typer

from docs.markdown import ROOT, Fence
from progress_lines import without_progress

SCRATCH = ("out", "OUT")
"""Folders that alternatives in one block all write: removed before every command."""
CLOSE = 0.01
"""Numbers of equal commands differ by rounding alone, which thresholds and searches make larger; training makes it
larger still, and such a block says ``<!-- within: 0.1 -->``."""
TINY = 1e-5
"""Numbers below it are rounding of a zero."""
ROUNDED = re.compile(r"(residual \d[\d.]*e-(?:0[6-9]|[1-9]\d) in |once the move is undone \()[^\s,;]+")
"""Which of the tensors rounds most is another one on another processor."""
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass
class Session:
    """One page's folder and Python namespace."""

    folder: Path
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__page__"})
    printed: str = ""

    def run(self, fence: Fence) -> None:
        """Do what a fence says, and hold its output to what the page shows."""
        if "file" in fence.marks:
            place = self.folder / fence.marks["file"]
            place.unlink(missing_ok=True)  # never through a link, into what other pages read
            place.write_text(fence.text)
        elif fence.language == "bash":
            for command in commands(fence.text):
                code, said = self.command(command)
                assert code == 0, f"{fence}: {command}\n{said}"
        elif fence.language == "console":
            for command, expected in exchanges(fence.text):
                _, said = self.command(command)
                check(fence, command, said, expected)
        elif fence.language == "python":
            with captured() as out:
                exec(compile(fence.text, str(fence), "exec"), self.names)
            self.printed = out.getvalue()
        elif "output" in fence.marks:
            check(fence, "the Python above", self.printed, fence.text)

    def command(self, line: str) -> tuple[int, str]:
        """Exit code and output, both streams together, of one command line."""
        for name in SCRATCH:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        program, *arguments = shlex.split(line, comments=True)
        with captured() as out:
            code = self._call(program, arguments)
        return code, without_progress(out.getvalue())

    def _call(self, program: str, arguments: list[str]) -> int:
        from isomerge.cli.app import main

        before = sys.argv
        sys.argv = [program, *arguments] if program == "isomerge" else arguments
        try:
            if program == "isomerge":
                main()
            elif program == "python":
                runpy.run_path(arguments[0], run_name="__main__")
            elif program == "cp" and arguments[0] == "-r":
                for source in arguments[1:-1]:
                    shutil.copytree(source, Path(arguments[-1]) / Path(source).name)
            elif (
                program == "mergekit-yaml"
            ):  # not installed here; `python -m benchmarks.mergekit` shows that it gives the same
                sys.argv = ["isomerge", "merge", *arguments]
                main()
            else:
                raise AssertionError(f"{program}: the tests cannot run this; say <!-- not run: why -->")
        except SystemExit as stop:
            return int(stop.code or 0)
        finally:
            sys.argv = before
        return 0


@contextlib.contextmanager
def captured():
    """Both streams in one text."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        yield out


def commands(text: str) -> list[str]:
    """The commands of a block: a backslash at the end goes on in the next line; comments stand alone or behind."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def exchanges(text: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that is shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            assert found, f"a console block starts with a command, not with {line!r}"
            found[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in found]


def check(fence: Fence, command: str, said: str, expected: str) -> None:
    """The output is what the page shows: words equal, numbers close; ``...`` stands for any lines."""
    close = float(fence.marks.get("within", CLOSE))
    lines, wanted = (
        [ROUNDED.sub(r"\1a tensor", line).split() for line in text.splitlines() if line.strip()]
        for text in (said, expected)
    )
    if not alike(lines, wanted, close):
        raise AssertionError(f"{fence}: {command}\nshown:\n{expected}\n\nsaid:\n{said}")


def alike(said: list[list[str]], wanted: list[list[str]], close: float) -> bool:
    """Whether lines of words fit, ``...`` being any number of lines."""
    if not wanted:
        return not said
    if wanted[0] == ["..."]:
        return any(alike(said[k:], wanted[1:], close) for k in range(len(said) + 1))
    return bool(said) and same_line(said[0], wanted[0], close) and alike(said[1:], wanted[1:], close)


def same_line(said: list[str], wanted: list[str], close: float) -> bool:
    """Equal words; numbers in them within ``close`` of each other, or both tiny."""
    return len(said) == len(wanted) and all(same_word(*words, close) for words in zip(said, wanted, strict=True))


def same_word(said: str, wanted: str, close: float) -> bool:
    """One word of both, such as ``-13.2%`` or ``loss``."""
    if NUMBER.sub("#", said) != NUMBER.sub("#", wanted):
        return False
    for one, two in zip(NUMBER.findall(said), NUMBER.findall(wanted), strict=True):
        x, y = (float(number.replace(",", "")) for number in (one, two))
        if abs(x - y) > TINY + close * max(abs(x), abs(y)):
            return False
    return True


def parse_only(line: str) -> None:
    """Hold the options of a command that is not run to the program's own parser; ``make`` targets to the
    Makefile."""
    program, *arguments = shlex.split(line, comments=True)
    if program == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert set(arguments) <= targets, f"{line}: the Makefile has no such target"
    if program != "isomerge":
        return
    from isomerge.cli.program import app

    group = typer.main.get_command(app)
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    name, *rest = arguments
    group.commands[name].make_context(name, rest, parent=click.Context(group))  # pyright: ignore

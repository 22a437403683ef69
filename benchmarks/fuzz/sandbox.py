"""One mutated input, run in a folder of its own and judged: exit code, what was said, what was left on the disk."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fuzz.mutations import mutate_bytes
from benchmarks.fuzz.subjects import OUT, SUBJECTS, Subject
from isomerge import remembered

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
ALLOWED = {OUT, "page.html"}
"""What a command may leave behind."""


@dataclass(frozen=True)
class Verdict:
    """What came of one input: ``kind`` of input, ``outcome`` (accepted, refused, or a fault), and what happened."""

    number: int
    kind: str
    outcome: str
    detail: str = ""

    def document(self) -> dict[str, Any]:
        return asdict(self)


FAULTS = ("crash", "hang", "partial output", "file outside", "not one sentence", "input changed")
_outside: list[str] = []
_inside = ""


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Notes every path outside the sandbox that is opened for writing, made, renamed or removed."""
    if not _inside:
        return
    paths: list[Any] = []
    if (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES) or event in (
        "os.mkdir",
        "os.remove",
        "os.rmdir",
        "os.truncate",
        "os.chmod",
    ):
        paths = [arguments[0]]
    elif event in ("os.rename", "os.link", "os.symlink"):
        paths = list(arguments[:2])
    for path in paths:
        if isinstance(path, (str, bytes, os.PathLike)):
            found = os.path.realpath(os.fsdecode(path))
            kept = os.path.realpath(remembered.folder()) + "/"  # answers that isomerge keeps between runs
            if not (found + "/").startswith((_inside, kept)) and found != os.devnull:
                _outside.append(f"{event} {found}")


def watch() -> None:
    """Begins to watch this process; there is no end to it.

    The command line is built once, as only its building takes as long as most inputs, and no picture is drawn for
    an output.
    """
    from isomerge.cli import program
    from isomerge.run import writing_run as run

    sys.addaudithook(_audit)
    program.command()
    run.distances_picture = lambda report: None


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Every path under a folder with its size and date."""
    found = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root, name)
            stat = path.lstat()
            found[path.relative_to(folder).as_posix()] = (
                (stat.st_size, stat.st_mtime_ns) if path.is_file() else (0, 0)
            )
    return found


def run_one(inputs: Path, box: Path, number: int, seed: int, kinds: list[str]) -> Verdict:
    """Makes input ``number`` of a seed in ``box``, runs a command on it there, and judges."""
    global _inside
    rng = Random(f"{seed}-{number}")
    kind = kinds[number % len(kinds)]
    subject = SUBJECTS[kind]
    shutil.rmtree(box, ignore_errors=True)
    shutil.copytree(inputs, box, symlinks=True)
    file = box / subject.file
    file.write_bytes(_mutated(subject, file.read_bytes(), rng))
    command = subject.commands[min(int(rng.expovariate(1.2)), len(subject.commands) - 1)]
    before = listing(box)
    _outside.clear()
    os.chdir(box)
    _inside = os.path.realpath(box) + "/"
    try:
        outcome, detail = _judged(command)
    finally:
        _inside = ""
        os.chdir(box.parent)
    after = listing(box)
    if outcome in ("accepted", "refused"):
        outcome, detail = _left(outcome, detail, before, after)
    return Verdict(number, kind, outcome, f"{' '.join(command)}: {detail}"[:1500] if detail else "")


def _mutated(subject: Subject, raw: bytes, rng: Random) -> bytes:
    """Mutated content; where a mutation has no text (a half surrogate, too deep a nesting), other bytes."""
    try:
        return subject.mutate(raw, rng)
    except (ValueError, TypeError, RecursionError):
        return mutate_bytes(raw, rng)


def _judged(command: list[str]) -> tuple[str, str]:
    """Runs the program in this process; what it did."""
    from isomerge.cli.app import main

    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    sys.argv = ["isomerge", *command]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException as error:
            return "crash", f"{type(error).__name__}: {str(error)[:300]} at {_where(error)}"
    said = [line for line in err.getvalue().splitlines() if not line.startswith("warning: ")]
    if code == 2 and (len(said) != 1 or not said[0].startswith("isomerge: ")):
        return "not one sentence", err.getvalue()[-600:]
    if any((ord(c) < 32 and c not in "\n\t") or c == "\x7f" for c in out.getvalue() + err.getvalue()):
        return "not one sentence", "control characters: " + repr(err.getvalue()[-300:] + out.getvalue()[-300:])
    return ("refused", "") if code else ("accepted", "")


def _where(error: BaseException) -> str:
    """The last two places in this program that an exception passed."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "isomerge" in f.filename]
    return ", ".join(f"{f.filename.rpartition('isomerge/')[2]}:{f.lineno}" for f in frames[-2:])


def _left(outcome: str, detail: str, before: dict[str, Any], after: dict[str, Any]) -> tuple[str, str]:
    """What is on the disk may only be a whole output, and no input may have changed."""
    if _outside:
        return "file outside", "; ".join(_outside[:4])
    if gone := [name for name in before if after.get(name) != before[name]]:
        return "input changed", ", ".join(gone[:4])
    new = [name for name in after if name not in before]
    strange = [name for name in new if name.split("/")[0] not in ALLOWED or outcome == "refused"]
    return ("partial output", ", ".join(strange[:4])) if strange else (outcome, detail)

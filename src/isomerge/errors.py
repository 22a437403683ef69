"""The one exception that users see: a sentence that says what is wrong, where, and how to mend it."""

from __future__ import annotations

import errno
import re
import sys
import traceback
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OPTION = re.compile(r"(?<![\w-])--(?P<word>[a-z][a-z-]*)(?: (?P<value>[^\s,;:)]+(?:[,:][^\s,;:)]+)*))?")
"""An option of the command line in a sentence, and the word behind it, which may be its value."""
NO_VALUES = {
    "a", "adds", "aligns", "and", "are", "as", "at", "belong", "belongs", "but", "by", "chooses", "could",
    "counts", "does", "draws", "for", "from", "gives", "go", "goes", "has", "if", "in", "instead", "is", "it",
    "leaves", "lets", "makes", "matches", "moves", "names", "needs", "no", "not", "of", "on", "or", "out",
    "reads", "replaces", "says", "takes", "tells", "that", "the", "to", "was", "where", "which", "with",
    "would",
}  # fmt: skip
"""Words behind an option that are none of its values."""
IN_PYTHON = {
    "align": "align=True",
    "exclude-regex": "exclude",
    "include-regex": "include",
    "import": "imports=[...]",
    "json": "the report that the function returns",
    "parameter": "parameters={NAME: VALUE}",
    "set": "sizes={KEY: NUMBER}",
    "save-alignment": "the alignment's save",
    "source-base": "source_bases=[...]",
    "task": "tasks=[...]",
}
"""What Python's argument is where it is not the option's name with a value; `isomerge.options` adds its
switches."""
_WHOLE = re.compile(r"[+-]?\d+")
_ASIDE = re.compile(r" \(in Python: [^)]*\)")


class IsomergeError(Exception):
    """A problem with the user's input, told in one sentence.

    The message names the file, tensor and axis concerned, says what was expected, and how to fix it.
    The command line prints it without a traceback and exits with code 2. Sentences name the command line's options;
    ``str`` of what a function of Python's door raises has its keywords (`isomerge.options.python_words`), and of
    all others says where Python's argument is called otherwise (`IN_PYTHON`).
    """

    in_python: str = ""
    """The sentence in the words of the function that was called."""

    def __init__(self, sentence: str = "") -> None:
        super().__init__(_ASIDE.sub("", sentence))  # of an error that this one quotes

    @property
    def sentence(self) -> str:
        """As the command line prints it."""
        return str(self.args[0])

    def __str__(self) -> str:
        if self.in_python:
            return self.in_python
        words = (match["word"] for match in OPTION.finditer(self.sentence))
        named = dict.fromkeys(IN_PYTHON[word] for word in words if word in IN_PYTHON)
        return f"{self.sentence} (in Python: {', '.join(named)})" if named else self.sentence


def with_points(value: Any) -> str:
    """The end of a sentence on a text or a list of whole numbers that are decimals with commas for points, ``0,5``:
    how these are written; nothing of all others."""
    parts = value.split(",") if isinstance(value, str) else []
    if isinstance(value, (list, tuple)):
        parts = [f"{x:g}" if isinstance(x, (int, float)) else "" for x in value]
    if not parts or len(parts) % 2 or not all(map(_WHOLE.fullmatch, parts)):
        return ""
    return f"; write {','.join(map('.'.join, zip(parts[::2], parts[1::2], strict=True)))} with a point for a comma"


def guide(page: str) -> str:
    """Where a page of the guide is to be read: by the address that the package's own metadata have."""
    from importlib.metadata import metadata

    urls = dict(text.split(", ", 1) for text in metadata("isomerge").get_all("Project-URL") or ())
    return f"{urls.get('Documentation', 'docs')}/guide/{page}.md"


RESUMABLE = "what was finished stays, and the same command goes on from there"
"""A note on a KeyboardInterrupt that left something to go on from."""


class Stopped(BaseException):
    """Ctrl-C within a command, with the sentence to say."""


class UnfinishedError(IsomergeError):
    """Not the input's fault: what has been written stays, and the same command goes on once the cause is gone."""


@contextmanager
def unfinished() -> Iterator[None]:
    """Where all work is done and only its last step can fail: an IsomergeError of the block becomes an
    UnfinishedError."""
    try:
        yield
    except UnfinishedError:
        raise
    except IsomergeError as error:
        raise UnfinishedError(f"{error.sentence}; {RESUMABLE}") from error


class DiskFullError(UnfinishedError):
    """The disk is full."""


class ClusterError(UnfinishedError):
    """The machines of a cluster are too few, too small, too different, or do not see the same files."""


OVERFLOW = (
    "some weights or statistics are so large or so small that their products leave the range of numbers; "
    "check that all inputs are undamaged"
)


def visible(text: str, kept: str = "") -> str:
    """``text`` for a terminal: what could steer it, or hide or reorder what it shows, is written as an escape.

    These are the control characters (line breaks included, unless ``kept`` has them), those of bidirectional text,
    line and paragraph separators, and surrogates. Names of tensors and files come from files that nobody vouches
    for.
    """
    return "".join(
        c if c in kept or unicodedata.category(c) not in _STEERING else c.encode("unicode_escape").decode()
        for c in text
    )


def first_line(error: BaseException) -> str:
    """The first line of a message of somebody else; the next one as well where it only announces that."""
    lines = str(error).strip().splitlines()
    said = " ".join(line.strip() for line in lines[: 2 if lines and lines[0].endswith(":") else 1])
    return said[:200].rstrip(".") or type(error).__name__


_STEERING = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def is_overflow_error(error: BaseException) -> bool:
    """Whether a factorisation, an assignment or a product failed: with finite weights, only where products of very
    large or very small ones leave the range of numbers. Told by torch's and numpy's name of the type and scipy's
    words, as none is imported here.
    """
    if type(error).__name__.endswith("LinAlgError"):
        return True
    if isinstance(error, ValueError):
        return "invalid numeric entries" in str(error)
    return isinstance(error, RuntimeError) and "without overflow" in str(error)


def is_files_error(error: BaseException) -> bool:
    """Whether a file could not be opened because too many are, also where another error tells of it in other
    words."""
    while not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
        if error.__context__ is None:
            return False
        error = error.__context__
    return True


def is_full_error(error: BaseException) -> bool:
    """Whether a disk had no room: or none that this user, or this process (``ulimit -f``), may use."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_memory_error(error: BaseException) -> bool:
    """Whether memory was lacking: Python's, or torch's, whose allocators raise RuntimeError."""
    said = str(error).lower()
    words = (
        "not enough memory",
        "can't allocate memory",
        "cannot allocate memory",
        "out of memory",
        "can't start new thread",
    )
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # a library that does not fit is an ImportError
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | ImportError) and any(w in said for w in words)
    )


_CALLERS = sys.stdlib_module_names | {"isomerge", "torch"}
"""Top-level modules through which other code is called."""


@contextmanager
def own_code(what: str, way_out: str = "mend it") -> Iterator[None]:
    """Code of others runs in the block: what it raises becomes a sentence, ``sys.exit`` too, by which a run would
    end half done with the exit code of one that is complete.

    Sentences of isomerge, Ctrl-C, and a lack of memory or disk pass: they are not the code's faults.

    Args:
        what: what fails, in words: ``the reader of FILE fails``.
        way_out: what to do.

    Raises:
        IsomergeError: ``what``, the exception, the line that raised it, and the way out.
    """
    try:
        yield
    except (IsomergeError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if is_memory_error(error) or is_full_error(error):
            raise
        kind, words = type(error).__name__, first_line(error)
        said = kind if words == kind else f"{kind}: {words}"
        raise IsomergeError(f"{what} ({said}{_line(error)}): {way_out}") from error


def _line(error: BaseException) -> str:
    """The line that raised, in words: of the module that was called, not of a package that it uses."""
    frames = [(f.f_globals.get("__name__") or "", f, n) for f, n in traceback.walk_tb(error.__traceback__)]
    tops = [name.partition(".")[0] for name, _, _ in frames]
    first = next((top for top in tops if top not in _CALLERS), None)
    if first is None:
        return ""
    frame, number = [(f, n) for top, (_, f, n) in zip(tops, frames, strict=True) if top == first][-1]
    return f", line {number} of {Path(frame.f_code.co_filename).name}"

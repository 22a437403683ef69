"""The ``isomerge`` command."""

from __future__ import annotations

import gc
import json
import os
import sys
from itertools import pairwise
from typing import NoReturn, TextIO

from isomerge.checkpoint.mapped_files import cut_sentence, watch_mapped_files
from isomerge.cli.processors import ticks, wait_asleep_where_busy
from isomerge.errors import (
    OVERFLOW,
    IsomergeError,
    Stopped,
    is_files_error,
    is_full_error,
    is_memory_error,
    is_overflow_error,
    visible,
)

NO_FOLDER = "the current folder was removed: change to another one (cd), and run the command again"
NO_FILES = "too many files are open: raise the limit (ulimit -n 4096), and run the same command again"
NO_MEMORY = (
    "out of memory; close other programs, or run the same command with more memory to go on where it stopped"
)


def main() -> None:
    """Run the command line: bad input is one sentence on stderr and exit code 2, never a traceback."""
    # torch alone makes half a million objects that stay: looking at them again and again, and once more at the end,
    # takes a
    # third of the time of a short command
    gc.set_threshold(10_000, 20, 50)
    if sys.stdout is None:
        # closed by the shell (`>&-`): what is said goes nowhere, and the exit code is that of the command
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        _run()
    except SystemExit:
        if (cut := cut_sentence()) is not None:
            _stop(cut, 2)
        raise
    except IsomergeError as error:
        _stop(NO_FILES if is_files_error(error) else error.sentence, 2)
    except BrokenPipeError:  # whoever reads has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if is_full_error(error):
            _stop(_full(error), 2)
        if is_files_error(error):
            _stop(NO_FILES, 2)
        if not is_memory_error(error) and not is_overflow_error(error):
            raise
        _stop(NO_MEMORY if is_memory_error(error) else OVERFLOW, 2)
    except (KeyboardInterrupt, Stopped) as error:
        _stop(str(error) or "stopped", 130)
    finally:
        gc.freeze()


def _run() -> None:
    """The overview, which needs no library, or the program."""
    if sys.argv[1:] in ([], ["-h"], ["--help"]):
        from isomerge.cli.overview import overview

        print(overview(), flush=True)
        sys.exit(0 if sys.argv[1:] else 2)
    try:  # libraries end the process without one, in words of their own
        os.getcwd()
    except FileNotFoundError:
        raise IsomergeError(NO_FOLDER) from None
    before = ticks()
    from isomerge.cli.program import command

    wait_asleep_where_busy(before)
    watch_mapped_files(ends=True)
    command()()


def _full(error: BaseException) -> str:
    """What is said of a full disk that nothing nearer to the file has told of."""
    name = getattr(error, "filename", None)
    if name is None and _is_full(sys.stdout):
        name = "to standard output"
    return (
        f"the disk is full while writing {name}; free space there" if name else "the disk is full; free space on it"
    )


def _is_full(stream: TextIO | None) -> bool:
    """Whether what a stream still keeps cannot be written; it is thrown away then, as leaving would try once more
    and fail."""
    if stream is None:  # what Python has where standard output was closed (`>&-`)
        return False
    try:
        stream.flush()
        os.write(stream.fileno(), b"")
    except ValueError:  # closed, or no file
        return False
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return is_full_error(error)
    return False


def _stop(sentence: str, code: int) -> NoReturn:
    words = sys.argv[1:]
    if "--json=-" in words or ("--json", "-") in pairwise(words):  # who parses it gets a document in any case
        print(json.dumps({"refused": visible(cut_sentence() or sentence)}))
    print(f"isomerge: {visible(cut_sentence() or sentence)}", file=sys.stderr)
    sys.exit(code)

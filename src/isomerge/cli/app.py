"""The ``isomerge`` command."""

from __future__ import annotations

import gc
import sys
from typing import NoReturn

from isomerge.cli.processors import ticks, wait_asleep_where_busy
from isomerge.errors import OVERFLOW, IsomergeError, Stopped, is_memory_error, is_overflow_error, visible

NO_MEMORY = (
    "out of memory; close other programs, or run the same command with more memory to go on where it stopped"
)


def main() -> None:
    """Run the command line: bad input is one sentence on stderr and exit code 2, never a traceback."""
    if sys.argv[1:] in ([], ["-h"], ["--help"]):
        from isomerge.cli.overview import overview

        print(overview())
        sys.exit(0 if sys.argv[1:] else 2)
    # torch alone makes half a million objects that stay: looking at them again and again, and once more at the end, takes a
    # third of the time of a short command
    gc.set_threshold(10_000, 20, 50)
    before = ticks()
    try:
        from isomerge.cli.program import app

        wait_asleep_where_busy(before)
        app()
    except IsomergeError as error:
        _stop(error.sentence, 2)
    except Exception as error:
        if not is_memory_error(error) and not is_overflow_error(error):
            raise
        _stop(NO_MEMORY if is_memory_error(error) else OVERFLOW, 2)
    except (KeyboardInterrupt, Stopped) as error:
        _stop(str(error) or "stopped", 130)
    finally:
        gc.freeze()


def _stop(sentence: str, code: int) -> NoReturn:
    print(f"isomerge: {visible(sentence)}", file=sys.stderr)
    sys.exit(code)

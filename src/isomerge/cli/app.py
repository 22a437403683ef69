"""The ``isomerge`` command."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from isomerge.cli.align import align
from isomerge.cli.apply import apply
from isomerge.cli.barrier import barrier
from isomerge.cli.canon import canon
from isomerge.cli.demo import demo
from isomerge.cli.diff import diff
from isomerge.cli.discover import discover
from isomerge.cli.extract_lora import extract_lora
from isomerge.cli.fingerprint import fingerprint
from isomerge.cli.fsck import fsck
from isomerge.cli.inspect import inspect
from isomerge.cli.merge import merge
from isomerge.cli.methods import methods
from isomerge.cli.report import report
from isomerge.cli.stats import stats
from isomerge.cli.verify import verify
from isomerge.errors import OVERFLOW, IsomergeError, is_memory_error, is_overflow_error, visible

app = typer.Typer(
    name="isomerge",
    help="Align transformers along their weight symmetries, merge them, and prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    merge,
    methods,
    align,
    apply,
    diff,
    verify,
    fsck,
    canon,
    fingerprint,
    barrier,
    report,
    stats,
    extract_lora,
    inspect,
    discover,
    demo,
):
    app.command()(command)


def _version(value: bool) -> None:
    if value:
        from isomerge import __version__

        print(f"isomerge {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Align transformers along their weight symmetries, merge them, and prove it."""


NO_MEMORY = (
    "out of memory; close other programs, or run the same command with more memory to go on where it stopped"
)


def main() -> None:
    """Run the command line: bad input is one sentence on stderr and exit code 2, never a traceback."""
    try:
        app()
    except IsomergeError as error:
        _stop(str(error), 2)
    except Exception as error:
        if not is_memory_error(error) and not is_overflow_error(error):
            raise
        _stop(NO_MEMORY if is_memory_error(error) else OVERFLOW, 2)
    except KeyboardInterrupt:
        _stop("interrupted; run the same command again to go on", 130)


def _stop(sentence: str, code: int) -> NoReturn:
    print(f"isomerge: {visible(sentence)}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()

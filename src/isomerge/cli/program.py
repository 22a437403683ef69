"""All commands as one typer program."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import typer

from isomerge.cli.align import align
from isomerge.cli.apply import apply
from isomerge.cli.architectures import architectures
from isomerge.cli.barrier import barrier
from isomerge.cli.canon import canon
from isomerge.cli.demo import demo
from isomerge.cli.diff import diff
from isomerge.cli.discover import discover
from isomerge.cli.evaluate import evaluate
from isomerge.cli.extract_lora import extract_lora
from isomerge.cli.fingerprint import fingerprint
from isomerge.cli.fsck import fsck
from isomerge.cli.generate import generate
from isomerge.cli.inspect import inspect
from isomerge.cli.merge import merge
from isomerge.cli.merge_lora import merge_lora
from isomerge.cli.methods import methods
from isomerge.cli.overview import COMMANDS, TAGLINE
from isomerge.cli.prove import prove
from isomerge.cli.relational import relational
from isomerge.cli.report import report
from isomerge.cli.stats import stats
from isomerge.cli.stopping import Commands
from isomerge.cli.surgery import surgery
from isomerge.cli.task_mask import restore_task, task_mask
from isomerge.cli.transplant_tokenizer import transplant_tokenizer
from isomerge.cli.tune import tune
from isomerge.cli.verify import verify
from isomerge.cli.widen import widen
from isomerge.cli.written import Writing

app = typer.Typer(
    name="isomerge",
    cls=Commands,
    help=TAGLINE,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_FUNCTIONS = (
    merge,
    tune,
    methods,
    architectures,
    align,
    apply,
    diff,
    verify,
    fsck,
    canon,
    widen,
    transplant_tokenizer,
    relational,
    fingerprint,
    barrier,
    evaluate,
    report,
    stats,
    generate,
    extract_lora,
    merge_lora,
    task_mask,
    restore_task,
    surgery,
    inspect,
    discover,
    prove,
    demo,
)
for function in _FUNCTIONS:
    name = "eval" if function is evaluate else function.__name__.replace("_", "-")  # which is Python's own word
    app.command(name, cls=Writing, short_help=COMMANDS[name])(function)


def _version(value: bool) -> None:
    if value:
        from isomerge import __version__

        print(f"isomerge {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


@cache
def command() -> Callable[[], object]:
    """The program, ready to run: made once in a process, for it takes as long as a small merge."""
    return typer.main.get_command(app)

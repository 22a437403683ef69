"""What a command writes is none of the files that it reads, nor one place twice: told before anything is
computed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from isomerge.cli.mergekit_options import without_harmless
from isomerge.errors import IsomergeError, visible
from isomerge.options.option import FIRST
from isomerge.options.unused import TABLE, note, note_idle, noting
from isomerge.plug_ins.command import importing, sentences, used
from isomerge.plug_ins.modules import is_file

BESIDE = {"json": "--json", "png": "--png", "save_alignment": "--save-alignment", "page": "--out"}
"""Files by the parameters that name them."""
FOLDERS = (
    "align",
    "apply",
    "canon",
    "demo",
    "extract-lora",
    "merge",
    "merge-lora",
    "relational",
    "restore-task",
    "surgery",
    "transplant-tokenizer",
    "tune",
    "widen",
)
"""The commands whose ``--out`` is a folder."""
WORDS = (
    *(
        "address",
        "anchor",
        "anchors",
        "device",
        "dtype",
        "engine",
        "evidence",
        "exclude",
        "heads",
        "include",
        "kind",
        "kinds",
        "layers",
    ),
    *(
        "learn_effort",
        "learn_target",
        "majority_sign",
        "match",
        "method",
        "precision",
        "sampler",
        "search",
        "spaces",
        "tasks",
        "weights",
    ),
)
"""Parameters that name no file, though one may be called as they say."""


HARMLESS = "isomerge.mergekits"
"""Where a command keeps mergekit's options that it left out."""


class Writing(TyperCommand):
    """A command that refuses to write what it reads, and lists its options in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then options by their panels, in the order in which these are first named; what most runs need
        comes first."""
        arguments, panels = [], {FIRST: []}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                panel = getattr(parameter, "rich_help_panel", None) or "Options"
                (arguments if parameter.param_type_name == "argument" else panels.setdefault(panel, [])).append(
                    record
                )
        for title, records in (("Arguments", arguments), *panels.items()):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take mergekit's options that change nothing here from a merge; the run notes them."""
        if self.name == "merge":
            args, ctx.meta[HARMLESS] = without_harmless(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run it. Where files are written to may begin with ``~``, which shells leave in ``--json=~/file``.

        Raises:
            IsomergeError: naming the option.
        """
        for name in (*BESIDE, "out"):
            if isinstance(path := ctx.params.get(name), (str, Path)):
                ctx.params[name] = type(path)(os.path.expanduser(path))
        command = str(ctx.command.name)
        check_written(command, ctx.params)
        with importing(ctx.params.get("imports")), noting() as notes:
            for name, reason in ctx.meta.get(HARMLESS, {}).items():
                note(name, reason)
            if (
                function := FUNCTIONS.get(command, command.replace("-", "_"))
            ) in TABLE and function not in NOTED_LATER:
                defaults = {parameter.name: parameter.default for parameter in self.params}
                note_idle(function, _in_python(ctx.params), _in_python(defaults))
            try:
                return super().invoke(ctx)
            finally:
                if not isinstance(sys.exception(), IsomergeError):
                    plug_ins = [] if ctx.params.get("quiet") else sentences(used())
                    for text in (*notes, *plug_ins):
                        print(f"note: {visible(text)}", file=sys.stderr)


NOTED_LATER = ("align", "merge")
"""Commands whose plan notes what is not used."""
FUNCTIONS = {"eval": "evaluate"}
"""Commands whose function in Python is called otherwise: eval is a word of Python's own."""
ALONE = {
    "demo": "it tells a story in the terminal, of calls of isomerge.align, merge, barrier and report",
    "relational": "isomerge.relational is the package: its from_standard, save and load are what the command does",
}
"""Commands without a function of Python's door, and why."""
IN_PYTHON = {
    "a": "one", "b": "two", "c": "third", "patch": "alignment",
}  # fmt: skip
"""Parameters of commands that Python's functions call otherwise."""


def _in_python(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {IN_PYTHON.get(name, name): value for name, value in arguments.items()}


def check_written(command: str, arguments: Mapping[str, Any], more: Iterable[Any] = ()) -> None:
    """Refuse a file to write that is read, that is written twice, or that lies in the folder that is written.

    Args:
        command: its name.
        arguments: its parameters: what is no output is read where it names a file, a folder or a model.
        more: what is read beside them, as of recipes.

    Raises:
        IsomergeError: naming the option.
    """
    from isomerge.checkpoint.output_folder import check_apart
    from isomerge.errors import IsomergeError
    from isomerge.files import check_not_read, is_device

    named = {**BESIDE, **({} if command in ("report", *FOLDERS) else {"out": "--out"})}
    files = {
        f"{option} {arguments[name]}": Path(os.path.expanduser(arguments[name]))
        for name, option in named.items()
        if arguments.get(name) is not None and str(arguments[name]) != "-" and not is_device(Path(arguments[name]))
    }
    for (one, first), (two, second) in combinations(files.items(), 2):
        if os.path.realpath(first) == os.path.realpath(second):
            raise IsomergeError(f"{one} and {two} are one file: name two")
    folder = arguments.get("out") if command in FOLDERS and command != "demo" else None
    hidden = (*named, *WORDS, "imports", "intermediate_dir", *([] if folder is None else ["out"]))
    read = [value for key, value in arguments.items() if key not in hidden and value != ""]
    read += [name for name in arguments.get("imports") or () if is_file(name)]  # a module's name names no folder
    if folder is not None:
        check_apart(Path(os.path.expanduser(folder)), _places([*read, *more]))
    for name, path in files.items():
        if folder is not None and _is_in(path, Path(os.path.expanduser(folder))):
            raise IsomergeError(
                f"{name} lies in the folder that is written, and might replace a file of it: choose another place"
            )
        if os.path.exists(path):
            check_not_read(path, name, _places([*read, *more]))


def _is_in(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(folder)) in Path(os.path.realpath(path)).parents


def _places(values: Iterable[Any]) -> Iterator[Path]:
    """The files and folders that are read, of what a command was given."""
    from isomerge.checkpoint.companions import files_of_model
    from isomerge.checkpoint.hub import cached
    from isomerge.errors import IsomergeError
    from isomerge.models.references import parse_model_ref
    from isomerge.observe.read_files import paths_read

    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _places(value)
        elif isinstance(value, Path):
            yield from _places([str(value)])
        elif isinstance(value, str):
            paths = paths_read(value)
            if not paths:
                try:
                    parts = parse_model_ref(value)
                except IsomergeError:
                    continue
                named = [part for part in (parts.model, *parts.adapters) if part != value]
                yield from _places(named)
                paths = cached(value)
            for place in paths:
                yield from files_of_model(place)

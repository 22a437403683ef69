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

from isomerge.cli.door import by_python_names
from isomerge.cli.mergekit_options import in_own_words
from isomerge.doors import request_of
from isomerge.errors import IsomergeError, visible
from isomerge.options.option import FILE, FIRST, FOLDER, Request, spelled
from isomerge.options.unused import note, noting
from isomerge.plug_ins.command import importing, sentences, used
from isomerge.plug_ins.modules import is_file

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
                rows = arguments if parameter.param_type_name == "argument" else panels.setdefault(panel, [])
                rows.append((record[0], record[1].replace("\\[", "[")))  # as typer before 0.21 writes it for rich
        for title, records in (("Arguments", arguments), *panels.items()):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Say mergekit's options of a merge as its own, and take those from it that change nothing here; the run
        notes them."""
        if self.name == "merge":
            args, ctx.meta[HARMLESS] = in_own_words(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run it. Where files are written to may begin with ``~``, which shells leave in ``--json=~/file``.

        Raises:
            IsomergeError: naming the option.
        """
        request = request_of(str(ctx.command.name))
        paths = {name: path for name, path in ctx.params.items() if isinstance(path, Path)}
        ctx.params.update({name: Path(os.path.expanduser(path)) for name, path in paths.items()})
        check_places(request, by_python_names(request, ctx.params))
        with importing(ctx.params.get("imports")), noting() as notes:
            for name, reason in ctx.meta.get(HARMLESS, {}).items():
                note(name, reason)
            try:
                return super().invoke(ctx)
            finally:
                if not isinstance(sys.exception(), IsomergeError):
                    plug_ins = [] if ctx.params.get("quiet") else sentences(used())
                    for text in (*notes, *plug_ins):
                        print(f"note: {visible(text)}", file=sys.stderr)


def check_places(request: type[Request], arguments: Mapping[str, Any], more: Iterable[Any] = ()) -> None:
    """Refuse a file to write that is read, that is written twice, or that lies in the folder that is written.

    Args:
        request: what declares which arguments are read and written.
        arguments: those that were given, by Python's names.
        more: what is read beside them, as of recipes.

    Raises:
        IsomergeError: naming the option.
    """
    from isomerge.checkpoint.output_folder import check_apart
    from isomerge.files import check_not_read, is_device

    declared = {name: about for name, (_, about) in request.declared().items() if arguments.get(name) is not None}
    read = [*more, *(arguments[name] for name, about in declared.items() if about.reads and arguments[name] != "")]
    read += [name for name in arguments.get("imports") or () if is_file(name)]  # a module's name names no folder
    files = {
        f"{spelled(name, about)} {arguments[name]}": Path(os.path.expanduser(arguments[name]))
        for name, about in declared.items()
        if about.writes == FILE and str(arguments[name]) != "-" and not is_device(Path(arguments[name]))
    }
    for (option, first), (other, second) in combinations(files.items(), 2):
        if os.path.realpath(first) == os.path.realpath(second):
            raise IsomergeError(f"{option} and {other} are one file: name two")
    folders = [
        Path(os.path.expanduser(arguments[name])) for name, about in declared.items() if about.writes == FOLDER
    ]
    for folder in folders:
        check_apart(folder, _places(read))
    for name, path in files.items():
        if any(Path(os.path.realpath(folder)) in Path(os.path.realpath(path)).parents for folder in folders):
            raise IsomergeError(
                f"{name} lies in the folder that is written, and might replace a file of it: choose another place"
            )
        if os.path.exists(path):
            check_not_read(path, name, _places(read))


def _places(values: Iterable[Any]) -> Iterator[Path]:
    """The files and folders that are read, of what a command was given."""
    from isomerge.checkpoint.companions import files_of_model
    from isomerge.checkpoint.hub import cached
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

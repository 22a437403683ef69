"""What is read and written: specs, weights, the output's folder or file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isomerge.files import check_file, is_device
from isomerge.options.option import COMMAND_LINE, FILE, FOLDER, Asked, Key, Options, listed, needed, option

OUTPUT = "Output"


def out_folder(*, needed_in_python: bool = False, panel: str | None = None) -> Any:
    """The option of a folder to write, which the command line needs in any case."""
    words, how = "Folder to write; must not exist or be empty.", {"kind": Path, "panel": panel, "writes": FOLDER}
    names = ("--out", "-o")
    return needed(words, *names, **how) if needed_in_python else option(None, words, *names, required=True, **how)


def out_file() -> Any:
    """The option of a file of tensors to write."""
    return needed("The file to write, .safetensors.", "--out", "-o", kind=Path, writes=FILE)


def written(a: Asked) -> str | None:
    """Why what says how a checkpoint is written does nothing."""
    return "no checkpoint is written" if a.out is None else None


class ImportOptions(Options):
    """What code of others a command may look up."""

    imports: str | Path | Sequence[str | Path] = option(
        (),
        "Import this module, or this file of Python, before anything is looked up: it may register merge methods, "
        "readers of data and architectures.",
        "--import", kind=list[str] | None, read=listed, default=None, panel=OUTPUT,
    )  # fmt: skip


class SpecOptions(ImportOptions):
    """By what text a model is read."""

    spec: str | Path | None = option(
        None, "A spec text for an architecture that isomerge does not know.", "--spec", kind=Path | None,
        panel=OUTPUT, reads=True, recipe=Key(str | None, aligns=False),
    )  # fmt: skip


class OpeningOptions(SpecOptions):
    """How models are opened."""

    allow_pickle: bool = option(
        False, "Read .bin weights (with weights_only); safetensors are safer.", "--allow-pickle", panel=OUTPUT,
    )  # fmt: skip


class OutputOptions(Options):
    """How a checkpoint is written."""

    out_shard_size: str | int | None = option(
        None, "Largest shard, such as 5GB or 500M.", "--out-shard-size", kind=str, default="5GB", panel=OUTPUT,
        acts=written,
    )  # fmt: skip
    dtype: Any = option(
        None, "Write weights as float32, float16, bfloat16 or float64; as stored by default.", kind=str | None,
        panel=OUTPUT, acts=written,
    )  # fmt: skip
    overwrite: bool = option(
        False, "Replace the output folder when the new one is complete.", "--overwrite", panel=OUTPUT, acts=written,
    )  # fmt: skip
    push_to_hub: str | None = option(
        None, "Push the finished folder to this model of the Hub, ORG/NAME.", "--push-to-hub", panel=OUTPUT,
        acts=written,
    )  # fmt: skip
    private: bool = option(
        False, "With --push-to-hub: a new model is made private.", "--private", panel=OUTPUT,
        acts=lambda a: "nothing is pushed (--push-to-hub)" if a.push_to_hub is None else written(a),
    )  # fmt: skip


class FolderOptions(Options):
    """How a folder is written."""

    overwrite: bool = option(False, "Replace the output folder when the new one is complete.", "--overwrite")


class FileOptions(Options):
    """How a file is written."""

    overwrite: bool = option(False, "Replace the file.", "--overwrite")


def writable(path: Path | None) -> Path | None:
    """A report that cannot be written is told before the work is done.

    Raises:
        IsomergeError: naming the option.
    """
    if path is not None and str(path) != "-" and not is_device(path):
        check_file(Path(os.path.expanduser(path)), f"--json {path}", overwrite=True)
    return path


class ReportOptions(Options):
    """What the command line tells of a run; Python returns it."""

    json: Path | None = option(
        None, "Write the report as JSON to this file (-: print it, with -q alone).", "--json", callback=writable,
        panel=OUTPUT, door=COMMAND_LINE, writes=FILE,
    )  # fmt: skip
    quiet: bool = option(False, "Print nothing but errors.", "--quiet", "-q", panel=OUTPUT, door=COMMAND_LINE)


class TellingOptions(ReportOptions):
    """The same, and whether figures per layer are printed."""

    verbose: bool = option(
        False, "Print figures per layer as well.", "--verbose", "-v", panel=OUTPUT, door=COMMAND_LINE,
    )  # fmt: skip


class DryRunOptions(Options):
    """Whether a run is planned alone."""

    dry_run: bool = option(
        False, "Check everything, print the plan and its cost, write nothing.", "--dry-run", panel=OUTPUT,
        door=COMMAND_LINE,
    )  # fmt: skip

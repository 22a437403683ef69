"""Spec texts proven, and found: what `isomerge prove` and `discover` are asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from isomerge.options.files import ImportOptions, TellingOptions
from isomerge.options.option import FILE, PYTHON, Asked, Request, argument, group, option

MODEL = "A model: a folder, a hub id, or its config.json alone."


def _of_module(a: Asked) -> str | None:
    own = a.module is not None or hasattr(a.model, "named_parameters")
    return None if own else "transformers builds the tiny models, which are run on inputs of their own"


class Prove(Request):
    """Prove a spec: random elements of every space leave the outputs of tiny random models of MODEL's class
    unchanged, and every line that is left out changes them.

    The weights of MODEL are not read. Exit code 0: proven; 1: refuted. A proof is remembered: commands with --spec
    demand it once.
    """

    progress = "prove"
    model: Any = argument(MODEL)
    spec: str | Path | None = option(
        None, "The spec text to prove; without it, the built-in one of the architecture.", "--spec",
        kind=Path | None, reads=True,
    )  # fmt: skip
    module: Any = option(
        None,
        "A function of yours that returns a tiny module and its inputs, where transformers does not build the "
        "class: plain torch, remote code. The file is run.",
        "--module", metavar="FILE.py:FUNCTION", kind=str | None, reads=True,
    )  # fmt: skip
    inputs: Any = option(
        None,
        "What a module is run on: keywords as a dict, arguments as a tuple, the only argument, or a list of such.",
        door=PYTHON, acts=_of_module,
    )  # fmt: skip
    forward: Callable[[Any, Any], Any] | None = option(
        None, "Called with module and input, where it is not the module itself that is called.", door=PYTHON,
        acts=_of_module,
    )  # fmt: skip
    seed: int = option(0, "Seed of the tiny random models.")
    importing: ImportOptions = group(ImportOptions)
    telling: TellingOptions = group(TellingOptions)


class Discover(Request):
    """Derive the spec of MODEL's architecture and prove it: every symmetry is tried on tiny random models of the
    same class.

    Only symmetries that leave the outputs unchanged enter the spec; what is not understood stays fixed, and is
    named. The weights of MODEL are not read.
    """

    progress = "discover"
    model: Any = argument(MODEL)
    out: str | Path | None = option(
        None, "Write the spec text to this file; printed otherwise.", "--out", "-o", kind=Path | None, writes=FILE,
    )  # fmt: skip
    seed: int = option(0, "Seed of the tiny random models.")
    overwrite: bool = option(
        False, "Replace the file when it exists.", "--overwrite",
        acts=lambda a: "no file is written (--out)" if a.out is None else None,
    )  # fmt: skip
    telling: TellingOptions = group(TellingOptions)

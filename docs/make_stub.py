"""Write src/isomerge/api/__init__.pyi: the functions of Python's API with every option that they take, for editors and type checkers.

python docs/make_stub.py
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import isomerge
from isomerge import api

STUB = Path(api.__file__).with_suffix(".pyi")
HEAD = '''"""The Python API, with the options of every function. Made by docs/make_stub.py; do not edit by hand."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isomerge.checkpoint.reader import Checkpoint
from isomerge.evidence.report.notebook import Report
from isomerge.evidence.report.page import Page
from isomerge.observe.data.examples import Examples
from isomerge.progress import Observer
from isomerge.quotient.record import Fingerprint
from isomerge.symmetry.alignment import Alignment

'''


def written(parameter: inspect.Parameter) -> str:
    """A parameter as a stub writes it."""
    kind = f": {parameter.annotation}"
    if parameter.default is parameter.empty:
        return f"{parameter.name}{kind}"
    plain = isinstance(parameter.default, (str, int, float, bool, tuple, type(None)))
    return f"{parameter.name}{kind} = {repr(parameter.default) if plain else '...'}"


def function(name: str) -> str:
    """One function."""
    signature: Any = inspect.signature(getattr(api, name))
    parts, star = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        parts.append(written(parameter))
    rows = "".join(f"    {part},\n" for part in parts)
    return f"def {name}(\n{rows}) -> {signature.return_annotation}: ...\n"


def stub() -> str:
    """The whole file."""
    text = "".join(map(function, api.__all__))
    used = set(re.findall(r"\w+", text))
    lines = []
    for line in HEAD.splitlines():
        start, _, names = line.partition(" import ")
        kept = [name for name in names.split(", ") if name in used]
        lines += [f"{start} import {', '.join(kept)}"] if names and kept else [] if names else [line]
    exported = "".join(f'    "{name}",\n' for name in api.__all__)
    return "\n".join(lines) + f"\n\n__all__ = [\n{exported}]\n\n" + text


if __name__ == "__main__":
    assert isomerge.__version__
    STUB.write_text(stub(), encoding="utf-8")

"""What a search over whole models may use of the run that it is made for: a place for its outcome, so that it
runs once; and files of several named parts of tensors, with a record: the state of what may be interrupted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from torch import Tensor

from isomerge.arithmetic import aligned
from isomerge.files import write_tensors
from isomerge.models.stored_form import StoredForm
from isomerge.progress import Observer
from isomerge.records import Json


class UnfinishedRun(Protocol):
    """A run whose output is not complete: `isomerge.run.writing_run.StreamWriter`, as the solvers see it."""

    form: StoredForm
    """How the output is stored."""

    @property
    def observer(self) -> Observer:
        """Told of progress."""
        ...

    def blob(self, name: str) -> Path:
        """A file in the folder of the unfinished output, gone when the output is complete."""
        ...

    def done(self, unit: str) -> Json | None:
        """The record of a step that an earlier, interrupted run has completed."""
        ...

    def commit(self, unit: str, record: Json) -> None:
        """Note that a step is complete, with its files."""
        ...


def save_parts(path: Path, parts: Mapping[str, Mapping[str, Tensor]], about: Mapping[str, Any]) -> None:
    """Write parts as a safetensors file, complete or not at all.

    Args:
        path: the file.
        parts: tensors by name, by part; names of tensors have no slash. Empty parts leave no trace. One tensor may
            be there several times, as elements that a whole stack shares.
        about: what JSON can tell.
    """
    tensors = {f"{part}/{key}": x for part, tensors_of_part in parts.items() for key, x in tensors_of_part.items()}
    write_tensors(path, tensors, about)


def load_parts(path: Path) -> tuple[dict[str, dict[str, Tensor]], Json] | None:
    """What `save_parts` has written: parts and record; None without a file, or with one that is damaged."""
    if not path.exists():
        return None
    parts: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(str(path), "pt") as file:
            about = json.loads((file.metadata() or {})["isomerge"])
            for name in file.keys():  # noqa: SIM118
                part, _, key = name.rpartition("/")
                parts.setdefault(part, {})[key] = aligned(file.get_tensor(name))
    except (SafetensorError, OSError, KeyError, ValueError):  # what was saved is lost: begin again
        return None
    return parts, about

"""What a search over whole models may use of the run that it is made for: a place for its outcome, so that it
runs once."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

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

"""A model brought into relational form: converted and tried, then written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from isomerge.checkpoint.output_folder import PartialFolder
from isomerge.models.recognised import recognise
from isomerge.observe.live.modules import load_module
from isomerge.options.requests.relating import Relational
from isomerge.records import Record, optional
from isomerge.research.relational.conversion import from_standard
from isomerge.research.relational.transformer import RelationalTransformer, save


class RelationalReport(Record):
    """A model in relational form."""

    model: str
    layers: int
    heads: int
    anchors: int
    parameters: int
    command: str = "dry-run"
    out: str | None = optional()


@dataclass(frozen=True)
class Relating:
    """A converted model and its place."""

    model: RelationalTransformer
    origin: str
    place: PartialFolder
    report: RelationalReport

    def run(self) -> RelationalReport:
        """Write it whole; the report.

        Raises:
            IsomergeError: it cannot be written.
        """
        self.place.begin()
        save(self.model, self.place.model, self.origin, name=self.place.out.name)
        self.place.publish()
        return replace(self.report, command="relational", out=str(self.place.out))


@contextmanager
def planned_relational(asked: Relational) -> Iterator[Relating]:
    """``isomerge relational`` up to where something is written: the conversion shows whether it can be done.

    Raises:
        IsomergeError: the model cannot be loaded or has no relational form, or the folder cannot be written.
    """
    checkpoint = recognise(asked.model).checkpoint
    reads = [checkpoint.folder] if checkpoint.in_folder else []
    place = PartialFolder(Path(os.path.expanduser(asked.out)), overwrite=asked.writing.overwrite, reads=reads)
    try:
        made = from_standard(
            load_module(asked.model), anchors=asked.anchors, full=asked.full, chunk=asked.chunk, seed=asked.seed
        )
        config = made.config
        count = sum(p.numel() for p in made.parameters())
        report = RelationalReport(str(asked.model), config.layers, config.heads, config.anchors, count)
        yield Relating(made, str(asked.model), place, report)
    finally:
        place.release()

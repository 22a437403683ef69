"""A model brought into relational form: converted and tried, then written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isomerge.checkpoint.output_folder import PartialFolder
from isomerge.models.recognised import recognise
from isomerge.observe.live.modules import load_module
from isomerge.options.requests.relating import Relational
from isomerge.research.relational.conversion import from_standard
from isomerge.research.relational.transformer import RelationalTransformer, save


@dataclass
class Relating:
    """A converted model and its place."""

    model: RelationalTransformer
    origin: str
    place: PartialFolder
    report: dict[str, Any]

    def run(self) -> dict[str, Any]:
        """Write it whole; the report.

        Raises:
            IsomergeError: it cannot be written.
        """
        self.place.begin()
        save(self.model, self.place.model, self.origin, name=self.place.out.name)
        self.place.publish()
        return {**self.report, "command": "relational", "out": str(self.place.out)}


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
        report = {
            "command": "dry-run",
            "model": str(asked.model),
            "layers": config.layers,
            "heads": config.heads,
            "anchors": config.anchors,
            "parameters": sum(p.numel() for p in made.parameters()),
        }
        yield Relating(made, str(asked.model), place, report)
    finally:
        place.release()

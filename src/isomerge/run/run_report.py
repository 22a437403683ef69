"""The report of a run: what was read, and how far every tensor was from its counterpart, before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version

import torch

from isomerge import __version__
from isomerge.arithmetic import arithmetic_notes, arithmetic_record
from isomerge.checkpoint.checksums import Checksum
from isomerge.evidence.distance import Spread, risen_note, summarise
from isomerge.evidence.report.facts import Facts, facts_of
from isomerge.evidence.report.spaces import plain_names
from isomerge.models.recognised import Model
from isomerge.options import unused
from isomerge.plug_ins.command import with_used
from isomerge.records import Json, Record, inline, optional
from isomerge.run.absolute_names import absolute_path, absolute_ref
from isomerge.run.provenance import InputFile, input_files
from isomerge.solve.pairs.pair import UnitResult, gaps_of
from isomerge.symmetry.fixed import FixedPart, fixed_parts


class Run(Record):
    """What ran on what."""

    command: str
    models: Sequence[str]
    paths: Sequence[str]
    """Of the models, whatever the current folder."""
    architecture: str
    versions: Mapping[str, str]
    arithmetic: Mapping[str, str | int]
    inputs: Sequence[InputFile]
    """The files of the models, and of those beside them."""
    dead_blocks: Sequence[str]
    fixed: Sequence[FixedPart]
    spec: str | None = optional()


def run_of(
    command: str,
    models: Sequence[Model],
    results: Sequence[Sequence[UnitResult]] = (),
    beside: Iterable[Model] = (),
) -> Run:
    """What ran: on models and on those ``beside`` them, with what results for every source."""
    first = models[0]
    return Run(
        command,
        models=[m.ref for m in models],
        paths=[absolute_ref(m.ref) for m in models],
        architecture=first.spec.model_type,
        versions={"isomerge": __version__, "torch": torch.__version__, "transformers": version("transformers")},
        arithmetic=arithmetic_record(),
        inputs=input_files(model.checkpoint for model in (*models, *beside)),
        dead_blocks=sorted({key for r in results for unit in r for key in unit.dead}),
        fixed=fixed_parts(first.spec, first.matches.values()),
        spec=None if first.spec_file is None else absolute_path(first.spec_file),
    )


def run_notes(notes: Iterable[str], risen: Iterable[str] = ()) -> list[str]:
    """Notes, with those on arithmetic, on distances that have risen, and on options."""
    return [*notes, *arithmetic_notes(), *risen, *unused.notes()]


class RunReport(Record, kw_only=True):
    """What is said of a run that writes a checkpoint."""

    run: Run = inline()
    notes: Sequence[str] = ()
    files: Mapping[str, Checksum] | None = optional()
    """What was written, where it was."""
    digest: str | None = optional()

    def document(self) -> Json:
        """As JSON has it, with the plug-ins that were used."""
        return with_used(super().document())

    @property
    def facts(self) -> Facts:
        """What the page and advice are made of.

        Raises:
            IsomergeError: of another command than merge, align or diff.
        """
        return facts_of(self.document())


class SourceMove(Record):
    """How far one of several models was from the first."""

    model: str
    distance: Spread


class Moves(Record):
    """How far models were from the first, before and after they were moved."""

    distance: Spread
    """Over all sources."""
    sources: Sequence[SourceMove] | None = optional()
    """One by one, where there are several."""

    @property
    def spreads(self) -> Sequence[Spread]:
        """Of every source."""
        return [self.distance] if self.sources is None else [source.distance for source in self.sources]

    def risen(self, why: str) -> list[str]:
        """Sentences on distances that rose, and what was lowered instead."""
        whose = [""] if self.sources is None else [source.model for source in self.sources]
        return [
            note
            for spread, name in zip(self.spreads, whose, strict=True)
            for note in risen_note(spread.total, why, name)
        ]


class Match(Record):
    """A published way that matched."""

    name: str
    sources: Sequence[Json]
    """What it says of every source."""


def moves_of(models: Sequence[Model], results: Sequence[Sequence[UnitResult]]) -> Moves:
    """Of the results of every source."""
    names = plain_names(models[0].declared)
    each = [summarise(gaps_of(r), names) for r in results]
    if len(each) == 1:
        return Moves(each[0])
    whole = summarise([gap for r in results for gap in gaps_of(r)], names)
    sources = [SourceMove(m.ref, spread) for m, spread in zip(models[1:], each, strict=True)]
    return Moves(whole, sources=sources or None)

"""Runs that write a checkpoint: aligning, merging, replaying a patch. Units are read once and written once."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from isomerge import __version__
from isomerge.checkpoint.checksums import Checksum
from isomerge.checkpoint.companions import config_bytes, left_behind
from isomerge.checkpoint.opening import CONFIG
from isomerge.checkpoint.output_folder import check_apart, check_out
from isomerge.checkpoint.weights import weights_name
from isomerge.checkpoint.writer import CheckpointWriter, DroppingWriter
from isomerge.errors import OVERFLOW, RESUMABLE, IsomergeError, UnfinishedError, is_overflow_error
from isomerge.evidence.card import REPORT
from isomerge.evidence.pictures import PICTURE, distances_picture
from isomerge.files import disk_errors
from isomerge.models.recognised import Model
from isomerge.models.stored_form import StoredForm, planned_tensors
from isomerge.plug_ins.command import given_modules
from isomerge.progress import Observer, quiet
from isomerge.records import Json
from isomerge.run.local_engine import Engine, LocalEngine
from isomerge.run.report_file import signed
from isomerge.run.run_report import RunReport
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block

R = TypeVar("R", bound=RunReport)


@dataclass
class Output:
    """Where and how a checkpoint is written."""

    out: Path
    out_shard_size: int = 5_000_000_000
    dtype: str | None = None
    overwrite: bool = False
    observer: Observer = quiet
    jobs: int | None = None
    """Units that are worked on at once, each by one thread; see `isomerge.run.local_engine.LocalEngine`."""
    max_memory: int | None = None
    """Bytes that the run may take, by the estimate of a dry run; of a worker on a cluster."""
    engine: Engine = field(default_factory=LocalEngine)
    """What works on the units."""
    reads: tuple[Path, ...] = ()
    """Files and folders that are read beside the models: no folder that holds them is replaced."""
    published: bool = False
    """Whether the folder is complete and in its place."""
    dropped: bool = False
    """Whether the caller wants what the run finds, and no checkpoint: tensors are dropped, and ``out`` is not
    made."""

    def files_read(self, models: Iterable[Model]) -> list[Path]:
        """What must stay where it is while a run reads these models, and as it is: their folders as well."""
        return [*self.reads, *(place for model in models for place in model.checkpoint.places)]

    def check_apart(self, models: Iterable[Model]) -> None:
        """Refuse an output that would replace what is read of these models or beside them, or that would lie in it.

        Raises:
            IsomergeError: naming what is read.
        """
        if not self.dropped:
            check_apart(self.out, self.files_read(models))

    def check(self, models: Sequence[Model]) -> None:
        """Refuse what a run would refuse to write of the first of these models, reading all of them.

        Raises:
            IsomergeError: a folder that is there and must not be replaced, or an unknown dtype.
        """
        check_out(self.out, overwrite=self.overwrite, reads=self.files_read(models))
        planned_tensors(models[0], self.dtype)


def run_key(what: str, models: Sequence[Model], *settings: Any) -> str:
    """A digest of everything that determines an output: tool, inputs' files and dates, specs, settings, and the
    code of modules that were imported for it."""
    parts: list[Any] = [__version__, what, *settings]
    parts += [[module.name, module.sha256] for module in given_modules()]
    for model in models:
        parts += model.checkpoint.identity()
        spec = model.spec
        said = (model.config, spec.spaces, spec.lines, spec.shifts, spec.sizes, spec.prefixes)
        parts.append(repr(said))
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


class StreamWriter:
    """A checkpoint being written unit by unit, with its report and alignments."""

    def __init__(
        self,
        donor: Model,
        output: Output,
        key: str,
        *,
        others: Iterable[Model] = (),
        apart: frozenset[str] = frozenset(),
    ) -> None:
        """``others`` are the models that are read beside the ``donor``; ``apart`` as in `CheckpointWriter`."""
        self.donor, self.output, self.apart = donor, output, apart
        self.writer = (
            DroppingWriter(output.out, key=key)
            if output.dropped
            else CheckpointWriter(
                output.out,
                planned_tensors(donor, output.dtype),
                key=key,
                out_shard_size=output.out_shard_size,
                overwrite=output.overwrite,
                apart=apart,
                name=weights_name(donor.config),
                reads=output.files_read((donor, *others)),
                observer=output.observer,
            )
        )
        self.form = StoredForm(donor, output.dtype, self.writer)

    def __enter__(self) -> StreamWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if isinstance(error, KeyboardInterrupt) and self.writer.folder.exists():
            error.add_note(RESUMABLE)
        # bad input leaves nothing behind; a full disk, a lost machine or a kill leaves a folder to resume from
        overflow = isinstance(error, Exception) and is_overflow_error(error)
        if overflow or (isinstance(error, IsomergeError) and not isinstance(error, UnfinishedError)):
            self.writer.discard()
        self.writer.close()
        if overflow:
            raise IsomergeError(f"{self.output.out} was not made: {OVERFLOW}") from None
        if isinstance(error, Exception) and not isinstance(error, IsomergeError):
            with disk_errors(self.output.out):  # the disk may be full for files that libraries write, too
                raise error

    @property
    def observer(self) -> Observer:
        """Told of progress."""
        return self.output.observer

    def blob(self, name: str) -> Path:
        """A file in the folder of the unfinished output, gone when the output is complete."""
        return self.writer.blob(name)

    def commit(self, unit: str, record: Json) -> None:
        """Note that a step is complete, with its files."""
        self.writer.commit(unit, record)

    def done(self, unit: str) -> Json | None:
        """The record of a unit that an earlier, interrupted run has written."""
        return self.writer.done.get(unit)

    def put(self, block: Block, tensor: Tensor) -> None:
        """Write one block under the donor's names, in the output dtype."""
        for name, part in self.form.named(self.donor, {block: tensor}).items():
            self.writer.write(name, part)

    def config(self) -> Json:
        """The config that is written."""
        # `transformers_weights` names the donor's weights file, which the output does not have
        config = {key: value for key, value in self.donor.config.items() if key != "transformers_weights"}
        if (dtype := self.output.dtype) is None:
            return config
        said = [key for key in ("dtype", "torch_dtype") if key in config] or ["dtype"]
        return config | dict.fromkeys(said, dtype)

    @contextmanager
    def as_checkpoint(self) -> Iterator[Path]:
        """The output as it stands, in a folder that is deleted afterwards: for running it before it is complete."""
        with tempfile.TemporaryDirectory(prefix="whole-", dir=self.writer.folder) as name:
            folder = Path(name)
            self.writer.link_weights(folder)
            for file, content in self.donor.checkpoint.companions().items():
                path = folder / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read_bytes() if isinstance(content, Path) else content)
            (folder / CONFIG).write_bytes(config_bytes(self.config()))
            yield folder

    def finish(
        self,
        report: R,
        alignments: Mapping[str, Alignment],
        card: str,
        *,
        more: Mapping[str, bytes | Path] | None = None,
        links: Mapping[str, str] | None = None,
    ) -> R:
        """Companion files, config, card, alignments and ``more`` files; the report with the checksums of all; then
        the rename. Returns the report as it is written.

        ``links`` are further names for the weights files (see `CheckpointWriter.finish`).
        """
        checkpoint = self.donor.checkpoint
        files: dict[str, bytes | Path] = checkpoint.companions()
        if checkpoint.files and (notes := left_behind(checkpoint.folder)):
            report = replace(report, notes=[*report.notes, *notes])
        if (picture := distances_picture(report.document())) is not None:
            files[PICTURE] = picture
        files["README.md"] = card.encode()
        for name, alignment in alignments.items():
            path = self.writer.blob(name)
            alignment.save(path)
            files[name] = path

        def completed(sums: Mapping[str, Checksum]) -> dict[str, bytes]:
            nonlocal report
            report = replace(report, files=dict(sorted(sums.items())))
            written, digest = signed(report.document())
            report = replace(report, digest=digest)
            return {REPORT: written}

        self._publish({**files, **(more or {})}, links, completed)
        return report

    def finish_unreported(self) -> None:
        """The same of a checkpoint on the way to an output: weights, companion files and config alone."""
        self._publish(self.donor.checkpoint.companions())

    def _publish(
        self,
        files: Mapping[str, bytes | Path],
        links: Mapping[str, str] | None = None,
        completed: Callable[[Mapping[str, Checksum]], Mapping[str, bytes]] | None = None,
    ) -> None:
        files = {**files, CONFIG: config_bytes(self.config())}
        self.writer.finish(files, links, completed)
        self.output.published = not self.output.dropped

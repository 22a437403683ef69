"""Writing a checkpoint tensor by tensor, in any order, so that a killed run goes on where it stopped; putting the
files beside its weights into its folder; and the writer of runs whose tensors nobody wants."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from isomerge.checkpoint.checksums import Checksum, file_checksum, joined
from isomerge.checkpoint.companion_folder import write_companions
from isomerge.checkpoint.disk import FlushBehind, write_from
from isomerge.checkpoint.dtypes import dtype_code, torch_dtype
from isomerge.checkpoint.output_folder import PartialFolder
from isomerge.checkpoint.resume import Journal, start
from isomerge.checkpoint.shard_plan import OutTensor, Shard, file_spans, index_bytes, shard_plan
from isomerge.checkpoint.stored_tensor import content_of
from isomerge.checkpoint.tensor_place import PlacedTensor, TensorPlace
from isomerge.checkpoint.weights import SAFETENSORS, is_plain_name
from isomerge.errors import IsomergeError, unfinished
from isomerge.files import disk_errors, flush, open_fd
from isomerge.progress import Observer, quiet
from isomerge.records import Json

if TYPE_CHECKING:
    import torch


class CheckpointWriter:
    """A checkpoint folder being written; used by one thread, best as a context manager.

    ``out`` is the absolute output folder; ``shards`` the files planned; ``done`` maps each unit committed by
    an earlier run with the same key to its record, as far as what it wrote is still there; ``resumed`` says that an
    earlier run is continued, and ``discarded`` that one was thrown away as it had another key or plan, or was
    damaged.
    """

    def __init__(
        self,
        out: Path,
        tensors: Sequence[OutTensor],
        *,
        key: str,
        out_shard_size: int = 5_000_000_000,
        overwrite: bool = False,
        apart: Collection[str] = (),
        name: str = SAFETENSORS,
        reads: Collection[Path] = (),
        observer: Observer = quiet,
    ) -> None:
        """Plans the files and takes the lock on ``out``; resumes or begins the partial folder beside it.

        ``key`` is a digest of everything that determines the output; ``out_shard_size`` is in bytes of tensor
        data per file, ``apart`` the tensors that have files of their own, ``name`` what a single file is called;
        ``reads`` are the files that it is made from, which ``overwrite`` must not remove;
        ``observer`` is told of bytes that an earlier run wrote, as they are checked.
        Raises IsomergeError when ``out`` exists and is not an empty folder (unless ``overwrite``,
        which replaces it at the very end), when another process is writing it, when the tensors cannot be
        stored (see `shard_plan`), or when the disk lacks room.
        """
        self.shards = shard_plan(tensors, out_shard_size, apart, name)
        self._index = f"{name}.index.json"
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self.out = Path(os.path.realpath(out))
        self._pending: dict[str, int] = {}
        self._pending_blobs: set[Path] = set()
        self._flushing = FlushBehind()
        self._partial = PartialFolder(self.out, overwrite=overwrite, reads=reads)
        self._spans = file_spans(self.shards, self._partial.model)
        self._journal = Journal(self._partial.journal)
        self._open = True
        try:
            begun = start(self._partial, self._journal, self.shards, key, observer)
        except BaseException:
            self.close()
            raise
        self.resumed, self.discarded = begun.resumed, begun.discarded
        self.done = {name: unit.record for name, unit in begun.units.items()}
        self._written = {name: crc for unit in begun.units.values() for name, crc in unit.tensors.items()}

    @property
    def folder(self) -> Path:
        """The folder beside ``out`` in which everything unfinished is; `finish` removes it."""
        return self._partial.root

    def place(self, name: str) -> TensorPlace:
        """Where a planned tensor of one of torch's dtypes goes, to be filled piece by piece; give `write` what
        comes of it. Raises IsomergeError when ``name`` is not planned.
        """
        import torch

        planned = self._planned(name)
        path, offset, _ = self._spans[name]
        return TensorPlace(path, offset, torch.Size(planned.shape), torch_dtype(planned.dtype))

    def _planned(self, name: str) -> OutTensor:
        self._check_open()
        if name not in self._tensors:
            raise IsomergeError(f"{self.out}: tensor {name!r} is not planned; list it when the writer is made")
        return self._tensors[name]

    def write(self, name: str, tensor: torch.Tensor | PlacedTensor) -> None:
        """Writes ``tensor`` (any device, any strides) at its place in its file, unless it is there already (see
        `place`).

        Raises IsomergeError when ``name`` is not planned, dtype or shape differ from the plan, the writer is
        closed, or the disk is full; after the last the partial folder can still be resumed.
        """
        planned = self._planned(name)
        if isinstance(tensor, PlacedTensor):
            self._written[name] = self._pending[name] = tensor.crc32
            return
        code, shape = dtype_code(tensor.dtype, f"{self.out}: tensor {name!r}"), tuple(tensor.shape)
        if (code, shape) != (planned.dtype, tuple(planned.shape)):
            raise IsomergeError(
                f"{self.out}: tensor {name!r} is {code} {list(shape)}, but {planned.dtype} "
                f"{list(planned.shape)} was planned; convert it before it is written"
            )
        content = content_of(tensor.cpu().resolve_conj().resolve_neg().contiguous())
        path, offset, _ = self._spans[name]
        with disk_errors(path), open_fd(path, os.O_WRONLY) as fd:
            write_from(fd, content, offset)
        self._written[name] = self._pending[name] = Checksum.of(content).crc32

    def commit(self, unit: str, record: Json) -> None:
        """Journals everything written since the last commit as ``unit``, with the checksums by which a resumed run
        knows it.

        ``record`` must have a JSON form; a resumed run finds it in ``done``. Blobs asked for since the last
        commit, if they are files, count as written. Raises IsomergeError when the disk is full or the writer is
        closed.
        """
        self._check_open()
        with disk_errors(self.out):
            blobs = {path.name: file_checksum(path).crc32 for path in self._pending_blobs if path.is_file()}
            try:
                self._journal.append(unit, record, dict(sorted(self._pending.items())), dict(sorted(blobs.items())))
            except (TypeError, ValueError) as error:
                raise IsomergeError(
                    f"{self.out}: the record of unit {unit!r} has no JSON form ({error}); use plain values only"
                ) from error
        for name in self._pending:
            path, _, nbytes = self._spans[name]
            self._flushing.written(path, nbytes)
        self._pending.clear()
        self._pending_blobs.clear()

    def blob(self, name: str) -> Path:
        """The path for a side file ``name`` (a plain file name) that is kept across a resume.

        It may exist from an earlier run; trust it only if a committed unit says so. `finish` removes it.
        """
        self._check_open()
        if not is_plain_name(name):
            raise IsomergeError(f"{self.out}: {name!r} is no name for a side file; use a plain file name")
        path = self._partial.blobs / name
        self._pending_blobs.add(path)
        return path

    def finish(
        self,
        files: Mapping[str, bytes | Path],
        links: Mapping[str, str] | None = None,
        last: Callable[[dict[str, Checksum]], Mapping[str, bytes]] | None = None,
    ) -> Path:
        """Completes the checkpoint and renames it to ``out``, which is returned; the writer is closed.

        ``files`` maps relative names ("config.json", "1_Pooling/config.json") to bytes, or to a file that is
        copied. ``links`` maps further names to weights files of this checkpoint, which are hard links where the
        file system has them, else copies. ``last`` makes the very last files from the checksums of all others, by
        name. Raises IsomergeError, leaving the partial folder to be resumed, when tensors are missing, a
        name of ``files`` leaves the folder or is a weights file, a source is missing; and UnfinishedError, as that
        is no fault of the input, when a file cannot be written, the disk is full, or ``out`` was filled meanwhile.
        """
        self._check_open()
        missing = [name for name in self._tensors if name not in self._written]
        if missing:
            raise IsomergeError(
                f"{self.out}: {len(missing)} planned tensors were not written, the first {missing[0]!r}; "
                "write every planned tensor before finishing"
            )
        weights = {shard.file for shard in self.shards}
        linked = {name: self._partial.model / file for name, file in (links or {}).items()}
        check_extras(self.out, {**files, **linked}, weights | {self._index})
        extras = dict(files)
        if len(self.shards) > 1:
            extras[self._index] = index_bytes(self.shards)
        with unfinished():
            self._flushing.wait()
            with disk_errors(self.out):
                for file in sorted(weights):
                    flush(self._partial.model / file)
                sums = write_extras(self._partial.model, extras, keep=weights, links=linked)
            sums |= {shard.file: self._checksum(shard) for shard in self.shards}
            if last is not None:
                sums |= {name: sums[file] for name, file in (links or {}).items()}
                self._write_last(last(sums), sums.keys() | {self._index})
            self._partial.publish()
        self.close()
        return self.out

    def _checksum(self, shard: Shard) -> Checksum:
        parts = [Checksum(nbytes, self._written[name]) for name, (_, nbytes) in shard.spans.items()]
        return joined([Checksum.of(shard.prefix), *parts])

    def _write_last(self, files: Mapping[str, bytes], reserved: set[str]) -> None:
        check_extras(self.out, files, reserved)
        with disk_errors(self.out):
            for name, content in files.items():
                path = self._partial.model / name
                path.write_bytes(content)
                flush(path)
            flush(self._partial.model)

    def link_weights(self, folder: Path) -> None:
        """Link the weights files, and write their index, into another folder of the same file system, where what is
        written so far can be read."""
        for shard in self.shards:
            source, link = self._partial.model / shard.file, folder / shard.file
            try:
                os.link(source, link)
            except OSError:  # a file system without hard links
                link.symlink_to(source)
        if len(self.shards) > 1:
            (folder / self._index).write_bytes(index_bytes(self.shards))

    def discard(self) -> None:
        """Removes the partial folder, while it is still locked: once it is not, it may be another process's."""
        if self._open:
            self._partial.discard()
        self.close()

    def close(self) -> None:
        """Releases the lock; an unfinished partial folder stays for a later run with the same key."""
        self._open = False
        self._flushing.close()
        self._partial.release()

    def _check_open(self) -> None:
        if not self._open:
            raise IsomergeError(f"{self.out}: its writer is closed; make a new one to go on writing")

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def check_extras(out: Path, files: Mapping[str, bytes | Path], reserved: set[str]) -> None:
    """Raises IsomergeError unless every name of ``files`` stays within ``out`` and every source exists.

    ``reserved`` are the names of the weights files and their index.
    """
    for name, content in files.items():
        if not all(is_plain_name(part) for part in name.split("/")):
            raise IsomergeError(f"{out}: {name!r} is no file name within it; use a relative name without '..'")
        if name in reserved:
            raise IsomergeError(f"{out}: {name!r} is one of its weights files; give the extra file another name")
        if isinstance(content, Path) and not content.is_file():
            raise IsomergeError(f"{content}, to be copied to {out / name}, does not exist; check the path")


def write_extras(
    folder: Path, files: Mapping[str, bytes | Path], *, keep: set[str], links: Mapping[str, Path] | None = None
) -> dict[str, Checksum]:
    """Writes ``files`` into ``folder`` durably, after removing all but the files ``keep`` from it.

    ``links`` are further names for files that are there: hard links, or copies where the file system has none.

    What an interrupted run left there may be of other content, hence the removal. Returns the checksums of
    ``files``. Raises OSError.
    """
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in keep:
            path.unlink()
    folders = {folder}
    sums: dict[str, Checksum] = {}
    write_companions(folder, files)
    for name, content in files.items():
        path = folder / name
        sums[name] = file_checksum(path) if isinstance(content, Path) else Checksum.of(content)
        flush(path)
        folders.add(path.parent)
    for name, source in (links or {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, path)
        except OSError:  # a file system without hard links, or with too many of them
            shutil.copyfile(source, path)
            flush(path)
        folders.add(path.parent)
    for path in sorted(folders):
        flush(path)
    return sums


class DroppingWriter(CheckpointWriter):
    """Takes tensors and drops them; its folder holds side files alone, and is gone in the end."""

    def __init__(self, out: Path, *, key: str) -> None:
        super().__init__(out, [], key=key)

    def write(self, name: str, tensor: torch.Tensor | PlacedTensor) -> None:
        """Drops the tensor."""

    def finish(
        self,
        files: Mapping[str, bytes | Path],
        links: Mapping[str, str] | None = None,
        last: Callable[[dict[str, Checksum]], Mapping[str, bytes]] | None = None,
    ) -> Path:
        """Removes the folder; ``out``, which is returned, is not made."""
        self.discard()
        return self.out

"""What a worker of a cluster does: solve one unit and leave it on the storage that all machines share.

It writes a file of its own, whole, under a name that no other attempt has, and never the output: the driver copies
it to its place, as the output's only writer. On network file systems two machines that write neighbouring bytes of
one file can lose each other's (a page is cached whole); and a worker that was given up for dead may still write
when the output is complete.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from isomerge.checkpoint.checksums import Checksum, Sums
from isomerge.checkpoint.stored_tensor import content_of
from isomerge.checkpoint.tensor_place import PlacedTensor
from isomerge.errors import ClusterError, IsomergeError, UnfinishedError
from isomerge.files import disk_errors, write_tensors
from isomerge.records import Json
from isomerge.run.cluster.parcel import Parcel, unpack
from isomerge.run.pipeline import one_thread_each
from isomerge.run.unit_work import Solved, UnitWork
from isomerge.solve.pairs.pair import UnitResult
from isomerge.symmetry.units import Unit


@dataclass(frozen=True)
class SolvedUnit:
    """What comes back of a unit: small, whatever the unit's size."""

    file: str
    """Its tensors: those that are written, and the elements of every solver."""
    records: Sequence[Json]
    """Of every solver, see `UnitResult.record`."""
    crc32: dict[str, int]
    """Of every tensor in the file."""
    read: Sequence[Sums]
    """The checksums of the tensors that were read for it, of every model."""
    machine: str


def solve_unit(parcel: Parcel, number: int) -> SolvedUnit:
    """Work on one unit, by one thread, and leave its tensors beside the parcel.

    Raises:
        ClusterError: this machine does not see what the driver sees (`unpack`), or may not read or write it.
        IsomergeError: what is wrong with the unit's tensors.
    """
    work = unpack(parcel)
    unit = work.units[number]
    path = Path(parcel.path).with_name(f"{number}-{uuid.uuid4().hex}.safetensors")
    with _machine_named():
        with one_thread_each(1):
            results, tensors = work.solve(unit)
        named = dict(_named(results, tensors))
        write_tensors(path, named)
        work.check_unchanged(unit)
    sums = {name: Checksum.of(content_of(tensor)).crc32 for name, tensor in named.items()}
    read = [model.checkpoint.sums([n for b in unit.blocks for n in model.stored_names(b)]) for model in work.models]
    return SolvedUnit(str(path), [r.record() for r in results], sums, read, socket.gethostname())


@contextmanager
def _machine_named() -> Iterator[None]:
    """What the system refuses this machine becomes a ClusterError that names it: others may be able to, and what is
    done stays."""
    try:
        yield
    except UnfinishedError:
        raise
    except IsomergeError as error:
        if not isinstance(error.__cause__, OSError):
            raise  # of the input, on whatever machine
        raise ClusterError(
            f"{socket.gethostname()}: {error.sentence}; all machines must be able to read and write the same files"
        ) from None


def take_unit(work: UnitWork, unit: Unit, solved: SolvedUnit) -> Solved:
    """On the driver: a unit that a worker has solved; its file is removed.

    Raises:
        ClusterError: the file is not there, or not as the worker has written it, or the worker has read other bytes
            from a checkpoint than another machine.
    """
    try:
        with _machine_named(), disk_errors(Path(solved.file), "reading"):
            named = load_file(solved.file)
    except SafetensorError:
        named = {}
    if {name: Checksum.of(content_of(tensor)).crc32 for name, tensor in named.items()} != solved.crc32:
        raise ClusterError(
            f"{solved.file} is not as {solved.machine} has written it: do all machines share this folder? "
            "Run the same command again to go on"
        )
    for model, read in zip(work.models, solved.read, strict=True):
        if file := model.checkpoint.add_sums(read):
            raise ClusterError(
                f"{solved.machine} has read other bytes from {file}, for {unit.key}, than another machine: all "
                "must see the same file under this path"
            )
    with _machine_named(), disk_errors(Path(solved.file), "removing"):
        Path(solved.file).unlink()
    elements: list[dict[str, Tensor]] = [{} for _ in solved.records]
    tensors = {}
    for name, tensor in named.items():
        kind, _, rest = name.partition(" ")
        if kind == "written":
            tensors[rest] = tensor
        else:
            elements[int(kind)][rest] = tensor
    return [UnitResult.restored(r, e) for r, e in zip(solved.records, elements, strict=True)], tensors


def _named(
    results: Sequence[UnitResult], tensors: Mapping[str, Tensor | PlacedTensor]
) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a unit, contiguous: ``written NAME``, and ``K KEY`` for the elements of the K-th solver."""
    for name, tensor in tensors.items():
        assert not isinstance(tensor, PlacedTensor), "only the driver has the files of the output"
        yield f"written {name}", tensor.detach().contiguous()
    for k, result in enumerate(results):
        for key, tensor in result.elements.items():
            yield f"{k} {key}", tensor.detach().contiguous()

"""What the driver leaves for its workers on the storage that all machines share: the work on units, tensors apart.

The work is pickled, but for its tensors, which are a safetensors file beside it: through the cluster's object store
goes a path. A worker reads the pickle only if it has the digest that the driver names, so that nobody who can
merely write to the storage has workers run what he likes.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import socket
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from isomerge import __version__
from isomerge.arithmetic import VARIABLE, aligned, is_reproducible, mkl_mode
from isomerge.checkpoint.checksums import file_checksum
from isomerge.errors import ClusterError, IsomergeError
from isomerge.files import disk_errors, flush, write_tensors
from isomerge.models.peak_memory import map_large_blocks
from isomerge.plug_ins.command import given_modules
from isomerge.plug_ins.modules import Module, import_module
from isomerge.run.unit_work import UnitWork

FOLDER = "units"
"""In the folder of the unfinished output: parcels, and the units that workers have solved."""
TENSOR = "tensor"


def versions() -> dict[str, str]:
    """What must be equal on all machines for equal bytes: releases of the programs that compute them."""
    return {"isomerge": __version__, **{name: version(name) for name in ("torch", "numpy", "scipy")}}


@dataclass(frozen=True)
class Parcel:
    """Where the work of a run is; all that travels, beside the number of a unit."""

    path: str
    """The pickle; its tensors are in a file of the same name that ends in ``.safetensors``."""
    sha256: str
    crc32: int
    """Of the file of its tensors."""
    versions: tuple[tuple[str, str], ...] = field(default_factory=lambda: tuple(versions().items()))
    imports: tuple[Module, ...] = field(default_factory=lambda: tuple(given_modules()))
    """What the driver has imported for the command, and workers import before they read the work."""
    mkl: str | None = field(default_factory=lambda: mkl_mode() if is_reproducible() else None)
    """The mode in which workers must compute; None where the driver itself computes in none that is
    reproducible."""


def pack(work: UnitWork, folder: Path) -> Parcel:
    """Leave the work in a folder on shared storage.

    Tensors of the work are what passes over whole models have found, and models that were given in memory.

    Raises:
        IsomergeError: the folder cannot be written.
    """
    from ray.cloudpickle import cloudpickle

    tensors: list[Tensor] = []
    numbers: dict[int, int] = {}

    class Pickler(cloudpickle.Pickler):
        def persistent_id(self, obj: Any) -> tuple[str, int] | None:
            if not isinstance(obj, torch.Tensor):
                return None
            if id(obj) not in numbers:
                numbers[id(obj)] = len(tensors)
                tensors.append(obj)  # alive to the end, so that no other one gets its id
            return TENSOR, numbers[id(obj)]

    stream = io.BytesIO()
    Pickler(stream).dump(work)
    content = stream.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    path = folder / f"work-{digest[:16]}.pickle"
    write_tensors(path.with_suffix(".safetensors"), {str(k): t for k, t in enumerate(tensors)})
    with disk_errors(path):
        path.write_bytes(content)
        for file in (path, folder):
            flush(file)
    return Parcel(str(path), digest, file_checksum(path.with_suffix(".safetensors")).crc32)


@lru_cache(maxsize=1)  # a worker has one run at a time
def unpack(parcel: Parcel) -> UnitWork:
    """The work that the driver has left, with this machine's view of its files.

    Raises:
        ClusterError: naming the machine, and what is other here than on the driver's: releases, MKL's mode, the
            output's folder, or a checkpoint's file.
    """
    host = socket.gethostname()
    mine = versions()
    for name, wanted in parcel.versions:
        if mine[name] != wanted:
            raise ClusterError(
                f"{host} has {name} {mine[name]}, but the driver has {wanted}: install the same release on all "
                f"machines"
            )
    if parcel.mkl not in (None, mkl_mode()):
        raise ClusterError(
            f"{host} computes with {VARIABLE}={mkl_mode()}, but the driver with {parcel.mkl}: set the same on all "
            "machines before Ray is started there"
        )
    path = Path(parcel.path)
    try:
        content = path.read_bytes()
        crc32 = file_checksum(path.with_suffix(".safetensors")).crc32
    except (OSError, IsomergeError) as error:
        why = getattr(error if isinstance(error, OSError) else error.__cause__, "strerror", None) or error
        raise ClusterError(
            f"{host} cannot read {path.parent} ({why}): the output must be in a folder that all machines share, "
            "under the same path"
        ) from None
    if (hashlib.sha256(content).hexdigest(), crc32) != (parcel.sha256, parcel.crc32):
        raise ClusterError(
            f"{host}: {path} is not what the driver has written: is the folder shared by all machines?"
        )
    map_large_blocks()
    for module in parcel.imports:
        _import_alike(module)
    try:
        return _Unpickler(io.BytesIO(content), path.with_suffix(".safetensors")).load()
    except (ImportError, AttributeError) as error:
        raise ClusterError(
            f"{host} lacks code that the driver has ({error}): install the packages of your own merge methods "
            f"on all machines"
        ) from None
    except IsomergeError as error:
        raise ClusterError(
            f"{host} does not see what the driver sees: {error}; checkpoints must be in folders that all machines "
            "share, under the same path"
        ) from None


def _import_alike(module: Module) -> None:
    """Import what the driver has imported.

    Raises:
        ClusterError: it is not here, fails, or has another text.
    """
    host = socket.gethostname()
    try:
        own = import_module(module.name, module.folder)
    except IsomergeError as error:
        raise ClusterError(
            f"{host} cannot import what the driver has imported: {error.sentence}; files must be in folders that "
            f"all machines share, and packages installed on all machines"
        ) from None
    if own.sha256 != module.sha256:
        raise ClusterError(
            f"{host} has another text of {module.name} than the driver: all machines must see the same file, or "
            f"have the same release of its package"
        )


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, path: Path) -> None:
        super().__init__(stream)
        self._tensors = {number: aligned(x) for number, x in load_file(path).items()}

    def persistent_load(self, pid: Any) -> Tensor:
        return self._tensors[str(pid[1])]

"""Opening a checkpoint and reading its tensors one at a time."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.checkpoint.disk import read_into
from isomerge.checkpoint.document import read_object
from isomerge.checkpoint.dtypes import torch_dtype
from isomerge.checkpoint.header import TensorInfo
from isomerge.checkpoint.hub import local_folder
from isomerge.checkpoint.weights import WeightFiles, find_weights, read_headers
from isomerge.errors import IsomergeError

if TYPE_CHECKING:
    import torch

CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What tells whether a file is still the one that was opened."""

    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> _Stamp:
        return cls(stat.st_ino, stat.st_size, stat.st_mtime_ns)


@dataclass(eq=False)
class Checkpoint:
    """An open checkpoint: its configuration and the description of every tensor; no weights in memory.

    ``ref`` is what the user gave, ``folder`` where the files are, ``config`` the parsed
    config.json, and ``tensors`` the stored tensors in the order of the files and their bytes.
    """

    ref: str
    folder: Path
    config: dict[str, Any]
    tensors: dict[str, TensorInfo]
    _stamps: dict[Path, _Stamp] = field(repr=False)
    _pickled: dict[str, torch.Tensor] | None = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(info.nbytes for info in self.tensors.values())

    def with_copies(self, copies: Mapping[str, str], **config: Any) -> Checkpoint:
        """The same checkpoint with further tensors that are copies of stored ones (new name -> stored name).

        ``config`` are the keys of the configuration that change with it.
        """
        extra = {name: replace(self.tensors[stored], name=name) for name, stored in copies.items()}
        pickled = self._pickled
        if pickled is not None:
            pickled = {**pickled, **{name: pickled[stored] for name, stored in copies.items()}}
        return replace(self, config={**self.config, **config}, tensors={**self.tensors, **extra}, _pickled=pickled)

    def read(self, name: str) -> torch.Tensor:
        """The tensor ``name``: stored dtype and shape, contiguous, on the CPU, in memory of its own.

        Raises IsomergeError when there is no such tensor, when its file changed since it was opened, when
        it cannot be read, or when torch has no such dtype.
        """
        info = self.tensors.get(name)
        if info is None:
            near = difflib.get_close_matches(name, self.tensors, n=1)
            hint = f"did you mean {near[0]!r}" if near else "its tensors are those that its headers list"
            raise IsomergeError(f"{self.ref} ({self.folder}) has no tensor {name!r}; {hint}")
        try:
            return self._read(info)
        except OSError as error:
            raise IsomergeError(
                f"{info.file}: tensor {name!r} cannot be read ({error.strerror}); "
                "check that the file is still there"
            ) from error

    def _read(self, info: TensorInfo) -> torch.Tensor:
        import torch

        fd = os.open(info.file, os.O_RDONLY)
        try:
            self._check_unchanged(info, os.fstat(fd))
            if self._pickled is not None:
                return self._pickled[info.name].clone(memory_format=torch.contiguous_format)
            dtype = _stored_dtype(info)
            raw = torch.empty(info.nbytes, dtype=torch.uint8)
            if read_into(fd, raw.numpy().data, info.offset) < info.nbytes:
                raise _changed(info)
            self._check_unchanged(info, os.fstat(fd))
        finally:
            os.close(fd)
        return raw.view(dtype).reshape(info.shape)

    def _check_unchanged(self, info: TensorInfo, now: os.stat_result) -> None:
        if _Stamp.of(now) != self._stamps[info.file]:
            raise _changed(info)


def _changed(info: TensorInfo) -> IsomergeError:
    return IsomergeError(
        f"{info.file} changed after it was opened, so tensor {info.name!r} cannot be trusted; "
        "let the program that writes it finish, then start again"
    )


def _stored_dtype(info: TensorInfo) -> torch.dtype:
    try:
        return torch_dtype(info.dtype)
    except IsomergeError as error:
        raise IsomergeError(f"{info.file}: tensor {info.name!r}: {error}") from error


def open_checkpoint(ref: str | Path, *, allow_pickle: bool = False) -> Checkpoint:
    """Opens a checkpoint: a folder, or a hub id ``org/name`` or ``org/name@revision``, which is downloaded.

    A path to the only .safetensors file of a folder stands for the folder. Files are chosen as transformers
    does: model.safetensors, then its index, then (with ``allow_pickle``) pytorch_model.bin and its index.
    Safetensors files are opened by their headers alone, without importing torch.
    Raises IsomergeError when the folder or model does not exist, config.json is missing or
    damaged, there are no weights, or any index or header is invalid.
    """
    folder = local_folder(ref, allow_pickle=allow_pickle)
    config = read_config(folder)
    explicit = config.get("transformers_weights")
    weights = find_weights(folder, allow_pickle=allow_pickle, explicit=explicit)
    stamps = _stamps(weights)  # before the headers are read: a later change is then always noticed
    if weights.pickled:
        from isomerge.checkpoint.pickled import load_pickles

        tensors, views = load_pickles(weights)
        return Checkpoint(os.fspath(ref), folder, config, tensors, stamps, views)
    return Checkpoint(os.fspath(ref), folder, config, read_headers(weights), stamps)


def read_config(folder: Path) -> dict[str, Any]:
    """The object in ``folder``/config.json, in the key order of the file.

    Raises IsomergeError when it is missing, not a JSON object, or has a ``model_type`` that is no string.
    """
    path = folder / CONFIG
    config = read_object(
        path, remedy="a checkpoint needs the config.json that save_pretrained writes", unique=False
    )
    if not isinstance(config.get("model_type", ""), str):  # checkpoints of before 2020 have none
        raise IsomergeError(f'{path} must have a string model_type; correct it, e.g. "model_type": "bert"')
    return config


def _stamps(weights: WeightFiles) -> dict[Path, _Stamp]:
    try:
        return {file: _Stamp.of(file.stat()) for file in weights.files}
    except OSError as error:
        raise IsomergeError(f"{error.filename} cannot be read ({error.strerror}); check the checkpoint") from error

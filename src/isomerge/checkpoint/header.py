"""The header of a safetensors file: which tensors it holds, of what type and shape, and where."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isomerge.checkpoint.document import FETCH, MAX_BYTES, POINTER, parse_object
from isomerge.checkpoint.dtypes import BITS, byte_size
from isomerge.errors import IsomergeError

MAX_HEADER = MAX_BYTES
"""Longest header accepted, in bytes; the safetensors library has the same bound."""
_PREFIX = 8  # little-endian u64 holding the header's length
_REMEDY = "the file is damaged or no safetensors file, so download or save it again"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor: ``nbytes`` bytes at byte ``offset`` (absolute) of ``file``.

    ``dtype`` is a safetensors code such as "F32", "BF16" or "I64"; ``shape`` is () for a scalar.
    ``offset`` is -1 for a tensor that has no address of its own: in a pickle, or computed when it is read.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: Path
    offset: int

    def computed(self, name: str) -> TensorInfo:
        """What is computed under this name, of this dtype and shape; impossible ones are refused when written."""
        return replace(self, name=name, nbytes=byte_size(self.dtype, self.shape) or 0, offset=-1)


def read_header(path: str | Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """The tensors of the safetensors file ``path`` in the order of their bytes, and its string metadata.

    Only the header is read. Raises IsomergeError when the file is missing, truncated or longer than its
    tensors, when the header is over MAX_HEADER bytes, is not a JSON object or names a tensor twice, and when
    the tensors have unknown dtypes, impossible shapes, or bytes that overlap or leave holes.
    """
    path = Path(path)
    raw, size = _header_bytes(path)
    entries = parse_object(raw, f"{path}: the header", remedy=_REMEDY)
    metadata = _metadata(path, entries.pop("__metadata__", {}))
    start = _PREFIX + len(raw)
    infos = [_tensor(path, name, entry, start) for name, entry in entries.items()]
    infos.sort(key=lambda info: (info.offset, info.nbytes))
    position = start
    for info in infos:
        if info.offset != position:
            kind = "overlap the tensor before" if info.offset < position else "leave a hole before"
            raise IsomergeError(f"{path}: the bytes of tensor {info.name!r} {kind} it; {_REMEDY}")
        position += info.nbytes
    if position != size:
        kind = "truncated" if size < position else "longer than its tensors"
        raise IsomergeError(f"{path} is {kind}: {size} bytes, but its header says {position}; {_REMEDY}")
    return {info.name: info for info in infos}, metadata


def _header_bytes(path: Path) -> tuple[bytes, int]:
    """The header's JSON bytes (with padding) and the size of the file."""
    if not path.is_file():
        raise IsomergeError(f"{path}: no such file; check the path or download the checkpoint again")
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            prefix = stream.read(_PREFIX)
            if len(prefix) < _PREFIX:
                raise IsomergeError(f"{path} is truncated: {size} bytes are no safetensors file; {_REMEDY}")
            if prefix == POINTER[:_PREFIX] and (prefix + stream.read(len(POINTER) - _PREFIX)) == POINTER:
                raise IsomergeError(f"{path} {FETCH}")
            (length,) = struct.unpack("<Q", prefix)
            if length > MAX_HEADER:
                raise IsomergeError(
                    f"{path}: the header says it has {length} bytes, over the {MAX_HEADER} allowed; {_REMEDY}"
                )
            raw = stream.read(length)
    except OSError as error:
        raise IsomergeError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
    if len(raw) < length:
        raise IsomergeError(f"{path} is truncated: its header of {length} bytes ends early; {_REMEDY}")
    if not raw.startswith(b"{"):
        raise IsomergeError(f"{path}: the header does not begin with '{{'; {_REMEDY}")
    return raw, size


def _metadata(path: Path, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise IsomergeError(f"{path}: the header's __metadata__ must map strings to strings; {_REMEDY}")
    return value


def _counts(value: Any) -> tuple[int, ...] | None:
    """``value`` as a tuple when it is a list of integers >= 0, else None (bool is no integer here)."""
    if isinstance(value, list) and all(type(item) is int and item >= 0 for item in value):
        return tuple(value)
    return None


def _tensor(path: Path, name: str, entry: Any, start: int) -> TensorInfo:
    where = f"{path}: tensor {name!r}"
    if not isinstance(entry, dict):
        raise IsomergeError(f"{where} is not described by a JSON object; {_REMEDY}")
    dtype, shape = entry.get("dtype"), _counts(entry.get("shape"))
    if not isinstance(dtype, str) or dtype not in BITS:
        raise IsomergeError(f"{where} has dtype {dtype!r:.80}, expected one of {', '.join(BITS)}; {_REMEDY}")
    if shape is None:
        raise IsomergeError(f"{where} must have a shape that is a list of integers >= 0; {_REMEDY}")
    offsets = _counts(entry.get("data_offsets"))
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise IsomergeError(f"{where} must have data_offsets [begin, end] with 0 <= begin <= end; {_REMEDY}")
    nbytes = byte_size(dtype, shape)
    if nbytes is None:
        raise IsomergeError(f"{where} has the impossible shape {list(shape)!s:.80} for {dtype}; {_REMEDY}")
    if nbytes != offsets[1] - offsets[0]:
        raise IsomergeError(
            f"{where} needs {nbytes} bytes for {dtype} {list(shape)!s:.80}, "
            f"but its data_offsets span {offsets[1] - offsets[0]}; {_REMEDY}"
        )
    return TensorInfo(name, dtype, shape, nbytes, path, start + offsets[0])

"""Where every tensor of a new checkpoint goes, fixed before the first of them is computed; sizes as users write
them."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from isomerge.checkpoint.dtypes import BITS, byte_size
from isomerge.checkpoint.header import MAX_HEADER
from isomerge.checkpoint.weights import SAFETENSORS
from isomerge.errors import IsomergeError

METADATA = {"format": "pt"}
FileSpan = tuple[Path, int, int]
"""A tensor's file, its first byte in it, and how many bytes it has."""
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT]?)(B?)\s*", re.ASCII | re.IGNORECASE)
_FACTOR = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@dataclass(frozen=True, slots=True)
class OutTensor:
    """A tensor to be written: its name, safetensors dtype code ("F32", "BF16", ...) and shape (() = scalar)."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shard:
    """One weights file: ``prefix`` is its length field and header, ``size`` all its bytes.

    ``spans`` maps each tensor to its (absolute byte offset, bytes), in the order of the file.
    """

    file: str
    prefix: bytes
    spans: dict[str, tuple[int, int]]
    size: int


def shard_plan(
    tensors: Sequence[OutTensor], out_shard_size: int, apart: Collection[str] = (), name: str = SAFETENSORS
) -> list[Shard]:
    """The files for ``tensors``, at most ``out_shard_size`` bytes of tensor data each.

    Tensors are dealt out in the order given; one larger than ``out_shard_size`` gets a file of its own, numbered
    before the file being filled, as in huggingface_hub. Tensors whose names are in ``apart`` come last, in files
    that hold nothing else. Within a file wider dtypes come first (then the order
    given), so that every tensor is aligned to its element. One file is called ``name``, several (for
    model.safetensors) model-00001-of-0000N.safetensors. Raises IsomergeError on a duplicate or unusable name, an
    unknown dtype, an impossible shape, a ``out_shard_size`` under 1 or a header over MAX_HEADER bytes.
    """
    if out_shard_size < 1:
        raise IsomergeError(f"the shard size is {out_shard_size} bytes, expected at least 1; give e.g. 5GB")
    sizes = _sizes(tensors)
    groups = _dealt([t for t in tensors if t.name not in apart], sizes, out_shard_size)
    groups += _dealt([t for t in tensors if t.name in apart], sizes, out_shard_size)
    groups = groups or [[]]
    count = len(groups)
    stem = name.removesuffix(".safetensors")
    names = [f"{stem}-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    return [_shard(file, group, sizes) for file, group in zip(names if count > 1 else [name], groups, strict=True)]


def _dealt(tensors: Sequence[OutTensor], sizes: Mapping[str, int], out_shard_size: int) -> list[list[OutTensor]]:
    """Tensors in groups of at most ``out_shard_size`` bytes, larger ones alone."""
    groups: list[list[OutTensor]] = []
    filling: list[OutTensor] = []
    filled = 0
    for tensor in tensors:
        nbytes = sizes[tensor.name]
        if nbytes > out_shard_size:
            groups.append([tensor])
            continue
        if filled + nbytes > out_shard_size:
            groups.append(filling)
            filling, filled = [], 0
        filling.append(tensor)
        filled += nbytes
    return [*groups, filling] if filling else groups


def _sizes(tensors: Sequence[OutTensor]) -> dict[str, int]:
    """Bytes of each tensor, by name, once name, dtype and shape are found fit."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        if tensor.name in sizes:
            raise IsomergeError(
                f"tensor {tensor.name!r} is listed twice for the output; give every tensor one name"
            )
        if tensor.name == "__metadata__" or not _encodable(tensor.name):
            raise IsomergeError(f"tensor {tensor.name!r} cannot be stored under this name; rename it")
        if tensor.dtype not in BITS:
            raise IsomergeError(
                f"tensor {tensor.name!r} has dtype {tensor.dtype!r}; expected one of {', '.join(BITS)}"
            )
        nbytes = byte_size(tensor.dtype, tensor.shape) if min(tensor.shape, default=0) >= 0 else None
        if nbytes is None:
            raise IsomergeError(f"tensor {tensor.name!r} has the impossible shape {tensor.shape}; correct it")
        sizes[tensor.name] = nbytes
    return sizes


def _encodable(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate: the safetensors library would refuse the whole file
        return False
    return True


def _shard(file: str, group: list[OutTensor], sizes: dict[str, int]) -> Shard:
    header: dict[str, object] = {"__metadata__": METADATA}
    position = 0
    relative: dict[str, tuple[int, int]] = {}
    for tensor in sorted(group, key=lambda tensor: -BITS[tensor.dtype]):
        end = position + sizes[tensor.name]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [position, end]}
        relative[tensor.name] = (position, end - position)
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise IsomergeError(
            f"{file} would need a header of {len(text)} bytes, over the {MAX_HEADER} that safetensors allows; "
            "choose a smaller shard size"
        )
    prefix = struct.pack("<Q", len(text)) + text
    spans = {name: (len(prefix) + begin, nbytes) for name, (begin, nbytes) in relative.items()}
    return Shard(file, prefix, spans, len(prefix) + position)


def file_spans(shards: Sequence[Shard], folder: Path) -> dict[str, FileSpan]:
    """Where each tensor lies once the shards are files in ``folder``."""
    return {name: (folder / shard.file, *span) for shard in shards for name, span in shard.spans.items()}


def index_bytes(shards: Sequence[Shard]) -> bytes:
    """The bytes of the index (model.safetensors.index.json) for ``shards``."""
    files = {name: shard.file for shard in shards for name in shard.spans}
    return files_index(files, sum(nbytes for shard in shards for _, nbytes in shard.spans.values()))


def files_index(files: Mapping[str, str], total: int) -> bytes:
    """The bytes of an index of weights files: the file of every tensor, and the bytes of all tensors."""
    index = {"metadata": {"total_size": total}, "weight_map": dict(files)}
    return (json.dumps(index, indent=2, sort_keys=True) + "\n").encode("utf-8")


def parse_size(text: str | int) -> int:
    """A number of bytes: "5GB" and "5G" are 5e9, "500M" is 5e8, "1.5K" is 1500, "4096" and 4096 are 4096.

    Suffixes K, M, G and T are powers of 1000, as for the Hugging Face libraries; a "B" may follow them. A
    "B" right after the number means billions, as in mergekit's ``--out-shard-size 5B``: 5e9 bytes. Upper or
    lower case. Raises IsomergeError for anything else, and unless the size is a whole number >= 1.
    """
    match = _SIZE.fullmatch(str(text)) if not isinstance(text, bool) else None
    size = Decimal(0)
    if match is not None:
        number, unit, b = match.groups()
        size = Decimal(number) * (_FACTOR[unit.upper()] if unit else 10**9 if b else 1)
    if size < 1 or size != int(size):
        raise IsomergeError(
            f"{text!r} is not a size: expected a positive whole number of bytes, "
            "or a number with K, M, G or T such as '5GB' or '500M' ('5B' means 5 billion bytes)"
        )
    return int(size)

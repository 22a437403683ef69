"""Builders of checkpoint files, byte by byte, for the tests of this folder."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from isomerge.checkpoint.dtypes import dtype_code
from isomerge.checkpoint.writer import CheckpointWriter, OutTensor

CONFIG = {"config.json": b'{"model_type": "bert"}\n'}


def raw_safetensors(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def config_only(folder: Path, **keys: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", **keys}))
    return folder


def single(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    config_only(folder)
    save_file(tensors, folder / "model.safetensors")
    return folder


def sharded(folder: Path, shards: dict[str, dict[str, torch.Tensor]], weight_map: Any = None) -> Path:
    config_only(folder)
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    if weight_map is None:
        weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every path under ``folder`` with its bytes (None for folders): equal trees are equal folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def one_sentence(error: BaseException, *names: object) -> str:
    """The message, after checking that it is one sentence on one line and names everything in ``names``."""
    message = str(error)
    assert "\n" not in message
    assert ". " not in message.replace("e.g. ", "")
    for name in names:
        assert str(name) in message
    return message


def planned(tensors: dict[str, torch.Tensor]) -> list[OutTensor]:
    return [OutTensor(name, dtype_code(t.dtype), tuple(t.shape)) for name, t in tensors.items()]


def written(out: Path, tensors: dict[str, torch.Tensor], *, shard_size: int = 10**9, files: Any = CONFIG) -> Path:
    """The checkpoint ``out``, written by our writer in the order of ``tensors``."""
    with CheckpointWriter(out, planned(tensors), key="k", shard_size=shard_size) as writer:
        for name, tensor in tensors.items():
            writer.write(name, tensor)
        return writer.finish(files)

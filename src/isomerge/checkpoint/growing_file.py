"""A safetensors file that grows tensor by tensor when its tensors are not known beforehand."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from isomerge.checkpoint.disk import write_from
from isomerge.checkpoint.dtypes import dtype_code
from isomerge.checkpoint.stored_tensor import content_of
from isomerge.files import disk_errors, flush, open_fd
from isomerge.records import Json

if TYPE_CHECKING:
    import torch


class GrowingFile:
    """Tensors are written to ``scratch`` as they come; `finish` puts the header before them. One tensor in
    memory."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.entries: dict[str, Json] = {}
        self.size = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Writes a tensor of any strides. Raises IsomergeError when the disk is full."""
        content = content_of(tensor.contiguous())
        with disk_errors(self.scratch), open_fd(self.scratch, os.O_WRONLY | os.O_CREAT) as fd:
            write_from(fd, content, self.size)
        span = [self.size, self.size + len(content)]
        self.size = span[1]
        self.entries[name] = {"dtype": dtype_code(tensor.dtype), "shape": list(tensor.shape), "data_offsets": span}

    def finish(self, path: Path) -> None:
        """The safetensors file ``path`` of all tensors; ``scratch`` is removed."""
        header = json.dumps({"__metadata__": {"format": "pt"}, **self.entries}).encode()
        header += b" " * (-len(header) % 8)  # the format aligns the data
        with disk_errors(path):
            with path.open("wb") as file:
                file.write(struct.pack("<Q", len(header)) + header)
                if self.entries:
                    with self.scratch.open("rb") as data:
                        shutil.copyfileobj(data, file, 1 << 24)
            flush(path)
            self.scratch.unlink(missing_ok=True)

"""One stored tensor: its bytes as a tensor and back, and what is said where they cannot be read or have changed."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from isomerge.checkpoint.dtypes import torch_dtype
from isomerge.checkpoint.header import TensorInfo
from isomerge.errors import IsomergeError

if TYPE_CHECKING:
    import torch


def as_tensor(pages: memoryview, info: TensorInfo) -> torch.Tensor:
    """A stored tensor whose bytes are in memory, which it keeps."""
    import torch

    return torch.frombuffer(pages, dtype=stored_dtype(info)).reshape(info.shape)


def content_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, as they are stored: its own memory, nothing is copied."""
    import torch

    return tensor.detach().view(-1).view(torch.uint8).numpy().data


@contextmanager
def read_errors(info: TensorInfo) -> Iterator[None]:
    """Turns an OSError of the block into a sentence that names file and tensor; a lack of memory into
    MemoryError."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError(f"reading {info.file}") from error
        raise IsomergeError(
            f"{info.file}: tensor {info.name!r} cannot be read ({error.strerror}); check that the file is still "
            f"there"
        ) from error


def as_described(tensor: torch.Tensor, info: TensorInfo) -> torch.Tensor:
    """What a recipe gave, contiguous; a recipe that breaks its own description is an error in this program."""
    if tuple(tensor.shape) != tuple(info.shape) or tensor.dtype != torch_dtype(info.dtype):
        raise AssertionError(f"the recipe of {info.name} gave {tensor.dtype} {list(tensor.shape)}, not {info}")
    return tensor.contiguous()


def changed(info: TensorInfo) -> IsomergeError:
    """What is said of a tensor whose file is not as it was."""
    return IsomergeError(
        f"{info.file} changed after it was opened, so tensor {info.name!r} cannot be trusted; "
        "let the program that writes it finish, then start again"
    )


def stored_dtype(info: TensorInfo) -> torch.dtype:
    """torch's name of the stored dtype; raises IsomergeError where it has none."""
    try:
        return torch_dtype(info.dtype)
    except IsomergeError as error:
        raise IsomergeError(f"{info.file}: tensor {info.name!r}: {error}") from error

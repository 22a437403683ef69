"""Matching on an accelerator: a unit's blocks go to a device, are solved there, and what was found comes home.

Grams, polar factors, Sylvester equations and gauges are computed where the blocks are; assignments take their
profits to the processor. Tensors that an algorithm makes itself land on the device as well: `torch.device` as a
context names it for all that name none, so that no algorithm knows of devices. Float64 is needed throughout; a
device without it runs models alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from isomerge.errors import IsomergeError

CPU = "cpu"
K = TypeVar("K", bound=Hashable)


def check_device(name: str) -> torch.device:
    """A device by name.

    Raises:
        IsomergeError: torch does not know it, or this machine does not have it.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise IsomergeError(f"--device {name}: torch has no such device on this machine; use cpu") from None
    return device


def matching_device(name: str) -> str:
    """Where units are matched when models run on a device: there, or on the processor where it has no float64
    (``mps``).

    Raises:
        IsomergeError: see `check_device`.
    """
    if check_device(name).type == CPU:
        return CPU
    try:
        torch.empty(0, device=name, dtype=torch.float64)
    except TypeError:
        return CPU
    return name


@contextmanager
def computing_on(device: str, what: str) -> Iterator[None]:
    """Tensors that are made without naming a device are made on this one, in this thread.

    Args:
        device: one of `matching_device`.
        what: what is being matched, for messages.

    Raises:
        IsomergeError: the device has too little memory.
    """
    if device == CPU:
        yield
        return
    try:
        with torch.device(device):
            yield
    except torch.OutOfMemoryError as error:
        raise IsomergeError(
            f"--device {device}: the device has too little memory to match {what}; give fewer --jobs, or "
            f"--device cpu"
        ) from error


@contextmanager
def at_home(device: str) -> Iterator[None]:
    """Inside `computing_on` of a device: what is made here is made in main memory, as checkpoints are read."""
    if device == CPU:
        yield
        return
    with torch.device(CPU):
        yield


def on(device: str, tensors: Mapping[K, Tensor]) -> dict[K, Tensor]:
    """Tensors on a device; those that are there already are the given ones."""
    return {key: t.to(device) for key, t in tensors.items()}

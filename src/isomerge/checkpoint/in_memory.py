"""Checkpoints in memory: the tensors of a live model and its configuration, read like a checkpoint on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomerge.checkpoint.dtypes import dtype_code
from isomerge.checkpoint.header import TensorInfo
from isomerge.checkpoint.own_class import OwnClass, is_own, own_config
from isomerge.checkpoint.reader import Checkpoint
from isomerge.checkpoint.stored_tensor import content_of
from isomerge.errors import IsomergeError
from isomerge.records import Json

if TYPE_CHECKING:
    import torch

_REMEDY = "give the state_dict of a transformers model, or its parameters as numpy arrays"


@dataclass(eq=False, repr=False)
class MemoryCheckpoint(Checkpoint):
    """A checkpoint whose tensors are in memory already; make one with `in_memory`.

    Its tensors are views of what was given: nothing is copied before it is read. There are no files, so ``folder``
    (and the ``file`` of a tensor, in messages) is only what it is called.
    """

    def _read(self, info: TensorInfo) -> torch.Tensor:
        import torch

        assert self._pickled is not None
        return self._pickled[info.name].cpu().clone(memory_format=torch.contiguous_format)

    def identity(self) -> list[Any]:
        """What determines the tensors: a digest of their names, types, shapes and bytes (every tensor is read)."""
        digest = hashlib.sha256()
        for name in sorted(self.tensors):
            info = self.tensors[name]
            digest.update(f"{name} {info.dtype} {list(info.shape)}\n".encode())
            digest.update(content_of(self.read(name)))
        return [digest.hexdigest()]

    @property
    def has_own_files(self) -> bool:
        """There is no folder."""
        return False

    def companions(self) -> dict[str, bytes | Path]:
        """No files travel with tensors in memory but those that a view of them was given."""
        return dict(self._companions or {})


def in_memory(tensors: Mapping[str, Any], config: Any, *, ref: str = "in memory") -> MemoryCheckpoint:
    """A checkpoint of tensors in memory, for every function that takes an open checkpoint and reads it.

    Args:
        tensors: name -> torch tensor (on any device) or numpy array; a ``state_dict`` is one such mapping. Not
            changed.
        config: what config.json would hold, as a mapping or as a transformers configuration.
        ref: what to call it in messages and reports.

    Raises:
        IsomergeError: an entry is no dense tensor of a type that safetensors has, or the configuration is none.
    """
    if not isinstance(tensors, Mapping):
        raise IsomergeError(f"{ref}: {type(tensors).__name__} is no mapping from names to tensors; {_REMEDY}")
    copies = {name: _tensor(name, value, ref) for name, value in tensors.items()}
    where = Path(ref)
    infos = {
        name: TensorInfo(
            name,
            dtype_code(t.dtype, f"{ref}: tensor {name!r}"),
            tuple(t.shape),
            t.numel() * t.element_size(),
            file=where,
            offset=-1,
        )
        for name, t in copies.items()
    }
    return MemoryCheckpoint(ref, where, config_of(config, ref), infos, {}, copies, in_folder=False)


def own_checkpoint(module: Any, loss: Callable[[Any, Any], Any] | None = None) -> MemoryCheckpoint:
    """The checkpoint of a live module of one's own, which runs it as well; see `isomerge.checkpoint.own_class`.

    Args:
        module: a ``torch.nn.Module`` without ``save_pretrained``.
        loss: see `OwnClass`.

    Raises:
        IsomergeError: a tensor without values, or of a type that safetensors has not.
    """
    checkpoint = in_memory(module.state_dict(), own_config(module), ref=type(module).__name__)
    checkpoint.own = OwnClass(module, loss)
    return checkpoint


def as_reference(model: Any) -> str | Path | Checkpoint:
    """A model of any kind that functions of the API take but a live module that saves itself: a pair of a
    ``state_dict`` and its configuration, or a module of one's own, as a checkpoint in memory, references and open
    checkpoints as they are.

    Raises:
        IsomergeError: it is none of these; see also `in_memory`.
    """
    if is_own(model):
        return own_checkpoint(model)
    if isinstance(model, tuple) and len(model) == 2:
        return in_memory(*model)
    if not isinstance(model, (str, Path, Checkpoint)):
        raise IsomergeError(f"{type(model).__name__} is no model: give a folder, a hub id, or a live module")
    return model


def config_of(config: Any, ref: str = "in memory") -> Json:
    """A configuration as config.json would hold it.

    Raises:
        IsomergeError: neither a mapping nor a transformers configuration, or a ``model_type`` that is no string.
    """
    mapping = config.to_dict() if hasattr(config, "to_dict") else config
    if not isinstance(mapping, Mapping) or not isinstance(mapping.get("model_type", ""), str):
        raise IsomergeError(
            f"{ref}: {type(config).__name__} is no configuration: give model.config, or the content of config.json"
        )
    return dict(mapping)


def _tensor(name: Any, value: Any, ref: str) -> torch.Tensor:
    """A detached view of a tensor or an array."""
    import numpy as np
    import torch

    if isinstance(value, np.ndarray):
        try:
            value = torch.from_numpy(value if value.flags.writeable else value.copy())
        except (TypeError, ValueError):
            raise IsomergeError(
                f"{ref}: array {name!r} has the type {value.dtype}, which torch lacks; {_REMEDY}"
            ) from None
    if not isinstance(name, str) or not isinstance(value, torch.Tensor):
        raise IsomergeError(f"{ref}: entry {name!r:.200} is a {type(value).__name__}, expected a tensor; {_REMEDY}")
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise IsomergeError(f"{ref}: tensor {name!r} is not a plain dense tensor with values; {_REMEDY}")
    return value.detach()

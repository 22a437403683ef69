"""Checkpoints stored as transformers 5 holds a model in memory (``save_original_format=False``), read as files are.

Fused experts are read one by one, gates and ups apart, and what is renamed by its old name. Transformers' own way
back, which `save_pretrained` goes by default, is run on tensors without values (torch's device ``meta``). What
comes out is views of what went in, whose strides say where the elements are however large they are, or what it
makes of such views.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from isomerge.checkpoint.dtypes import torch_dtype
from isomerge.checkpoint.header import TensorInfo
from isomerge.checkpoint.reader import Checkpoint, made_from
from isomerge.errors import IsomergeError
from isomerge.models.conversions import live_names
from isomerge.models.quantised import FUSED
from isomerge.models.transformers_reading import skeleton


@dataclass(frozen=True)
class Part:
    """A view of a tensor."""

    of: str | Made
    """A stored tensor, or what was made of some."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def read(self, checkpoint: Checkpoint, *, exact: bool) -> Tensor:
        """Its values, in memory of their own; see `Checkpoint.read`."""
        if isinstance(self.of, Made):
            return self.of.read(checkpoint, exact=exact).as_strided(self.shape, self.strides, self.offset)
        whole = checkpoint.read(self.of, mapped=True, exact=exact)
        at = int(whole.storage_offset()) + self.offset
        values = whole.as_strided(self.shape, self.strides, at).clone(memory_format=torch.contiguous_format)
        checkpoint.check_unchanged(self.of)
        return values

    @property
    def sources(self) -> list[str]:
        """The stored tensors that it is of."""
        if isinstance(self.of, str):
            return [self.of]
        parts = [x for x in tree_leaves((self.of.arguments, self.of.keywords)) if isinstance(x, Part)]
        return [name for part in parts for name in part.sources]

    def is_all_of(self, info: TensorInfo | None) -> bool:
        """Whether it is a stored tensor, under its own name and as it is stored."""
        if info is None:
            return False
        strides = torch.empty(info.shape, device="meta").stride()
        return (self.of, self.shape, self.strides) == (info.name, info.shape, strides)


@dataclass(frozen=True)
class Made:
    """What a function of torch makes of tensors."""

    function: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def read(self, checkpoint: Checkpoint, *, exact: bool) -> Tensor:
        """Its values."""
        arguments, keywords = tree_map(
            lambda x: x.read(checkpoint, exact=exact) if isinstance(x, Part) else x, (self.arguments, self.keywords)
        )
        return self.function(*arguments, **keywords)


def read_as_files(checkpoint: Checkpoint) -> Checkpoint | None:
    """The checkpoint with its tensors under the names, and in the pieces, that `save_pretrained` writes; some may
    be stored so already.

    Returns:
        A view; None where transformers does not know the architecture, or nothing is stored otherwise.
    """
    try:
        module = skeleton(checkpoint.config, checkpoint.shapes)
        if not isinstance(module, nn.Module):
            return None
        held = _held(module, checkpoint.tensors)
        parts = _ways_back(module, held)
    except Exception:  # whatever an operation does with tensors that it does not expect
        return None
    others = checkpoint.tensors.keys() - {info.name for info in held.values()}
    if parts is None or others & parts.keys():
        return None
    derived = {
        name: made_from(
            replace(checkpoint.tensors[part.sources[0]], shape=part.shape),
            [(checkpoint, source) for source in part.sources],
            partial(part.read, checkpoint),
        )
        for name, part in parts.items()
        if not part.is_all_of(checkpoint.tensors.get(name))
    }
    if not derived:
        return None
    gone = checkpoint.tensors.keys() - others - parts.keys()
    view = checkpoint.derive(derived, origin=FUSED, drop=gone)
    return replace(view, in_folder=checkpoint.in_folder)  # transformers makes the same model of the folder


def _held(module: nn.Module, stored: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """The stored tensors that a module has in the same shape and under the same name, by its name: but for the
    prefix of a body that was saved alone."""
    state = module.state_dict(keep_vars=True)
    held: dict[str, TensorInfo] = {}
    for name, place in live_names(module, stored).items():
        live = place.names[0]
        same = live.endswith(name) or name.endswith(live)
        if place.pattern is None and same and live in state and tuple(state[live].shape) == stored[name].shape:
            held[live] = stored[name]
    return held


def _ways_back(module: nn.Module, held: Mapping[str, TensorInfo]) -> dict[str, Part] | None:
    """What files call tensors of a module, each with what it is of stored ones; None where elements are lost on the
    way."""
    from transformers.core_model_loading import revert_weight_conversion

    ends = {
        (live[: max(len(live) - len(info.name), 0)], info.name[: max(len(info.name) - len(live), 0)])
        for live, info in held.items()
    }
    if len(ends) != 1:
        return None
    more, less = ends.pop()
    given, followed = {}, _Followed()
    for live, info in held.items():
        given[live] = torch.empty(info.shape, dtype=torch_dtype(info.dtype), device="meta")
        followed.known[_memory(given[live])] = info.name
    with followed:
        made: dict[str, Tensor] = revert_weight_conversion(module, given)  # type: ignore[arg-type]
    parts = {less + name.removeprefix(more): followed.part(tensor) for name, tensor in made.items()}
    whole = sum(x.numel() for x in made.values()) == sum(x.numel() for x in given.values())
    return parts if whole and len(parts) == len(made) else None


def _memory(tensor: Tensor) -> int:
    """What tensors have in common that are views of one another."""
    return tensor.untyped_storage()._cdata


class _Followed(TorchFunctionMode):
    """Keeps what tensors without values are made of: views are not copied, and what is no view is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, str | Made] = {}
        self.kept: list[Tensor] = []
        """As long as these live, no other tensor has their memory's number."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.contiguous, Tensor.clone):
            return args[0]
        name = str(getattr(func, "__name__", ""))
        if name == "__setitem__" or re.search("[^_]_$", name) or "out" in kwargs:
            raise IsomergeError(f"{name} changes tensors in place")
        made = func(*args, **kwargs)
        if isinstance(made, Tensor) and _memory(made) not in self.known:
            arguments, keywords = tree_map(
                lambda x: self.part(x) if isinstance(x, Tensor) else x, (tuple(args), kwargs)
            )
            self.known[_memory(made)] = Made(func, arguments, keywords)
            self.kept.append(made)
        return made

    def part(self, tensor: Tensor) -> Part:
        """What a tensor is of what is known.

        Raises:
            KeyError: it is made in a way that is not followed.
        """
        of = self.known[_memory(tensor)]
        return Part(of, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))

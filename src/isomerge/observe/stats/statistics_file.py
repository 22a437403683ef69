"""One statistics file, opened: digest and taps checked against a model, tensors read one at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from isomerge.arithmetic import aligned
from isomerge.checkpoint.stored_tensor import content_of
from isomerge.errors import IsomergeError
from isomerge.models.recognised import Model
from isomerge.observe.stats.statistics_header import read_statistics_header
from isomerge.observe.stats.taps import Tap, plain
from isomerge.symmetry.axes import size

KINDS = {"activations": "rows", "regmean": "gram", "fisher": "fisher", "kfac": "kfac"}
"""From the kinds that `isomerge stats` is asked for to the first word of their keys; readers ignore other words."""
SIZED_BY_TAP = ("rows", "mean", "gram")


def weights_digest(model: Model) -> str:
    """The sha256 of every stored tensor's name, type, shape and bytes, in the order of names; read one by one.

    How tensors are spread over files does not matter, nor does a head that `recognise` untied.
    """
    digest = hashlib.sha256()
    seen: set[tuple[Any, int]] = set()
    names = []
    for name, info in model.checkpoint.tensors.items():
        place = (info.file, info.offset)
        if info.offset < 0 or info.nbytes == 0 or place not in seen:
            names.append(name)
        seen.add(place)
    for name in sorted(names):
        tensor = model.checkpoint.read(name)
        digest.update(f"{name} {model.checkpoint.tensors[name].dtype} {list(tensor.shape)}\n".encode())
        digest.update(content_of(tensor))
    return digest.hexdigest()


def axis_number(tap: Tap, axes: Any) -> int:
    """Which axis of a weight a tap has, exchanged or as it is."""
    return [plain(axis, flip=tap.side == "in") for axis in axes].index(tap.axis)


class StatisticsFile:
    """A file and the model that it was made of.

    Raises:
        IsomergeError: not a statistics file, one of another model, or damaged.
    """

    def __init__(self, path: str | Path, model: Model) -> None:
        self.path, self.model = Path(path), model
        self.header, self.names = read_statistics_header(self.path, model)
        if self.header.get("model") != weights_digest(model):
            raise IsomergeError(
                f"{self.path}: made for another model than {model.ref}: make one of this one with isomerge stats"
            )
        self.blocks = {block.key: block for block in model.blocks}
        self.taps = self._read_taps()

    @property
    def kinds(self) -> set[str]:
        """The kinds that it holds, by the names of ``--kinds``."""
        words = {name.partition("/")[0] for name in self.names}
        return {kind for kind, word in KINDS.items() if word in words}

    def read(self, name: str) -> Tensor:
        """One tensor, checked against the model: its shape, and that its numbers are finite.

        Raises:
            IsomergeError: it is damaged.
        """

        try:
            with safe_open(str(self.path), "pt") as file:
                x = aligned(file.get_tensor(name))
        except (OSError, SafetensorError) as error:
            raise IsomergeError(f"{self.path}: {name} cannot be read ({error}): make the file again") from None
        if not (x.is_floating_point() and self._fits(name, list(x.shape)) and bool(x.isfinite().all())):
            raise IsomergeError(
                f"{self.path}: {name} is not what a tap of {self.model.ref} gives: this file is damaged, make "
                f"it again"
            )
        return x

    @cached_property
    def linears(self) -> Mapping[str, tuple[str, int]]:
        """From weights of linear layers (block keys) to the tap of their input and the axis that reads it.

        Older files tell of readers of the residual stream; the others have taps of their own.
        """
        linears: dict[str, tuple[str, int]] = {}
        try:
            for block, (tap, axis) in self.header.get("linears", {}).items():
                linears[block] = (str(tap), int(axis))
            if "linears" not in self.header:
                own = {t.block: k for k, t in self.taps.items() if t.side == "in" and f"gram/{k}" in self.names}
                for block, tap in {**own, **self.header.get("inputs", {})}.items():
                    axes: Any = self.blocks[block].axes
                    linears[block] = (tap, [plain(axis, flip=True) for axis in axes].index(self.taps[tap].axis))
            good = all(
                f"gram/{tap}" in self.names and self._reads(b, tap, axis) for b, (tap, axis) in linears.items()
            )
        except (AttributeError, TypeError, ValueError, KeyError):
            good = False
        if not good:
            raise IsomergeError(
                f"{self.path}: its list of linear layers does not fit {self.model.ref}: make it again"
            )
        return linears

    def _reads(self, block: str, tap: str, axis: int) -> bool:
        """Whether a weight has two axes, one of which reads what a tap sees."""
        axes = self.blocks[block].axes
        return axes is not None and len(axes) == 2 and axis in (0, 1) and tap in self.taps

    def _fits(self, name: str, shape: list[int]) -> bool:
        """Whether a tensor has a shape that its name allows."""
        kind, _, key = name.partition("/")
        if kind in SIZED_BY_TAP:
            tap = self.taps.get(key)
            wanted = None if tap is None else size(tap.axis, self.model.spec.sizes)
            if tap is None or (wanted is not None and shape[-1:] != [wanted]):
                return False
            return kind != "gram" or (len(shape) == 2 and shape[0] == shape[1])
        block = self.blocks.get(key)
        if block is None:
            return False
        stored = self.model.checkpoint.tensors[self.model.names[block.canonical[0]]].shape
        if kind == "fisher":
            return shape == [*block.lead, *stored]
        axis = self.linears.get(key, ("", 0))[1]
        return kind == "kfac" and len(stored) == 2 and shape in ([stored[1 - axis]], [stored[1 - axis]] * 2)

    def _read_taps(self) -> dict[str, Tap]:
        taps = {}
        try:
            for key, block, side, at in self.header.get("taps", ()):
                axes: Any = self.blocks[block].axes
                taps[key] = Tap(key, block, plain(axes[at], flip=side == "in"), self.blocks[block].scope, side)
        except (TypeError, ValueError, KeyError, IndexError):
            raise IsomergeError(
                f"{self.path}: its list of taps does not fit {self.model.ref}: make it again"
            ) from None
        return taps

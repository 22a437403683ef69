"""How a checkpoint's numbers are stored: how many are zero, whether they lie on a few levels, and how precise they
are.

Symmetries that mix coordinates hide all of it; permutations and signs, and people who do not disguise what they
make, do not. So it decides nothing but what was done to a model that other evidence calls derived, and which of two
was there first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from isomerge.symmetry.blocks import Block

WINDOW = 64
"""Neighbours whose levels are looked at together: the groups of quantisers are seldom smaller."""
SAMPLES = 4
"""Windows, and rows, that are looked at in a tensor."""
LEVELS = 255
"""More levels, on either side of zero, are no quantisation."""
FEW = 16
"""Different values in a window of `WINDOW` that are few, wherever they lie."""
OFF_LEVEL = 0.06
"""How far, in steps, rounding may move a value from its level."""
MOST = 0.75
"""The share of windows that must lie on levels."""
PRECISIONS = ("BF16", "F16", "F32", "F64")
"""From the coarsest to the finest."""


@dataclass(frozen=True)
class Storage:
    """What is told of the numbers of a checkpoint's matrices."""

    dtype: str
    """The coarsest stored dtype of its tensors, as safetensors names it."""
    precision: str
    """The coarsest dtype that holds every number that was looked at."""
    zeros: float
    """The share of zeros in its layers' matrices."""
    bits: int | None
    """The bits of a number where most of them lie on few levels; None where they do not."""


@dataclass
class Look:
    """Looks at tensors one by one."""

    seen: int = 0
    zero: int = 0
    windows: int = 0
    bits: list[int] = field(default_factory=list)
    precise: set[str] = field(default_factory=lambda: {PRECISIONS[0]})

    def at(self, block: Block, tensor: Tensor) -> None:
        """Look at some rows of a block as it is stored; blocks outside of layers and vectors do not count."""
        if not block.scope or tensor.ndim < 2 or min(tensor.shape[-2:]) < 2:
            return
        rows = tensor.flatten(0, -2)
        rows = rows[:: max(1, len(rows) // SAMPLES)][:SAMPLES]
        self.seen, self.zero = self.seen + rows.numel(), self.zero + int((rows == 0).sum())
        self.precise.add(_precision(rows))
        whole = tensor.reshape(-1, *tensor.shape[-2:])[0]
        along, across = (_levels(x, SAMPLES) for x in (rows, whole.mT))
        levels = min(along, across, key=lambda levels: (-len(levels), sum(levels)))
        self.windows, self.bits = self.windows + min(SAMPLES, len(rows)), self.bits + levels

    def storage(self, dtype: str) -> Storage:
        """What all that was looked at says."""
        levelled = self.windows > 0 and len(self.bits) >= MOST * self.windows
        bits = sorted(self.bits)[len(self.bits) // 2] if levelled else None
        precision = max(self.precise, key=PRECISIONS.index)
        return Storage(dtype, precision, self.zero / max(self.seen, 1), bits)


def _precision(x: Tensor) -> str:
    """The coarsest dtype that holds every number."""

    kinds = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
    return next((code for code, kind in kinds.items() if torch.equal(x.to(kind).to(x.dtype), x)), "F64")


def _levels(rows: Tensor, count: int) -> list[int]:
    """The bits of a number in every window that lies on few levels: the first of so many rows."""
    levels = []
    for row in rows[:: max(1, len(rows) // count)][:count]:
        if (bits := _bits(row[:WINDOW])) is not None:
            levels.append(bits)
    return levels


def _bits(x: Tensor) -> int | None:
    """The bits that tell the levels of a window apart; None where there are too many, or too few numbers to say."""
    different = x.double().unique()
    values = different.abs().unique()
    values = values[values > 0]
    if int((x != 0).sum()) < WINDOW // 4 or len(values) < 2:
        return None
    if len(different) <= FEW and int((x != 0).sum()) >= WINDOW // 2:
        return max(1, (len(different) - 1).bit_length())
    step = float(min(values[0], values.diff().min()))
    places = values / step
    if float(places[-1]) > LEVELS or float((places - places.round()).abs().max()) > OFF_LEVEL:
        return None
    return (2 * int(places[-1].round())).bit_length()

"""How a checkpoint's numbers are stored: how many are zero, whether they lie on a few levels, how precise they are,
and what some of them are.

Symmetries that mix coordinates hide all of it; permutations and signs, and people who do not disguise what they
make, do not. So it decides nothing but what was done to a model that other evidence calls derived, and which of two
was there first; and that models are not called independent which hold the same numbers.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isomerge.quotient.draws import drawn_places
from isomerge.symmetry.axes import VOCABULARY
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
ENTRIES, TENSORS = 64, 512
"""Numbers of a tensor that are kept as they are, and tensors of which they are kept."""
FEWEST, SIGMAS = 6, 6
"""More equal numbers than this, and so many standard deviations more than chance makes equal, are no chance."""
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

    salt: str
    """What places are drawn with."""
    entries: dict[str, Tensor] = field(default_factory=dict)
    """Some numbers of matrices in layers and of what has a row for every token, float32, by block."""
    seen: int = 0
    zero: int = 0
    windows: int = 0
    bits: list[int] = field(default_factory=list)
    precise: set[str] = field(default_factory=lambda: {PRECISIONS[0]})

    def at(self, block: Block, tensor: Tensor) -> None:
        """Look at some rows of a block as it is stored; blocks outside of layers and vectors do not count."""
        if tensor.ndim < 2 or min(tensor.shape[-2:]) < 2:
            return
        named = block.axes is not None and (block.scope or VOCABULARY in block.names)
        if named and len(self.entries) < TENSORS:
            places = drawn_places(f"{block.key} entries", ENTRIES, tensor.numel(), self.salt)
            self.entries[block.key] = tensor[torch.unravel_index(places, tensor.shape)].float().nan_to_num()
        if not block.scope:
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


def shared_entries(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The kinds of tensors of which two models hold the same numbers at the same places, far more of them than are
    the same at two places; zeros do not count.

    Nothing where that is one kind inside of layers alone: what is computed and stored, such as decays, is the same
    in strangers.

    Args:
        first, second: some numbers of each, by tensor.
    """
    same, chance = Counter[str](), defaultdict[str, float](float)
    for key in sorted(first.keys() & second.keys()):
        x, y = first[key], second[key]
        if x.shape != y.shape:
            continue
        some = (x != 0) & (y != 0)
        equal = x[some][:, None] == y[some]
        kind, in_place = re.sub(r"\d+", "*", key), int(equal.diagonal().sum())
        same[kind] += in_place
        chance[kind] += (int(equal.sum()) - in_place) / max(len(equal) - 1, 1)
    kinds = [kind for kind, n in same.items() if n >= FEWEST + chance[kind] + SIGMAS * chance[kind] ** 0.5]
    return tuple(kinds) if len(kinds) > 1 or not all("*" in kind for kind in kinds) else ()


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

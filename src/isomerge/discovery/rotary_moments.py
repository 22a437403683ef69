"""Rotary positions, seen in moments: which coordinates of a head turn, and which two turn together.

A coordinate that is not turned pairs with its key's coordinate alone; of turned ones only the sum over a pair does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from isomerge.config.config_parts import parts_of
from isomerge.discovery.moments import RELATED
from isomerge.errors import IsomergeError
from isomerge.symmetry.language.expressions import evaluate


@dataclass(frozen=True)
class Rotation:
    """How a head's coordinates turn; ``turned`` of them, from the first one on, or up to the last one."""

    turned: int
    interleaved: bool = False
    last: bool = False

    def axes(self, pair: str, rest: str, circle: str, *, dual: bool = False) -> str:
        """The coordinates of a head as axes: the pairs' complex numbers, and what is not turned."""
        mark = "'" if dual else ""
        turning = f"{pair} {circle}{mark}" if self.interleaved else f"{circle}{mark} {pair}"
        if not rest:
            return turning
        parts = (f"{rest}{mark}", turning) if self.last else (turning, f"{rest}{mark}")
        return f"[{parts[0]} | {parts[1]}]"


def rotation_of(queries: Tensor, keys: Tensor) -> Rotation | None:
    """How the coordinates of a head turn; None where the moments fit no known rotation.

    Args:
        queries, keys: moments of the coordinates of one key-value head, [head, count]; of all its queries together.
    """
    gap = queries - keys
    size = float(queries.norm(dim=-1).max())
    turned = [i for i, row in enumerate(gap) if float(row.norm()) > RELATED * size]
    n = len(turned)
    if n == 0:
        return Rotation(0)
    if n % 2 or turned != list(range(turned[0], turned[0] + n)):
        return None
    last = turned[0] > 0
    if last and turned[-1] != len(gap) - 1:
        return None
    rows = gap[turned[0] : turned[0] + n]
    for interleaved in (False, True):
        sums = rows.unflatten(0, (-1, 2)).sum(1) if interleaved else rows.unflatten(0, (2, -1)).sum(0)
        if float(sums.norm(dim=-1).max()) < 1e2 * RELATED * size:
            return Rotation(n, interleaved, last)
    return None


FRACTIONS = (
    "partial_rotary_factor",
    "rope_parameters.partial_rotary_factor",
    "rotary_pct",
    "rotary_percentage",
    "rope_pct",
)


def pair_expressions(turned: int, head: int, config: Mapping[str, Any]) -> list[str]:
    """How a config may say the number of pairs, by the size ``head``; all that give the number measured."""
    wanted = [f"{key} // 2" for key in config if "rot" in key or "rope" in key]
    parts = ["", *(f"{part}." for part in parts_of(config))]
    wanted += [f"head * {part}{key} // 2" for part in parts for key in FRACTIONS]
    wanted += ["head // 2", "head // 4", "head // 8"]
    expressions = []
    for text in wanted:
        try:
            value = evaluate(text, {**config, "head": head})
        except IsomergeError:
            continue
        if value == turned // 2:
            expressions.append(text)
    return expressions

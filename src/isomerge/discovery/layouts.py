"""The layouts of projections: how queries, keys and values of the heads lie in one axis, told from whose chunk is
whose.

A chunk is as long as a head. Of every chunk its role is known (q, k, v or o) and the key-value head that it belongs
to; the layout is the pattern that puts them there: ``[q | k | v]``, head by head, group by group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

Chunk = tuple[str, int]
"""Role, and the number of the key-value head."""


@dataclass(frozen=True)
class Names:
    """What a layout calls its indices: the heads, and the query heads that share one (empty where none do)."""

    heads: str
    group: str
    count: int
    """How many heads (or key-value heads) there are."""
    sharing: int
    """How many query heads share one."""


def layout(chunks: Sequence[Chunk], parts: Mapping[str, str], names: Names) -> str | None:
    """The pattern of an axis; None where the chunks lie in no known order.

    Args:
        chunks: role and head of every chunk, in order.
        parts: role -> the axes of one head, such as ``c pair`` or ``qk'``.
        names: the indices.
    """
    runs = _runs(chunks)
    blocks = [_run(role, heads, parts, names) for role, heads in runs]
    if all(block is not None for block in blocks):
        texts = [block for block in blocks if block is not None]
        return f"({texts[0]})" if len(texts) == 1 else f"[{' | '.join(texts)}]"
    if len(chunks) % names.count:
        return None
    period = len(chunks) // names.count
    pieces = [chunks[start : start + period] for start in range(0, len(chunks), period)]
    roles = [role for role, _ in pieces[0]]
    if any([role for role, _ in piece] != roles for piece in pieces):
        return None
    if any(head != number for number, piece in enumerate(pieces) for _, head in piece):
        return None
    inner = [_inner(role, len(list(group)), parts, names) for role, group in groupby(roles)]
    if any(text is None for text in inner):
        return None
    return f"({names.heads} [{' | '.join(text for text in inner if text)}])"


def _runs(chunks: Sequence[Chunk]) -> list[tuple[str, list[int]]]:
    return [(role, [head for _, head in group]) for role, group in groupby(chunks, key=lambda chunk: chunk[0])]


def _run(role: str, heads: list[int], parts: Mapping[str, str], names: Names) -> str | None:
    """All heads of one role in a row."""
    in_order = list(range(names.count))
    if heads == in_order and (names.sharing == 1 or role in "kv"):
        return f"{names.heads} {parts[role]}"
    if heads == [head for head in in_order for _ in range(names.sharing)]:
        return f"{names.heads} {names.group} {parts[role]}"
    if heads == in_order * names.sharing:
        return f"{names.group} {names.heads} {parts[role]}"
    return None


def _inner(role: str, length: int, parts: Mapping[str, str], names: Names) -> str | None:
    """The chunks of one role within one head's share of an axis."""
    if length == 1 and (names.sharing == 1 or role in "kv"):
        return parts[role]
    return f"{names.group} {parts[role]}" if length == names.sharing else None


def leaf_number(chunks: Sequence[Chunk], role: str, parts: Mapping[str, str]) -> tuple[int, int]:
    """The number of the first concatenated part of a role, and how many parts the axis has in all."""
    order = list(dict.fromkeys(role for role, _ in chunks))
    leaves = {r: parts[r].count("|") + 1 for r in order}
    return sum(leaves[r] for r in order[: order.index(role)]), sum(leaves.values())

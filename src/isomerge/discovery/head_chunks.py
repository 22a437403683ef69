"""Which chunks of an attention layer belong together: values with outputs, queries with keys, found by their
moments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile

import torch
from torch import Tensor

from isomerge.discovery.lines import LineFound, Place
from isomerge.discovery.moments import RELATED, along, combination, relations


@dataclass
class HeadsFound:
    """One attention: per axis, the role and head of every chunk."""

    count: int
    """Heads, or key-value heads where query heads share them."""
    sharing: int
    output: LineFound
    roles: dict[tuple[str, int], list[tuple[str, int] | None]] = field(default_factory=dict)
    lines: dict[str, LineFound] = field(default_factory=dict)
    rotated: bool | None = None
    """Whether queries and keys were seen to pair; None where norms hide it."""

    @property
    def module(self) -> str:
        """What the names of its lines begin with in common, up to a dot."""
        return ".".join(_common(line.module for line in self.lines.values()))

    def role_lines(self, role: str) -> list[LineFound]:
        """The lines that have chunks of a role."""
        return [
            self.lines[name] for (name, _), chunks in self.roles.items() if any(c and c[0] == role for c in chunks)
        ]


class Chunks:
    """The moments of a stack's axes, cut into chunks as long as a head."""

    def __init__(self, lines: list[LineFound], moments: dict[str, Tensor], head: int) -> None:
        self.lines, self.moments, self.head = lines, moments, head
        self.by_name = {line.name: line for line in lines}

    def fine(self, end: Place) -> Tensor:
        """The moments of every coordinate of an axis, its bias included where it is written: [length, count]."""
        line, axis = end
        moments = along(self.moments[line.samples[0]], axis)
        bias = bias_of(line, self.lines) if axis == line.out else None
        if bias is not None and bias.samples[0] in self.moments and bias.shapes[0] == (moments.shape[0],):
            moments = moments + along(self.moments[bias.samples[0]], 0)
        return moments

    def coarse(self, end: Place) -> Tensor:
        """The moments of every chunk: [chunks, count]."""
        fine = self.fine(end)
        return fine.unflatten(0, (-1, self.head)).sum(1)

    def ends(self, written: bool) -> list[Place]:
        """The axes that could be cut into heads: those that are written, or those that are read."""
        ends = []
        for line in self.lines:
            shape = line.shapes[0]
            if line.samples[0] not in self.moments or line.out is None or line.expert or len(shape) < 2:
                continue
            axes = [line.out] if written else [a for a in range(len(shape)) if a != line.out][:1]
            ends += [(line, a) for a in axes if shape[a] % self.head == 0 and shape[a] >= self.head]
        return ends


def bias_of(line: LineFound, lines: Iterable[LineFound]) -> LineFound | None:
    """The line of the bias that is added to what a matrix writes."""
    if not line.name.endswith("weight"):
        return None
    wanted = line.name[: -len("weight")] + "bias"
    return next((other for other in lines if other.name == wanted), None)


def _common(names: Iterable[str]) -> list[str]:
    """The parts with which names begin in common, up to a dot."""
    columns = zip(*(name.split(".") for name in names), strict=False)
    return [column[0] for column in takewhile(lambda column: len({*column}) == 1, columns)]


def find_heads(chunks: Chunks) -> list[HeadsFound]:
    """The attentions of a stack: every reader whose chunks are sums of an output's chunks, with queries and
    keys."""
    attentions = [heads for end in chunks.ends(written=False) if (heads := _values_of(chunks, end)) is not None]
    if attentions:
        _pair_queries(chunks, attentions)
    return attentions


def _values_of(chunks: Chunks, end: Place) -> HeadsFound | None:
    """The values behind one output projection: each key-value head's chunk is the sum of its query heads' there."""
    output, axis = end
    parts = chunks.coarse(end)
    if len(parts) < 2 or parts.shape[0] >= parts.shape[1] or not bool((parts.norm(dim=-1) > 0).all()):
        return None
    owned: list[tuple[Place, int, list[int]]] = []
    for reader in chunks.ends(written=True):
        if reader[0].name == output.name:
            continue
        for number, chunk in enumerate(chunks.coarse(reader)):
            coefficients, gap = combination(chunk, parts)
            rounded = coefficients.round()
            if (
                gap < RELATED
                and bool(((coefficients - rounded).abs() < 1e-4).all())
                and set(rounded.tolist()) <= {0.0, 1.0}
            ):
                owned.append((reader, number, [i for i, c in enumerate(rounded.tolist()) if c]))
    covered = sorted(i for _, _, group in owned for i in group)
    if covered != list(range(len(parts))) or len({len(group) for _, _, group in owned}) != 1:
        return None
    owned.sort(key=lambda entry: entry[2])
    heads = HeadsFound(len(owned), len(owned[0][2]), output)
    heads.lines[output.name] = output
    places: list[tuple[str, int] | None] = [None] * len(parts)
    for head, (reader, number, group) in enumerate(owned):
        _put(heads, chunks, reader, number, ("v", head))
        for i in group:
            places[i] = ("o", head)
    heads.roles[output.name, axis] = places
    return heads


def _put(heads: HeadsFound, chunks: Chunks, end: Place, number: int, chunk: tuple[str, int]) -> None:
    line, axis = end
    heads.lines[line.name] = line
    places = heads.roles.setdefault((line.name, axis), [None] * (line.shapes[0][axis] // chunks.head))
    places[number] = chunk


def _pair_queries(chunks: Chunks, attentions: list[HeadsFound]) -> None:
    """Give every attention its queries and keys: by moments where they show, else by what is left in its module."""
    taken = {(n, a, i) for heads in attentions for (n, a), c in heads.roles.items() for i, x in enumerate(c) if x}
    outputs = {heads.output.name for heads in attentions}
    free = [
        (end, number, moment)
        for end in chunks.ends(written=True)
        for number, moment in enumerate(chunks.coarse(end))
        if (end[0].name, end[1], number) not in taken and end[0].name not in outputs
    ]
    if not free:
        return
    rows = torch.stack([moment for _, _, moment in free])
    scale = rows.norm(dim=-1)
    seen = [i for i in range(len(free)) if float(scale[i]) > 1e-8 * float(scale.max())]
    if len(seen) >= rows.shape[1]:
        return
    pairs: dict[tuple[str, ...], list[tuple[list[int], list[int]]]] = {}
    for relation in relations(rows[seen]):
        if any(abs(abs(c) - 1) > 1e-4 for c in relation.values()) or len(relation) < 2:
            continue
        plus, minus = ([seen[i] for i, c in relation.items() if c * sign > 0] for sign in (1, -1))
        queries, keys = _sides(free, sorted(plus), sorted(minus))
        names = tuple(sorted({free[i][0][0].name for i in queries + keys}))
        pairs.setdefault(names, []).append((queries, keys))
    for names, groups in pairs.items():
        groups.sort(key=lambda pair: pair[1])
        home = _home(attentions, names, len(groups))
        if home is None:
            continue
        home.rotated = True
        for head, (queries, keys) in enumerate(groups):
            for role, members in (("q", queries), ("k", keys)):
                for i in members:
                    _put(home, chunks, free[i][0], free[i][1], (role, head))
    for heads in attentions:
        if not heads.role_lines("q"):
            _by_module(chunks, heads)


def _sides(free: list[tuple[Place, int, Tensor]], plus: list[int], minus: list[int]) -> tuple[list[int], list[int]]:
    """Which side asks: the more numerous one; of two alike the one that its name or its place says."""
    if len(plus) != len(minus):
        return (plus, minus) if len(plus) > len(minus) else (minus, plus)

    def rank(side: list[int]) -> tuple[bool, int]:
        return (not any("q" in part for part in free[side[0]][0][0].name.split(".")[-2:]), side[0])

    return (plus, minus) if rank(plus) <= rank(minus) else (minus, plus)


def _home(attentions: list[HeadsFound], names: tuple[str, ...], count: int) -> HeadsFound | None:
    """The attention that a set of queries and keys belongs to: as many heads, and the most of the name in
    common."""

    def shared(heads: HeadsFound) -> int:
        return max(len(_common([heads.output.name, name])) for name in names)

    fitting = [heads for heads in attentions if heads.count == count and not heads.role_lines("q")]
    return max(fitting, key=shared, default=None)


def _first_of_each(heads: HeadsFound, free: list[tuple[Place, int]]) -> list[tuple[Place, int]]:
    """The queries among free chunks: the first ones, or, where every head has its value in turn, the first of
    each."""
    count = heads.count * heads.sharing
    line, axis = free[0][0]
    places = heads.roles.get((line.name, axis), [])
    values = [i for i, place in enumerate(places) if place and place[0] == "v"]
    if len(values) < 2 or values[1] == values[0] + 1:
        return free[:count]
    each = len(free) // heads.count
    return [entry for number, entry in enumerate(free) if number % each < heads.sharing]


def _named(free: list[tuple[Place, int]], wanted: dict[str, int]) -> list[tuple[Place, int]]:
    """Of free chunks those of two matrices that have as many as are wanted, and begin with the letter of their
    role."""
    named: list[tuple[Place, int]] = []
    for role, count in wanted.items():
        names = dict.fromkeys(end[0].name for end, _ in free)
        for name in names:
            chunks = [entry for entry in free if entry[0][0].name == name]
            if len(chunks) == count and name.split(".")[-2].lstrip("_").startswith(role):
                named += chunks
    return named


def _by_module(chunks: Chunks, heads: HeadsFound) -> None:
    """Queries and keys that norms hide: what is left of the attention's module in numbers that fit."""
    wanted = {"q": heads.count * heads.sharing, "k": heads.count}
    module = heads.module
    free: list[tuple[Place, int]] = []
    for end in chunks.ends(written=True):
        line, axis = end
        if line.name == heads.output.name or not line.name.startswith(f"{module}."):
            continue
        places = heads.roles.get((line.name, axis), [None] * (line.shapes[0][axis] // chunks.head))
        free += [(end, i) for i, place in enumerate(places) if place is None]
    if len(free) != sum(wanted.values()):
        free = _named(free, wanted)  # gates, or neurons of a block that has no module for its attention
    if len(free) != sum(wanted.values()):
        return
    asks = [entry for entry in free if "q" in entry[0][0].module.split(".")[-1][:2]]
    queries = asks if len(asks) == wanted["q"] else _first_of_each(heads, free)
    keys = [entry for entry in free if entry not in queries]
    for role, members in (("q", queries), ("k", keys)):
        each = len(members) // heads.count
        for number, (end, i) in enumerate(members):
            _put(heads, chunks, end, i, (role, number // each))

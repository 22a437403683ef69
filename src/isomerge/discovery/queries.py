"""What may act on queries and keys, largest group first: proposals for the law to judge.

All matrices where nothing comes between query and key; a complex number for each pair that rotary positions turn,
and all matrices on what they leave; under norms, signs of pairs and factors of the norms' gains.

Which coordinates of a head turn, and which two turn together, shows in moments: a coordinate that is not turned
pairs with its key's coordinate alone; of turned ones only the sum over a pair does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from isomerge.config.config_parts import parts_of
from isomerge.discovery.draft import SpaceDraft
from isomerge.discovery.head_chunks import Chunks, HeadsFound
from isomerge.discovery.lines import LineFound
from isomerge.discovery.moments import RELATED
from isomerge.errors import IsomergeError
from isomerge.symmetry.language.expressions import evaluate

FRACTIONS = (
    "partial_rotary_factor",
    "rope_parameters.partial_rotary_factor",
    "rotary_pct",
    "rotary_percentage",
    "rope_pct",
)


@dataclass(frozen=True)
class QueryNames:
    """What a draft calls the heads, the length of one, and the spaces of queries and keys."""

    h: str
    head: str
    qk: str
    c: str
    pair: str
    rest: str
    sg: str
    t: str


@dataclass(frozen=True)
class Proposal:
    """Spaces with their sizes, and the axes of one head's query and key."""

    sizes: Mapping[str, str]
    spaces: tuple[SpaceDraft, ...]
    query: str
    key: str
    gains: Mapping[tuple[str, int], str] = field(default_factory=dict)


class Proposals:
    """The proposals for one attention, in the order in which they are tried."""

    def __init__(self, heads: HeadsFound, chunks: Chunks, config: Mapping[str, Any], names: QueryNames) -> None:
        self.heads, self.chunks, self.config, self.n = heads, chunks, config, names
        self.indices = heads.output.indices
        self.index = (*self.indices, names.h)

    def __iter__(self) -> Iterator[Proposal]:
        if self.heads.rotated is None:
            if not self._gains():  # no norms that would hide a pairing: numbers too small did
                yield from self._unseen()
            yield from self._under_norms()
            return
        n, width = self.n, self.chunks.head
        rotation = self._rotation()
        if rotation is None or rotation.turned == 0:
            yield Proposal({n.qk: n.head}, (SpaceDraft(n.qk, "GL", self.index, "qk"),), n.qk, f"{n.qk}'")
        # the layer that was looked at may turn nothing where others do
        guesses = [Rotation(width), Rotation(width, True)]
        if rotation is not None and rotation.turned:
            guesses = [rotation]
        for guess in guesses:
            yield from self._rotated(guess)
        sign = SpaceDraft(n.sg, "Sign", (*self.index, n.qk), "qk")
        yield Proposal({n.qk: n.head, n.sg: "1"}, (sign,), f"{n.qk} {n.sg}", f"{n.qk} {n.sg}'")

    def _gains(self) -> list[LineFound]:
        """The vectors as long as a head in the attention's module: gains of norms on queries and keys, if
        anything."""
        module, width = f"{self.heads.module}.", self.chunks.head
        inside = [line for line in self.chunks.lines if line.name.startswith(module) and line.uniform]
        return [line for line in inside if line.shapes[0] == (width,)]

    def _unseen(self) -> Iterator[Proposal]:
        """All that could be without norms, where moments tell nothing."""
        n, width = self.n, self.chunks.head
        yield Proposal({n.qk: n.head}, (SpaceDraft(n.qk, "GL", self.index, "qk"),), n.qk, f"{n.qk}'")
        for interleaved in (False, True):
            yield from self._rotated(Rotation(width, interleaved))

    def _rotated(self, rotation: Rotation) -> Iterator[Proposal]:
        """Complex numbers for the pairs, all matrices on the rest."""
        n, width = self.n, self.chunks.head
        for pairs in pair_expressions(rotation.turned, width, self.config):
            sizes = {n.c: "2", n.pair: pairs.replace("head ", f"{n.head} ")}
            spaces = [SpaceDraft(n.c, "Complex", (*self.index, n.pair), "qk")]
            rest = n.rest if rotation.turned < width else ""
            if rest:
                sizes[rest] = f"{n.head} - 2 * {n.pair}"
                spaces.append(SpaceDraft(rest, "GL", self.index, "qk"))
            query, key = (rotation.axes(n.pair, rest, n.c, dual=dual) for dual in (False, True))
            yield Proposal(sizes, tuple(spaces), query, key)

    def _under_norms(self) -> Iterator[Proposal]:
        """Signs of pairs, with factors of the gains where they are stored as they act."""
        n, width = self.n, self.chunks.head
        gains = self._gains()
        for interleaved in (False, True):
            for pairs in pair_expressions(width, width, self.config):
                sizes = {n.c: "2", n.pair: pairs.replace("head ", f"{n.head} "), n.sg: "1"}
                order = f"{n.pair} {n.c}" if interleaved else f"{n.c} {n.pair}"
                sign = SpaceDraft(n.sg, "Sign", (*self.index, n.pair), "qk")
                query, key = f"{order} {n.sg}", f"{order} {n.sg}'"
                if len(gains) == 2:
                    factor = SpaceDraft(n.t, "Scale", (*self.indices, n.pair), "qk")
                    more = {(g.name, 0): f"({order} {n.t}{m})" for g, m in zip(gains, ("", "'"), strict=True)}
                    yield Proposal({**sizes, n.t: "1"}, (sign, factor), query, key, more)
                yield Proposal(sizes, (sign,), query, key)

    def _rotation(self) -> Rotation | None:
        """How the first head turns; None where its moments fit nothing known."""
        sums: dict[str, Tensor] = {}
        for (name, axis), places in self.heads.roles.items():
            fine = None
            for number, place in enumerate(places):
                if place is None or place[1] != 0 or place[0] not in "qk":
                    continue
                fine = self.chunks.fine((self.heads.lines[name], axis)) if fine is None else fine
                part = fine[number * self.chunks.head : (number + 1) * self.chunks.head]
                sums[place[0]] = sums[place[0]] + part if place[0] in sums else part
        return rotation_of(sums["q"], sums["k"]) if {"q", "k"} <= sums.keys() else None


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

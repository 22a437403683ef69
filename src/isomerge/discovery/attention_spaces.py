"""Attention: the spaces of heads whose chunks belong together, and the biases that no output depends on: a key's,
which softmax drops, and a value's, which passes through to the output's.

A chunk is as long as a head. Of every chunk its role is known (q, k, v or o) and the key-value head that it
belongs to; the layout of a projection is the pattern that puts them there: ``[q | k | v]``, head by head, group by
group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from torch import Tensor

from isomerge.config.config_parts import split
from isomerge.discovery.draft import Draft, SpaceDraft
from isomerge.discovery.head_chunks import Chunks, HeadsFound, bias_of, find_heads
from isomerge.discovery.lines import LineFound, size_keys
from isomerge.discovery.proving import PROVEN, Court
from isomerge.discovery.queries import Proposals, QueryNames
from isomerge.discovery.shrinking import kind_of

Chunk = tuple[str, int]
"""Role, and the number of the key-value head."""


@dataclass(frozen=True)
class Attention:
    """An attention that is in a draft."""

    heads: HeadsFound
    parts: dict[str, str]
    """Role -> the axes of one head."""
    number: int


def prove_attention(
    draft: Draft, court: Court, stack: str, moments: dict[str, Tensor]
) -> tuple[Draft, list[Attention]]:
    """The draft with the attentions of one stack: the axes of their tensors, and the spaces that the law proves."""
    made: list[Attention] = []
    lines = [line for line in draft.lines if line.stack == stack and line.uniform]
    done: set[str] = set()
    for width in head_widths(court):
        chunks = Chunks(lines, moments, width.sizes[0])
        for heads in find_heads(chunks):
            if heads.output.name in done or any(not draft.free(chunks.by_name[n], a) for n, a in heads.roles):
                continue
            attempt = _Attempt(draft, court, heads, chunks, width)
            proven = attempt.prove()
            if proven is not None:
                draft = proven
                done.add(heads.output.name)
                made.append(Attention(heads, attempt.parts, attempt.number))
    return draft, made


@dataclass(frozen=True)
class HeadWidth:
    """How long a head may be: as an expression over the config, and in the two specimens."""

    text: str
    heads: str
    sizes: tuple[int, int]


def head_widths(court: Court) -> list[HeadWidth]:
    """The lengths that a config offers for heads: its own key, or the width over a number of heads."""
    first, second = (s.keys for s in court.specimens)
    keys = size_keys(first, second)
    kinds = {key: kind_of(key, first) for key in keys}
    heads = [key for key, kind in kinds.items() if kind == "heads"]
    stated = [key for key in keys if kinds[key] == "head"]
    widths = [
        HeadWidth(key, count, (first[key], second[key]))
        for key in stated
        for count in heads
        if together(key, count)
    ]
    for width in [key for key, kind in kinds.items() if kind == "width"]:
        for key in heads:
            if not together(width, key) or any(c[width] % c[key] for c in (first, second)):
                continue
            sizes = [c[width] // c[key] for c in (first, second)]
            widths.append(HeadWidth(f"{width} // {key}", key, (sizes[0], sizes[1])))
    unlike = {(width.sizes, first[width.heads], second[width.heads]): width for width in reversed(widths)}
    # the widest first: half a head has the same linear maps, but no permutations
    return sorted(unlike.values(), key=lambda width: -width.sizes[0])


def together(key: str, other: str) -> bool:
    """Whether two keys are of one part of a composite."""
    return split(key)[0] == split(other)[0]


class _Attempt:
    """One attention on its way into a draft."""

    def __init__(self, draft: Draft, court: Court, heads: HeadsFound, chunks: Chunks, width: HeadWidth) -> None:
        self.draft, self.court, self.heads, self.chunks, self.width = draft, court, heads, chunks, width
        number = 1
        while any(name in draft.sizes for name in self._names(number)):
            number += 1
        self.number = number
        self.h, self.g, self.head, self.ov, self.factor, *queries = self._names(number)
        self.query_names = QueryNames(self.h, self.head, *queries)
        self.names = Names(self.h, self.g, heads.count, heads.sharing)
        self.indices = heads.output.indices
        self.parts: dict[str, str] = {}

    def _names(self, number: int) -> tuple[str, ...]:
        end = "" if number == 1 else str(number)
        heads = "h" if self.heads.sharing == 1 else "kv"
        return tuple(
            f"{name}{end}" for name in (heads, "g", "head", "ov", "vs", "qk", "c", "pair", "rest", "sg", "t")
        )

    def prove(self) -> Draft | None:
        """The draft with this attention; None where neither its layout is known nor any of its spaces is proven."""
        sizes = self._sizes()
        if sizes is None:
            return None
        base = self.draft.sized(**sizes)
        ov = SpaceDraft(self.ov, "GL", (*self.indices, self.h), "ov")
        plain = {"q": self.head, "k": self.head, "v": self.ov, "o": f"{self.ov}'"}
        base = base.sized(**{self.ov: self.head})
        typed = self._typed(base, plain)
        if typed is None:
            return None
        valued: Draft | None = typed.with_space(ov)
        if not self.court.accepts(valued, self.ov):
            plain = {**plain, "v": f"{self.ov} {self.factor}", "o": f"{self.ov}' {self.factor}'"}
            valued = self._gated(base.sized(**{self.factor: "1"}), plain)
        if valued is None:
            return None
        draft, self.parts = self._queries(valued, plain)
        return self._heads(draft)

    def _gated(self, draft: Draft, parts: dict[str, str]) -> Draft | None:
        """Values behind gates, one for each coordinate of every head: permuted with their gates, and a factor
        each."""
        typed = self._typed(draft, parts)
        if typed is None:
            return None
        length = self.heads.count * self.heads.sharing * self.chunks.head
        grouped = f"{self.h} {self.g}" if self.heads.sharing > 1 else self.h
        taken = {name for name, _ in self.heads.roles}
        order = SpaceDraft(self.ov, "Perm", (*self.indices, self.h), "ov")
        factor = SpaceDraft(self.factor, "Scale", (*self.indices, self.h, self.ov), "ov")
        for line in self.chunks.lines:
            out = line.out
            if line.name in taken or out is None or len(line.shapes[0]) != 2 or line.shapes[0][out] != length:
                continue
            gates = {(line.name, out): f"({grouped} {self.ov})"}
            bias = bias_of(line, self.chunks.lines)
            if bias is not None:
                gates[bias.name, 0] = gates[line.name, out]
            tried = typed.typed(gates).with_space(order, factor)
            if typed.free(line, out) and self.court.accepts(tried, self.ov, self.factor):
                return tried
        return None

    def _sizes(self) -> dict[str, str] | None:
        first, second = (s.keys for s in self.court.specimens)
        line, axis = next((self.heads.lines[n], a) for (n, a) in self.heads.roles if n == self.heads.output.name)
        totals = [line.shapes[k][axis] // self.width.sizes[k] for k in range(2)]
        if any(line.shapes[k][axis] % self.width.sizes[k] for k in range(2)):
            return None
        sizes = {self.head: self.width.text}
        heads = self.width.heads
        if totals != [first.get(heads), second.get(heads)]:
            return None
        if self.heads.sharing == 1:
            return {self.h: heads, **sizes}
        if self.heads.count == 1:
            return {self.h: "1", self.g: heads, **sizes}
        shared = [
            k
            for k in size_keys(first, second)
            if kind_of(k, first) == "shared" and first[k] == self.heads.count and together(k, heads)
        ]
        return {self.h: shared[0], self.g: f"{heads} // {shared[0]}", **sizes} if shared else None

    def _typed(self, draft: Draft, parts: dict[str, str]) -> Draft | None:
        """The draft with the axes of every tensor of the attention, biases included."""
        axes: dict[tuple[str, int], str] = {}
        for (name, axis), places in self.heads.roles.items():
            chunks = [place or ("x", 0) for place in places]
            if any(role == "x" for role, _ in chunks):
                return None
            pattern = layout(chunks, parts, self.names)
            if pattern is None:
                return None
            axes[name, axis] = pattern
            line = self.heads.lines[name]
            bias = bias_of(line, self.chunks.lines) if axis == line.out else None
            if bias is not None and bias.shapes[0] == (line.shapes[0][axis],):
                axes[bias.name, 0] = pattern
        return draft.typed(axes)

    # ------------------------------------------------------- queries and keys

    def _queries(self, draft: Draft, plain: dict[str, str]) -> tuple[Draft, dict[str, str]]:
        """The largest proven space of queries and keys, tried in order."""
        if not self.heads.role_lines("q"):
            return draft, plain
        proposals = Proposals(self.heads, self.chunks, self.court.specimens[0].keys, self.query_names)
        for proposal in proposals:
            parts = {**plain, "q": proposal.query, "k": proposal.key}
            typed = self._typed(draft.sized(**proposal.sizes), parts)
            if typed is None:
                continue
            tried = typed.with_space(*proposal.spaces).typed(proposal.gains)
            if self.court.accepts(tried, *(s.name for s in proposal.spaces)):
                return tried, parts
        return draft, plain

    # -------------------------------------------------- heads, and their biases

    def _heads(self, draft: Draft) -> Draft:
        """Permutations of heads: of the layer's own, with tensors that have one entry a head, or of the whole
        stack's."""
        spaces = []
        if self.heads.count > 1:
            spaces.append(SpaceDraft(self.h, "Perm", self.indices, "h"))
        if self.heads.sharing > 1:
            spaces.append(SpaceDraft(self.g, "Perm", (*self.indices, self.h), "g"))
        for space in spaces:
            draft = self._permuted(draft, space)
        return draft

    def _permuted(self, draft: Draft, space: SpaceDraft) -> Draft:
        tried = draft.with_space(space)
        if (error := self.court.error(tried, [space.name])) < PROVEN:
            self.court.note(tried, [space.name], error)
            return tried
        errors = [error]
        for more in self._per_head(draft):
            for variant in (space, replace(space, index=())) if space.name == self.h else (space,):
                tried = draft.typed(more).with_space(variant)
                errors.append(self.court.error(tried, [space.name]))
                if errors[-1] < PROVEN:
                    self.court.note(tried, [space.name], errors[-1])
                    return tried
        self.court.note(draft.with_space(space), [space.name], min(errors))
        return draft

    def _per_head(self, draft: Draft) -> list[dict[tuple[str, int], str]]:
        """Axes of the module's other tensors that have one entry for every head, or one for every coordinate of
        all."""
        total = self.heads.count * self.heads.sharing
        grouped = f"{self.h} {self.g}" if self.heads.sharing > 1 else self.h
        axes: dict[tuple[str, int], str] = {}
        outside = [line for line in draft.lines if not line.layered]
        heads = tuple(s.keys[self.width.heads] for s in self.court.specimens)
        for line in [*self.chunks.lines, *outside]:
            inside = line.name.startswith(f"{self.heads.module}.")
            if not (inside or line in outside) or not line.uniform:
                continue
            for axis, length in enumerate(line.shapes[0]):
                if not draft.free(line, axis):
                    continue
                if line.lengths(axis) == heads:
                    axes[line.name, axis] = f"({grouped})"
                elif not inside:
                    continue
                elif length == self.heads.count and len(line.shapes[0]) > 1:
                    axes[line.name, axis] = self.h
                elif len(line.shapes[0]) == 1 and length in (
                    n * self.width.sizes[0] for n in (total, self.heads.count)
                ):
                    many = length == total * self.width.sizes[0]
                    axes[line.name, axis] = f"({grouped if many else self.h} {self.head})"
        tables = {key: text for key, text in axes.items() if self.head not in text}
        return [part for part in (tables, axes) if part]


def prove_shifts(draft: Draft, court: Court, attention: Attention) -> Draft:
    """The draft with those shifts of an attention's biases that the law proves."""
    heads, end = attention.heads, "" if attention.number == 1 else str(attention.number)
    output = bias_of(heads.output, draft.lines)
    for role, name in (("k", f"kb{end}"), ("v", f"vb{end}")):
        for line in heads.role_lines(role)[:1]:
            bias = bias_of(line, draft.lines)
            if bias is None or draft.free(bias, 0):
                continue
            text = bias.name + _block(attention, line, role)
            if role == "v":
                if output is None or draft.free(output, 0):
                    continue
                text += f" -> {output.name} via {heads.output.name}"
            tried = replace(draft, shifts={**draft.shifts, name: text})
            if court.accepts(tried, name):
                draft = tried
    return draft


def _block(attention: Attention, line: LineFound, role: str) -> str:
    """Which concatenated part of a fused bias a role is; of a partly rotated key the part that is not turned."""
    places = next(c for (n, a), c in attention.heads.roles.items() if n == line.name and a == line.out)
    number, count = leaf_number([p for p in places if p], role, attention.parts)
    if role == "k" and attention.parts["k"].startswith(("[c", "[pair")):
        number += 1
    return f"#{number}" if count > 1 else ""


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
    runs = [(role, [head for _, head in group]) for role, group in groupby(chunks, key=lambda chunk: chunk[0])]
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

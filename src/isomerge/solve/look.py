"""The look at two models, before anything is matched: every row of every tensor that both have, in one pass.

What it finds is evidence, apart from what follows from it (`isomerge.solve.standing`,
`isomerge.evidence.relation`): distances that do not depend on the order of the models, of every kind of tensor;
the tensors that differ at all; and the rows that have no counterpart where they stand. Two models have the same
weights only where no entry of any tensor of either differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch

from isomerge.checkpoint.reader import VOCABULARY as BY_TOKEN
from isomerge.matching.rows import Rows, row_axes, rows
from isomerge.models.recognised import Model
from isomerge.progress import Observer, quiet
from isomerge.records import Json, Record
from isomerge.symmetry.axes import VOCABULARY, atoms
from isomerge.symmetry.blocks import Block

ALIKE = 0.5
"""The least cosine of a row with its counterpart, and of the smaller one's norm in the larger one's. Rows of
strangers have about 0, and one that was scaled has its factor."""
FAINT = 1e-3
"""Of the mean square of a tensor's rows: what is smaller has no direction worth asking for (dead or pruned)."""
KINDS = 3
"""Kinds of tensors that a sentence names."""
WHOLE = 32_000_000_000
"""Bytes of both models that are looked at whole. Larger ones do not stay in the memory of most machines until
they are merged, so that of their rows a part is looked at, evenly spread."""


@dataclass(frozen=True)
class Seen:
    """What one tensor of two models shows."""

    name: str
    """Canonical."""
    kind: str
    """Of its line: the name without the layer."""
    entries: int
    """Those that were looked at."""
    anchor: float
    """The sum of squares of the first model's entries; of a vector less the mean of both: gains lie around one."""
    source: float
    gap: float
    """The sum of squared differences."""
    unequal: bool
    """Whether any entry differs."""
    rows: int = 0
    """Rows of a matrix that are there in both models."""
    lost: int = 0
    """Those of them that have no counterpart where they stand."""


class Look(Record):
    """What two models show of each other."""

    tensors: tuple[Seen, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Canonical names of tensors that one of the models has alone, or in another shape."""
    whole: bool = True
    """Whether every entry was looked at."""
    by_token: int = 0
    """How many tables of tokens are of models with other numbers of rows, and were looked at in one vocabulary."""

    @property
    def same(self) -> bool:
        """Whether both have the same tensors, at least one, and no entry of any differs."""
        return bool(self.tensors) and self.whole and not any(self.only) and not self.differing

    @property
    def differing(self) -> list[str]:
        """The tensors of both that differ in some entry."""
        return [seen.name for seen in self.tensors if seen.unequal]

    @property
    def but(self) -> str:
        """Of models of which half of the tensors are equal, and half of their entries or all but few kinds: the
        kinds in which they differ, and how many tensors these are; empty of all others, and of equal ones.
        Constants, as gains and biases that were never trained are, say nothing."""
        telling = [seen for seen in self.tensors if seen.unequal or seen.anchor + seen.source > 0]
        differing = [seen for seen in telling if seen.unequal]
        if 2 * len(differing) > len(telling) or not (differing or any(self.only)):
            return ""
        kinds: dict[str, list[str]] = defaultdict(list)
        for seen in differing:
            kinds[seen.kind].append(seen.name)
        entries, changed = (sum(seen.entries for seen in part) for part in (telling, differing))
        if 2 * changed > entries and len(kinds) > KINDS:
            return ""
        named = sorted(kinds.values(), key=len, reverse=True)
        words = [f"{_named(names)} ({_tensors(len(names))})" for names in named[:KINDS]]
        more, alone = len(named) - KINDS, len(self.only[0]) + len(self.only[1])
        words += [f"{more} more kind{'s' if more > 1 else ''} of tensors"] if more > 0 else []
        words += [f"{_tensors(alone)} that one of them has alone"] if alone else []
        return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))

    @property
    def lost(self) -> float:
        """The share of rows that have no counterpart where they stand; 1 where there are no rows at all."""
        count = sum(seen.rows for seen in self.tensors)
        return sum(seen.lost for seen in self.tensors) / count if count else 1.0

    def distance(self, names: Iterable[str] | None = None) -> float:
        """The distance over some tensors, or all, as a share of the root of the mean of both squared norms: sqrt(2)
        of models that have nothing in common, in either order."""
        chosen = None if names is None else set(names)
        seen = [each for each in self.tensors if chosen is None or each.name in chosen]
        gap, norm = sum(each.gap for each in seen), sum(each.anchor + each.source for each in seen) / 2
        return sqrt(gap / norm) if norm else 0.0

    @property
    def scale(self) -> float:
        """The first model's norm in parts of the root of the mean of both squared norms: shares of the one times
        this are shares of the other, which do not depend on the order."""
        first, second = (sum(getattr(seen, name) for seen in self.tensors) for name in ("anchor", "source"))
        return sqrt(2 * first / (first + second)) if first + second else 1.0

    def document(self) -> Json:
        """By kind of tensor, for a report."""
        kinds: dict[str, list[Seen]] = defaultdict(list)
        for seen in self.tensors:
            kinds[seen.kind].append(seen)
        rows = [
            {
                "kind": kind,
                "tensors": len(every),
                "differing": sum(seen.unequal for seen in every),
                "distance": Look(tuple(every)).distance(),
                "rows": sum(seen.rows for seen in every),
                "out_of_place": sum(seen.lost for seen in every),
            }
            for kind, every in kinds.items()
        ]
        return {"whole": self.whole, "only": [list(names) for names in self.only], "kinds": rows}


def _tensors(count: int) -> str:
    return f"{count} tensor{'s' if count > 1 else ''}"


def _named(names: Sequence[str]) -> str:
    """Tensors of one kind: the name of one, of several with a star for what differs."""
    parts = list(zip(*(name.split(".") for name in names), strict=False))
    return ".".join(part[0] if len(set(part)) == 1 else "*" for part in parts)


def look(anchor: Model, source: Model, observer: Observer = quiet) -> Look:
    """Look at every tensor that two models have, in one pass over their stored numbers; `WHOLE` says when a part of
    the rows must do.

    Raises:
        IsomergeError: a tensor with NaN or infinite values, naming file and tensor.
    """
    pairs, only = _pairs(anchor, source)
    sizes = [2 * anchor.checkpoint.tensors[mine].nbytes for _, _, mine, _ in pairs]
    step, done = max(1, -(-sum(sizes) // WHOLE)), 0
    seen: list[Seen] = []
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        for each in threads.map(lambda pair: _seen(anchor, source, *pair, step=step), pairs):
            observer(f"looking whether {source.ref} is aligned already: {each.name}", done, sum(sizes))
            done += sizes[len(seen)]
            seen.append(each)
    views = [m.checkpoint for m in (anchor, source) if any(x.startswith(BY_TOKEN) for x in m.checkpoint.origin)]
    tables = [
        b
        for b, *_, mine, theirs in pairs
        if VOCABULARY in b.names and any({mine, theirs} & v.recipes.keys() for v in views)
    ]
    return Look(tuple(seen), only, whole=step == 1, by_token=len(tables))


Pair = tuple[Block, str, str, str]


def _pairs(anchor: Model, source: Model) -> tuple[list[Pair], tuple[tuple[str, ...], tuple[str, ...]]]:
    """Blocks and canonical names of tensors of one shape that both store, with the names under which they do; and
    the names of all others."""
    matches = {m.canonical: m for m in source.matches.values()}
    pairs, alone = [], []
    for block in anchor.blocks:
        for canonical in block.canonical:
            mine, theirs = anchor.names.get(canonical), source.source_of(canonical, matches.get(canonical))
            shapes = [m.checkpoint.shapes.get(n) for m, n in ((anchor, mine), (source, theirs)) if n is not None]
            if mine is not None and theirs is not None and shapes[0] == shapes[1]:
                pairs.append((block, canonical, mine, theirs))
            else:
                alone.append(canonical)
    met = {canonical for _, canonical, _, _ in pairs}
    return pairs, (tuple(alone), tuple(name for name in source.names if name not in met))


def _seen(anchor: Model, source: Model, block: Block, name: str, mine: str, theirs: str, *, step: int) -> Seen:
    """One tensor of both."""
    x, y = (m.checkpoint.read(n, mapped=True) for m, n in ((anchor, mine), (source, theirs)))
    kind = block.line.name
    if not (x.is_floating_point() and y.is_floating_point()):
        unequal = not torch.equal(x, y)
        return Seen(name, kind, 0, 0.0, 0.0, float(unequal), unequal)
    if x.ndim > 1 and step > 1:
        x, y = x[::step], y[::step]
    sums = _sums(anchor, source, mine, theirs, x, y)
    there, lost = lost_rows(sums) if row_axes(tuple(x.shape)) else (np.zeros(1, bool), np.zeros(1, bool))
    for m, n in ((anchor, mine), (source, theirs)):
        m.checkpoint.check_unchanged(n)
    a, b, gap = (float(s.sum()) for s in (sums.anchor, sums.source, sums.gap))
    # what is left of a vector less a mean is rounded: whether entries differ is asked of what is stored
    unequal = bool(sums.unequal.any()) if x.ndim > 1 else not torch.equal(x.double(), y.double())
    return Seen(name, kind, x.numel(), a, b, gap, unequal, int(there.sum()), int(lost.sum()))


def _sums(anchor: Model, source: Model, mine: str, theirs: str, x: torch.Tensor, y: torch.Tensor) -> Rows:
    """Sums over rows; of a vector less the mean of both. What is too large for float32's squares is summed in
    float64."""
    if x.ndim < 2:
        x, y = x.double(), y.double()
        mean = (x.mean() + y.mean()) / 2 if x.numel() > 1 else torch.zeros((), dtype=torch.float64)
        x, y = x - mean, y - mean
    sums = rows(x, y)
    if not sums.is_finite:
        for model, name in ((anchor, mine), (source, theirs)):
            model.read(name, None)  # raises where an entry is no number, unless the spec lets it be infinite
        finite = x.double().isfinite() & y.double().isfinite()
        sums = rows(x.double().where(finite, 0), y.double().where(finite, 0))
    return sums


def lost_rows(sums: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Which rows are there in both models, and which of those have no counterpart where they stand: bool [n]
    each."""
    least = FAINT * (sums.anchor.mean() + sums.source.mean()) / 2
    there = np.minimum(sums.anchor, sums.source) > max(least, 1e-300)
    less, more = np.minimum(sums.anchor, sums.source), np.maximum(sums.anchor, sums.source)
    return there, there & ((sums.cosine < ALIKE) | (less < ALIKE**2 * more))


def only_in_columns(blocks: Sequence[Block]) -> dict[str, Block]:
    """The atoms of axes that number columns of some blocks and rows of none, each with such a block."""
    by_row, by_column = set[str](), dict[str, Block]()
    for block in blocks:
        axes = () if block.axes is None else block.axes[len(block.lead) :]
        by_row |= {atom.name for axis in (block.axes or ())[: len(block.lead)] for atom in atoms((axis,))}
        by_row |= {atom.name for atom in atoms(axes[: max(len(axes) - 1, 1)])}
        by_column |= {atom.name: block for atom in atoms(axes[1:][-1:])}
    return {name: block for name, block in by_column.items() if name not in by_row}

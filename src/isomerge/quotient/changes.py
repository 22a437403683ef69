"""What was done to a model that another was made from, as far as two fingerprints tell, and which of the two was
there first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.config.agreement import decisive_differences, open_differences
from isomerge.evidence.distance import SAME
from isomerge.quotient.record import BASIS, Fingerprint
from isomerge.quotient.storage import PRECISIONS
from isomerge.quotient.stream_anchors import DRAWS, EVERY, LENGTHS, OTHERS, TOKENS
from isomerge.quotient.witnesses import partners

PRUNED = 0.2
"""More zeros than the other model has, as a share of all numbers, that are no chance."""
PARTNER = 0.5
"""A cosine of two layers that are the same one, changed or not, and of what one draw sees for certain."""
GAIN = 0.5
"""What another order of layers must add to the sum of cosines to be told."""
SEEN, UNSEEN = 0.2, 0.15
"""Scores of anchors that see a base, and that see none."""
SAME_LENGTHS = 1e-3
"""Relative distance of the lengths of two tables' rows that are the same ones in another order, rounded or not."""
MOVED = 10.0
"""Times the tolerance: what differs by more than rounding."""
UNMOVED = 0.98
"""What circuits that are the same ones agree to, where vocabularies or depths are others."""
OTHER_OUTPUTS = (
    "one of them returns a stream as it is, the other what a head makes of it: whether weights moved as well does "
    "not show here (isomerge diff tells)"
)
"""What is said instead of how far relations differ."""
MOST = 0.9
"""The share of relations that differ where nearly all do."""
ROUNDED_AWAY = 0.3
"""A share of zeros that rounding to few levels leaves by itself."""


@dataclass(frozen=True)
class Change:
    """One thing that was done."""

    words: str
    made: int | None = None
    """The model (0 or 1) that was made by it from the other; None where it could have been either."""
    table: str = ""
    """The table of embeddings that it is about."""


@dataclass(frozen=True)
class Evidence:
    """What was compared already."""

    seen: Mapping[str, Mapping[tuple[str, ...], Tensor]]
    """The cosines of layers by draw; see `isomerge.quotient.witnesses.layers_seen`."""
    witnesses: Mapping[str, float | None]
    tables: Mapping[str, Mapping[str, float]]
    """What every draw says from each table alone."""
    differences: Mapping[str, float]
    """The relative difference of every relation; none where layers or anchors are others."""
    tolerance: float
    spread: float | None
    """The largest relative distance of any spectrum."""
    sized: bool
    """Whether sizes inside of layers differ, so that spectra of neurons do not compare."""


def other_settings(first: Fingerprint, second: Fingerprint) -> Iterator[str]:
    """Sentences about what the configs of two models of one architecture say otherwise of the function."""
    if first.model_type != second.model_type:
        return
    for setting in decisive_differences(first.config, second.config, _keys(first, second)):
        yield f"config: {setting.sentence}"


def other_sizes(first: Fingerprint, second: Fingerprint) -> Iterator[str]:
    """Sentences about sizes of two models of one architecture that differ, where depths and tables do not."""
    if (
        first.model_type == second.model_type
        and first.depths() == second.depths()
        and all(t.rows == second.tables[k].rows for k, t in first.tables.items() if k in second.tables)
    ):
        for name in sorted({*first.sizes, *second.sizes}):
            mine, theirs = first.sizes.get(name), second.sizes.get(name)
            if mine != theirs:
                yield f"size {name} is {mine} and {theirs}"


def open_settings(first: Fingerprint, second: Fingerprint) -> list[str]:
    """Keys in which the configs of two models of one architecture differ, and of which nobody knows whether the
    function depends on them."""
    if first.model_type != second.model_type:
        return []
    return [d.key for d in open_differences(first.config, second.config, _keys(first, second))]


def _keys(first: Fingerprint, second: Fingerprint) -> tuple[str, ...]:
    return (*first.config_keys, *second.config_keys)


def other_bases(first: Fingerprint, second: Fingerprint, tolerance: float) -> Iterator[str]:
    """Sentences about streams that both models give out, each in a basis of its own."""
    mine, theirs = ({r.kind: r.data.double() for r in f.relations if r.draw == BASIS} for f in (first, second))
    for stream, x in mine.items():
        y = theirs.get(stream)
        if y is not None and y.shape == x.shape and float((x - y).norm()) > tolerance * float(x.norm()):
            yield f"what it returns of the stream {stream} is in another basis"


def changes(first: Fingerprint, second: Fingerprint, evidence: Evidence) -> Iterator[Change]:
    """What was done, in the order in which people ask: architecture, layers, vocabulary, numbers, weights."""
    yield from _architecture(first, second)
    layers, tables = list(_layers(first, second, evidence)), list(_vocabulary(first, second, evidence))
    yield from layers
    yield from tables
    stored = list(_stored(first, second, evidence))
    yield from stored
    if not stored:
        deep = first.depths() != second.depths()
        moved = list(_moved(evidence, deep=deep, layers=bool(layers), tables=bool(tables)))
        # A body's stream has coordinates of its own, a head's reader folds its norm: relations are of other forms.
        yield from [Change(OTHER_OUTPUTS)] if moved and _given_out(first) != _given_out(second) else moved


def _given_out(model: Fingerprint) -> set[str]:
    """The streams that a model returns as they are."""
    return {r.kind for r in model.relations if r.draw == BASIS}


def _moved(evidence: Evidence, *, deep: bool, layers: bool, tables: bool) -> Iterator[Change]:
    """What differs by more than rounding, where nothing that is known explains it; a vocabulary that changed shows
    in relations, and in no spectrum. How far weights themselves moved is not known: relations are their products.

    Args:
        evidence: what was compared.
        deep: whether depths differ.
        layers: whether layers differ.
        tables: whether the vocabulary was.
    """
    least, spread = MOVED * evidence.tolerance, evidence.spread or 0.0
    if deep or not evidence.differences:
        best = max((s for draw in DRAWS if (s := evidence.witnesses.get(draw)) is not None), default=1.0)
        if best < UNMOVED and not tables:
            yield Change(f"circuits of the layers that both have differ: their mean cosine is {best:.2g}")
    elif tables or layers:
        if tables and spread > least and not layers:
            yield Change(f"spectra of circuits differ by up to {spread:.2g} of their size")
    elif spread <= evidence.tolerance and not evidence.sized and (changed := _rows_changed(evidence)):
        yield from changed
    elif moved := sorted(x for x in evidence.differences.values() if x > least):
        share = len(moved) / len(evidence.differences)
        which, those = ("the", "them") if share > MOST else (f"{share:.0%} of the", "those")
        yield Change(
            f"{which} relations between weights differ, half of {those} by {moved[len(moved) // 2]:.2g} of their "
            "size or more"
        )


def _rows_changed(evidence: Evidence) -> list[Change]:
    """Tables of which some rows changed, where the layers did not."""
    low = {
        key: min(said[d] for d in said if d != LENGTHS)
        for key, said in evidence.tables.items()
        if said.keys() - {LENGTHS}
    }
    return [Change(f"{key}: rows changed") for key, score in low.items() if score < UNMOVED]


def _architecture(first: Fingerprint, second: Fingerprint) -> Iterator[Change]:
    if first.model_type == second.model_type:
        return
    experts = [any(x.role == "expert" for x in f.spectra.values()) for f in (first, second)]
    if experts[0] != experts[1]:
        made = experts.index(True)
        yield Change(f"upcycled to experts ({second.model_type if made else first.model_type})", made)
    else:
        yield Change(f"another architecture ({first.model_type}, {second.model_type})")


def _layers(first: Fingerprint, second: Fingerprint, evidence: Evidence) -> Iterator[Change]:
    """Layers that one of them lacks, or that were repeated, reordered or replaced, stack by stack."""

    best = max((EVERY, TOKENS, LENGTHS), key=lambda draw: evidence.witnesses.get(draw) or -1.0)
    stacks: dict[str, list[Tensor]] = {}
    for (_, stack, *_), table in evidence.seen.get(best, {}).items():
        stacks.setdefault(stack, []).append(table)
    depths = [f.depths() for f in (first, second)]
    for stack, tables in stacks.items():
        tables = [t for t in tables if t.shape == tables[0].shape]
        table = torch.stack(tables).mean(0)
        place = f" of {stack.rstrip('.')}" if len(stacks) > 1 else ""
        if depths[0].get(stack) == depths[1].get(stack):
            yield from _reordered(table, place)
        elif evidence.witnesses.get(best) is not None:
            yield from _other_depth(table, place)


def _other_depth(table: Tensor, place: str) -> Iterator[Change]:
    """Layers of the deeper model that the other lacks, or has once. A layer that is there twice was copied; of one
    that the other lacks nothing tells whether it was put in or taken out."""
    deep = int(table.shape[1] > table.shape[0])
    table = table.mT if deep else table  # deeper first
    pairs, _ = partners(table)
    left = sorted(set(range(len(table))) - {pair[0] for pair in pairs})
    if not left or float(table.max()) < PARTNER:
        return
    names = ", ".join(map(str, left))
    if all(float(table[n].max()) >= 0.9 for n in left):
        yield Change(f"layers{place} repeated ({names} of the deeper model)", deep)
    else:
        yield Change(f"layers{place} that the deeper model has and the other lacks ({names})")


def _reordered(table: Tensor, place: str) -> Iterator[Change]:
    """Layers in another order, or that have nothing in common where others have."""
    from scipy.optimize import linear_sum_assignment

    diagonal = table.diagonal()
    rows, columns = linear_sum_assignment(table.numpy(), maximize=True)
    moved = [int(n) for n, m in zip(rows, columns, strict=True) if n != m and float(table[n, m]) >= PARTNER]
    if moved and float(table[rows, columns].sum() - diagonal.sum()) >= GAIN:
        yield Change(f"layers{place} in another order ({', '.join(map(str, moved))})")
        return
    foreign = [n for n in range(len(diagonal)) if float(diagonal[n]) < UNSEEN]
    if foreign and float(diagonal.median()) >= PARTNER:
        yield Change(f"layers{place} replaced ({', '.join(map(str, foreign))})")


def _vocabulary(first: Fingerprint, second: Fingerprint, evidence: Evidence) -> Iterator[Change]:
    """Tables that grew, shrank, were shuffled or replaced, each by itself."""
    for key in sorted(first.tables.keys() & second.tables.keys()):
        mine, theirs = first.tables[key].rows, second.tables[key].rows
        said = evidence.tables.get(key, {})
        places = [said[draw] for draw in (TOKENS, OTHERS, EVERY) if draw in said]
        if mine != theirs:
            yield Change(f"{key} has {mine} rows and {theirs}", table=key)
        if not places or max(places) >= UNSEEN:
            continue
        if said.get(LENGTHS, 0.0) >= PARTNER or (mine == theirs and _same_lengths(first, second, key)):
            yield Change(f"{key}: rows in another order", table=key)
        else:
            yield Change(f"{key} replaced", table=key)


def _same_lengths(first: Fingerprint, second: Fingerprint, key: str) -> bool:
    """Whether rows have the same lengths, in whatever order."""
    x, y = (f.tables[key].lengths.double() for f in (first, second))
    return x.shape == y.shape and float((x - y).norm()) <= SAME_LENGTHS * float(x.norm())


def exchanged(tables: Mapping[str, Mapping[str, float]], done: Sequence[Change]) -> str:
    """A sentence where draws from one table of equal size see different things: some of its rows were exchanged for
    just these eyes.

    Args:
        tables: what every draw says from each table alone.
        done: the changes that are named already.
    """
    explained = {change.table for change in done}
    for key, said in tables.items():
        if key in explained:
            continue
        kin, strange = (
            [draw for draw in (TOKENS, OTHERS, EVERY) if test(said.get(draw))] for test in (_sees, _sees_not)
        )
        if kin and strange:
            return (
                f"seen from {' and '.join(kin)} of {key} they have one base, from {' and '.join(strange)} none: "
                "rows were exchanged"
            )
    return ""


def _sees(value: float | None) -> bool:
    return value is not None and value >= PARTNER


def _sees_not(value: float | None) -> bool:
    return value is not None and value < UNSEEN


def _stored(first: Fingerprint, second: Fingerprint, evidence: Evidence) -> Iterator[Change]:
    """Numbers that are zero, on few levels, or coarser in one of the two."""
    a, b = first.storage, second.storage
    levels = a.bits != b.bits
    if abs(a.zeros - b.zeros) >= (ROUNDED_AWAY if levels else PRUNED):
        made = int(b.zeros > a.zeros)
        least, most = sorted((a.zeros, b.zeros))
        yield Change(
            f"pruned: {most:.0%} of the layers' numbers are zero, {least:.0%} of the other's", made, "weights"
        )
    if levels:
        made = int(a.bits is None or (b.bits is not None and b.bits < a.bits))
        # windows seldom reach the outermost levels
        yield Change(f"quantised to {(a, b)[made].bits} bits or a little more", made)
    elif a.precision != b.precision and all(x.precision in PRECISIONS for x in (a, b)):
        coarse = int(PRECISIONS.index(b.precision) < PRECISIONS.index(a.precision))
        name = (a, b)[coarse].precision
        near = max(evidence.differences.values(), default=1.0) <= max(evidence.tolerance, SAME["BF16"])
        if near and name in ("BF16", "F16"):
            yield Change(f"rounded to {'bfloat16' if name == 'BF16' else 'float16'}", coarse)

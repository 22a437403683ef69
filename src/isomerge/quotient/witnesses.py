"""Witnesses of kinship: what speaks for or against a common base, each blind to what deceives another.

Every draw of anchors sees the circuits of the layers (query with key, value with output, gated up with down) from
vectors that have names. Derived models agree there in direction, when what the anchors themselves share is taken
out: they are centred and whitened by their own Gram, since the geometry of embeddings alone is alike in models that
saw alike data (docs/lab/experiments.md). Spectra see no vocabulary at all: singular values head by head, against
those of other layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

import torch
from torch import Tensor

from isomerge.quotient.record import Fingerprint
from isomerge.quotient.relations import CIRCUITS
from isomerge.quotient.stream_anchors import DRAWS, table_of
from isomerge.symmetry.element_key import ElementKey

DAMPING = 0.1
"""Of the mean eigenvalue of a Gram, added before it is inverted: directions that anchors hardly span are noise."""
FEWEST = 8
"""Anchors in common that a score needs."""
KIN = 0.6
"""Scores above leave no doubt of a common base: small independent models of one architecture whose embeddings are
tied reach 0.49, fine-tunes begin at 0.85 (docs/lab/measured-looks.md)."""

Places = dict[tuple[str, ...], list[tuple[int, "Tensor"]]]
"""Layers and what was seen in each, by kind, stack and streams."""


# --------------------------------------------------------------------------- anchors


def layers_seen(
    first: Fingerprint, second: Fingerprint, draw: str, table: str | None = None
) -> dict[tuple[str, ...], Tensor]:
    """The cosines [layers of the first, of the second] of the circuits that both have, seen from one draw, by
    kind, stack and streams.

    ``table``: from the anchors of one table alone.
    """

    mine, theirs = first.anchors.get(draw, {}), second.anchors.get(draw, {})
    common = {s: sorted({*mine[s].names} & {*theirs[s].names}) for s in mine.keys() & theirs.keys()}
    if table is not None:
        common = {s: [n for n in names if table_of(n) == table] for s, names in common.items()}
    common = {s: names for s, names in common.items() if len(names) >= FEWEST}
    left, right = (_circuits(f, draw, common) for f in (first, second))
    seen: dict[tuple[str, ...], Tensor] = {}
    for key in sorted(left.keys() & right.keys()):
        layers = torch.stack([y for _, y in right[key]])
        # sums of products in one order, whichever model is the first
        seen[key] = torch.stack([(layers * x).sum(-1) for _, x in left[key]])
    return seen


def by_table(first: Fingerprint, second: Fingerprint) -> dict[str, dict[str, float]]:
    """What each draw says from the anchors of one table alone, by table: one may have been exchanged, and the
    others not."""
    names = [
        {table_of(n) for streams in f.anchors.values() for v in streams.values() for n in v.names}
        for f in (first, second)
    ]
    scores: dict[str, dict[str, float]] = {}
    for table in sorted(names[0] & names[1]):
        said = {draw: score(layers_seen(first, second, draw, table)) for draw in DRAWS}
        if seen := {draw: value for draw, value in said.items() if value is not None}:
            scores[table] = seen
    return scores


def score(seen: Mapping[tuple[str, ...], Tensor]) -> float | None:
    """The mean over kinds of circuits of the mean cosine over layers, in their order, or with the best partners
    where these leave no doubt of a common base; None where nothing is seen."""
    in_order, paired = (_mean(seen, ordered=ordered) for ordered in (True, False))
    return paired if paired is not None and paired >= KIN else in_order


def _mean(seen: Mapping[tuple[str, ...], Tensor], *, ordered: bool) -> float | None:
    means = []
    for kind in CIRCUITS:
        cosines = [c for key, table in seen.items() if key[0] == kind for c in partners(table, ordered=ordered)[1]]
        means += [fsum(cosines) / len(cosines)] if cosines else []
    return sum(means) / len(means) if means else None


def partners(table: Tensor, *, ordered: bool = True) -> tuple[list[tuple[int, int]], list[float]]:
    """The layers that belong together, and how much they agree: in order; of models that differ in depth, or where
    layers may have changed places, the best partners."""
    from scipy.optimize import linear_sum_assignment

    if ordered and table.shape[0] == table.shape[1]:
        pairs = [(n, n) for n in range(len(table))]
    else:
        pairs = list(zip(*(x.tolist() for x in linear_sum_assignment(table.numpy(), maximize=True)), strict=True))
    return pairs, [float(table[pair]) for pair in pairs]


def _circuits(f: Fingerprint, draw: str, names: Mapping[str, Sequence[str]]) -> Places:
    """The circuits of every layer, unit vectors [common anchors squared], whitened.

    Args:
        names: the anchors that count, by stream.
    """

    chosen, white = {}, {}
    for stream, wanted in names.items():
        place = {name: at for at, name in enumerate(f.anchors[draw][stream].names)}
        chosen[stream] = torch.tensor([place[name] for name in wanted])
        white[stream] = whitening(f.anchors[draw][stream].gram.double()[chosen[stream]][:, chosen[stream]])
    circuits: Places = {}
    for r in f.relations:
        kind = r.kind.split()[0]  # of several pairs of streams in one layer, the second is called "qk:rr 2"
        ends = r.draw == draw and len(r.ends) == 2 and set(r.ends) <= names.keys()
        if kind not in CIRCUITS or r.layer is None or not ends:
            continue
        left, right = r.ends
        seen = whitened(r.data.double()[chosen[left]][:, chosen[right]], r.ends, white)
        circuits.setdefault((kind, r.stack, *r.ends), []).append((r.layer, seen))
    return {key: sorted(layers, key=lambda p: p[0]) for key, layers in circuits.items()}


def whitened(data: Tensor, ends: Sequence[str], white: Mapping[str, Tensor]) -> Tensor:
    """A circuit [anchors, anchors] between two streams as a unit vector, from whitened anchors."""
    y = white[ends[0]] @ data.double() @ white[ends[1]].mT
    if ends[0] == ends[1]:
        y = y - torch.eye(len(y)).to(y) * y.diagonal().mean()  # what is alike in all directions has none
    return y.flatten() / y.norm().clamp_min(1e-300)


def whitening(gram: Tensor) -> Tensor:
    """The map that takes anchors to centred, decorrelated ones, from their Gram [n, n]."""

    n = len(gram)
    centre = torch.eye(n).to(gram) - 1 / n
    values, vectors = torch.linalg.eigh(centre @ gram @ centre)
    values = values.clamp_min(0)
    scale = (values + DAMPING * values.mean().clamp_min(1e-300)).rsqrt()
    return (vectors * scale) @ vectors.mT @ centre


# --------------------------------------------------------------------------- spectra


def spectral(first: Fingerprint, second: Fingerprint) -> float | None:
    """How alike the spectra of two models are: 1 where they are equal, 0 where a layer is no nearer to its
    counterpart than layers of one model are to each other; None where nothing compares.

    Scales do not count: pruning and mixing make every circuit smaller.
    """
    left, right = (_spectra(f) for f in (first, second))
    likenesses = []
    for key in sorted(left.keys() & right.keys()):
        mine, theirs = ([x for _, x in side[key]] for side in (left, right))
        if mine[0].shape != theirs[0].shape or min(len(mine), len(theirs)) < 2:
            continue
        apart = _table(mine, theirs)
        within = [_table(layers, layers) for layers in (mine, theirs)]
        usual = fsum(float(t.sum()) / (len(t) * (len(t) - 1)) for t in within) / 2
        near = [-c for c in partners(-apart)[1]]
        likenesses.append(1 - fsum(near) / len(near) / max(usual, 1e-300))
    return sum(likenesses) / len(likenesses) if likenesses else None


def spectral_distance(first: Fingerprint, second: Fingerprint) -> float | None:
    """The largest relative distance of any spectrum that both have, of as many values, as they are; None where
    there is none."""
    both = [(x, second.spectra[key]) for key, x in first.spectra.items() if key in second.spectra]
    return max((_apart(x.data.double(), y.data.double()) for x, y in both if x.count == y.count), default=None)


def _table(mine: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
    """The relative distances of all layers of one model from all of the other, float64 [layers, layers]."""

    return torch.tensor([[_apart(x, y) for y in theirs] for x in mine], dtype=torch.float64)


def _spectra(f: Fingerprint) -> Places:
    """The spectra of every layer, by role, stack, which of a role they are and how many values they tell of; all of
    one kind divided by their size."""
    by_role: Places = {}
    for key, x in f.spectra.items():
        if x.layer is not None:
            place = (x.role, x.stack, ElementKey.of(key).name, str(x.count))
            by_role.setdefault(place, []).append((x.layer, x.data.double()))
    return {key: _scaled(sorted(layers, key=lambda p: p[0])) for key, layers in by_role.items()}


def _scaled(layers: Sequence[tuple[int, Tensor]]) -> list[tuple[int, Tensor]]:
    size = (sum(float(x.square().sum()) for _, x in layers) / len(layers)) ** 0.5
    return [(layer, x / max(size, 1e-300)) for layer, x in layers]


def _apart(x: Tensor, y: Tensor) -> float:
    """The relative distance of two lists of spectra [heads, points], heads matched one to one."""
    from scipy.optimize import linear_sum_assignment

    if x.shape != y.shape:
        return 1.0
    cost = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()
    rows, columns = linear_sum_assignment(cost.numpy())
    size = float(x.square().sum() + y.square().sum()) / 2
    return fsum(cost[rows, columns].tolist()) ** 0.5 / max(size, 1e-300) ** 0.5

"""What two fingerprints say of two models: the same function, derived from one base, or independent.

Same function: every relation agrees within the rounding of the stored dtypes. Derived: the circuits of the layers (query with
key, value with output, gated up with down) agree in direction, seen from the tokens, when what the tokens themselves share is
taken out: anchors are centred and whitened by their own Gram, since the geometry of embeddings alone is alike in models that saw
alike data (experiments in docs/fingerprint.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isomerge.evidence.distance import SAME
from isomerge.quotient.fingerprint import Fingerprint

if TYPE_CHECKING:
    from torch import Tensor

CIRCUITS = ("qk:rr", "ov:rw", "scale:rw")
"""The relations that tell kinship: products of two maps in which nothing but directions of the stream is left."""
DERIVED = 0.2
"""Scores above mean a common base: independent models reach 0.11, the hardest derived pairs 0.33, fine-tunes 0.8 and more
(docs/measured-fingerprints.md)."""
DAMPING = 0.1
"""Of the mean eigenvalue of a Gram, added before it is inverted: directions that tokens hardly span are noise."""
APART = 10.0
"""Times the tolerance: relations differ by less under the rounding of an ill-conditioned disguise."""
FEWEST = 8
"""Anchors in common that a score needs."""


@dataclass(frozen=True)
class Similarity:
    """How two models are related, as far as fingerprints tell."""

    score: float | None
    """The mean cosine of their circuits: 1 for one function, near 0 for independent models; None where nothing compares."""
    difference: float | None
    """The largest relative difference of any relation that both have; None where there are none."""
    typical: float | None
    """The median of these differences."""
    tensor: str
    """Where the largest one is."""
    tolerance: float
    """What rounding of the stored dtypes explains."""
    hashes_equal: bool

    @property
    def same(self) -> bool:
        """Whether rounding explains every difference."""
        return self.difference is not None and self.difference <= self.tolerance

    @property
    def derived(self) -> bool:
        """Whether they have a common base, or are one function."""
        return self.same or (self.score is not None and self.score >= DERIVED)

    @property
    def apart(self) -> bool:
        """Whether they differ as a whole, by far more than any rounding: most relations do."""
        return self.typical is not None and self.typical > APART * self.tolerance and not self.derived

    @property
    def verdict(self) -> str:
        """In words."""
        if self.same:
            return "same function"
        if self.score is None:
            return "nothing to compare"
        return "derived from one base" if self.derived else "independent"

    def document(self) -> dict[str, Any]:
        """For a report."""
        return {
            "verdict": self.verdict,
            "score": self.score,
            "difference": self.difference,
            "tensor": self.tensor,
            "tolerance": self.tolerance,
            "hashes_equal": self.hashes_equal,
        }


def similarity(one: Fingerprint, two: Fingerprint) -> Similarity:
    """Compare two fingerprints; the models need not have one width, depth or vocabulary."""
    tolerance = max(SAME.get(f.dtype, SAME["F32"]) for f in (one, two))
    differences = _differences(one, two)
    largest, tensor = max(((v, k) for k, v in differences.items()), default=(None, ""))
    typical = sorted(differences.values())[len(differences) // 2] if differences else None
    return Similarity(_score(one, two), largest, typical, tensor, tolerance, one.hash == two.hash)


def _differences(one: Fingerprint, two: Fingerprint) -> dict[str, float]:
    """The relative difference of every relation that both have (heads may be in one only); what is tiny is measured against
    its kind. None where anchors or layers differ."""
    mine, theirs = ({(r.block, r.kind): r.data.double() for r in f.relations} for f in (one, two))
    layers = [{(r.block, r.kind) for r in f.relations if r.layer is not None} for f in (one, two)]
    if one.anchors != two.anchors or layers[0] != layers[1]:
        return {}
    mine = {key: x for key, x in mine.items() if key in theirs and theirs[key].shape == x.shape}
    largest: dict[str, float] = {}
    for (_, kind), x in mine.items():
        largest[kind] = max(largest.get(kind, 0.0), float(x.norm()))
    return {
        f"{block} ({kind})": float((x - theirs[block, kind]).norm())
        / max(float(x.norm()), 1e-3 * largest[kind], 1e-300)
        for (block, kind), x in mine.items()
    }


# ----------------------------------------------------------------------- kinship


def _score(one: Fingerprint, two: Fingerprint) -> float | None:
    """The mean over kinds of circuits of the mean cosine over layers, of all streams and pairs of streams that both have."""
    common = {s: [n for n in one.anchors[s] if n in set(two.anchors[s])] for s in one.anchors if s in two.anchors}
    common = {s: names for s, names in common.items() if len(names) >= FEWEST}
    mine, theirs = (_circuits(f, common) for f in (one, two))
    means = []
    for kind in CIRCUITS:
        places = sorted(key for key in mine.keys() & theirs.keys() if key[0] == kind)
        cosines = [c for key in places for c in _layer_by_layer(mine[key], theirs[key])]
        means += [sum(cosines) / len(cosines)] if cosines else []
    return sum(means) / len(means) if means else None


def _circuits(f: Fingerprint, names: Mapping[str, Sequence[str]]) -> dict[tuple[str, ...], list[Tensor]]:
    """The circuits of every layer, by kind, stack and streams, unit vectors [layers][common anchors squared], whitened.

    Args:
        names: the anchors that count, by stream.
    """
    import torch

    chosen, white = {}, {}
    for stream, wanted in names.items():
        place = {name: at for at, name in enumerate(f.anchors[stream])}
        chosen[stream] = torch.tensor([place[name] for name in wanted])
        white[stream] = _whitening(f.grams[stream].double()[chosen[stream]][:, chosen[stream]])
    found: dict[tuple[str, ...], list[tuple[int, Tensor]]] = {}
    for r in f.relations:
        kind = r.kind.split()[0]  # of several pairs of streams in one layer, the second is called "qk:rr 2"
        if kind not in CIRCUITS or r.layer is None or len(r.ends) != 2 or not set(r.ends) <= names.keys():
            continue
        left, right = r.ends
        y = white[left] @ r.data.double()[chosen[left]][:, chosen[right]] @ white[right].mT
        if left == right:
            y = y - torch.eye(len(y)).to(y) * y.diagonal().mean()  # what is alike in all directions has none
        found.setdefault((kind, r.stack, *r.ends), []).append((r.layer, _unit(y)))
    return {key: [x for _, x in sorted(layers, key=lambda p: p[0])] for key, layers in found.items()}


def _unit(y: Tensor) -> Tensor:
    return y.flatten() / y.norm().clamp_min(1e-300)


def _whitening(gram: Tensor) -> Tensor:
    """The map that takes anchors to centred, decorrelated ones, from their Gram [n, n]."""
    import torch

    n = len(gram)
    centre = torch.eye(n).to(gram) - 1 / n
    values, vectors = torch.linalg.eigh(centre @ gram @ centre)
    values = values.clamp_min(0)
    scale = (values + DAMPING * values.mean().clamp_min(1e-300)).rsqrt()
    return (vectors * scale) @ vectors.mT @ centre


def _layer_by_layer(one: Sequence[Tensor], two: Sequence[Tensor]) -> list[float]:
    """Cosines of layers with their counterparts: in order; of models that differ in depth the best partners."""
    import torch
    from scipy.optimize import linear_sum_assignment

    cosines = torch.stack(list(one)) @ torch.stack(list(two)).mT
    if len(one) == len(two):
        return cosines.diagonal().tolist()
    rows, columns = linear_sum_assignment(cosines.numpy(), maximize=True)
    return cosines[rows, columns].tolist()

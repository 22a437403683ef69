"""Matching many models at once: who is compared with whom, and residual streams from the cross-Grams of pairs.

With shares w that sum to one and a mean ``U = sum_m w_m x_m`` of moved models ``x_m = g_m theta_m``,

    sum_m w_m |x_m - U|^2  =  sum over pairs i < j of w_i w_j |x_i - x_j|^2,

so the mean need not be a variable. Compact elements keep lengths; for one model, with the others as they are, the
best element maximises ``<sum over k of w_k x_k, g_m theta_m>``: matching onto the mean of the *others* is exact
coordinate descent on this sum, which therefore never rises (generalised Procrustes analysis, Gower 1975; ten Berge
1977). The same solver with other weights of the pairs matches onto one anchor (a star).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from isomerge.symmetry.groups import Group
from isomerge.symmetry.language.spec import Spec

# Rounds over all models, of a problem that lies in memory; a round that gains less than this fraction is the last.
ROUNDS = 50
SETTLED = 1e-9
PairCrosses = dict[tuple[int, int], dict[str, "Tensor"]]


@dataclass(frozen=True)
class Graph:
    """Who is compared with whom, and how much a pair counts.

    ``order`` are the models in an order of their own, whatever order they were given in: sums run along it, so that
    their rounding does not depend on it either.
    """

    order: tuple[int, ...]
    weights: Mapping[tuple[int, int], float]
    """Of pairs of models, the earlier one in ``order`` first; what is not there is not compared."""

    @classmethod
    def complete(cls, order: Sequence[int], shares: Sequence[float]) -> Graph:
        """Every model with every other: the objective of the common mean."""
        pairs = {(i, k): shares[i] * shares[k] for at, i in enumerate(order) for k in order[at + 1 :]}
        return cls(tuple(order), pairs)

    def only(self, ends: Iterable[int]) -> Graph:
        """The pairs that have one of ``ends``: one anchor's star, or what one more model is matched to."""
        kept = set(ends)
        return Graph(self.order, {p: w for p, w in self.weights.items() if kept & set(p)})

    def among(self, models: Iterable[int]) -> Graph:
        """The pairs of these models alone."""
        kept = set(models)
        return Graph(self.order, {p: w for p, w in self.weights.items() if kept >= set(p)})

    def others(self, m: int) -> list[tuple[int, float]]:
        """The models that ``m`` is compared with, and how much each counts."""
        others = []
        for k in self.order:
            weight = self.weights.get((k, m), self.weights.get((m, k), 0.0))
            if k != m and weight:
                others.append((k, weight))
        return others

    def couples(self, movable: Sequence[int]) -> bool:
        """Whether two models that move are compared, so that one round over them is not enough."""
        return any(set(movable) >= set(pair) for pair in self.weights)

    def moving(self, movable: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The pairs of which one model moves."""
        return (pair for pair in self.weights if set(movable) & set(pair))


def mean_of_others(graph: Graph, m: int, placed: Sequence[Mapping]) -> dict:
    """The weighted mean of the models that ``m`` is compared with, tensor by tensor."""
    others = graph.others(m)
    total = sum(weight for _, weight in others)
    (first, weight), *rest = others
    if not rest:
        return dict(placed[first])
    mean = {key: x * (weight / total) for key, x in placed[first].items()}
    for k, weight in rest:
        for key, x in placed[k].items():
            mean[key].add_(x, alpha=weight / total)
    return mean


def synchronise(
    spec: Spec, crosses: PairCrosses, graph: Graph, movable: Sequence[int]
) -> tuple[list[dict[str, Tensor]], float]:
    """The elements of every stream that bring the models together, from the cross-Grams of all pairs.

    Args:
        spec: the spec in which the streams act.
        crosses: ``x_i x_k^T`` [d, d] by pair of the graph and stream, float64; the models' places as they are.
        graph: how much the pairs count.
        movable: the models that may be moved, in the graph's order; the others keep the identity.

    Returns:
        For every model what moves it further, by stream (nothing where nothing gains), and by how much the
        objective falls.
    """
    steps: list[dict[str, Tensor]] = [{} for _ in graph.order]
    gain = 0.0
    for name in dict.fromkeys(stream for of_pair in crosses.values() for stream in of_pair):
        of_stream = {pair: of_pair[name] for pair, of_pair in crosses.items() if name in of_pair}
        elements, gained = _synchronise_one(spec.spaces[name].group, of_stream, graph, movable)
        gain += gained
        for m, element in elements.items():
            steps[m][name] = element
    return steps, gain


def _synchronise_one(
    group: Group, crosses: Mapping[tuple[int, int], Tensor], graph: Graph, movable: Sequence[int]
) -> tuple[dict[int, Tensor], float]:
    elements: dict[int, Tensor] = {}
    gain = 0.0
    for _ in range(ROUNDS if graph.couples(movable) else 1):
        before, size = gain, 0.0
        for m in movable:
            cross = _cross_to_others(group, crosses, graph, m, elements)
            if cross is None:
                continue
            element, score = group.solve(cross)
            stay = group.contract(elements.get(m, group.identity((), cross.shape[-1])), cross)
            size += abs(float(score))
            if float(score - stay) > 0:
                elements[m] = element
                gain += 2 * float(score - stay)
        if gain - before <= SETTLED * size:
            break
    return elements, gain


def _cross_to_others(
    group: Group, crosses: Mapping[tuple[int, int], Tensor], graph: Graph, m: int, elements: Mapping[int, Tensor]
) -> Tensor | None:
    """The cross-Gram [d, d] of the weighted sum of the others, as they are moved now, and of one model."""
    total: Tensor | None = None
    for k, weight in graph.others(m):
        cross = crosses[(k, m)] if (k, m) in crosses else crosses[(m, k)].mT if (m, k) in crosses else None
        if cross is None:
            continue
        if k in elements:
            cross = group.act(elements[k], cross.mT.contiguous(), False).mT
        total = weight * cross if total is None else total + weight * cross
    return total

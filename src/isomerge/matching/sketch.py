"""Neurons of related models matched without all pairs: nearest neighbours found in a sketch, and proven.

The neurons of two models are points x_i and y_j (all weights that one permutation moves). With orthonormal columns S a sketch
never lengthens a distance: ``|S^T (x_i - y_j)| <= |x_i - y_j|``. Take for every y_j the x_i that is nearest in the sketch, and its
exact distance r_j. If no other x_i is nearer than r_j *in the sketch*, this one is the nearest; and if the nearest ones of all y_j
are different, they are the optimal assignment, since every term of its cost is at its least. Nothing is ever proven wrongly: what the
sketch cannot tell is left to the assignment over all pairs. Related models (twins, fine-tunes) are told by 64 directions of some
thousand. Signs that act on a part of a neuron (gated layers) are minimised over in every distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from isomerge.matching.gram import Cross, Leaf, signature
from isomerge.matching.nested import NestedSolver, Solution
from isomerge.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST = 512
"""Neurons below which the assignment over all pairs is as fast."""
DIRECTIONS = (64, 256)
SAMPLE = 32
"""Neurons that are tried first, in all dimensions: unrelated models are left to the assignment for the price of these."""
MARGIN = 1e-4
"""Of the squared norms of two points: by how much a distance must be larger. Rounding in float32 is below a hundredth of it."""
ROWS = 256
"""Points of which distances to all others are held at once."""


@dataclass(frozen=True)
class Points:
    """The neurons of one model: what signs leave alone, and what they act on; None where there is none."""

    fixed: Tensor | None
    """[n, features]."""
    signed: Tensor | None

    def parts(self) -> list[Tensor]:
        """Those that there are."""
        return [x for x in (self.fixed, self.signed) if x is not None]

    def take(self, index: Tensor) -> Points:
        """Some of the points."""
        return Points(*(None if x is None else x.index_select(0, index) for x in (self.fixed, self.signed)))


def solve_neurons(solver: NestedSolver, leaves: Sequence[Leaf]) -> Solution | None:
    """The proven optimum of a unit that one permutation acts on, alone or with a sign or a scale per neuron.

    Returns None where the unit is another, small, or the proof fails. The solution has no score: nothing of what is
    compared depends on it.
    """
    import torch

    names = _neurons(solver, leaves)
    if names is None:
        return None
    top, fibre = names
    anchor, source = _points(solver.spec, leaves, top, fibre)
    found = nearest(anchor, source)
    if found is None:
        return None
    p, sign = found
    elements = {top: Cross(("*",), p)}
    if fibre is not None:
        elements[fibre] = Cross((top, "*"), sign.unsqueeze(-1))
    return Solution(Cross((), torch.zeros((), dtype=torch.float64)), elements)


def _neurons(solver: NestedSolver, leaves: Sequence[Leaf]) -> tuple[str, str | None] | None:
    """The permuted space of a unit and the sign or scale over it; None where there is anything else."""
    spec = solver.spec
    used = {name for _, _, atoms in leaves for name in signature(spec, atoms)}
    tops = [n for n in used if not set(spec.spaces[n].index) & used]
    if len(tops) != 1 or len(used) > 2 or used & set(solver.given):
        return None
    top, fibre = tops[0], next((n for n in used if n != tops[0]), None)
    space = spec.spaces[top]
    if space.group.compact != "Perm" or solver.own(top, ()) or spec.sizes[top] < SMALLEST:
        return None
    if fibre is not None and (solver.own(fibre, (top,)) or not _is_number(spec, spec.spaces[fibre])):
        return None
    return top, fibre


def _is_number(spec: Spec, space: Space) -> bool:
    """Whether what is left of a space once it is balanced is a sign, or nothing, per neuron."""
    return space.group.compact in ("Sign", "Fixed") and spec.sizes[space.name] == 1


def _points(spec: Spec, leaves: Sequence[Leaf], top: str, fibre: str | None) -> tuple[Points, Points]:
    """The neurons of the anchor and of the source."""
    import torch

    flips = fibre is not None and spec.spaces[fibre].group.compact == "Sign"
    sides: tuple[dict[bool, list[Tensor]], dict[bool, list[Tensor]]] = ({}, {})
    for x, y, atoms in leaves:
        here = [a.name for a in atoms]
        if top not in here:
            continue
        for side, t in zip(sides, (x, y), strict=True):
            rows = t.movedim(here.index(top), 0).reshape(t.shape[here.index(top)], -1)
            side.setdefault(flips and fibre in here, []).append(rows)
    one, two = (
        Points(*(torch.cat(side[kind], 1) if kind in side else None for kind in (False, True))) for side in sides
    )
    return one, two


# ------------------------------------------------------------------- certificate


def nearest(anchor: Points, source: Points) -> tuple[Tensor, Tensor] | None:
    """For every anchor the source's point that the optimal assignment gives it, and the source's signs; None if not proven.

    Args:
        anchor, source: of n points each, float32 or float64.

    Returns:
        int64 [n] and float64 [n] by the source's own numbers.
    """

    n = len(anchor.parts()[0])
    sizes = [_squares(points) for points in (anchor, source)]
    if not _worth_trying(anchor, source, sizes):
        return None
    widths = [x.shape[1] for x in anchor.parts()]
    for directions in DIRECTIONS:
        if directions >= sum(widths):
            return None
        maps = [_orthonormal(width, directions, seed, anchor) for seed, width in enumerate(widths)]
        sketches = [_mapped(points, maps) for points in (anchor, source)]
        best, other = _two_nearest(*sketches)
        if len(best.unique()) < n:
            continue
        exact, sign = _exact(anchor.take(best), source, sizes[0][best] + sizes[1])
        margin = MARGIN * (sizes[0].max() + sizes[1])
        if bool((other > exact + margin).all()):
            return best.argsort(), sign.double()
    return None


def _worth_trying(anchor: Points, source: Points, sizes: list[Tensor]) -> bool:
    """Whether some points of the source have a nearest one, by far, and each another."""
    import torch

    n = len(sizes[0])
    some = torch.linspace(0, n - 1, min(SAMPLE, n)).long()
    near, other = _two_nearest_of(anchor, source.take(some), sizes[0], sizes[1][some])
    return len(near[1].unique()) == len(some) and bool((other > near[0] + MARGIN * sizes[0].max()).all())


def _orthonormal(width: int, directions: int, seed: int, like: Points) -> Tensor:
    """Orthonormal columns [width, directions]; fewer where the space is narrower."""
    import torch

    x = like.parts()[0]
    rng = torch.Generator().manual_seed(seed)
    drawn = torch.randn(width, min(width, directions), generator=rng, dtype=torch.float64)
    return torch.linalg.qr(drawn)[0].to(x.dtype)


def _mapped(points: Points, maps: Sequence[Tensor]) -> Points:
    """The sketch of all points."""
    left = iter(maps)
    return Points(*(None if x is None else x @ next(left) for x in (points.fixed, points.signed)))


def _squares(points: Points) -> Tensor:
    """Squared norms [n]."""
    import torch

    return sum(torch.linalg.vector_norm(x, dim=1).square() for x in points.parts())  # type: ignore[return-value]


def _two_nearest(anchor: Points, source: Points) -> tuple[Tensor, Tensor]:
    """For every point of the source the number of its nearest anchor, and its squared distance to the next one."""
    import torch

    squares = _squares(anchor), _squares(source)
    best, other = [], []
    for rows in torch.arange(len(squares[1])).split(ROWS):
        near, far = _two_nearest_of(anchor, source.take(rows), squares[0], squares[1][rows])
        best.append(near[1])
        other.append(far)
    return torch.cat(best), torch.cat(other)


def _two_nearest_of(
    anchor: Points, some: Points, squares: Tensor, own: Tensor
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Of some points: the squared distance to the nearest anchor and its number, and the squared distance to the next."""
    product = None
    for x, y, signed in zip((some.fixed, some.signed), (anchor.fixed, anchor.signed), (False, True), strict=True):
        if x is not None and y is not None:
            part = x @ y.mT
            part = part.abs_() if signed else part
            product = part if product is None else product.add_(part)
    assert product is not None
    distance = product.mul_(-2).add_(squares)
    two = distance.topk(2, dim=1, largest=False)
    return (two.values[:, 0] + own, two.indices[:, 0]), two.values[:, 1] + own


def _exact(anchor: Points, source: Points, squares: Tensor) -> tuple[Tensor, Tensor]:
    """The squared distances [n] of paired points, and the signs that make them least.

    Args:
        anchor, source: n points each, paired by their numbers.
        squares: the sums of the squared norms of every pair [n]. Cancellation leaves an error of their rounding, which is
            far below `MARGIN` of them.
    """
    import torch

    sign, products = torch.ones_like(squares), torch.zeros_like(squares)
    for x, y, signed in zip(
        (anchor.fixed, anchor.signed), (source.fixed, source.signed), (False, True), strict=True
    ):
        if x is not None and y is not None:
            inner = torch.einsum("nd,nd->n", x, y)
            if signed:
                sign = torch.where(inner < 0, -1.0, 1.0).to(inner.dtype)
            products += sign * inner if signed else inner
    return (squares - 2 * products).clamp_min(0), sign

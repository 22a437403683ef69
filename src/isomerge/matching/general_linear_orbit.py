"""The closest point of a head's GL orbit: ``min |A x1 - x2|^2 + |A^-T y1 - y2|^2`` over invertible A.

The seed paper leaves this to gradient descent (its Appendix D). Newton steps on the group need no more than
matrices of the head's size: with ``A <- exp(xi) A``, ``Q = A x1`` and ``K = A^-T y1``, the Gauss-Newton step solves
one Sylvester equation, ``K K^T xi + xi Q Q^T = (Q2 - Q) Q^T + K (K - K2)^T``, diagonal in eigenbases. Between
unrelated heads, whose residual is large, it alone needs hundreds of steps; so it preconditions conjugate gradients
on the full second derivative, which adds ``(W^T xi^T + xi^T W^T) / 2`` with ``W = (K - K2) K^T + Q (Q - Q2)^T``.
The problem is not convex: the result is a local optimum, the best that several starts lead to, and never worse than
any start.

A side that is narrower than the head has no full rank, and need not: the distance grows without bound wherever
an element does so in what it acts on. But what moves the wide side may then be best at the boundary of the
group, where one direction of it changes its sign; beyond it steps begin anew (`across`). Where both sides are
narrow, there is more that an element acts on nowhere: steps leave it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isomerge.matching.gram import add_products, sides
from isomerge.matching.narrow import Widths, clearing, narrow_form
from isomerge.matching.rescale import quartic_scale
from isomerge.symmetry.blocks import Blocks
from isomerge.symmetry.groups import GROUPS
from isomerge.symmetry.groups.general_linear import DEAD
from isomerge.symmetry.groups.singular import singular_values_and_vectors
from isomerge.symmetry.language.spec import Space, Spec

# Backtracking: what part of the predicted decrease counts, and how often a step is halved.
SUFFICIENT, HALVINGS = 1e-4, 40
# Conjugate gradients: the most iterations of one step, and the least curvature, relative to Gauss-Newton's, to go
# on.
CONJUGATE, FLAT = 50, 1e-3
# Steps exp(xi) A keep the sign of the determinant. The other component is tried where heads are unrelated (what is
# left is more than this share of the squares of all sides) and small: of 60 unrelated heads of 24 inputs it is
# better for 1 of size 2, 2 of size 3 and 6 of size 8, by up to 2.3 %; of noisy copies for none. At size 16 it is
# worth 0.3 %, and nothing in the loss (the demo's barrier: 1.249 without, 1.251 with).
UNRELATED, FLIPPED_TO = 0.02, 8
CROSSINGS = 8
"""How often a side that is narrower than the head lets steps begin anew in the other component of the group."""
WIDE = 512
"""The longest axis on which Newton's method is used: on one of 768 a step takes seconds, and two unrelated decoders
of SegFormer many minutes in place of one. Beyond it the best start is taken, which is exact for twins."""
FREE = 1e-14
"""Curvature along which there is nothing to act on, relative to the largest, where both sides are narrow."""


@dataclass(frozen=True)
class Sides:
    """The sufficient statistic of one linear space: Grams of both sides, float64 [*b, n, n] each."""

    plus: Tensor
    """Cross-Gram of the plain sides, anchor times moved transposed."""
    minus: Tensor
    """Cross-Gram of the dual sides."""
    moved_plus: Tensor
    """The moved model's plain self-Gram."""
    moved_minus: Tensor
    anchor_plus: Tensor
    anchor_minus: Tensor

    @property
    def exchanged(self) -> Sides:
        """With the anchor as the moved model."""
        ends = (self.anchor_plus, self.anchor_minus, self.moved_plus, self.moved_minus)
        return Sides(self.plus.mT, self.minus.mT, *ends)

    def flat(self) -> Sides:
        """The batch as one dimension."""
        n = self.plus.shape[-1]
        return Sides(*(getattr(self, name).reshape(-1, n, n) for name in self.__dataclass_fields__))

    def take(self, index: Tensor) -> Sides:
        """Some entries of a flat batch."""
        return Sides(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    def size(self) -> Tensor:
        """The squares of all four sides [*b]."""
        grams = (self.moved_plus, self.moved_minus, self.anchor_plus, self.anchor_minus)
        return sum((trace(g) for g in grams[1:]), trace(grams[0]))


def space_sides(spec: Spec, space: Space, anchor: Blocks, moved: Blocks, *, most: int | None = None) -> Sides:
    """Cross-Grams and self-Grams [*batch, n, n] of the plain and the dual sides of a space; along every batch axis
    of ``most`` entries, evenly spread, where it has more."""

    n = spec.sizes[space.name]
    batch = spec.batch(space)
    steps = [1 if most is None else -(-spec.sizes[i] // most) for i in batch]
    some = tuple(slice(None, None, step) for step in steps)
    shape = tuple(len(range(0, spec.sizes[i], step)) for i, step in zip(batch, steps, strict=True))
    kinds = ((0, 1), (1, 1), (0, 0))  # anchor times moved, moved, anchor
    total = {
        side: {kind: torch.zeros(*shape, n, n, dtype=torch.float64) for kind in kinds} for side in (False, True)
    }
    for dual, pair, order in sides(spec, space, anchor, moved):
        add_products(total[dual], [t.permute(order)[some] for t in pair], len(batch))
    return Sides(*(total[side][kind] for kind in kinds for side in (False, True)))


@dataclass(frozen=True)
class LinearOptimum:
    """The best element found for every batch entry."""

    element: Tensor
    """A [*b, n, n], float64."""
    value: Tensor
    """The squared distance [*b]."""
    settled: Tensor
    """Whether the last step's predicted decrease was below the tolerance [*b]; True where heads were left alone."""
    steps: int
    """Newton steps of the slowest entry."""


def linear_optimum(
    sides: Sides,
    starts: list[Tensor] | None = None,
    *,
    widths: Widths | None = None,
    tolerance: float = 1e-10,
    steps: int = 300,
) -> LinearOptimum:
    """The best of Newton's method from several starts.

    Args:
        sides: the statistic of the batch.
        starts: elements [*b, n, n]; by default the rotation with its factor (the paper's two steps), and the map
            through both balanced gauges; of small unrelated heads one more, in the other component of the group.
        widths: of both sides, where one may be narrower than the head.
        tolerance: stop when a step predicts a smaller decrease of the squared distance, relative to the squares of
            all sides.
        steps: the most steps of any entry.

    Returns:
        An optimum that no start beats. Entries with less rank than their shape allows, whose orbit is not closed so
        that no optimum need exist, keep the best of the starts, and so do axes beyond `WIDE`.
    """

    begun, flips = starts or [sequential(sides), balanced(sides, widths)], starts is None
    steps = steps if sides.plus.shape[-1] <= WIDE else 0
    if widths is None or min(widths) > sides.plus.shape[-1]:
        return _optimum(sides, begun, None, tolerance, steps, flips=flips)
    basis, plain, dual = clearing(sides.moved_plus, sides.moved_minus, widths)
    if bool((plain & dual).all()):
        return _optimum(sides, begun, None, tolerance, steps, flips=flips)
    clear, back = cleared(sides, basis, plain, dual), torch.linalg.inv(basis)
    best = _optimum(clear, [g @ back for g in begun], widths, tolerance, steps, flips=flips)
    for _ in range(CROSSINGS):
        trial = across(clear, best.element, plain, dual)
        lower = squared_distance(clear, trial) < best.value - tolerance * clear.size()
        if not bool(lower.any()):
            break
        trial = torch.where(lower[..., None, None], trial, best.element)
        best = _lower(best, _optimum(clear, [trial], widths, tolerance, steps, flips=False))
    return replace(best, element=best.element @ basis)


def across(sides: Sides, element: Tensor, plain: Tensor, dual: Tensor) -> Tensor:
    """The element [*b, n, n] that is best where one side alone stands, whatever it does where both sides do.

    There it moves the wide side as any matrix may, of either sign: what is best is a least squares. Steps along the
    group end at its boundary instead, where the best one has another sign.

    Args:
        sides: the statistic in a basis with zeros where the moved sides have nothing (`cleared`).
        element: where to begin.
        plain, dual: the coordinates [*b, n] in which they have something, the first ones.
    """
    elements_across, batch, n = [], element.shape[:-2], element.shape[-1]
    flat, elements = sides.flat(), element.reshape(-1, n, n)
    counts = (there.reshape(-1, n).sum(-1).tolist() for there in (plain, dual))
    for at, (rank, other) in enumerate(zip(*counts, strict=True)):
        g = elements[at]
        if rank > other:
            g = _across(torch.linalg.inv(g).mT, flat.plus[at], flat.moved_plus[at], other, rank)
        elif rank < n:
            back = _across(g, flat.minus[at], flat.moved_minus[at], rank, other)
            g = torch.linalg.inv_ex(back).inverse.mT
        elements_across.append(g)
    return torch.stack(elements_across).reshape(*batch, n, n)


def _lower(first: LinearOptimum, second: LinearOptimum) -> LinearOptimum:
    """The lower of two, entry by entry; of equal ones the first."""
    lower = second.value < first.value
    element = torch.where(lower[..., None, None], second.element, first.element)
    value, settled = (
        torch.where(lower, y, x) for x, y in ((first.value, second.value), (first.settled, second.settled))
    )
    return LinearOptimum(element, value, settled, max(first.steps, second.steps))


def _across(narrow: Tensor, cross: Tensor, moved: Tensor, rank: int, other: int) -> Tensor:
    """What moves the wide side [n, n], from what moves the narrow one, and the wide one's cross-Gram and Gram."""
    first = narrow[:, :rank]
    turn, _ = torch.linalg.qr(first, mode="complete")
    rest = turn[:, rank:]
    moves = rest @ torch.linalg.solve(moved[:other, :other], (rest.mT @ cross[:, :other]).mT).mT
    moves[:, :rank] += torch.linalg.pinv(first).mT
    empty = torch.linalg.qr(moves, mode="complete").Q[:, other:]
    return torch.cat([moves, empty * moves.square().mean().sqrt()], -1)


def cleared(sides: Sides, basis: Tensor, plain: Tensor, dual: Tensor) -> Sides:
    """The statistic of a moved head in another basis [*b, n, n], nothing but zeros in the coordinates where its
    sides have nothing (see `isomerge.matching.narrow.clearing`): of rounding there, a large element makes much."""
    back = torch.linalg.inv(basis)
    plus, minus = basis @ sides.moved_plus @ basis.mT, back.mT @ sides.moved_minus @ back
    return Sides(
        sides.plus @ basis.mT * plain[..., None, :],
        sides.minus @ back * dual[..., None, :],
        plus * (plain[..., None, :] & plain[..., :, None]),
        minus * (dual[..., None, :] & dual[..., :, None]),
        sides.anchor_plus,
        sides.anchor_minus,
    )


def _optimum(
    sides: Sides, starts: list[Tensor], widths: Widths | None, tolerance: float, steps: int, *, flips: bool
) -> LinearOptimum:
    """`linear_optimum` from some starts; ``flips``: and of small unrelated heads from one more."""

    flat, batch, n = sides.flat(), sides.plus.shape[:-2], sides.plus.shape[-1]
    begun = [g.reshape(-1, n, n) for g in starts]
    values = torch.stack([squared_distance(flat, g) for g in begun])
    value, at = values.min(0)
    element = torch.stack(begun)[at, torch.arange(len(at))]
    alive = (~rank_deficient(flat, widths)).nonzero().squeeze(-1)
    settled, longest = torch.ones_like(value, dtype=torch.bool), 0
    narrow = widths is not None and max(widths) <= n
    if len(alive):
        runs = [descend(flat.take(alive), g[alive], tolerance, steps, narrow=narrow) for g in begun]
        reached = torch.stack([run.value for run in runs])
        best, at = reached.min(0)
        own = torch.arange(len(alive))
        lower = best < value[alive]
        element[alive[lower]] = torch.stack([run.element for run in runs])[at, own][lower]
        value[alive] = torch.minimum(best, value[alive])
        settled[alive] = torch.stack([run.settled for run in runs])[at, own]
        longest = max(run.steps for run in runs)
        far = alive[value[alive] > UNRELATED * flat.size()[alive]]
        if flips and n <= FLIPPED_TO and len(far):
            other = flipped(flat.take(far), element[far])
            run = descend(flat.take(far), other, tolerance, steps, narrow=narrow)
            lower = run.value < value[far]
            element[far[lower]], value[far[lower]] = run.element[lower], run.value[lower]
            settled[far[lower]] = run.settled[lower]
            longest = max(longest, run.steps)
    return LinearOptimum(element.reshape(*batch, n, n), value.reshape(batch), settled.reshape(batch), longest)


def descend(sides: Sides, element: Tensor, tolerance: float, steps: int, *, narrow: bool = False) -> LinearOptimum:
    """Newton's method with backtracking from one start; the distance never rises.

    Args:
        sides: the statistic of a flat batch [k, n, n] of full rank.
        element: where to start [k, n, n].
        tolerance, steps: see `linear_optimum`.
        narrow: whether both sides are narrower than the head.
    """

    element, value = element.clone(), squared_distance(sides, element)
    settled = torch.zeros_like(value, dtype=torch.bool)
    limit = tolerance * sides.size()
    active = torch.arange(len(value))
    turn = 0
    while turn < steps and len(active):
        turn += 1
        some = sides.take(active)
        xi, promise = newton(some, element[active], narrow=narrow)
        moved, reached = shortened(some, element[active], value[active], xi, promise)
        lower = reached < value[active]
        element[active[lower]], value[active[lower]] = moved[lower], reached[lower]
        done = (promise <= limit[active]) | ~lower
        settled[active[done]] = True
        active = active[~done]
    return LinearOptimum(element, value, settled, turn)


def newton(sides: Sides, element: Tensor, *, narrow: bool = False, gauss: bool = False) -> tuple[Tensor, Tensor]:
    """The step xi [k, n, n] and the decrease of the squared distance that it predicts [k].

    Args:
        sides, element: as of `descend`.
        narrow: whether both sides are, or may lack rank.
        gauss: whether it is a Gauss-Newton step.
    """
    back = torch.linalg.inv(element)
    q = element @ sides.moved_plus @ element.mT
    k = back.mT @ sides.moved_minus @ back
    missed = sides.plus @ element.mT - q, k - (sides.minus @ back)
    left, u = torch.linalg.eigh((k + k.mT) / 2)
    right, v = torch.linalg.eigh((q + q.mT) / 2)
    weight = (left.clamp_min(0)[..., :, None] + right.clamp_min(0)[..., None, :]).clamp_min(1e-300)
    if narrow:  # what acts on nothing stays
        largest = weight.amax((-2, -1), keepdim=True)
        weight = torch.where(weight > FREE * largest, weight, largest)
    force = u.mT @ (missed[0] + missed[1].mT) @ v
    if gauss:
        eta = force / weight
    else:
        eta = _conjugate(force, weight, u.mT @ (missed[1].mT - missed[0]) @ v, u.mT @ v, sides.size())
    return u @ eta @ v.mT, _inner(force, eta)


def _conjugate(force: Tensor, weight: Tensor, bend: Tensor, turn: Tensor, size: Tensor) -> Tensor:
    """Solve ``weight * eta + (bend eta^T turn + turn eta^T bend) / 2 = force`` by preconditioned conjugate
    gradients.

    The first iterate is the Gauss-Newton step. An entry stops where its curvature is not positive, or when its
    residual has fallen far enough for the Newton step to converge superlinearly.
    """

    eta, rest = torch.zeros_like(force), force
    conditioned = rest / weight
    path, energy = conditioned, _inner(rest, conditioned)
    goal = energy * (energy / size).sqrt().clamp(1e-8, 0.1)
    going = energy > 0
    for iteration in range(CONJUGATE):
        weighted = weight * path
        image = weighted + (bend @ path.mT @ turn + turn @ path.mT @ bend) / 2
        curvature = _inner(path, image)
        straight = curvature > FLAT * _inner(path, weighted)
        if iteration == 0:
            eta = torch.where(straight[:, None, None], eta, path)
        going = going & straight
        if not bool(going.any()):
            break
        length = torch.where(going, energy / torch.where(going, curvature, 1.0), 0.0)[:, None, None]
        eta, rest = eta + length * path, rest - length * image
        conditioned = rest / weight
        before, energy = energy, torch.where(going, _inner(rest, conditioned), energy)
        ratio = (energy / before.clamp_min(1e-300))[:, None, None]
        path = torch.where(going[:, None, None], conditioned + ratio * path, path)
        going = going & (energy > goal)
    return eta


def shortened(sides: Sides, element: Tensor, value: Tensor, xi: Tensor, promise: Tensor) -> tuple[Tensor, Tensor]:
    """The element [k, n, n] after a step, and its squared distance [k]: the step is halved until this falls by a
    part of what was predicted; where it never does, the element stays."""

    moved, reached = element, value
    length = torch.ones_like(value)
    waiting = torch.ones_like(value, dtype=torch.bool)
    for _ in range(HALVINGS):
        trial = torch.linalg.matrix_exp(length[:, None, None] * xi) @ element
        there = squared_distance(sides, trial)
        good = waiting & (there <= value - SUFFICIENT * length * promise) & (there < value)
        moved = torch.where(good[:, None, None], trial, moved)
        reached = torch.where(good, there, reached)
        waiting = waiting & ~good
        if not bool(waiting.any()):
            break
        length = torch.where(waiting, length / 2, length)
    return moved, reached


def squared_distance(sides: Sides, element: Tensor) -> Tensor:
    """``|A x1 - x2|^2 + |A^-T y1 - y2|^2`` [*b] from Grams alone; infinite where A is singular."""

    back, info = torch.linalg.inv_ex(element)
    own = _inner(element @ sides.moved_plus, element) + _inner(sides.moved_minus @ back, back)
    shared = _inner(element, sides.plus) + _inner(back.mT, sides.minus)
    value = own - 2 * shared + trace(sides.anchor_plus) + trace(sides.anchor_minus)
    return torch.where((info == 0) & value.isfinite(), value, torch.inf)


def sequential(sides: Sides) -> Tensor:
    """The paper's two steps as one element [*b, n, n]: Procrustes (Eq. 10), then the quartic's factor (Eq. 12)."""
    rotation, _ = GROUPS["O"].solve(sides.plus + sides.minus)
    return _with_factor(sides, rotation)


def _with_factor(sides: Sides, rotation: Tensor, *, signed: bool = True) -> Tensor:
    """A rotation [*b, n, n] times the quartic's factor."""
    overlaps = (_inner(rotation, c) for c in (sides.plus, sides.minus))
    factor = quartic_scale(trace(sides.moved_plus), trace(sides.moved_minus), *overlaps, signed=signed)
    return rotation * factor[..., None, None]


def flipped(sides: Sides, element: Tensor) -> Tensor:
    """A start in the other component of the group [k, n, n]: Procrustes, its last singular vector flipped where its
    determinant has the sign of an element's; with its factor."""
    u, _, vh = singular_values_and_vectors(sides.plus + sides.minus)
    same = torch.linalg.det(u @ vh).sign() == torch.linalg.det(element).sign()
    u = torch.where(same[:, None, None] & (torch.arange(u.shape[-1]) == u.shape[-1] - 1), -u, u)
    return _with_factor(sides, u @ vh, signed=False)


def balanced(sides: Sides, widths: Widths | None = None) -> Tensor:
    """Through the minimum-norm points of both orbits, or where a side is narrow through both forms of
    `isomerge.matching.narrow`, with Procrustes between them [*b, n, n]."""

    mine, theirs = (
        _gauge(*grams, widths)
        for grams in ((sides.moved_plus, sides.moved_minus), (sides.anchor_plus, sides.anchor_minus))
    )
    to_moved = torch.linalg.inv(mine)
    plus = theirs @ sides.plus @ mine.mT
    minus = torch.linalg.inv(theirs).mT @ sides.minus @ to_moved
    rotation, _ = GROUPS["O"].solve(plus + minus)
    return torch.linalg.inv(theirs) @ rotation @ mine


def _gauge(plus: Tensor, minus: Tensor, widths: Widths | None) -> Tensor:
    """What moves a side to its form [*b, n, n]."""
    balanced = GROUPS["GL"].balance(plus, minus) if widths is None else narrow_form(plus, minus, widths)
    assert balanced is not None
    return balanced[0]


def rank_deficient(sides: Sides, widths: Widths | None = None) -> Tensor:
    """Whether a side of the moved head has less rank than its width explains [*b]: the smallest eigenvalue of its
    Gram is rounding."""

    if widths is not None and min(widths) <= sides.plus.shape[-1]:
        return narrow_form(sides.moved_plus, sides.moved_minus, widths)[1]
    values = [torch.linalg.eigvalsh(gram) for gram in (sides.moved_plus, sides.moved_minus)]
    low, high = (torch.stack([v[..., at] for v in values]) for at in (0, -1))
    return (low <= DEAD * high).any(0)


def _inner(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum((-2, -1))


def trace(x: Tensor) -> Tensor:
    """The traces [*b] of matrices [*b, n, n]."""
    return x.diagonal(dim1=-2, dim2=-1).sum(-1)

"""Products of what a non-compact space ties together: invariants that exist where no gauge does.

A function depends on the two sides x, y [n, ...] of such a space through ``C = x^H y`` alone (query with key, value
with output, up with down). A head whose sides have no full rank has no balanced point, and one that nearly has none
has a point that rounding moves far; but ``C`` moves no more than its factors do. What storing the factors can do to
it is known: with u the unit roundoff, ``|dC|^2`` is about ``u^2 sum_k |x_k|^2 |y_k|^2`` per side, as errors of
different coordinates are independent. So a difference of products is either within the tolerance (the same), beyond
what rounding explains (different), or between: undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isomerge.matching.gram import acted_on
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.groups import power_of
from isomerge.symmetry.groups.singular import singular_values_and_vectors
from isomerge.symmetry.language.spec import Space, Spec
from isomerge.symmetry.units import elements_of

ROOM = 4.0
"""Times the rounding that is expected of both models' factors: about seven standard deviations, or a conversion in
their dtype."""


@dataclass(frozen=True)
class Sides:
    """What one element acts on: its leaves as writable views [*batch, n, others...], plain and dual."""

    key: str
    space: Space
    depth: int
    """How many batch axes there are."""
    plain: list[Tensor]
    dual: list[Tensor]

    def stacked(self) -> tuple[Tensor, Tensor]:
        """Both sides in double precision, [batch, n, others]; of pairs complex with n = 1, of scales n = 1 in a
        larger batch."""

        def stack(views: list[Tensor]) -> Tensor:
            x = torch.cat([v.double().reshape(*v.shape[: self.depth + 1], -1) for v in views], -1)
            x = x.reshape(-1, *x.shape[-2:])
            if self.space.group_name == "Complex":
                return torch.complex(x[:, 0], x[:, 1]).unsqueeze(1)
            return x if self.space.group_name == "GL" else x.flatten(0, 1).unsqueeze(1)

        return stack(self.plain), stack(self.dual)

    def multiplied(self) -> tuple[Tensor, Tensor]:
        """Both sides as `stacked`, so that no element shows in their product: where the dual one is divided by a
        power of a factor, the plain one is multiplied by its own length until it grows by that power."""
        x, y = self.stacked()
        return x * x.norm(dim=-1, keepdim=True).pow(self.power - 1) if self.power > 1 else x, y

    @property
    def power(self) -> int:
        """See `isomerge.symmetry.groups.scale.Scale`."""
        return power_of(self.space.group)

    def write(self, plain: Tensor, dual: Tensor) -> None:
        """The inverse of `stacked`, into the views."""

        for x, views in ((plain, self.plain), (dual, self.dual)):
            if self.space.group_name == "Complex":
                x = torch.stack([x[:, 0].real, x[:, 0].imag], 1)
            start = 0
            for view in views:
                width = view[(0,) * (self.depth + 1)].numel()
                view.copy_(x[..., start : start + width].reshape(view.shape).to(view.dtype))
                start += width


@dataclass(frozen=True)
class Difference:
    """How far the products of one element are apart in two models."""

    key: str
    largest: float
    """Relative to the largest product of the element: of whole heads by Frobenius norms, and of single rows."""
    rounding: float
    """What the rounding of the stored factors explains, where ``largest`` was found."""
    same: bool | None
    """Whether they agree; None where they do not and rounding may be why."""


def tied(spec: Spec, tensors: Mapping[Block, Tensor]) -> Iterator[Sides]:
    """The elements of non-compact spaces that have both sides, and whose leaves no other such space acts on."""
    loose = {name for name, space in spec.spaces.items() if not space.keeps_lengths}
    keys = {
        key: space for block in tensors for key, space in elements_of(spec, block).items() if space.name in loose
    }
    for key, space in keys.items():
        views: dict[bool, list[Tensor]] = {False: [], True: []}
        alone, depth = True, len(spec.batch(space))
        for block, (view,), atoms, order in acted_on(spec, space, tensors):
            alone = alone and len(loose & {a.name for a in atoms}) == 1 and not any(a.diag for a in atoms)
            alone = alone and not block.line.less  # what is not stored cannot be written
            views[atoms[order[depth]].dual].append(view.permute(order))
        if alone and views[False] and views[True]:
            yield Sides(key, space, depth, views[False], views[True])


def close_orbits(spec: Spec, tensors: Mapping[Block, Tensor], keys: Iterable[str] | None = None) -> list[str]:
    """Put the balanced factors of their products in the place of the two sides of some elements, in place.

    They are the least of all factors, unique up to rotations (phases, signs), and exist for every product: they lie
    in the closure of the orbit. The function stays; no element of the group need lead there.

    Args:
        spec: its spaces are the block-local ones.
        tensors: the unit's blocks, float32 or float64, contiguous; overwritten.
        keys: of elements; None: all of them.

    Returns:
        The keys that were given and could not be closed, as other non-compact spaces act on the same tensors.
    """
    wanted = None if keys is None else set(keys)
    closed = set()
    for sides in tied(spec, tensors):
        if wanted is None or sides.key in wanted:
            sides.write(*_balanced(*sides.stacked(), sides.power))
            closed.add(sides.key)
    return sorted((wanted or set()) - closed)


def _balanced(x: Tensor, y: Tensor, power: int = 1) -> tuple[Tensor, Tensor]:
    """The balanced factors of ``x^H y``, from [b, n, p] and [b, n, q], in their shapes."""

    n = x.shape[1]
    if n == 1:
        sizes = x.norm(dim=-1, keepdim=True), y.norm(dim=-1, keepdim=True)
        alive = (sizes[0] > 0) & (sizes[1] > 0)
        ratio = torch.where(alive, power * sizes[1].square() / sizes[0].square().clamp_min(1e-300), 1.0)
        factor = ratio.pow(0.5 / (1 + power))
        return torch.where(alive, x * factor, 0.0), torch.where(alive, y / factor.pow(power), 0.0)
    (qx, rx), (qy, ry) = torch.linalg.qr(x.mH), torch.linalg.qr(y.mH)
    u, s, vh = singular_values_and_vectors(rx @ ry.mH, full_matrices=False)
    root = s.sqrt().unsqueeze(-1)
    factors = root * (qx @ u).mH, root * (vh @ qy.mH)
    return tuple(torch.nn.functional.pad(t, (0, 0, 0, n - t.shape[1])) for t in factors)  # type: ignore[return-value]


def roundings(spec: Spec, tensors: Mapping[Block, Tensor]) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """What rounding of the stored factors may do to every product, over the unit roundoff, squared: of whole
    products [b], of rows along the plain side [b, p], and along the dual side [b, q]."""
    squares = {}
    for sides in tied(spec, tensors):
        x, y = (t.abs().square() for t in sides.multiplied())
        x = x * sides.power**2  # errors of lengths as well
        above, below = x.sum(-1), y.sum(-1)
        rows = 2 * (x * below.unsqueeze(-1)).sum(1), 2 * (y * above.unsqueeze(-1)).sum(1)
        squares[sides.key] = (2 * (above * below).sum(-1), *rows)
    return squares


def differences(
    spec: Spec,
    anchor: Mapping[Block, Tensor],
    source: Mapping[Block, Tensor],
    errors: Mapping[str, tuple[Tensor, Tensor, Tensor]],
    tolerance: float,
    floor: float,
) -> list[Difference]:
    """Compare the products of two matched models, element by element.

    Args:
        spec: its spaces are the block-local ones.
        anchor, source: the unit's blocks, float64, the source's in the anchor's order (orders of the tied axis do
            not matter).
        errors: squared norms of what rounding explains in both together (`roundings`, in the anchor's order), by
            key.
        tolerance: the relative difference that passes.
        floor: what products are measured against where they are smaller.
    """
    theirs = {sides.key: sides for sides in tied(spec, source)}
    return [
        _difference(mine, theirs[mine.key], errors[mine.key], tolerance, floor)
        for mine in tied(spec, anchor)
        if mine.key in theirs
    ]


def _difference(
    mine: Sides, theirs: Sides, errors: tuple[Tensor, Tensor, Tensor], tolerance: float, floor: float
) -> Difference:

    (x, y), (v, w) = mine.multiplied(), theirs.multiplied()
    wide, high = torch.cat([x, v], 1), torch.cat([y, -w], 1)
    flipped = torch.zeros(len(x), dtype=torch.bool)
    if mine.space.group_name in (
        "PositiveScale",
        "SquaredScale",
    ):  # two factors that both change sign have one product, and are others
        flipped = (x * v).sum((-2, -1)) < 0
    gaps = _rows(wide, high)
    sizes = _rows(x, y)
    worst = Difference(mine.key, 0.0, 0.0, True)
    for gap, size, error in zip(gaps, sizes, errors, strict=True):
        gap = torch.where(flipped.reshape(-1, *[1] * (gap.ndim - 1)), 2 * size, gap)
        scale = max(float(size.max()), floor if gap.ndim == 1 else floor / max(gap.shape[-1], 1) ** 0.5, 1e-300)
        gap, bound = gap / scale, ROOM * error.sqrt() / scale
        failing = gap > tolerance
        certain = failing & (gap > bound)
        same = None if bool(failing.any()) else True
        if bool(certain.any()):
            same, gap = False, torch.where(certain, gap, 0.0)
        at = int(gap.argmax())
        difference = Difference(mine.key, float(gap.reshape(-1)[at]), float(bound.reshape(-1)[at]), same)
        worst = max(worst, difference, key=lambda d: ((True, None, False).index(d.same), d.largest))
    return worst


def _rows(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Norms of ``x^H y``: Frobenius [b], of its rows [b, p] and of its columns [b, q]; the product itself is never
    made."""

    if x.shape[1] == 1:
        a, b = x[:, 0].abs(), y[:, 0].abs()
        sizes = a.norm(dim=-1, keepdim=True), b.norm(dim=-1, keepdim=True)
        return (sizes[0] * sizes[1])[:, 0], a * sizes[1], b * sizes[0]
    rx, ry = (torch.linalg.qr(t.mH, mode="r").R for t in (x, y))
    whole = torch.linalg.matrix_norm(rx @ ry.mH)
    return whole, (x.mH @ ry.mH).norm(dim=-1), (y.mH @ rx.mH).norm(dim=-1)

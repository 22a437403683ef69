"""Cross-Grams: the sufficient statistic of every matching problem.

For a leaf (an atom view of a tensor) on which the spaces s1, s2, ... act, the cross-Gram keeps one pair of indices
per space, the anchor's (``s+``) and the source's (``s-``), keeps the spaces' own batch indices, and sums over all
else. ``<A, g B>`` is linear in every element, so nothing else of the weights is needed. Leaves with the same spaces
add up. Activation statistics enter here as well: they are other cross-Grams of the same spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from isomerge.pieces import PIECE
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block, whole_leaves
from isomerge.symmetry.language.spec import Space, Spec

FEWEST = 64
"""Columns of a piece of a self-Gram, at least."""


@dataclass(frozen=True)
class Cross:
    """A tensor with named dimensions: batch names first, then ``s+``, ``s-`` for every space in order."""

    dims: tuple[str, ...]
    data: Tensor

    def arrange(self, dims: Iterable[str]) -> Tensor:
        """The tensor with its dimensions in the given order; missing ones have length one."""
        wanted = list(dims)
        data = self.data.permute([self.dims.index(d) for d in wanted if d in self.dims])
        for at, name in enumerate(wanted):
            if name not in self.dims:
                data = data.unsqueeze(at)
        return data

    def reduce(self, dims: Iterable[str]) -> Cross:
        """Sum over all but the given dimensions."""
        kept = tuple(d for d in self.dims if d in set(dims))
        gone = [at for at, d in enumerate(self.dims) if d not in kept]
        return Cross(kept, self.data.sum(gone) if gone else self.data)


Crosses = dict[tuple[str, ...], Cross]
Leaf = tuple["Tensor", "Tensor", tuple[Atom, ...]]


def paired_leaves(spec: Spec, anchor: Mapping[Block, Tensor], source: Mapping[Block, Tensor]) -> Iterator[Leaf]:
    """The matching atom views of two models' blocks."""
    for block, a in anchor.items():
        for (x, y), atoms, _ in whole_leaves(spec, block, a, source[block]):
            if not any(is_gain_of_latent(spec, atom) for atom in atoms):
                yield x, y, atoms


def is_gain_of_latent(spec: Spec, atom: Atom) -> bool:
    """Whether an axis is that of gains over a latent, which say nothing of it: folded they are ones, and no sign of
    the latent moves them."""
    return atom.diag and atom.name in spec.latents


def signature(spec: Spec, atoms: tuple[Atom, ...]) -> tuple[str, ...]:
    """The active spaces of a leaf, bases before fibres."""
    names = {a.name for a in atoms}
    return tuple(name for name in spec.ordered if name in names)


def cross_gram(spec: Spec, x: Tensor, y: Tensor, atoms: tuple[Atom, ...]) -> Cross:
    """The cross-Gram of one leaf of the anchor (x) and the source (y)."""

    spaces = signature(spec, atoms)
    names = [a.name for a in atoms]
    batch = [n for n in dict.fromkeys(i for s in spaces for i in spec.batch(spec.spaces[s])) if n not in spaces]
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left: dict[str, str] = {}
    right: dict[str, str] = {}
    for name in dict.fromkeys(names):
        left[name] = next(letters)
        right[name] = next(letters) if name in spaces else left[name]
    out = "".join(left[n] for n in batch) + "".join(left[s] + right[s] for s in spaces)
    term_x, term_y = ("".join(side[n] for n in names) for side in (left, right))
    dims = (*batch, *(f"{s}{end}" for s in spaces for end in "+-"))
    return Cross(dims, torch.einsum(f"{term_x},{term_y}->{out}", x, y))


def cross_grams(spec: Spec, pairs: Iterable[Leaf]) -> Crosses:
    """The cross-Grams of many leaves, added up by the spaces that act on them."""
    crosses: Crosses = {}
    for x, y, atoms in pairs:
        spaces = signature(spec, atoms)
        if not spaces:
            continue
        if spaces in crosses and _added(crosses[spaces], x, y, [a.name for a in atoms]):
            continue
        cross = cross_gram(spec, x, y, atoms)
        if spaces in crosses:
            cross = Cross(cross.dims, crosses[spaces].arrange(cross.dims) + cross.data)
        crosses[spaces] = cross
    return crosses


def _added(cross: Cross, x: Tensor, y: Tensor, names: list[str]) -> bool:
    """Add a leaf to the cross-Gram [n, n] of one space in place; False where it is another. A layer's n^2 numbers
    are many."""
    space = cross.dims[0].removesuffix("+")
    if cross.dims != (f"{space}+", f"{space}-") or names.count(space) != 1 or cross.data.dtype != x.dtype:
        return False
    u, v = (t.movedim(names.index(space), 0).reshape(len(cross.data), -1) for t in (x, y))
    cross.data.addmm_(u, v.mT)
    return True


def cross_size(spec: Spec, atoms: tuple[Atom, ...]) -> int:
    """How many numbers the cross-Gram of a leaf has."""
    size = 1
    spaces = signature(spec, atoms)
    for name in {i for s in spaces for i in spec.batch(spec.spaces[s])} - set(spaces):
        size *= spec.sizes[name]
    for name in spaces:
        size *= spec.sizes[name] ** 2
    return size


def in_order(spec: Spec, name: str, element: Cross) -> Tensor:
    """An element with its batch dims in the order of the space's indices."""
    wanted = [element.dims.index(i) for i in spec.batch(spec.spaces[name])]
    rest = range(len(element.dims) - 1, element.data.ndim)
    return element.data.permute(*wanted, *rest).contiguous()


def along(
    spec: Spec, name: str, tensors: Mapping[Block, Tensor], only: Callable[[tuple[Atom, ...]], bool] | None = None
) -> Iterator[tuple[Tensor, Atom]]:
    """The leaves that one space's element acts on (those of them whose atoms pass ``only``), float64 [*batch, n,
    others], with the atom of its axis."""
    for x, atom in _along(spec, name, tensors, only):
        x = x.double()
        yield x.reshape(*x.shape[: len(spec.batch(spec.spaces[name])) + 1], -1), atom


def _along(
    spec: Spec, name: str, tensors: Mapping[Block, Tensor], only: Callable[[tuple[Atom, ...]], bool] | None = None
) -> Iterator[tuple[Tensor, Atom]]:
    """As `along`, views [*batch, n, *others] of what is given."""
    for _, (view,), atoms, order in acted_on(spec, spec.spaces[name], tensors):
        if only is None or only(atoms):
            yield view.permute(order), atoms[order[len(spec.batch(spec.spaces[name]))]]


def self_grams(spec: Spec, name: str, tensors: Mapping[Block, Tensor]) -> tuple[Tensor, Tensor] | None:
    """The self-Grams of the plain and of the dual side of one space's element, float64 [*batch, n, n] each.

    Returns None when one side is absent: the orbit then has no minimum-norm point.
    """

    sides: dict[bool, Tensor] = {}
    depth = len(spec.batch(spec.spaces[name]))
    for x, atom in _along(spec, name, tensors):
        if atom.dual not in sides:
            shape = (*x.shape[: depth + 1], x.shape[depth])
            sides[atom.dual] = torch.zeros(shape, dtype=torch.float64, device=x.device)
        add_products({(0, 0): sides[atom.dual]}, [x], depth)
    return (sides[False], sides[True]) if len(sides) == 2 else None


def side_widths(spec: Spec, name: str, tensors: Mapping[Block, Tensor]) -> tuple[int, int]:
    """How many numbers the plain and the dual side of one space's element have for each of its coordinates."""
    widths = {False: 0, True: 0}
    depth = len(spec.batch(spec.spaces[name]))
    for x, atom in _along(spec, name, tensors):
        widths[atom.dual] += prod(x.shape[depth + 1 :])
    return widths[False], widths[True]


def add_products(grams: Mapping[tuple[int, int], Tensor], parts: Sequence[Tensor], depth: int) -> None:
    """Add products of the rows of tensors [*batch, n, *others] of one shape to Grams [*batch, n, n], by the numbers
    of both sides.

    Piece by piece in the order of memory, so that what is made of a piece in float64 stays in the cache: the whole
    in float64 is twice the tensor in memory that the system clears first, and took more time than the products.
    ``depth`` is the number of batch axes.
    """
    x = parts[0]
    n = x.shape[depth]
    # half a piece: in float64 the whole of one would be mapped afresh. Adding a Gram [n, n] is not to take longer
    # than making it
    largest = max(PIECE // 2, FEWEST * n)
    if x.numel() <= largest:
        rows = [_rows(part, depth) for part in parts]
        for (i, j), gram in grams.items():
            if n == 1:
                gram += (rows[i] * rows[j]).sum(-1, keepdim=True)
            elif gram.ndim == 3:  # a product of its own would be mapped afresh
                gram.baddbmm_(rows[i], rows[j].mT)
            else:
                gram += rows[i] @ rows[j].mT
        return
    axis = max((k for k in range(x.ndim) if k != depth and x.shape[k] > 1), key=x.stride)
    size = max(1, largest * x.shape[axis] // x.numel())
    batches = {pair: gram.split(size, axis) for pair, gram in grams.items()} if axis < depth else None
    for at, pieces in enumerate(zip(*(part.split(size, axis) for part in parts), strict=True)):
        chosen = grams if batches is None else {pair: some[at] for pair, some in batches.items()}
        add_products(chosen, pieces, depth)


def _rows(x: Tensor, depth: int) -> Tensor:
    """[*batch, n, *others] as [*batch, n, all others] in float64."""
    return x.double().flatten(depth + 1) if x.ndim > depth + 1 else x.double().unsqueeze(-1)


def acted_on(
    spec: Spec, space: Space, *models: Mapping[Block, Tensor]
) -> Iterator[tuple[Block, tuple[Tensor, ...], tuple[Atom, ...], list[int]]]:
    """Every leaf that a space acts on, of each model, gains that are stored less one whole: its block, the leaves,
    their atoms, and the order of axes that has the space's batch axes first, then the space, then the rest."""
    for block in models[0]:
        for parts, atoms, _ in whole_leaves(spec, block, *(model[block] for model in models)):
            names = [atom.name for atom in atoms]
            if space.name in names:
                first = [*(names.index(i) for i in spec.batch(space)), names.index(space.name)]
                yield block, parts, atoms, first + [k for k in range(len(names)) if k not in first]


def sides(
    spec: Spec, space: Space, anchor: Mapping[Block, Tensor], source: Mapping[Block, Tensor]
) -> Iterator[tuple[bool, tuple[Tensor, ...], list[int]]]:
    """Of `acted_on`, without gains of latents: whether on the dual side, the leaf of both models, and the order."""
    for _, pair, atoms, order in acted_on(spec, space, anchor, source):
        atom = atoms[order[len(spec.batch(space))]]
        if not is_gain_of_latent(spec, atom):
            yield atom.dual, pair, order

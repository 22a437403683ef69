"""Two-level matching of experts: neurons inside experts, experts inside the layer.

A cross-Gram over all pairs of experts and neurons would have (E n)^2 entries, so pairs of experts are scored one
after the other. Scoring all E^2 pairs by their exact inner assignments is affordable for small experts; for large
ones a profile that no inner symmetry changes (sorted neuron norms, router rows) proposes the pairs. Spaces that
meet inside a block take turns there, as those of a layer do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Literal

import torch
from torch import Tensor

from isomerge.matching.alternation import alternate, meeting
from isomerge.matching.gram import Cross, Leaf, cross_grams, cross_size, signature
from isomerge.matching.nested import NestedSolver, Solution
from isomerge.matching.sketch import solve_neurons
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stage import element_key

# Numbers in one cross-Gram: 2^27 float32 are half a gigabyte.
LARGEST = 1 << 27
# The same of spaces that meet inside one block: from each of two dozen starts each takes several turns.
CROWD = 1 << 22
# Multiplications that scoring all pairs of experts exactly may cost: about ten seconds on one core.
BUDGET = 1e12


def solve_leaves(solver: NestedSolver, leaves: list[Leaf]) -> Solution:
    """Solve one unit from its leaves: without all pairs where the optimum is proven so, at once when the
    cross-Grams fit; when they do not, in turns what meets, and expert by expert."""
    spec = solver.spec
    if (proven := solve_neurons(solver, leaves)) is not None:
        return proven
    if not any(_too_large(spec, atoms) for _, _, atoms in leaves):
        return solver.solve(cross_grams(spec, leaves))
    if bases := meeting(spec, [atoms for _, _, atoms in leaves]):
        return _in_turns(solver, leaves, bases)
    tops = {signature(spec, atoms)[0] for _, _, atoms in leaves if signature(spec, atoms)}
    solution = Solution(Cross((), leaves[0][0].new_zeros(()).double()))
    for top in sorted(tops):
        mine = [leaf for leaf in leaves if signature(spec, leaf[2])[:1] == (top,)]
        solution.elements |= _solve_base(solver, top, mine)
    return solution


def _too_large(spec: Spec, atoms: tuple[Atom, ...]) -> bool:
    """Whether a cross-Gram is larger than memory allows because of what is fibred over its base.

    A dense layer's n^2 numbers are no such case: the assignment needs them anyway.
    """
    inner = signature(spec, atoms)[1:]
    return any(spec.sizes[name] > 1 for name in inner) and (
        cross_size(spec, atoms) > LARGEST or _crowd(spec, atoms) > CROWD
    )


def _crowd(spec: Spec, atoms: tuple[Atom, ...]) -> int:
    """How many numbers the cross-Gram of one block has in the spaces that meet there; none where only one is."""
    names = signature(spec, atoms)
    over = {name: {*spec.spaces[name].index} & {*names} for name in names}
    base = names[0] if all(names[0] in over[name] for name in names[1:]) else None
    met = [name for name in names if name != base and over[name] <= {base}]
    return prod(spec.sizes[name] ** 2 for name in met) if len(met) > 1 else 0


def _solve_base(solver: NestedSolver, top: str, leaves: list[Leaf]) -> dict[str, Cross]:
    """One base whose blocks are matched pair by pair."""

    spec, n = solver.spec, solver.spec.sizes[top]
    own = cross_grams(spec, [leaf for leaf in leaves if signature(spec, leaf[2]) == (top,)])
    inside = [leaf for leaf in leaves if len(signature(spec, leaf[2])) > 1]
    base = own[(top,)].arrange((f"{top}+", f"{top}-")).double() if own else torch.zeros(n, n, dtype=torch.float64)
    deep = _nested(_within(spec, top), [_others(atoms, top) for _, _, atoms in inside])
    if not deep and _pair_cost(spec, top, inside) * n * n <= BUDGET:
        scores = [[_solve_pair(solver, top, inside, i, j).score.data for j in range(n)] for i in range(n)]
        profit = base + torch.tensor(scores, dtype=torch.float64)
    else:
        anchor, source = (_profile(spec, top, inside, side) for side in ("anchor", "source"))
        profit = 2 * base - torch.cdist(anchor, source).square()
    p, _ = spec.spaces[top].group.solve(profit)
    parts = [_solve_pair(solver, top, inside, i, int(p[i]), elements=True).elements for i in range(n)]
    back = p.argsort()  # elements are labelled by the source's own blocks
    elements = {top: Cross(("*",), p)}
    for name in parts[0]:
        stacked = torch.stack([part[name].data for part in parts])[back]
        elements[name] = Cross((top, *parts[0][name].dims), stacked)
    return elements


def _widest(spec: Spec, atoms: tuple[Atom, ...], top: str) -> str:
    """The largest space inside a block of the base: its neurons."""
    return max((s for s in signature(spec, atoms) if s != top), key=lambda s: spec.sizes[s])


def _pair_cost(spec: Spec, top: str, leaves: list[Leaf]) -> float:
    """Multiplications of one pair of blocks: every neuron against every other."""
    return sum(spec.sizes[_widest(spec, atoms, top)] * x.numel() / spec.sizes[top] for x, _, atoms in leaves)


def _solve_pair(
    solver: NestedSolver, top: str, leaves: list[Leaf], i: int, j: int, *, elements: bool = False
) -> Solution:
    """The problem inside block i of the anchor and block j of the source."""
    spec = _within(solver.spec, top)
    inner: list[Leaf] = []
    for x, y, atoms in leaves:
        at = [a.name for a in atoms].index(top)
        inner.append((x.select(at, i), y.select(at, j), _others(atoms, top)))
    within = NestedSolver(spec, solver.decided)
    views = [atoms for _, _, atoms in inner]
    if any(_crowd(spec, atoms) > CROWD for atoms in views) and (bases := meeting(spec, views)):
        return _in_turns(within, inner, bases)
    if elements and _nested(spec, [atoms for _, _, atoms in inner]):
        return solve_leaves(within, inner)  # groups of experts: expert by expert again
    return within.solve(cross_grams(spec, inner), (), elements)


def _in_turns(solver: NestedSolver, leaves: list[Leaf], bases: dict[str, frozenset[str]]) -> Solution:
    """Spaces that meet, and all at once have too large a cross-Gram: each with the others where they are."""
    spec = solver.spec
    spaces = [spec.spaces[name] for names in bases.values() for name in names]
    scope = {i: 0 for space in spaces for i in spec.scope(space)}  # a layer is one already
    keys = {space.name: element_key(spec, space, scope) for space in spaces}
    elements, score = alternate(solver, leaves, bases, keys, scope, solve_leaves)
    by_space = {space.name: elements[keys[space.name]] for space in spaces if keys[space.name] in elements}
    return Solution(
        Cross((), torch.tensor(score, dtype=torch.float64)),
        {name: Cross((*spec.batch(spec.spaces[name]), "*"), g) for name, g in by_space.items()},
    )


def _nested(spec: Spec, inner: Sequence[tuple[Atom, ...]]) -> bool:
    """Whether the leaves inside a block are too large as well, and are nothing but blocks again: groups of
    experts."""
    names = {name for atoms in inner for name in signature(spec, atoms)}
    batch = {i for name in names for i in spec.batch(spec.spaces[name])}
    deep = batch <= spec.spaces.keys() and any(_too_large(spec, atoms) for atoms in inner)
    return deep and not meeting(spec, inner)


def _within(spec: Spec, top: str) -> Spec:
    """The spec inside one block of a base."""
    spaces = {
        n: replace(s, index=tuple(i for i in s.index if i != top)) for n, s in spec.spaces.items() if n != top
    }
    return replace(spec, spaces=spaces)


def _others(atoms: tuple[Atom, ...], top: str) -> tuple[Atom, ...]:
    """The axes of a leaf but the base's."""
    at = [a.name for a in atoms].index(top)
    return atoms[:at] + atoms[at + 1 :]


def _profile(spec: Spec, top: str, leaves: list[Leaf], side: Literal["anchor", "source"]) -> Tensor:
    """What no inner permutation or sign changes: the sorted norms of each block's neurons, [n, features]."""

    rows = []
    for x, y, atoms in leaves:
        t = x if side == "anchor" else y
        names = [a.name for a in atoms]
        permuted = [s for s in signature(spec, atoms) if s != top and spec.spaces[s].group.compact == "Perm"]
        order = [names.index(name) for name in (top, *(permuted or [_widest(spec, atoms, top)]))]
        rest = [k for k in range(t.ndim) if k not in order]
        norms = t.permute(*order, *rest).flatten(len(order)).norm(dim=-1) if rest else t.permute(*order).abs()
        rows.append(norms.double().flatten(1).sort(-1).values)
    return torch.cat(rows, -1)

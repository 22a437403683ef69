"""Two-level matching of experts: neurons inside experts, experts inside the layer.

A cross-Gram over all pairs of experts and neurons would have (E n)^2 entries, so pairs of experts are scored one
after the other. Scoring all E^2 pairs by their exact inner assignments is affordable for small experts; for large
ones a profile that no inner symmetry changes (sorted neuron norms, router rows) proposes the pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isomerge.matching.gram import Cross, Leaf, cross_grams, cross_size, signature
from isomerge.matching.nested import NestedSolver, Solution

if TYPE_CHECKING:
    from torch import Tensor

# Numbers in one cross-Gram: 2^27 float32 are half a gigabyte.
LARGEST = 1 << 27
# Multiplications that scoring all pairs of experts exactly may cost: about ten seconds on one core.
BUDGET = 1e12


def solve_leaves(solver: NestedSolver, leaves: list[Leaf]) -> Solution:
    """Solve one unit from its leaves: at once when the cross-Grams fit, expert by expert when they do not."""
    spec = solver.spec
    if max((cross_size(spec, atoms) for _, _, atoms in leaves), default=0) <= LARGEST:
        return solver.solve(cross_grams(spec, leaves))
    tops = {signature(spec, atoms)[0] for _, _, atoms in leaves if signature(spec, atoms)}
    found = Solution(Cross((), leaves[0][0].new_zeros(()).double()))
    for top in sorted(tops):
        mine = [leaf for leaf in leaves if signature(spec, leaf[2])[:1] == (top,)]
        found.elements |= _solve_base(solver, top, mine)
    return found


def _solve_base(solver: NestedSolver, top: str, leaves: list[Leaf]) -> dict[str, Cross]:
    """One base whose blocks are matched pair by pair."""
    import torch

    spec = solver.spec
    own = cross_grams(spec, [leaf for leaf in leaves if signature(spec, leaf[2]) == (top,)])
    fibred = [leaf for leaf in leaves if len(signature(spec, leaf[2])) > 1]
    n = spec.sizes[top]
    base = own[(top,)].arrange((f"{top}+", f"{top}-")).double() if own else torch.zeros(n, n, dtype=torch.float64)
    cost = (
        n
        * n
        * max(
            cross_size(spec, atoms) / n**2 * x.numel() / n / spec.sizes[_widest(spec, atoms, top)]
            for x, _, atoms in fibred
        )
    )
    if cost <= BUDGET:
        profit = base + torch.stack(
            [torch.stack([_pair(solver, top, fibred, i, j).score.data for j in range(n)]) for i in range(n)]
        )
    else:
        profit = 2 * base - torch.cdist(_profile(spec, top, fibred, 0), _profile(spec, top, fibred, 1)).square()
    p, _ = spec.spaces[top].group.solve(profit)
    parts = [_pair(solver, top, fibred, i, int(p[i]), elements=True).elements for i in range(n)]
    back = p.argsort()  # elements are labelled by the source's own experts
    elements = {top: Cross(("*",), p)}
    for name in parts[0]:
        stacked = torch.stack([part[name].data for part in parts])[back]
        elements[name] = Cross((top, *parts[0][name].dims), stacked)
    return elements


def _widest(spec, atoms, top: str) -> str:
    return max((s for s in signature(spec, atoms) if s != top), key=lambda s: spec.sizes[s])


def _pair(
    solver: NestedSolver, top: str, leaves: list[Leaf], i: int, j: int, *, elements: bool = False
) -> Solution:
    """The problem inside one pair of blocks."""
    inner = []
    for x, y, atoms in leaves:
        at = [a.name for a in atoms].index(top)
        inner.append((x.select(at, i), y.select(at, j), atoms[:at] + atoms[at + 1 :]))
    crosses = {sig: Cross(_without(c, top), c.data) for sig, c in cross_grams(_inside(solver, top), inner).items()}
    return NestedSolver(_inside(solver, top), solver.given).solve(crosses, (), elements)


def _without(cross: Cross, top: str) -> tuple[str, ...]:
    return tuple(d for d in cross.dims if d != top)


def _inside(solver: NestedSolver, top: str):
    """The spec as seen inside one block of the base: the base's index is gone."""
    from dataclasses import replace

    spec = solver.spec
    spaces = {
        n: replace(s, index=tuple(i for i in s.index if i != top)) for n, s in spec.spaces.items() if n != top
    }
    return replace(spec, spaces=spaces)


def _profile(spec, top: str, leaves: list[Leaf], side: int) -> Tensor:
    """What no inner permutation or sign changes: the sorted norms of each block's neurons, [n, features]."""
    import torch

    rows = []
    for leaf in leaves:
        x, atoms = leaf[side], leaf[2]
        names = [a.name for a in atoms]
        wide = _widest(spec, atoms, top)
        order = [names.index(top), names.index(wide)]
        rest = [k for k in range(x.ndim) if k not in order]
        norms = x.permute(*order, *rest).flatten(2).norm(dim=-1) if rest else x.permute(*order).abs()
        rows.append(norms.double().sort(-1).values)
    return torch.cat(rows, -1)

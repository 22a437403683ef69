"""Bases that meet in one tensor, each solved with the others where they are: DeepSeek's heads and latents.

``kv_b_proj`` is read by heads and reads a latent: both are permuted, and both carry elements of their own. One
cross-Gram over all pairs of heads, of their coordinates and of latent coordinates at once would have (n d r)^2
numbers, so the bases take turns: block coordinate ascent of ``<A, g B>``, which never falls. The first turn of a
base sees the tensors in which it is alone and those in which an earlier turn decided all else: a moved copy is
matched at once where a base has a tensor of its own, and no solution depends on the basis that a source is stored
in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor

from isomerge.matching.gram import Leaf, in_order, signature
from isomerge.matching.nested import NestedSolver, Solution
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.axes import Atom
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.spec import Spec

# Rounds of ascent; each round cannot lower the score, and practice needs fewer than ten.
ROUNDS = 30


def trees(spec: Spec, blocks: Iterable[Block]) -> dict[str, frozenset[str]]:
    """The bases of a unit, each with all that is fibred over it; empty unless bases with fibres meet in one tensor.

    Args:
        spec: the spec with the active spaces.
        blocks: the unit's.
    """
    bases = meeting(spec, (atoms for block in blocks for atoms in block.parts))
    return bases if any(len(names) > 1 for names in bases.values()) else {}


def meeting(spec: Spec, views: Iterable[tuple[Atom, ...]]) -> dict[str, frozenset[str]]:
    """The same of leaves with these axes, and also where nothing lies over any of the bases that meet."""
    signatures = {signature(spec, atoms) for atoms in views}
    used = [n for n in spec.ordered if any(n in sig for sig in signatures)]
    roots: dict[str, str] = {}
    for name in used:  # bases come first
        roots[name] = next((roots[i] for i in spec.spaces[name].index if i in roots), name)
    if not any(len({roots[n] for n in sig}) > 1 for sig in signatures):
        return {}
    return {top: frozenset(n for n, root in roots.items() if root == top) for top in dict.fromkeys(roots.values())}


def alternate(
    solver: NestedSolver,
    leaves: Sequence[Leaf],
    bases: Mapping[str, frozenset[str]],
    keys: Mapping[str, str],
    scope: Mapping[str, int],
    solve: Callable[[NestedSolver, list[Leaf]], Solution],
) -> tuple[dict[str, Tensor], float]:
    """The compact elements of a unit whose bases meet, by element key, and their score.

    Args:
        solver: the spec with the active spaces, and what the whole stack has decided.
        leaves: the atom views of the anchor and of the source, float32 or float64; not changed.
        bases: see `trees`.
        keys: the element key of every space.
        scope: the layer, by scope index.
        solve: finds the elements of one base with all that is fibred over it.
    """
    spec = solver.spec
    elements_of_base: dict[str, dict[str, Tensor]] = {}
    decided: dict[str, set[str]] = {top: set() for top in bases}
    order = sorted(bases, key=lambda top: (-_alone(spec, leaves, bases[top]), list(bases).index(top)))
    before, score, g = float("-inf"), 0.0, Alignment(spec)
    for _ in range(ROUNDS):
        for top in order:
            others = Alignment(
                spec, {k: g for name, own in elements_of_base.items() if name != top for k, g in own.items()}
            )
            # what no tensor has decided yet, in whatever basis the source has it
            waiting = {n for base, names in bases.items() if base != top for n in names - decided[base]}
            acted_on = [leaf for leaf in leaves if bases[top] & set(signature(spec, leaf[2]))]
            clear = [leaf for leaf in acted_on if not waiting & set(signature(spec, leaf[2]))]
            moved = [(x, _moved(others, y, atoms, scope), atoms) for x, y, atoms in clear or acted_on]
            part = NestedSolver(spec.restrict(bases[top]), solver.decided)
            elements = solve(part, moved).elements
            elements_of_base[top] = {keys[n]: in_order(spec, n, g) for n, g in elements.items()}
            decided[top] = {*elements}
        g = Alignment(spec, {k: v for part in elements_of_base.values() for k, v in part.items()})
        score = sum(float((x.double() * _moved(g, y, atoms, scope)).sum()) for x, y, atoms in leaves)
        if score - before <= 1e-9 * abs(score):  # rounding
            break
        before = score
    return dict(g.elements), score


def _alone(spec: Spec, leaves: Sequence[Leaf], names: frozenset[str]) -> float:
    """The share of a base's tensors in which no other base acts, by squared norm."""
    norms = {True: 0.0, False: 0.0}
    for x, _, atoms in leaves:
        acting = set(signature(spec, atoms))
        if acting & names:
            norms[acting <= names] += float(x.double().square().sum())
    return norms[True] / (sum(norms.values()) or 1.0)


def _moved(g: Alignment, view: Tensor, atoms: tuple[Atom, ...], scope: Mapping[str, int]) -> Tensor:
    """A copy of an atom view after an element."""
    copy = view.clone()
    g.act_on_view(copy, atoms, scope)
    return copy

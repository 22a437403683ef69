"""Matching one unit: the element that brings the source's blocks onto the anchor's.

Latents that are turned: what is written, normed and read inside one layer (DeepSeek's), matched by rotations.

A latent is a residual stream of one layer. Its norm's gains fold into what reads it, ``W diag(g)``, and then any
rotation of the latent leaves the function as it is: writers ``R W``, gains of ones, readers ``W R^T``. The anchor's
gains are taken on afterwards. Between models in one basis that costs what gains differ by, and a rotation has
little to give; so with a guard both are tried where they are unrelated, and the nearer is taken.

Rotations and their factors from one pass over the weights: the attention of the seed paper's Algorithm 1.

Rotating keeps lengths, and ``<x2, R x1> = tr(R^T C)`` with the cross-Gram C: all four numbers of Eq. 12 follow from
what Eq. 10 needs already, so that nothing is moved in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.matching.alternation import alternate, trees
from isomerge.matching.balance import canonical_gauge
from isomerge.matching.distances import distance, squared_distance, squared_norm
from isomerge.matching.experts import solve_leaves
from isomerge.matching.frame import folded_gains, gains_over_streams, whole_gain
from isomerge.matching.gram import Leaf, cross_grams, in_order, paired_leaves, sides, signature
from isomerge.matching.nested import NestedSolver
from isomerge.matching.neuron_scale import neuron_candidate, related_neurons
from isomerge.matching.refine import match_trades, refine, scaling_step
from isomerge.matching.selection import Selection
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block, Blocks, leaves
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.groups import SCALES
from isomerge.symmetry.language.spec import Space, Spec
from isomerge.symmetry.stage import find_shifts
from isomerge.symmetry.units import elements_of

# A unit whose distance would fall by less than this fraction keeps the identity: rounding, not a match.
GAIN = 1e-6
Carries = Callable[[Alignment, Blocks], bool]


@dataclass(frozen=True)
class Moved:
    """A unit matched and moved."""

    alignment: Alignment
    blocks: Blocks
    """The source's, moved by the alignment; what it leaves alone are the given tensors."""
    dead: list[str]
    """The element keys of dead blocks that could not be balanced."""
    gaps: dict[Block, float] | None = None
    """Squared distances to the anchor by block, where they were measured."""


def move_unit(
    selection: Selection,
    anchor: Blocks,
    source: Blocks,
    votes: dict[str, Tensor] | None = None,
    *,
    guard: bool,
    apart: float | None = None,
    carries: Carries | None = None,
) -> Moved:
    """The element that moves the source's blocks of one unit onto the anchor's, and what it makes of them, in new
    tensors.

    Args:
        selection: the active spaces and how to solve them.
        anchor, source: the unit's blocks by block, float32 or float64; not changed.
        votes: elements already decided for the whole stack, by space name.
        guard: measure in the anchor's own coordinates and take the best of the balanced solution, the plain
            one, the one with neurons matched together with their scales, and the identity, so that the distance
            never rises. Without it the result depends on the two orbits alone (merging is then a function of
            orbits).
        apart: the squared distance of the blocks as they are, where it is known.
        carries: with ``guard``, whether an element may be taken, by what it makes of the source's blocks: of those
            that may, the nearest is.
    """
    spec, votes = selection.spec, votes or {}
    if not any(elements_of(spec, block) for block in anchor) and not spec.shifts:
        return Moved(Alignment(spec), dict(source), [])
    if have_gains(spec, anchor):
        return _move_latents(selection, anchor, source, votes, guard=guard, apart=apart, carries=carries)
    best, dead = None, []
    if guard and selection.gauge and not votes and (proven := related_neurons(spec, anchor, source)) is not None:
        bar = (distance(anchor, source) if apart is None else apart) * (1 - GAIN)
        stay = Moved(Alignment(spec), dict(source), [])
        return _nearer(anchor, source, Moved(proven, source, []), stay, bar, carries)
    if selection.rescale and not votes:
        best = rotations_and_factors(spec, anchor, source, joint=selection.joint, rotate=selection.rotate)
    if best is None and not selection.rotate and _continuous(spec, anchor):
        best = _refined(spec, anchor, source, Alignment(spec), rotate=False, shift=False)[0]
    if best is None:
        best, dead = _solve(selection, anchor, source, votes, gauge=selection.gauge)
        if selection.rescale and _gauged(spec, anchor):
            best = _refined(spec, anchor, source, best, rotate=False, shift=False, joint=selection.joint)[0]
    if not guard:
        moved = best.applied(source)
        trades = match_trades(spec, anchor, moved)
        return Moved(trades @ best, trades.applied(moved), dead) if trades else Moved(best, moved, dead)
    return _best(selection, anchor, source, votes, Moved(best, source, dead), apart, carries)


def _move_latents(
    selection: Selection,
    anchor: Blocks,
    source: Blocks,
    votes: dict[str, Tensor],
    *,
    guard: bool,
    apart: float | None,
    carries: Carries | None,
) -> Moved:
    """`move_unit` of a unit with latents that turn. With a guard they do where that is nearer, and are not tried
    between models that have one basis there."""
    spec = selection.spec
    still, stay = replace(selection, spec=selection.unfolded), None
    if guard:
        stay = move_unit(still, anchor, source, votes, guard=True, apart=apart, carries=carries)
        if have_one_basis(spec, anchor, stay.blocks):
            return stay
    folds = latent_folds(spec, anchor, source)
    if folds is None:
        return stay or move_unit(still, anchor, source, votes, guard=guard)
    to_anchor, to_source = folds
    inner = replace(selection, spec=selection.inner)
    match = move_unit(inner, to_anchor.applied(anchor), to_source.applied(source), votes, guard=guard)
    g = to_anchor.inverse() @ match.alignment @ to_source
    moved = Moved(g, g.applied(source), match.dead)
    if stay is None:
        return moved
    nearer = distance(anchor, moved.blocks) < distance(anchor, stay.blocks)
    return moved if nearer and (carries is None or carries(g, moved.blocks)) else stay


def _best(
    selection: Selection,
    anchor: Blocks,
    source: Blocks,
    votes: dict[str, Tensor],
    match: Moved,
    apart: float | None,
    carries: Carries | None,
) -> Moved:
    """The best of several candidates by the distance itself; the identity where nothing gains."""
    spec = selection.spec
    fixed = Alignment(spec, {k: g for k, g in match.alignment.items() if ElementKey.of(k).name in votes})
    stay = Moved(fixed, fixed.applied(source), match.dead)
    bar = (apart if apart is not None and not fixed else distance(anchor, stay.blocks)) * (1 - GAIN)
    best = match.alignment
    if selection.gauge and _gauged(spec, anchor):
        plain, _ = _solve(selection, anchor, source, votes, gauge=False)
        scaled = neuron_candidate(spec, anchor, source, best)
        starts = _different(spec, anchor, [best, plain, fixed, *([scaled] if scaled is not None else [])])
        trials = [_refined(spec, anchor, source, g, linear=False) for g in starts]
        if any(space.group_name == "GL" for space in _continuous(spec, anchor)):
            # general linear spaces are solved once, from the best permutations
            trials.append(_refined(spec, anchor, source, min(trials, key=lambda trial: trial[1])[0]))
        for best, reached in sorted(trials, key=lambda trial: trial[1]):
            if reached >= bar:
                return stay
            moved = best.applied(source)
            if carries is None or carries(best, moved):
                return Moved(best, moved, match.dead)
        match = Moved(plain, source, match.dead)  # of compact elements alone, which stretch nothing
    # the assignment of permutations alone is optimal as it stands, and so are the paper's two steps
    return _nearer(anchor, source, match, stay, bar, carries)


def _nearer(
    anchor: Blocks, source: Blocks, match: Moved, stay: Moved, bar: float, carries: Carries | None
) -> Moved:
    """The match, moved and measured, where it is nearer than the bar and may be taken; else what stays."""
    moved = match.alignment.applied(source)
    gaps = {block: squared_distance(t, moved[block]) for block, t in anchor.items()}
    taken = sum(gaps.values()) < bar and (carries is None or carries(match.alignment, moved))
    return Moved(match.alignment, moved, match.dead, gaps) if taken else stay


def _gauged(spec: Spec, blocks: Blocks) -> bool:
    """Whether continuous spaces or shifts act on a unit, so that the gauge matters."""
    return bool(_continuous(spec, blocks)) or bool(find_shifts(spec, list(blocks)))


def _continuous(spec: Spec, blocks: Blocks) -> list[Space]:
    """The continuous spaces that act on a unit."""
    spaces = {space.name: space for block in blocks for space in elements_of(spec, block).values()}
    return [space for space in spaces.values() if space.group.dimension(spec.sizes[space.name])]


def _different(spec: Spec, blocks: Blocks, starts: Sequence[Alignment]) -> list[Alignment]:
    """Those of the starts that refining tells apart; the first one comes from between canonical gauges.

    Where one factor per neuron is all that is continuous, its exact optimum follows from the permutations.
    Elsewhere what was matched in the anchor's own coordinates follows from them: refining begins with rotations,
    phases and factors of the whole.
    """
    spaces = {key: space for block in blocks for key, space in elements_of(spec, block).items()}
    continuous = _continuous(spec, blocks)
    if any(space.group.name in SCALES and spec.sizes[space.name] > 1 for space in continuous):
        return list(starts)  # signs of coordinates are not solved again
    factors = all(space.group_name in SCALES for space in continuous)
    exact = factors and len(continuous) == 1 and not find_shifts(spec, list(blocks))
    kept: dict[tuple[bytes, ...], Alignment] = {}
    for g in starts if exact else starts[1:]:
        discrete = []
        for key, space in spaces.items():
            if space not in continuous:
                batch = tuple(spec.sizes[i] for i in spec.batch(space))
                element = g[key] if key in g else space.group.identity(batch, spec.sizes[space.name])
                discrete.append(element.contiguous().cpu().numpy().tobytes())
        kept.setdefault(tuple(discrete), g)
    return [*([] if exact else starts[:1]), *kept.values()]


def _refined(spec: Spec, anchor: Blocks, source: Blocks, g: Alignment, **how: bool) -> tuple[Alignment, float]:
    """A solution refined in the anchor's coordinates (see `refine` for how), and the distance that it reaches."""
    moved = g.applied(source)
    for block, tensor in source.items():  # refining is in place: what nothing has moved is the source's memory
        if moved[block].data_ptr() == tensor.data_ptr():
            moved[block] = tensor.clone()
    g = refine(spec, anchor, moved, **how) @ g
    return g, distance(anchor, moved)


def _solve(
    selection: Selection, anchor: Blocks, source: Blocks, votes: dict[str, Tensor], *, gauge: bool
) -> tuple[Alignment, list[str]]:
    """The compact solution, between canonical gauges or as the weights stand."""
    spec = selection.spec
    if not gauge:
        return compact_solution(spec, anchor, source, votes), []
    a, b = dict(anchor), dict(source)
    gauging = spec.without({shift.name for shift in spec.shifts if shift.trades})  # see `match_trades`
    to_a, dead_a = canonical_gauge(gauging, a)
    to_b, dead_b = canonical_gauge(gauging, b)
    inner = compact_solution(spec, a, b, votes)
    return to_a.inverse() @ inner @ to_b, sorted({*dead_a, *dead_b})


def compact_solution(
    spec: Spec, anchor: Blocks, source: Blocks, votes: dict[str, Tensor], more: Sequence[Leaf] = ()
) -> Alignment:
    """The compact elements that maximise ``<A, g B>`` over one unit; ``more`` are leaves beside the weights'."""
    keys = unit_keys(spec, anchor)
    if not keys:
        return Alignment(spec)
    # of factors that are positive balancing leaves nothing, and they may lie over what is coupled
    turned = spec.restrict(n for n in (*spec.spaces, *(s.name for s in spec.shifts)) if not _settled(spec, n))
    solver, pairs = NestedSolver(turned, votes), [*paired_leaves(turned, anchor, source), *more]
    if bases := trees(turned, anchor):
        scope = {i: v for block in anchor for i, v in block.scope}
        return Alignment(spec, alternate(solver, pairs, bases, keys, scope, solve_leaves)[0])
    solution = solve_leaves(solver, pairs)
    return Alignment(spec, {keys[n]: in_order(spec, n, g) for n, g in solution.elements.items()})


def _settled(spec: Spec, name: str) -> bool:
    """Whether a space has no compact element but the identity."""
    return name in spec.spaces and spec.spaces[name].group.compact == "Fixed"


def vote(spec: Spec, anchor: Blocks, source: Blocks, name: str) -> Tensor:
    """One unit's profit [n, n] for every pair of a stack-wide space, such as T5's self-attention heads."""
    solver = NestedSolver(spec)
    crosses = cross_grams(spec, paired_leaves(spec, anchor, source))
    return solver.profit(name, {sig: c for sig, c in crosses.items() if sig[0] == name}).double()


def unit_keys(spec: Spec, blocks: Blocks) -> dict[str, str]:
    """From the spaces that act on a unit to its element keys; a unit has one element of a space."""
    keys: dict[str, str] = {}
    for block in blocks:
        for key, space in elements_of(spec, block).items():
            if keys.setdefault(space.name, key) != key:
                acting = (s for b in blocks for s in elements_of(spec, b).values())
                ties = [s.name for s in acting if not spec.scope(s)]
                fix = (
                    f"; space {ties[0]} ties these layers together: declare it `residual {ties[0]}`" if ties else ""
                )
                raise IsomergeError(
                    f"{spec.origin}: space {space.name} has two elements in one unit ({keys[space.name]} and "
                    f"{key}){fix}"
                )
    return keys


RELATED = 0.1
"""The part of their squared norms by which two models' writers of a latent differ, up to which it has one basis in
both: of models that have nothing to do with each other it is one."""


def have_gains(spec: Spec, blocks: Iterable[Block]) -> bool:
    """Whether gains over latents that turn are among what acts on some blocks."""
    return any(not block.names.isdisjoint(spec.gains) for block in blocks)


def latent_folds(spec: Spec, *models: Blocks) -> list[Alignment] | None:
    """What folds the gains over latents into what reads them, in a unit of each of some models; None where a gain
    is zero, which hides what it multiplies."""
    for tensors in models:
        for _, block, scale in gains_over_streams(spec, tensors):
            if bool((whole_gain(spec, block, scale, tensors[block]) == 0).any()):
                return None
    return [folded_gains(spec, list(tensors), tensors.__getitem__) for tensors in models]


def have_one_basis(spec: Spec, anchor: Blocks, source: Blocks) -> bool:
    """Whether what writes the latents of a unit is nearly the same in both models."""
    apart = size = 0.0
    for block, tensor in anchor.items():
        if not block.writes.isdisjoint(spec.turned_latents):
            apart += squared_distance(tensor, source[block])
            size += (squared_norm(tensor) + squared_norm(source[block])) / 2
    return apart <= RELATED * size


def rotations_and_factors(
    spec: Spec,
    anchor: Mapping[Block, Tensor],
    source: Mapping[Block, Tensor],
    *,
    joint: bool,
    rotate: bool = True,
) -> Alignment | None:
    """Algorithm 1 on one unit where every tensor is acted on by one space at most, and no space lies over another.

    Args:
        spec: the spec with the matched spaces active.
        anchor, source: the unit's blocks, float32 or float64; not changed.
        joint: solve a rotation and its factor together (certified global) in place of one after the other.
        rotate: whether there is a rotation, or a factor alone.

    Returns:
        None where the unit is another, or nothing continuous acts.
    """
    keys = {key: space for block in anchor for key, space in elements_of(spec, block).items()}
    names = [space.name for space in keys.values()]
    together = (signature(spec, atoms) for block, t in anchor.items() for _, atoms, _ in leaves(spec, block, t))
    if (
        len(set(names)) < len(names)
        or any(set(spec.batch(space)) & set(names) for space in keys.values())
        or not all(space.group.dimension(spec.sizes[space.name]) for space in keys.values())
        or any(len(spaces) > 1 for spaces in together)
    ):
        return None
    how = {"joint": joint, "rotate": rotate}
    return Alignment(spec, {key: _element(spec, space, anchor, source, **how) for key, space in keys.items()})


def _element(
    spec: Spec,
    space: Space,
    anchor: Mapping[Block, Tensor],
    source: Mapping[Block, Tensor],
    *,
    joint: bool,
    rotate: bool,
) -> Tensor:
    """A compact element (Eq. 10) and its factor (Eq. 12), or both at once."""
    group = space.group
    alpha, beta, plus, minus = crosses_and_squares(spec, space, anchor, source)
    g = group.solve(plus + minus)[0] if rotate else group.identity(tuple(plus.shape[:-2]), plus.shape[-1])
    # the moved source's: its squares are the same, and a compact element acts on both sides alike
    step = scaling_step(space, alpha, beta, group.act(g, plus, False), group.act(g, minus, False), joint)
    return g if step is None else group.compose(step, g)


def crosses_and_squares(
    spec: Spec, space: Space, anchor: Mapping[Block, Tensor], source: Mapping[Block, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the plain and the dual sides of a space: the source's squares [*batch], and the cross-Grams [*batch, n,
    n], float64.

    Products are summed in the dtype of the weights, so that no copy of them is made: float32 leaves 1e-7 of a Gram,
    and the optimum is flat.
    """

    n, batch = spec.sizes[space.name], spec.batch(space)
    shape = tuple(spec.sizes[i] for i in batch)
    squares = [torch.zeros(shape, dtype=torch.float64) for _ in range(2)]
    crosses = [torch.zeros(*shape, n, n, dtype=torch.float64) for _ in range(2)]
    for dual, (x, y), order in sides(spec, space, anchor, source):
        u, v = (t.permute(order).reshape(*shape, n, -1) for t in (x, y))
        crosses[dual] += u @ v.mT
        # along the last axis first, which is in order in memory
        lengths = torch.linalg.vector_norm(y, dim=-1, keepdim=True).double().square()
        if y.ndim - 1 in order[: len(batch)]:
            lengths = y.double().square()
        squares[dual] += lengths.permute(order).reshape(*shape, -1).sum(-1)
    return squares[0], squares[1], crosses[0], crosses[1]

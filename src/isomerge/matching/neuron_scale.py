"""Neurons matched with their scales: the factor of every pair is optimised inside the assignment's cost.

A neuron of a gated MLP may be scaled by any factor (its up row by s, its down column by 1 / s), one of a ReLU MLP by a
positive one. In the anchor's own coordinates the cost of sending neuron j to place i is then
``min_s |s u_j - u_i|^2 + |w_j / s - w_i|^2 + |g_j - g_i|^2`` (g: gate rows and whatever else no factor reaches; biases
count on the side that they belong to). It separates over pairs, so one linear assignment over the exact minima is the
exact optimum over permutations and factors together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from isomerge.matching.gram import signature
from isomerge.matching.rescale import quartic_scale, quartic_value
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Blocks, leaves
from isomerge.symmetry.spec import Spec
from isomerge.symmetry.units import elements_of

if TYPE_CHECKING:
    from torch import Tensor

# Flops that one unit may cost, and what the factor of one pair counts for (about ten Newton steps of memory-bound
# arithmetic): seconds on one core. Larger units keep the assignment without factors.
BUDGET, PAIR = 6e10, 1e3
# Numbers of one chunk of pairs; a dozen such arrays of float64 are alive at once.
CHUNK = 1 << 17


@dataclass
class _Neurons:
    """The rows of one unit's neurons, anchor and moved: float64 [blocks, n, features] each."""

    plain: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    dual: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    free: list[tuple[Tensor, Tensor]] = field(default_factory=list)


def scaled_pairs(spec: Spec, blocks: Blocks) -> list[tuple[str, str]]:
    """The element keys (of neurons, of their scales) of a unit in which scales sit over permuted neurons.

    Nothing else may act on these tensors but bases that number their blocks (experts).
    """
    keys = {space.name: key for block in blocks for key, space in elements_of(spec, block).items()}
    found = []
    for name in keys:
        fibre = spec.spaces[name]
        batch = spec.batch(fibre)
        base = spec.spaces.get(batch[-1]) if batch else None
        if fibre.group_name not in ("Scale", "PositiveScale") or base is None or base.group_name != "Perm":
            continue
        allowed = {name, *batch}
        touching = [signature(spec, a) for b, t in blocks.items() for _, a, _ in leaves(spec, b, t)]
        alone = all(set(sig) <= allowed for sig in touching if base.name in sig)
        if spec.sizes[name] == 1 and spec.batch(base) == batch[:-1] and base.name in keys and alone:
            found.append((keys[base.name], keys[name]))
    return found


def neuron_candidate(spec: Spec, anchor: Blocks, source: Blocks, found: Alignment) -> Alignment | None:
    """A solution with its neurons and their scales replaced by the exact optimum; None where there is none.

    Args:
        spec: the spec with the matched spaces active.
        anchor, source: one unit's blocks; not changed.
        found: a solution of the unit; what it says of experts is kept.
    """
    inner = {key for pair in scaled_pairs(spec, source) for key in pair}
    if not inner:
        return None
    outer = Alignment(spec, {key: g for key, g in found.items() if key not in inner})
    moved = {block: tensor.clone() for block, tensor in source.items()}
    outer.act(moved)
    step = neuron_optimum(spec, anchor, moved)
    return None if step is None else step @ outer


def neuron_optimum(spec: Spec, anchor: Blocks, moved: Blocks, *, budget: float = BUDGET) -> Alignment | None:
    """The exact permutation of neurons together with their factors, in the anchor's own coordinates.

    Args:
        spec: the spec with the matched spaces active.
        anchor: the anchor's blocks of one unit, float32 or float64.
        moved: the source's, with the blocks that hold neurons (experts) already in place.
        budget: flops above which the unit is left out: ``2 n^2 features + 1000 n^2`` for each block of n neurons.

    Returns:
        The elements of neurons and scales, labelled by the moved blocks; None where no scales sit over neurons or
        where all of them are too large. Memory: one profit [n, n] in float64, and chunks of pairs.
    """
    import torch

    elements: dict[str, Tensor] = {}
    for base_key, fibre_key in scaled_pairs(spec, moved):
        base, fibre = (spec.spaces[key.partition("[")[0]] for key in (base_key, fibre_key))
        if _cost(spec, fibre.name, moved) > budget:
            continue
        rows = _rows(spec, fibre.name, anchor, moved)
        signed, found = fibre.group_name == "Scale", []
        for at in range(len((rows.plain or rows.dual or rows.free)[0][0])):
            profit = _profit(rows, at, signed)
            p, _ = base.group.solve(profit)
            found.append((p, _factors(rows, at, p, signed)))
        shape = tuple(spec.sizes[i] for i in spec.batch(fibre))
        elements[base_key] = torch.stack([p for p, _ in found]).reshape(shape)
        elements[fibre_key] = torch.stack([s for _, s in found]).reshape(*shape, 1)
    return Alignment(spec, elements) if elements else None


def _cost(spec: Spec, fibre: str, blocks: Blocks) -> float:
    """Flops of all blocks of neurons."""
    base = spec.batch(spec.spaces[fibre])[-1]
    n, held = spec.sizes[base], 0
    for block, tensor in blocks.items():
        for (view,), atoms, _ in leaves(spec, block, tensor):
            held += view.numel() if base in [a.name for a in atoms] else 0
    count = 1
    for name in spec.batch(spec.spaces[fibre])[:-1]:
        count *= spec.sizes[name]
    return 2.0 * n * held + PAIR * n * n * count


def _rows(spec: Spec, fibre: str, anchor: Blocks, moved: Blocks) -> _Neurons:
    """Sort the leaves of a unit by what a factor does to them."""
    batch = spec.batch(spec.spaces[fibre])
    found = _Neurons()
    for block, a in anchor.items():
        for (x, y), atoms, _ in leaves(spec, block, a, moved[block]):
            names = [atom.name for atom in atoms]
            if batch[-1] not in names:
                continue
            order = [names.index(i) for i in batch]
            rest = [k for k in range(x.ndim) if k not in order]
            n = x.shape[order[-1]]
            x, y = (t.permute(*order, *rest).reshape(-1, n, t.numel() // _block(t, order)) for t in (x, y))
            dual = next((atom.dual for atom in atoms if atom.name == fibre), None)
            side = found.free if dual is None else found.dual if dual else found.plain
            side.append((x, y))
    return found


def _block(tensor: Tensor, order: list[int]) -> int:
    """How many neurons a leaf has, over all of its blocks."""
    count = 1
    for axis in order:
        count *= tensor.shape[axis]
    return count


def _squares(side: list[tuple[Tensor, Tensor]], at: int, n: int) -> Tensor:
    """The moved neurons' squares [n]."""
    import torch

    return sum((y[at].double().square().sum(-1) for _, y in side), torch.zeros(n, dtype=torch.float64))


def _overlaps(side: list[tuple[Tensor, Tensor]], at: int, chunk: slice, n: int) -> Tensor:
    """Inner products [rows, n] of some of the anchor's neurons with all moved ones."""
    import torch

    total = torch.zeros(len(range(n)[chunk]), n, dtype=torch.float64)
    for x, y in side:
        total += x[at, chunk].double() @ y[at].double().mT
    return total


def _profit(rows: _Neurons, at: int, signed: bool) -> Tensor:
    """What the assignment maximises [n, n]: minus half the cost, up to terms of one neuron each."""
    import torch

    n = (rows.plain or rows.dual or rows.free)[0][0].shape[1]
    alpha, beta = _squares(rows.plain, at, n), _squares(rows.dual, at, n)
    profit = torch.empty(n, n, dtype=torch.float64)
    step = max(1, CHUNK // n)
    for low in range(0, n, step):
        chunk = slice(low, low + step)
        plus, minus, free = (_overlaps(side, at, chunk, n) for side in (rows.plain, rows.dual, rows.free))
        profit[chunk] = free - quartic_value(alpha, beta, plus, minus, signed=signed) / 2
    return profit


def _factors(rows: _Neurons, at: int, p: Tensor, signed: bool) -> Tensor:
    """The best factor of every moved neuron [n], given where it goes."""
    import torch

    n = len(p)
    alpha, beta = (_squares(side, at, n)[p] for side in (rows.plain, rows.dual))
    traces = []
    for side in (rows.plain, rows.dual):
        parts = ((x[at].double() * y[at].double()[p]).sum(-1) for x, y in side)
        traces.append(sum(parts, torch.zeros(n, dtype=torch.float64)))
    return quartic_scale(alpha, beta, *traces, signed=signed)[p.argsort()]

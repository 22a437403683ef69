"""Weights in the metric of what they read: data-weighted Procrustes.

The change of a layer's outputs on data is not |A - B|^2 but E |(A - B) x|^2 = |(A - B) C^(1/2)|^2 with C = E x x^T.
So with every reader of a residual stream multiplied by C^(1/2) on its input side, cross-Grams become A C B^T, and
the same solvers find the elements that disturb outputs least. C is the mean of the two models', in the frame in
which both are.

This is for elements inside a layer, with the streams as they are: the solution for a stream itself would change C.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from isomerge.observe.stats.statistics import Statistics
from isomerge.solve.canonical.canonical_units import Key, Tensors
from isomerge.solve.pairs.rematch import solve_again, voted_elements
from isomerge.solve.pairs.stream_descent import StreamSolver, UnitPair
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.groups.general_linear import spectral_power
from isomerge.symmetry.language.spec import Spec


def input_metrics(solver: StreamSolver, statistics: tuple[Statistics, Statistics]) -> dict[str, Tensor]:
    """C^(1/2) float64 [d, d] of every reader of a stream, by block key, with the source's streams turned as they
    are.

    Args:
        solver: its folds and its turn give the frame.
        statistics: of the anchor and of the source, each in its own coordinates.

    Each C is scaled to have the trace of the identity, so that readers count among other tensors as they did.
    """
    of_anchor, of_source = solver.units.folds
    frames = (of_anchor, solver.turn @ of_source)
    moved = [moments.moved(g) for moments, g in zip(statistics, frames, strict=True)]
    roots: dict[tuple[str, str], Tensor] = {}
    metrics = {}
    for block in moved[0].inputs.keys() & moved[1].inputs.keys():
        of_a, of_b = (moments.inputs[block] for moments in moved)
        if (of_a, of_b) not in roots:
            c = (moved[0].grams[of_a] + moved[1].grams[of_b]) / 2
            roots[of_a, of_b] = spectral_power(c * (len(c) / c.trace().clamp_min(1e-300)), 0.5)
        metrics[block] = roots[of_a, of_b]
    return metrics


def in_metric(spec: Spec, unit: UnitPair, metrics: Mapping[str, Tensor]) -> UnitPair:
    """A unit of both models with its readers multiplied by their metric on the input side.

    Args:
        spec: with its streams active.
        unit: not changed.
        metrics: from `input_metrics`; blocks without one stay as they are.
    """

    def weighted(tensors: Mapping[Key, Tensor]) -> Tensors:
        tensors_in_metric = dict(tensors)
        for block, tensor in tensors.items():
            if not isinstance(block, Block) or block.key not in metrics:
                continue
            tensors_in_metric[block] = copy = tensor.clone()
            for (view,), atoms, _ in leaves(spec, block, copy):
                for at in [k for k, a in enumerate(atoms) if a.name in spec.streams and a.dual]:
                    side = view.movedim(at, -1)
                    side.copy_(side @ metrics[block.key].to(side.dtype))
        return tensors_in_metric

    return UnitPair(weighted(unit.anchor), weighted(unit.source))


def solve_in_metric(
    solver: StreamSolver,
    turned: UnitPair,
    metrics: Mapping[str, Tensor],
    fixed: Mapping[str, Tensor] | None = None,
    evidence: str = "weights",
) -> dict[str, Tensor]:
    """The compact elements of one unit with its readers measured by their outputs; see `solve_again`."""
    return solve_again(solver, in_metric(solver.pair.anchor.spec, turned, metrics), evidence, fixed)


def match_in_metric(
    solver: StreamSolver, statistics: tuple[Statistics, Statistics], evidence: str = "weights"
) -> list[str]:
    """Match inside every layer again, by the change of outputs; returns the units that were.

    A step after the descent: the streams stay, and so do heads that a whole stack shares.

    Args:
        solver: whose streams are matched.
        statistics: of the anchor and of the source, each in its own coordinates.
        evidence: a key of `isomerge.solve.match_options.SHARES`; activations count as they did.
    """
    metrics, elements = input_metrics(solver, statistics), {}
    for unit in solver.pair.plan.units:
        if solver.pair.plan.is_matched(unit) and any(block.key in metrics for block in unit.blocks):
            fixed = voted_elements(solver, unit)
            elements[unit.key] = solve_in_metric(solver, solver.turned_unit(unit), metrics, fixed, evidence)
    solver.inner |= elements
    return list(elements)

"""The distance between the orbits of two models: a metric on models modulo their block-local symmetries.

Both are moved to the balanced points of their orbits (``isomerge.matching.balance``), which are unique up to
elements that keep lengths. The smallest distance between two orbits of a group of isometries is a metric:
symmetric, zero on one orbit only, and with the triangle inequality, for ``|a - gh c| <= |a - g b| + |g b - gh c|``.
It is taken where the smallest distance is found exactly: per unit, heads and neurons by assignment, with polar
factors inside; more than four query heads that share a key are solved locally, and with ``streams`` the residual
basis is, so that these are upper bounds.
"""

from __future__ import annotations

from math import sqrt

from isomerge.models.unit_plan import unit_layer
from isomerge.progress import Observer
from isomerge.records import Json
from isomerge.solve.pairs.pair import PairSolver
from isomerge.solve.pairs.residuals import comparing, every_residual, with_framed_stream
from isomerge.symmetry.units import elements_of


def orbit_distance(solver: PairSolver, observer: Observer, *, streams: bool = False) -> Json:
    """The distance between the orbits of two models, over the tensors that both have.

    Args:
        solver: of two models, with the block-local spaces.
        streams: fold norms' gains and match the residual streams first: an upper bound, no longer a metric.

    Returns:
        ``distance`` and ``norm`` (Frobenius, of the balanced representatives), the same per space under ``spaces``
        and per layer under ``layers``, and ``dead`` (elements without a balanced point, which are compared in their
        own gauge).
    """
    solver = comparing(with_framed_stream(solver, observer) if streams else solver)
    spec = solver.plan.selection.spec
    squares: dict[str, dict[str, list[float]]] = {"all": {}, "spaces": {}, "layers": {}}
    dead: list[str] = []
    for unit, rows, dead_in_unit in every_residual(solver, observer):
        dead += dead_in_unit
        layer = unit_layer(unit)
        for block, row in zip(unit.blocks, rows, strict=True):
            spaces = [space.name for space in elements_of(spec, block).values()] or ["fixed"]
            places = [("all", ""), ("layers", "outside" if layer is None else str(layer))]
            for group, name in [*places, *(("spaces", space) for space in spaces)]:
                cell = squares[group].setdefault(name, [0.0, 0.0])
                cell[0], cell[1] = cell[0] + row.residual, cell[1] + row.norm
    shown = {group: {name: _roots(cell) for name, cell in cells.items()} for group, cells in squares.items()}
    whole = shown.pop("all").get("", {"distance": 0.0, "norm": 0.0})
    return {**whole, **shown, "dead": sorted(dead), "streams": streams}


def _roots(cell: list[float]) -> dict[str, float]:
    return {"distance": sqrt(cell[0]), "norm": sqrt(cell[1])}

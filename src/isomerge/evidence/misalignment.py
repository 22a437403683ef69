"""The warning before a merge without alignment: are these models in each other's coordinates at all?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from isomerge.evidence.distance import summarise

if TYPE_CHECKING:
    from isomerge.engine.pairs.pair import PairSolver
    from isomerge.symmetry.units import Unit

# Units looked at: the first, the last, and some between; the warning needs an impression, not a proof.
SAMPLE = 6
# Of the norm: fine-tunes of one base are nearer than this.
NEAR = 0.5
# Models without a common base are further: sqrt(2) where they have nothing in common.
FAR = 0.9


def misalignment(
    models: Sequence[Any],
    *,
    spec: Any = None,
    allow_pickle: bool = False,
    untie: bool = False,
    heads: str = "average",
) -> list[str]:
    """One sentence for every model that lies in other coordinates than the first, from a sample of units.

    Raises:
        IsomergeError: the models do not fit together.
    """
    from isomerge.engine.compatible import check_compatible
    from isomerge.engine.merge.heads import Heads, arrange, head_lines, heads_of
    from isomerge.engine.models import recognise, working_dtype
    from isomerge.engine.pairs.pair import PairSolver
    from isomerge.engine.plan import make_plan, unit_bytes
    from isomerge.engine.run_report import rows_of

    opening = {"spec_file": spec, "allow_pickle": allow_pickle, "untie": untie, "unmoved": True}
    anchor, *others = [recognise(m, **opening) for m in models]
    chosen = heads_of(heads, [anchor, *others])
    check_compatible(anchor, others, apart=head_lines(anchor.spec) if chosen.apart else (), stored=True)
    found = []
    for other in others:
        plan = make_plan(anchor, [other], "default")
        _, plan = arrange(chosen if chosen.how != "keep" else Heads("copy"), [anchor, other], plan)
        units = [u for u in plan.units if u.elements and not u.votes]
        sample = units[:: max(1, len(units) // SAMPLE)][:SAMPLE]
        # attention tells as much as wide layers of neurons, which take longer to read, and minutes to assign
        sample = sorted(sample, key=lambda u: unit_bytes(other, u))[: -(-len(sample) // 2)]
        solver = PairSolver(
            anchor, other, replace(plan, units=tuple(sample)), working_dtype([anchor, other]), guard=True
        )
        gap = apart(solver, sample)
        if gap <= NEAR:
            continue  # near as they are: solving, which takes far longer than a merge, would tell nothing
        results = [solver.solve(u, solver.load(anchor, u), solver.load(other, u))[0] for u in sample]
        figures = summarise(row for row in rows_of(results) if row["spaces"])
        before, after = (figures[key] / max(figures["norm"], 1e-300) for key in ("before", "after"))
        if before > FAR or (before > NEAR and after < 0.5 * before):
            found.append(
                f"{other.ref} is misaligned with {anchor.ref} (distance {before:.2f} of the norm, {after:.2f} after "
                "alignment): averaging will destroy them; drop --no-align, or say align: true in the recipe"
            )
    return found


def apart(solver: PairSolver, units: Sequence[Unit]) -> float:
    """The distance of two models as a share of the norm, over one tensor of each unit: the smallest matrix that symmetries
    move; nothing is solved."""
    from isomerge.engine.plan import block_size
    from isomerge.matching.distances import squared_distance, squared_norm
    from isomerge.symmetry.units import elements_of

    spec, gap, norm = solver.plan.selection.spec, 0.0, 0.0
    for unit in units:
        moved = [block for block in unit.blocks if elements_of(spec, block)]
        matrices = [block for block in moved if len(block.axes or ()) > 1]
        block = min(matrices or moved, key=lambda b: block_size(solver.anchor, b))
        one, two = (model.assemble(block, None) for model in (solver.anchor, solver.source))
        gap, norm = gap + squared_distance(one, two), norm + squared_norm(one)
    return (gap / max(norm, 1e-300)) ** 0.5

"""The warning before a merge without alignment: are these models in each other's coordinates at all?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from isomerge.evidence.distance import summarise

# Units looked at: the first, the last, and some between; the warning needs an impression, not a proof.
SAMPLE = 6


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
    from isomerge.engine.heads import Heads, arrange, head_lines, heads_of
    from isomerge.engine.models import check_compatible, recognise, working_dtype
    from isomerge.engine.pair import PairSolver
    from isomerge.engine.plan import make_plan
    from isomerge.engine.run import rows_of

    anchor, *others = [recognise(m, spec_file=spec, allow_pickle=allow_pickle, untie=untie) for m in models]
    chosen = heads_of(heads, [anchor, *others])
    check_compatible(anchor, others, apart=head_lines(anchor.spec) if chosen.apart else ())
    found = []
    for other in others:
        plan = make_plan(anchor, [other], "default")
        _, plan = arrange(chosen if chosen.how != "keep" else Heads("copy"), [anchor, other], plan)
        units = [u for u in plan.units if u.elements and not u.votes]
        sample = units[:: max(1, len(units) // SAMPLE)][:SAMPLE]
        solver = PairSolver(
            anchor, other, replace(plan, units=tuple(sample)), working_dtype([anchor, other]), guard=True
        )
        results = [solver.solve(u, solver.load(anchor, u), solver.load(other, u))[0] for u in sample]
        figures = summarise(row for row in rows_of(results) if row["spaces"])
        before, after = (figures[key] / max(figures["norm"], 1e-300) for key in ("before", "after"))
        if before > 0.9 or (before > 0.05 and after < 0.5 * before):
            found.append(
                f"{other.ref} is misaligned with {anchor.ref} (distance {before:.2f} of the norm, {after:.2f} after "
                "alignment): averaging will destroy them; drop --no-align, or say align: true in the recipe"
            )
    return found

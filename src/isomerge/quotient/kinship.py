"""Whether two models have a common base, from a few of their layers: what fingerprints score, at a fraction of
their cost.

A merge asks before it matches, and may not spend on the question what matching takes.
"""

from __future__ import annotations

from isomerge.matching.balance import balance_powers
from isomerge.models.recognised import Model, Moved, working_dtype
from isomerge.models.unit_plan import make_plan, unit_bytes
from isomerge.quotient.relations import CIRCUITS, Relations, relations
from isomerge.quotient.similarity import FOREIGN
from isomerge.quotient.stream_anchors import TOKENS, Anchors, anchors_of
from isomerge.quotient.witnesses import KIN, whitened, whitening
from isomerge.solve.canonical.canonical_frame import free_folding
from isomerge.symmetry.blocks import layer_of
from isomerge.symmetry.units import Unit, elements_of

SAMPLE = 3
"""Units that are looked at: the smallest with circuits of a layer, evenly spread."""


def kinship(first: Model, second: Model) -> bool | None:
    """Whether two models of one architecture have a common base, whatever basis they are in; None where that cannot
    be told, or nothing compares."""
    score = kinship_score(first, second)
    return None if score is None or FOREIGN <= score < KIN else score >= KIN


def kinship_score(first: Model, second: Model) -> float | None:
    """The mean cosine of circuits, seen from tokens, with what the tokens themselves share taken out
    (`isomerge.quotient.witnesses`): 1 for one function, near 0 for independent models; None where nothing compares.

    Reads some units of both, their embeddings, and all gains.
    """
    units = _units(first)
    (mine, left), (theirs, right) = (_circuits(model, units) for model in (first, second))
    common = {s for s in mine.keys() & theirs.keys() if mine[s].names == theirs[s].names}
    white = [{s: whitening((a[s].rows @ a[s].rows.mT).double()) for s in common} for a in (mine, theirs)]
    cosines: dict[str, list[float]] = {}
    for key in left.keys() & right.keys():
        ends = left[key].ends
        if len(ends) == 2 and set(ends) <= common:
            x, y = (whitened(side[key].data, ends, w) for side, w in ((left, white[0]), (right, white[1])))
            cosines.setdefault(key[1].split()[0], []).append(float(x @ y))
    means = [sum(row) / len(row) for row in cosines.values()]
    return sum(means) / len(means) if means else None


def _units(model: Model) -> list[Unit]:
    """Some of the units that hold circuits of a layer."""
    roles = {kind.partition(":")[0] for kind in CIRCUITS}
    units = [
        unit
        for unit in make_plan(model, [], "default").units
        if layer_of(unit.blocks[0])[1] is not None
        and any(s.role in roles for block in unit.blocks for s in elements_of(model.spec, block).values())
    ]
    least = min((unit_bytes(model, unit) for unit in units), default=0)
    small = [unit for unit in units if unit_bytes(model, unit) <= 2 * least]
    return small[:: max(1, len(small) // SAMPLE)][:SAMPLE]


def _circuits(model: Model, units: list[Unit]) -> tuple[dict[str, Anchors], Relations]:
    """Tokens as anchors of every stream, and the circuits of some units that are seen from them."""
    dtype, spec = working_dtype([model]), model.spec
    fold = free_folding(model, dtype)
    anchors = anchors_of(model, dtype, fold)[0].get(TOKENS, {})
    folded, circuits = model.seen(Moved(fold)), Relations()
    for unit in units:
        stored = [block for block in unit.blocks if len(model.stored_names(block)) == len(block.canonical)]
        tensors = folded.unit(stored, dtype)
        floats = {block: t for block, t in tensors.items() if t.is_floating_point()}
        balance_powers(spec, floats)
        circuits |= relations(spec, floats, anchors, circuits=True)
    return anchors, circuits

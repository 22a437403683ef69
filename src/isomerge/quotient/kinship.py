"""Whether two models have a common base, from a few of their layers: the score of fingerprints, at a fraction of their cost.

A merge asks before it matches, and may not spend on the question what matching takes.
"""

from __future__ import annotations

from isomerge.engine.canonical.frame import read_moved
from isomerge.engine.models import Model, coarsest_dtype, working_dtype
from isomerge.engine.plan import make_plan, unit_bytes
from isomerge.matching.frame import folded_gains
from isomerge.quotient.anchors import anchors_of
from isomerge.quotient.fingerprint import Fingerprint, Relation
from isomerge.quotient.relations import relations
from isomerge.quotient.similarity import CIRCUITS, DERIVED, similarity
from isomerge.symmetry.blocks import layer_of
from isomerge.symmetry.units import elements_of

SAMPLE = 3
"""Units that are looked at: the smallest with circuits of a layer, evenly spread."""


def kinship(one: Model, two: Model) -> bool | None:
    """Whether two models of one architecture have a common base, whatever basis they are in; None where nothing compares.

    Reads some units of both, the rows of their embeddings that serve as anchors, and all gains.
    """
    score = similarity(sampled(one), sampled(two)).score
    return None if score is None else score >= DERIVED


def sampled(model: Model) -> Fingerprint:
    """What a fingerprint has of some layers: enough for `Similarity.score`, and no name of the function."""
    dtype, spec = working_dtype([model]), model.spec
    fold = folded_gains(spec, model.blocks, lambda block: model.assemble(block, dtype))
    anchors = anchors_of(model, dtype, fold)
    roles = {kind.partition(":")[0] for kind in CIRCUITS}
    units = [
        unit
        for unit in make_plan(model, [], "default").units
        if layer_of(unit.blocks[0])[1] is not None
        and any(s.role in roles for block in unit.blocks for s in elements_of(spec, block).values())
    ]
    least = min((unit_bytes(model, u) for u in units), default=0)
    small = [unit for unit in units if unit_bytes(model, unit) <= 2 * least] or units
    found = []
    for unit in small[:: max(1, len(small) // SAMPLE)][:SAMPLE]:
        tensors = {block: read_moved(model, block, dtype, fold) for block in unit.blocks}
        floats = {block: t for block, t in tensors.items() if t.is_floating_point()}
        places = {block.key: layer_of(block) for block in unit.blocks}
        found += [
            Relation(key, *places[key], kind, x.data.float(), x.ends)
            for (key, kind), x in sorted(relations(spec, floats, anchors).items())
            if kind.split()[0] in CIRCUITS
        ]
    return Fingerprint(
        spec.model_type,
        "",
        coarsest_dtype(model),
        {s: a.names for s, a in anchors.items()},
        {s: (a.rows @ a.rows.mT).float() for s, a in anchors.items()},
        found,
        {},
        model.ref,
    )

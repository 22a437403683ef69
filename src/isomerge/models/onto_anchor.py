"""A source read with its anchor's constants, and with its tables in the bases of the anchor's.

Texts say where any will do (`basis`, `carry`). What they say reaches several layers, and alignments are found layer
by layer: so it is decided before, from the tensors that hold it alone, and the source is read so from then on.
Fine-tunes keep their bytes.

A table that all layers read tells its own basis: its rows mean the same in both models, so that the nearest basis
is a least-squares problem. It is taken where it makes up for over half of what is between the tables, beyond
chance: tables of models that were trained apart are no function of each other, and keep theirs. A constant is
carried only where it is another one, and where the tensors that hold it in the stream itself come closer by much.
Vectors are compared number by number, so they stay where the streams of the two models stand in other coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from isomerge.matching.distances import squared_distance
from isomerge.matching.worth import least
from isomerge.models.layer_norm_form import free_under_layer_norm, layer_norm_form
from isomerge.models.recognised import Model, Moved
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.bases import Basis, spans
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.carried import Carried
from isomerge.symmetry.layer_norms import norm_spec
from isomerge.symmetry.norm_stage import norm_stages

Stored = Callable[[Block], Tensor]
"""The blocks of a model."""
EXPLAINED = 0.5
"""The least part of what chance leaves between two tables, that another basis must make up for."""
ALIKE = 0.5
"""The least cosine of what two models have along one stream, at which it stands in the same coordinates: fine-tunes
are near one, other models and permuted streams near zero."""


def read_onto(anchor: Model, source: Model) -> None:
    """Have a source seen with its anchor's bases and constants from now on, where that is worth it."""
    theirs = {basis.key for basis in free_under_layer_norm(anchor).bases}
    shared = [basis for basis in free_under_layer_norm(source).bases if basis.key in theirs]
    nearest = {basis: a for basis in shared if (a := _nearest(anchor, source, basis)) is not None}
    if nearest:
        source.views = (*source.views, _moved(source, list(nearest), [*nearest.values()]))
    if (constants := _constants(anchor, source)) is not None:  # compared in one basis
        source.views = (*source.views, constants)


def _moved(source: Model, parts: Sequence[Carried | Basis], elements: Sequence[Tensor]) -> Moved:
    """A source moved by the elements of what reaches several layers."""
    spec = norm_spec(source.declared)
    by_key = {part.key: element for part, element in zip(parts, elements, strict=True)}
    return Moved(Alignment.of(norm_stages(spec, by_key), spec), tuple(parts))


def _nearest(anchor: Model, source: Model, basis: Basis) -> Tensor | None:
    """The basis in which a table is nearest to an anchor's, without what all rows have in common; None where it is
    not worth it."""
    assert basis.table is not None
    mine, theirs = (model.assemble(basis.table, torch.float64) for model in (source, anchor))
    if mine.shape != theirs.shape or len(mine) - 1 <= basis.width:
        return None
    mine, theirs = mine - mine.mean(0), theirs - theirs.mean(0)
    if not spans(mine):
        return None
    a = torch.linalg.lstsq(mine, theirs).solution
    gap, left, whole = (float(x.square().sum()) for x in (mine - theirs, mine @ a - theirs, theirs))
    by_chance = (1 - basis.width / (len(mine) - 1)) * min(gap, whole)
    other = gap > least(whole) and left < (1 - EXPLAINED) * by_chance
    return a if other and spans(a) else None


def _constants(anchor: Model, source: Model) -> Moved | None:
    """What carries an anchor's constants; None where it is not worth it."""
    shared = {c.key: c for c in free_under_layer_norm(source).carried}
    shared = {c.key: shared[c.key] for c in free_under_layer_norm(anchor).carried if c.key in shared}
    if not shared:
        return None
    forms = []
    for model in (anchor, source):  # what norms leave free hides how near constants are
        stored = cache(lambda block, model=model: model.assemble(block, torch.float64))
        forms.append((layer_norm_form(model), stored))
    of_anchor, of_source = (form.uncarried(stored) for form, stored in forms)
    shared = {
        key: c
        for key, c in shared.items()
        if not c.shape or _stands_alike((anchor, source), c, (of_anchor, of_source))
    }
    if not shared:
        return None
    wanted, held = (form.values(stored) for form, stored in forms)
    gaps = {key: wanted[key] - held[key] for key in shared}
    kept = [
        constant
        for key, constant in shared.items()
        if float(gaps[key].square().sum()) > least(float(wanted[key].square().sum()))
    ]
    constants = _moved(source, kept, [gaps[constant.key] for constant in kept])
    plain = {block for constant in kept for block in constant.plainly}
    before = sum(squared_distance(of_anchor(b), of_source(b)) for b in plain)
    after = sum(squared_distance(of_anchor(b), constants.applied(b, of_source)) for b in plain)
    return constants if kept and before - after >= least(before) else None


def _stands_alike(models: tuple[Model, Model], carried: Carried, both: tuple[Stored, Stored]) -> bool:
    """Whether the stream along which a vector lies stands in the same coordinates in two models: told by all other
    vectors along it (gains and biases, of both in the form of norms: what is free tells nothing), without their
    means, which permutations keep."""
    anchor, source = models
    streams = {name for name in carried.along if name in source.declared.residual_names}
    theirs, cross, squares = {*anchor.blocks}, 0.0, [0.0, 0.0]
    for block in source.blocks:
        vector = block.axes is not None and len(block.axes) == 1 and not block.lead
        if not vector or block in carried.blocks or block not in theirs:
            continue
        if streams <= block.names:
            a, b = (values(block) - values(block).mean() for values in both)
            cross += float(a @ b)
            squares = [squares[0] + float(a.square().sum()), squares[1] + float(b.square().sum())]
    return not streams or cross > ALIKE * (squares[0] * squares[1]) ** 0.5

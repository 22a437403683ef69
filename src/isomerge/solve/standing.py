"""How models stand to the one that they are merged with, before anything is matched: in its coordinates already, in
others, or strangers. What is matched by default follows from it.

- Every part where the anchor has it (`isomerge.matching.settled`): fine-tunes of one base. They are left as they
  are.
- In one basis, but with parts out of place: matched inside the layers.
- Anything else: the residual stream is matched as well, wherever the architecture lets it move. For relatives in
  another basis it must be; for models that were trained apart it was better than the layers alone on every pair
  that was measured (docs/lab/measured-barriers.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch

from isomerge.errors import IsomergeError
from isomerge.matching.additions import added_blocks
from isomerge.matching.distances import squared_distance
from isomerge.matching.frame import has_shared_meaning
from isomerge.matching.norm_parts import is_disguised
from isomerge.matching.rows import rows
from isomerge.matching.settled import Sums, is_turned, settled
from isomerge.matching.worth import SHARE, takes_away
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.recognised import Model, Moved
from isomerge.models.unit_plan import Plan, make_plan, unit_bytes
from isomerge.options.fusing import AUTO
from isomerge.progress import Observer, quiet
from isomerge.solve.look import Look, Seen, look, lost_rows, only_in_columns
from isomerge.symmetry.blocks import Block, leaves
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.layer_norms import under_layer_norm
from isomerge.symmetry.units import Unit

Kinship = Callable[[Model, Model], "bool | None"]
"""Whether two models have a common base, in whatever basis; None where nothing compares
(`isomerge.quotient.kinship`)."""
ROWS = 4096
"""Rows of a table of embeddings that tell the basis of a stream."""
MOST = 0.5
"""Of all rows: where so many have no counterpart where they stand, models are no fine-tunes of one base in one
place."""
ALIKE = 1e-5
"""The part of their squared norms by which two tensors may differ by rounding."""
CLOSELY = 16_000_000
"""Bytes of units that are looked at closely although all of their rows have counterparts."""
HEADS = 4
"""Of the smallest that has more, how many heads are asked for rotations and factors: who turns one, turns all."""


@dataclass(frozen=True)
class Standing:
    """How a model stands to its anchor."""

    anchor: str
    model: str
    gap: float
    """Their distance over all tensors that both have, as a share of the root of the mean of their squared norms."""
    settled: bool
    """Whether every part is where the anchor has it."""
    same_basis: bool | None = None
    """Whether the residual streams are in one basis; None where nothing tells, or nothing was asked."""
    kin: bool | None = None
    """Whether they have a common base; asked where the basis is not the same."""
    look: Look = field(default_factory=lambda: Look(()))
    """What was seen of them."""

    @property
    def moved(self) -> bool:
        """A relative whose residual stream is in another basis."""
        return self.elsewhere and self.kin is True

    @property
    def elsewhere(self) -> bool:
        """Whether the residual stream is, or may be, in another basis than the anchor's."""
        return not self.settled and self.same_basis is not True

    @property
    def strange(self) -> bool:
        """Nothing in common, as far as can be told before matching."""
        return self.elsewhere and self.kin is False


def own_order(models: Sequence[Model], *, apart: bool = False) -> list[int]:
    """The numbers of models in an order of their own, wherever they were given: by how large embeddings and heads
    are, then all other tensors, as far as these differ. What all rows have in common counts nothing, nor what
    LayerNorm takes away, so that most symmetries leave the order as it is.

    Args:
        models: compatible ones.
        apart: whether they have heads of their own. Then, and where one has tensors that another lacks, the first
            one's are written, and it stays the first.
    """
    first, *others = models
    kept = int(apart or any({*model.blocks} != {*first.blocks} for model in others))
    groups = [[0]] * kept + [list(range(kept, len(models)))]
    for block in sorted(first.blocks, key=lambda block: not has_shared_meaning(first.spec, block)):
        if all(len(group) < 2 for group in groups):
            break
        groups = [part for group in groups for part in _by_size(models, group, block)]
    return [k for group in groups for k in group]


def _by_size(models: Sequence[Model], group: list[int], block: Block) -> list[list[int]]:
    """Some models by the size of one block, those together that rounding may tell apart."""
    if len(group) < 2:
        return [group]
    sizes = {k: _size(models[k], block) for k in group}
    parts: list[list[int]] = []
    for k in sorted(group, key=lambda k: sizes[k]):
        if parts and sizes[k] <= sizes[parts[-1][-1]] * (1 + ALIKE):
            parts[-1].append(k)
        else:
            parts.append([k])
    return [sorted(part) for part in parts]


def _size(model: Model, block: Block) -> float:
    """The squared norm of some rows of a block, without their mean and what LayerNorm takes away."""
    tensor, streams = model.assemble(block, None, mapped=True), {*model.spec.streams}
    total = 0.0
    for (x,), atoms, _ in leaves(model.spec, block, tensor) if tensor.is_floating_point() else ():
        along = [k for k, atom in enumerate(atoms) if atom.name in streams]
        others = [k for k in range(x.ndim) if k not in along]
        x = x[tuple(slice(None) if k in along else slice(ROWS) for k in range(x.ndim))].double()
        x = x - x.mean(others, keepdim=True) if others and x.numel() else x
        x = x - x.mean(along, keepdim=True) if along and under_layer_norm(model.spec) else x
        total += float(x.square().sum())
    model.check_unchanged(block)
    return total


def check_align(align: bool | str) -> None:
    """Raises IsomergeError where ``align`` is neither True, False nor ``auto``."""
    if not isinstance(align, bool) and align != AUTO:
        raise IsomergeError(
            f"align={align!r}: give True, False or 'auto', which leaves models alone that are aligned already"
        )


def standings(
    anchor: Model,
    models: Sequence[Model],
    dtype: torch.dtype,
    *,
    kinship: Kinship | None = None,
    observer: Observer = quiet,
) -> list[Standing]:
    """How every model stands to the anchor; the order of the two does not matter.

    Args:
        anchor, models: compatible ones.
        dtype: the working dtype.
        kinship: asked of models that are in another basis.
        observer: told of progress.
    """
    standing: list[Standing] = []
    for model in models:
        evidence = look(anchor, model, observer)
        in_place = evidence.same or not _is_misplaced(anchor, model, evidence, dtype)
        basis, kin = None, None
        if not in_place:
            # models that share half of their tensors are in one basis, whatever became of the embeddings
            basis = True if evidence.but else same_basis(anchor, model)
            kin = None if basis or kinship is None else kinship(anchor, model)
        standing.append(Standing(anchor.ref, model.ref, evidence.distance(), in_place, basis, kin, evidence))
    return standing


def _is_misplaced(anchor: Model, model: Model, evidence: Look, dtype: torch.dtype) -> bool:
    """Whether some part of a unit is not where the anchor has it.

    A unit whose rows all have their counterparts where they stand, and of which what may be added is no much of the
    distance, is taken for settled, but for some of the smallest (of a large one some heads), in which rotations and
    factors are looked for that leave rows near themselves."""
    plan = make_plan(anchor, [model], "default")
    units = [unit for unit in plan.units if unit.elements or unit.votes or plan.free(unit).norms]
    if evidence.lost >= MOST or not units:
        return evidence.lost >= MOST and any(seen.lost for seen in evidence.tensors)
    seen = {each.name: each for each in evidence.tensors}
    doubtful, likely = list[Unit](), list[Unit]()
    for unit in units:
        own = [seen[name] for block in unit.blocks for name in block.canonical if name in seen]
        if any(each.unequal for each in own):
            lost = any(each.lost for each in own) or _has_lost_columns(anchor, model, plan.selection.spec, unit)
            (doubtful if lost or _may_be_added(plan, unit, seen) else likely).append(unit)
    likely.sort(key=lambda unit: unit_bytes(anchor, unit))
    sizes = accumulate(unit_bytes(anchor, unit) for unit in likely)
    small = [unit for unit, size in zip(likely, sizes, strict=True) if size <= CLOSELY]
    looks = [(unit, None) for unit in (*doubtful, *small)] + [(unit, HEADS) for unit in likely[:1] if not small]
    moved = any(not _is_settled(plan, unit, anchor, model, dtype, most) for unit, most in looks)
    return moved or _is_carried_elsewhere(anchor, model, evidence)


def _may_be_added(plan: Plan, unit: Unit, seen: Mapping[str, Seen]) -> bool:
    """Whether much of what is between the units is in tensors to which shifts, or norms, may add something."""
    added = added_blocks(plan.selection.spec, unit.blocks) | plan.free(unit).biases
    gaps = {True: 0.0, False: 0.0}
    for block in unit.blocks:
        gaps[block in added] += sum(seen[name].gap for name in block.canonical if name in seen)
    return gaps[True] > SHARE * sum(gaps.values())


def _has_lost_columns(anchor: Model, model: Model, spec: Spec, unit: Unit) -> bool:
    """Whether some column has no counterpart where it stands, of axes that are permuted and number no rows."""
    permuted = {n for n, space in spec.spaces.items() if space.group.compact in ("Perm", "SignedPerm", "Sign")}
    for name, block in only_in_columns(unit.blocks).items():
        if name in permuted:
            for mine, theirs in zip(anchor.stored_names(block), model.stored_names(block), strict=True):
                x, y = anchor.checkpoint.read(mine, mapped=True), model.checkpoint.read(theirs, mapped=True)
                if x.shape == y.shape and bool(lost_rows(rows(x, y, columns=True))[1].any()):
                    return True
    return False


def _is_carried_elsewhere(anchor: Model, model: Model, evidence: Look) -> bool:
    """Whether blocks differ for the most part by where constants stand that several layers share, or by the basis
    of a table that they read."""
    free = free_under_layer_norm(anchor)
    if not free.carried and not free.bases:
        return False
    # loaded where a text has any
    from isomerge.models.onto_anchor import read_onto

    whole = sum(seen.gap for seen in evidence.tensors)
    for mine, theirs in ((anchor, model), (model, anchor)):
        other = theirs.without(Moved)
        read_onto(mine, other)
        shared = [block for block in mine.blocks if any(move.changes(block) for move in other.moves)]
        before, after = (
            sum(squared_distance(mine.assemble(b, torch.float64), m.assemble(b, torch.float64)) for b in shared)
            for m in (theirs, other)
        )
        if takes_away(before, after, whole):
            return True
    return False


def _is_settled(plan: Plan, unit: Unit, anchor: Model, model: Model, dtype: torch.dtype, most: int | None) -> bool:
    """Whether every part of a unit is where the other model has it, whichever of the two is moved; of a unit whose
    rows are (``most``), whether so many of its heads are turned or scaled."""
    # Grams are float64 whatever they are of: matrices that are asked for turns alone stay in their files' pages
    as_stored = most is not None and not plan.free(unit) and not anchor.views and not model.views

    def read(m: Model, block: Block) -> torch.Tensor:
        matrix = len(block.axes or ()) > 1
        return m.unrounded(block) if as_stored and matrix else m.assemble(block, dtype, mapped=True)

    mine, theirs = ({block: read(m, block) for block in unit.blocks} for m in (anchor, model))
    alike = [b for b in unit.blocks if mine[b].shape == theirs[b].shape]  # not heads with other labels
    mine, theirs = ({b: t[b] for b in alike} for t in (mine, theirs))
    spec, free = plan.selection.spec, plan.free(unit).within(alike)
    good = not (unit.elements or unit.votes) or (
        settled(spec, mine, theirs) if most is None else not is_turned(spec, mine, theirs, most=most)
    )
    good = good and not any(is_disguised(free, x, y) for x, y in ((mine, theirs), (theirs, mine)))
    for m in (anchor, model):
        for block in unit.blocks:
            m.check_unchanged(block)
    return good


def same_basis(anchor: Model, model: Model) -> bool | None:
    """Whether every coordinate of the residual streams means the same in two models, as embeddings and heads tell;
    None where there are none, or no symmetry acts on a stream."""
    spec = anchor.spec
    sums = Sums(spec, spec.streams)
    for block in anchor.blocks:
        if not has_shared_meaning(spec, block) or len(model.stored_names(block)) < len(block.canonical):
            continue
        tensor, other = (m.assemble(block, None, mapped=True) for m in (anchor, model))
        if tensor.shape != other.shape:
            continue
        for (x, y), atoms, _ in leaves(spec, block, tensor, other):
            stream_axes = [k for k, a in enumerate(atoms) if a.name in spec.streams]
            for axis in (k for k in range(x.ndim) if k not in stream_axes and x.shape[k] > ROWS):
                step = -(-x.shape[axis] // ROWS)
                places = tuple(slice(None, None, step if k == axis else 1) for k in range(x.ndim))
                x, y = x[places], y[places]
            sums.add(iter([(x.float(), y.float(), atoms)]))
        for m in (anchor, model):
            m.check_unchanged(block)
    if not sums.slices:
        return None
    return not any(bool(slices.lost.any()) for slices in sums.slices.values())


def in_another_basis(stands: Sequence[Standing], verb: str = "is") -> str:
    """That the residual stream of these models is in another basis than their anchor's, without a full stop."""
    names = " and of ".join(s.model for s in stands)
    return f"the residual stream of {names} {verb} in another basis than that of {stands[0].anchor}"


def chosen_spaces(
    asked: str | None, stands: Sequence[Standing], donor: Model, others: Sequence[Model], *, fixed: str = ""
) -> tuple[str, list[str]]:
    """The spaces of a run, and a note where they were chosen for it or where another choice was called for.

    Args:
        asked: the user's choice, which wins; None: what the models need.
        stands: how the models stand to their anchor.
        donor, others: the models of the run.
        fixed: why the residual stream cannot be matched in this run, if it cannot.
    """
    moved = [s for s in stands if s.moved]
    apart = in_another_basis(moved) if moved else ""
    if asked is not None:
        streams = not moved or make_plan(donor, others, asked).selection.streams
        return asked, [] if streams else [
            f"{apart}, and --spaces {asked} leaves it there; leave --spaces out, or say --spaces all"
        ]
    if not any(s.elsewhere for s in stands):
        return "default", []
    try:
        free = bool(make_plan(donor, others, "all").selection.streams)
    except IsomergeError:
        free = False
    if fixed or not free:
        return "default", [f"{apart}, and cannot be matched here{f': {fixed}' if fixed else ''}"] if moved else []
    return "all", [f"{apart}, so it is matched as well (--spaces all)"] if moved else []


def leaves_alone(
    align: bool | str, stands: Sequence[Standing], *, plain: bool, together: bool = False
) -> list[bool]:
    """Of every model, whether it is left as it is.

    Args:
        align: as `AUTO` has it.
        stands: how the models stand.
        plain: whether weights alone decide: who gives data or another way to match wants a match.
        together: whether all are matched onto their mean, which moves all or none.
    """
    left = [align == AUTO and plain and s.settled for s in stands]
    return [all(left)] * len(left) if together else left


def none_matched(plan: Plan) -> Plan:
    """A plan in which no unit is matched; what may move is still told of every tensor."""
    skipped = frozenset(unit.key for unit in plan.units)
    return replace(plan, selection=replace(plan.selection, frame=None), skipped=skipped, votes=())

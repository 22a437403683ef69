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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from isomerge.errors import IsomergeError
from isomerge.matching.distances import squared_distance, squared_norm
from isomerge.matching.frame import has_shared_meaning
from isomerge.matching.norm_parts import is_disguised
from isomerge.matching.settled import Sums, settled
from isomerge.models.recognised import Model
from isomerge.models.unit_plan import Plan, make_plan, unit_bytes
from isomerge.options.fusing import AUTO
from isomerge.progress import Observer, quiet
from isomerge.symmetry.blocks import Blocks, leaves
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.units import Unit, elements_of

Kinship = Callable[[Model, Model], "bool | None"]
"""Whether two models have a common base, in whatever basis; None where nothing compares
(`isomerge.quotient.kinship`)."""
ROWS = 4096
"""Rows of a table of embeddings that tell the basis of a stream."""
SAMPLE = 6
"""Units of which the smaller half is looked at where models are merged as they are stored."""


@dataclass(frozen=True)
class Standing:
    """How a model stands to its anchor."""

    anchor: str
    model: str
    gap: float
    """Their distance as a share of the anchor's norm, over what symmetries move in the units that were read."""
    settled: bool
    """Whether every part is where the anchor has it."""
    misplaced: str = ""
    """The first unit that is not."""
    same_basis: bool | None = None
    """Whether the residual streams are in one basis; None where nothing tells, or nothing was asked."""
    kin: bool | None = None
    """Whether they have a common base; asked where the basis is not the same."""

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
    sample: bool = False,
    observer: Observer = quiet,
) -> list[Standing]:
    """How every model stands to the anchor. Of a model that is misplaced no more is read than the unit that tells
    it.

    Args:
        anchor, models: compatible ones.
        dtype: the working dtype.
        kinship: asked of models that are in another basis.
        sample: whether a few small units must do, where nothing will be matched.
        observer: told of progress.
    """
    verdicts: list[Standing] = []
    for model in models:
        plan = make_plan(anchor, [model], "default")
        units = _looked_at(plan, anchor, sample=sample)
        nothing_moves = not any(unit.elements or unit.votes for unit in units)
        gap = norm = 0.0
        misplaced = ""
        total, seen = sum(unit_bytes(model, unit) for unit in units), 0
        for unit in units:
            observer(f"looking whether {model.ref} is aligned already: {unit.key}", seen, total)
            seen += unit_bytes(model, unit)
            blocks, others = (_loaded(m, unit, dtype) for m in (anchor, model))
            alike = [b for b in unit.blocks if blocks[b].shape == others[b].shape]  # not heads with other labels
            blocks, others = ({b: t[b] for b in alike} for t in (blocks, others))
            spec = plan.selection.spec
            movable = [b for b in alike if elements_of(spec, b)]
            if not movable and nothing_moves:
                movable = [b for b in alike if blocks[b].is_floating_point()]
            gap += sum(squared_distance(blocks[b], others[b]) for b in movable)
            norm += sum(squared_norm(blocks[b]) for b in movable)
            good = settled(spec, blocks, others) if unit.elements or unit.votes else True
            good = good and not is_disguised(plan.free(unit).within(alike), blocks, others)
            for m in (anchor, model):
                for block in unit.blocks:
                    m.check_unchanged(block)
            if not good:
                misplaced = unit.key
                break
        share = (gap / norm) ** 0.5 if norm else (0.0 if gap == 0 else float("inf"))
        if not misplaced:
            verdicts.append(Standing(anchor.ref, model.ref, share, True))
            continue
        basis = same_basis(anchor, model)
        kin = None if basis or kinship is None else kinship(anchor, model)
        verdicts.append(Standing(anchor.ref, model.ref, share, False, misplaced, basis, kin))
    return verdicts


def _looked_at(plan: Plan, anchor: Model, *, sample: bool) -> list[Unit]:
    """The units that symmetries move, where there are any; of a sample, the smaller half of a few."""
    units = [u for u in plan.units if u.elements or u.votes or plan.free(u).norms] or list(plan.units)
    if not sample:
        return units
    units = [u for u in units if u.votes or any(not ElementKey.of(key).is_shift for key in u.elements)] or units
    few = units[:: max(1, len(units) // SAMPLE)][:SAMPLE]
    return sorted(few, key=lambda unit: unit_bytes(anchor, unit))[: -(-len(few) // 2)]


def _loaded(model: Model, unit: Unit, dtype: torch.dtype) -> Blocks:
    return {block: model.assemble(block, dtype, mapped=True) for block in unit.blocks}


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
    names = (
        ""
        if not moved
        else (
            f"{' and '.join(s.model for s in moved)}: derived from one base with {moved[0].anchor}, but in another "
            "basis of the residual stream"
        )
    )
    if asked is not None:
        streams = not moved or make_plan(donor, others, asked).selection.streams
        return asked, [] if streams else [
            f"{names}, which --spaces {asked} leaves as it is; leave --spaces out, or say --spaces all"
        ]
    if not any(s.elsewhere for s in stands):
        return "default", []
    try:
        free = bool(make_plan(donor, others, "all").selection.streams)
    except IsomergeError:
        free = False
    if fixed or not free:
        return "default", [f"{names}, which cannot be matched here{f': {fixed}' if fixed else ''}"] if moved else []
    return "all", [f"{names}, which is matched as well (--spaces all)"] if moved else []


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

"""The gains that models are written with, once their streams are turned: chosen by one pass over all of them.

An aligned model alone is brought as near to its anchor as gains can bring it. The models of a merge, the anchor
among them, have one gain in common: their average then is the average of the folded models in any gauge, so that a
merge stays a function of orbits, and a twin, which no other gain brings as near, keeps the anchor's.

A gain may be any number that is not zero: what reads the channel is divided by it (what writes it, for a layer
scale), so that the function stays. Between folded models (every gain one) let x be what an element e multiplies in
one channel, and y what it divides: of a norm, x = (1, b) are its gain and bias, and y all that reads them. Moved by
e, the models m are, from an anchor as it is stored (x_a, y_a),

    f(e) = sum over m of |e x_m - x_a|^2 + |y_m / e - y_a|^2

away: alpha e^2 - 2 c_plus e + beta / e^2 - 2 c_minus / e and a constant, of four sums over the models. It is the
quartic of every other scale (`isomerge.matching.rescale.quartic_scale` finds its least value). So the distance is
no more than with the anchor's gains, and no more than with gains of one, however small a gain is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isomerge.matching.frame import gains_over_streams, whole_gain
from isomerge.matching.gram import sides
from isomerge.matching.rescale import TINY, quartic_scale
from isomerge.models.free_streams import unread_gains
from isomerge.models.recognised import Model
from isomerge.models.stored_form import StoredForm
from isomerge.models.unit_plan import with_progress
from isomerge.progress import Observer
from isomerge.solve.canonical.canonical_frame import folding
from isomerge.solve.pairs.pair import CommonGains, PairSolver
from isomerge.solve.unfinished_run import UnfinishedRun
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stage import find_shifts
from isomerge.symmetry.units import elements_of


@dataclass
class GainGauge:
    """Gathers what decides the common gain of every channel, over units and models in any order.

    Args:
        spec: the spec whose gains are folded.
    """

    spec: Spec
    _sums: dict[tuple[str, bool], tuple[Tensor, Tensor]] = field(default_factory=dict)
    """By element key and side (dual or not): squares, and products with the anchor, float64 [*batch, 1] each."""

    def add(self, anchor: Blocks, folded: Blocks) -> None:
        """Some blocks of the anchor as it is stored, and of a model that will have the common gains, with its gains
        folded."""
        for block, stored in anchor.items():
            for key, space in elements_of(self.spec, block).items():
                if space.name not in self.spec.gains:
                    continue
                depth = len(self.spec.batch(space)) + 1
                for dual, parts, order in sides(self.spec, space, {block: stored}, {block: folded[block]}):
                    x, y = (t.double().permute(order) for t in parts)
                    products = [p.reshape(*p.shape[:depth], -1).sum(-1) for p in (y * y, x * y)]
                    there = self._sums.get((key, dual))
                    square, shared = (
                        products if there is None else (a + b for a, b in zip(there, products, strict=True))
                    )
                    self._sums[key, dual] = square, shared

    def chosen(self, storable: Callable[[str, Tensor], Tensor] | None = None) -> dict[str, Tensor]:
        """What moves the folded models to the common gains, by element key, float64 [*batch, 1]: where f is least.

        Args:
            storable: brings elements to those whose gains their tensors can hold, so that rounding falls on the
                other side alone; where that leaves none, the channel stays folded.
        """

        gains = {}
        for key in dict.fromkeys(key for key, _ in self._sums):
            some = next(self._sums[k, dual][0] for k, dual in self._sums if k == key)
            nothing = torch.zeros_like(some), torch.zeros_like(some)
            (alpha, plus), (beta, minus) = (self._sums.get((key, dual), nothing) for dual in (False, True))
            best = quartic_scale(alpha, beta, plus, minus)
            best = torch.where((beta <= TINY) & (alpha > TINY), plus / alpha, best)
            best = torch.where((alpha <= TINY) & (beta > TINY), beta / minus, best)
            if storable is not None:
                best = storable(key, best)
            gains[key] = torch.where(best.isfinite() & (best != 0), best, 1.0)
        return gains


def common_gains(
    pairs: Sequence[PairSolver],
    alignments: Sequence[Alignment],
    form: StoredForm | None,
    observer: Observer,
    *,
    anchor_too: bool,
) -> CommonGains | None:
    """The gains that are best for what is written; None where no gains are folded.

    Args:
        pairs: solvers of one anchor, whose streams were matched.
        alignments: what brings every source into the anchor's coordinates, gains included.
        form: how the output is stored; None where it is not.
        observer: told of progress.
        anchor_too: whether the anchor is brought to the same gains.
    """
    first = pairs[0]
    plan, anchor, dtype = first.plan, first.anchor, first.dtype
    spec = plan.selection.frame
    if spec is None or not spec.gains:
        return None
    blocks = [block for unit in plan.framed for block in unit.blocks]
    unread = unread_gains([anchor, *(pair.source for pair in pairs)])
    fold = folding(anchor, spec, blocks, dtype, unread)
    gauge = GainGauge(spec)
    moves = [(pair.source, fold @ g) for pair, g in zip(pairs, alignments, strict=True)]
    moves += [(anchor, fold)] if anchor_too else []
    for unit in with_progress(anchor, plan.framed, observer, "residual stream, gains: "):
        gained = _with_gains(spec, unit.blocks)
        stored = anchor.unit(gained, dtype)
        for model, g in moves:
            gauge.add(stored, g.applied(model.unit(gained, dtype)))
    gains = {key: block for key, block, _ in gains_over_streams(spec, blocks)}

    def storable(key: str, element: Tensor) -> Tensor:
        return element if form is None or key not in gains else _storable(gains[key], element, form)

    chosen = {key: element for key, element in gauge.chosen(storable).items() if key not in unread}
    return CommonGains(fold, Alignment(spec, chosen))


def gains_of_merge(pairs: Sequence[PairSolver], form: StoredForm, observer: Observer) -> CommonGains | None:
    """The gains that all models of a merge have in common, the anchor among them: what they are fused and written
    in.

    None where some source was not solved as a whole, or no gains are folded: gains then are the anchor's.

    Args: as of `common_gains`.
    """
    alignments = [pair.given for pair in pairs if pair.given is not None]
    if not pairs or len(alignments) < len(pairs):
        return None
    return common_gains(pairs, alignments, form, observer, anchor_too=True)


def prepare_gains(run: UnfinishedRun, pairs: Sequence[PairSolver]) -> CommonGains | None:
    """`gains_of_merge`, computed once and kept in the folder of the unfinished output."""
    paths = [run.blob(f"gains-{name}.safetensors") for name in ("fold", "take")]
    if run.done("gains") is not None:
        spec = pairs[0].anchor.declared
        return CommonGains(*(Alignment.load(path, spec) for path in paths))
    gains = gains_of_merge(pairs, run.form, run.observer)
    if gains is not None:
        for path, alignment in zip(paths, (gains.fold, gains.take), strict=True):
            alignment.save(path)
        run.commit("gains", {})
    return gains


def with_common_gains(pair: PairSolver, alignment: Alignment, observer: Observer) -> Alignment:
    """What brings a source to its anchor, with the gains that bring it nearest in place of the anchor's."""
    form = None if pair.rounding is None else pair.rounding.form
    gains = common_gains([pair], [alignment], form, observer, anchor_too=False)
    return alignment if gains is None else gains.written @ alignment


def with_storable_gains(alignment: Alignment, model: Model, form: StoredForm, dtype: torch.dtype) -> Alignment:
    """An alignment that ends in gains which the output's dtype has, for a model that it was not made to be written
    for: what reads a gain takes up its rounding.

    Args:
        alignment: of the model.
        form: how the output is stored.
        dtype: the working dtype.

    Raises:
        IsomergeError: a stream is turned between gains that the alignment does not make constant.
    """
    moved = {ElementKey.of(key).in_stage for key in alignment}
    steps = {}
    for key, block, scale in gains_over_streams(alignment.spec, model.blocks):
        written = form.written_dtype(block)
        if key not in moved or written is None or torch.finfo(written).eps <= torch.finfo(dtype).eps:
            continue
        tensor = alignment.applied({block: model.assemble(block, dtype)})[block]
        gain = whole_gain(alignment.spec, block, scale, tensor)
        step = whole_gain(alignment.spec, block, scale, tensor.to(written)) / gain
        step = torch.where(step.isfinite() & (step != 0), step, 1.0)
        steps[key] = step.reciprocal() if scale.dual else step
    return Alignment(alignment.spec, steps) @ alignment if steps else alignment


def _with_gains(spec: Spec, blocks: Sequence[Block]) -> list[Block]:
    """The blocks that gains act on, and those that shifts join to them."""
    on_gains = {b for b in blocks if any(s.name in spec.gains for s in elements_of(spec, b).values())}
    for _, _, parts in find_shifts(spec, list(blocks)):
        if on_gains & {*parts.values()}:
            on_gains |= {*parts.values()}
    return [block for block in blocks if block in on_gains]


def _storable(block: Block, element: Tensor, form: StoredForm) -> Tensor:
    """The elements nearest to given ones whose gains are numbers that the output's dtype has."""
    dtype = form.written_dtype(block)
    if dtype is None:
        return element
    dual = any(a.diag and a.dual for a in block.atoms)  # of a layer scale, whose writers it divides
    gain = element.reciprocal() if dual else element
    gain = (gain - block.line.less).to(dtype).double() + block.line.less
    return gain.reciprocal() if dual else gain

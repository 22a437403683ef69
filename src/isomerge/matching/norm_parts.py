"""Bringing what LayerNorm leaves free onto an anchor's: closed forms, all of them projections.

What a writer has along the ones is the anchor's; what a reader takes against the ones, behind its gain, is the
nearest to the anchor's; and a norm's bias is the anchor's, where its readers' biases can take the rest
(`isomerge.symmetry.layer_norms` says why no output depends on any of it). Of readers that see little of a stream
(`isomerge.symmetry.reached`) a constant that asks, what reads it, and its questions become the anchor's, and keys
have the anchor's beside what the questions make of them, which is the least that they can differ; what reads a
narrower map gets the anchor's across what is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from isomerge.matching.distances import distance, squared_distance
from isomerge.matching.rescale import quartic_scale
from isomerge.matching.worth import DISGUISED, WORTH, by_chance, least, takes_away
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.centred import Centred
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.moves import BETWEEN, FOLD, GAIN, MADE, ONES, SCALE, TIED, Folded
from isomerge.symmetry.norm_stage import NormStage, norm_stages
from isomerge.symmetry.norms import LayerNorms, Norm, gain_across, gain_along
from isomerge.symmetry.stated import Moves, Statement
from isomerge.symmetry.unstored_biases import UnstoredBias

SCALED = 0.5
"""The factor of a last norm's gain, less one, from which on models are matched without them."""

SAMPLE = 256
"""Vectors of an axis that tell what part of a difference lies along the ones."""


def ones_elements(
    free: LayerNorms,
    tensors: Blocks,
    target: Mapping[Block, Tensor] | None,
    *,
    folding: bool = False,
    made: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """What brings every writer's part along the ones, and every reader's against them, to a target's.

    Args:
        free: what is whole in the unit.
        tensors: the unit's blocks.
        target: the anchor's; None: to none at all.
        folding: whether `fold_elements` follow, which take off some writers' biases what streams carry on.
        made: the `made_elements` that follow, which take off an output's bias what readers make more.
    """
    elements = {}
    carried = {norm.carried: norm for norm in free.norms if folding and norm.folds and norm.carried}
    paid: dict[Block, list[UnstoredBias]] = {}
    for bias in (bias for norm in free.norms for bias in norm.made):
        if bias.into is not None:
            paid.setdefault(bias.into, []).append(bias)
    for block, axis in free.writers.items():
        gap = _gap(tensors, target, block)
        if (norm := carried.get(block)) is not None and norm.bias is not None:
            gap = gap + _fold_gap(norm, norm.bias, tensors, target)
        if target is not None and made:
            gap = gap + sum(_passed_on(bias, made, target) for bias in paid.get(block, ()))
        elements[ONES + block.key] = gap.mean(axis, keepdim=True)
    for norm in free.norms:
        for block, axis in norm.slack.items():
            gain = gain_across(norm, tensors, tensors[block], axis)
            if target is None:  # against the ones behind the gain, where the form has nothing
                c = -(tensors[block].double() * gain).mean(axis, keepdim=True)
            else:
                along = gain.reciprocal()
                c = (_gap(tensors, target, block) * along).sum(axis, keepdim=True) / along.square().sum()
            elements[GAIN + block.key] = norm.of_rows(block, c, biased=None if norm.bias is None else True)
    return _moving(elements)


def between_elements(free: LayerNorms, tensors: Blocks, target: Mapping[Block, Tensor] | None) -> dict[str, Tensor]:
    """What brings the part along the ones of projections between streams to a target's, after what they got from
    the norms that they read.

    Args:
        free: what is whole in the unit.
        tensors: the unit's blocks, moved by all else.
        target: the anchor's; None: to none at all.
    """
    places = free.between.items()
    return _moving({BETWEEN + b.key: _gap(tensors, target, b).mean(axis, keepdim=True) for b, axis in places})


def scale_elements(
    norms: list[Norm], tensors: Blocks, target: Mapping[Block, Tensor] | None, *, equal: bool = False
) -> dict[str, Tensor]:
    """What multiplies the gains of a last norm, and divides its readers.

    Args:
        norms: of a unit.
        tensors: the unit's blocks.
        target: the anchor's, to which both come nearest, a quartic in every factor (`isomerge.matching.rescale`);
            None: gains become one.
        equal: whether gains become the target's, whatever becomes of readers: what these have along what else is
            free hides the nearest.
    """
    elements = {}
    for norm in norms:
        if norm.gain is None or not norm.scales:
            continue
        gain = gain_along(norm, tensors[norm.gain], 1, 0)
        if target is None:
            factor = gain.reciprocal()
        elif equal:
            factor = gain_along(norm, target[norm.gain], 1, 0) / gain
        else:
            factor = _nearest_scale(norm, gain, tensors, target)
        if bool((factor != 1).any()) and bool((factor != 0).all()):
            elements[SCALE + norm.gain.key] = factor
    return elements


def _nearest_scale(norm: Norm, gain: Tensor, tensors: Blocks, target: Mapping[Block, Tensor]) -> Tensor:
    assert norm.gain is not None
    pairs = [(gain, gain_along(norm, target[norm.gain], 1, 0))]
    pairs += [(tensors[b].double(), target[b].double()) for b in (norm.bias,) if b is not None]
    alpha = torch.stack([x.square() for x, _ in pairs]).sum(0)
    c_plus = torch.stack([x * y for x, y in pairs]).sum(0)
    beta, c_minus = torch.zeros_like(alpha), torch.zeros_like(alpha)
    for reader, axis in norm.readers.items():
        mine, theirs = (
            x[reader].double().movedim(axis, -1).reshape(-1, x[reader].shape[axis]) for x in (tensors, target)
        )
        beta += mine.square().sum(0)
        c_minus += (mine * theirs).sum(0)
    return quartic_scale(alpha, beta, c_plus, c_minus)


def _gap(tensors: Blocks, target: Mapping[Block, Tensor] | None, block: Block) -> Tensor:
    return -tensors[block].double() if target is None else target[block].double() - tensors[block].double()


def fold_elements(norms: list[Norm], tensors: Blocks, target: Mapping[Block, Tensor] | None) -> dict[str, Tensor]:
    """What makes every norm's bias that its readers can carry the target's; None: zero, or its gains where a reader
    has no bias."""
    elements = {
        FOLD + norm.bias.key: _fold_gap(norm, norm.bias, tensors, target)
        for norm in norms
        if norm.bias is not None and norm.folds
    }
    return _moving(elements)


def _fold_gap(norm: Norm, bias: Block, tensors: Blocks, target: Mapping[Block, Tensor] | None) -> Tensor:
    """What a norm's bias is to have more."""
    if target is None:
        return formed_bias(norm, tensors) - tensors[bias].double()
    return norm.foldable(_gap(tensors, target, bias))


def made_elements(
    norms: list[Norm],
    tensors: Blocks,
    target: Mapping[Block, Tensor] | None,
    centred: Collection[Block] = (),
) -> dict[str, Tensor]:
    """What readers without a bias are to make more of their norm's, where it may be anything.

    Args:
        norms: of a unit.
        tensors: its blocks, the norms' biases being the target's already.
        target: the anchor's, to which readers and the biases of outputs come nearest, a least-squares problem;
            None: readers make nothing of it.
        centred: writers of which what they write along the ones is matched apart.
    """
    elements: dict[str, Tensor] = {}
    for norm in norms:
        for unstored in norm.made:
            assert norm.gain is not None
            assert norm.bias is not None
            weight = tensors[unstored.reader].double()
            gain = gain_along(norm, tensors[norm.gain], weight.ndim, unstored.axis)
            bias = tensors[norm.bias].double().reshape(gain.shape)
            if target is None:
                delta = -(weight * bias).sum(unstored.axis, keepdim=True)
            else:
                along, part = gain.reciprocal(), (bias / gain).sum()
                delta = (_gap(tensors, target, unstored.reader) * along).sum(unstored.axis, keepdim=True)
                delta = delta * part / along.square().sum()
                if unstored.into is not None:
                    delta = _paid(
                        unstored, delta, float(along.square().sum() / part.square()), tensors, target, centred
                    )
            whole = torch.where(unstored.rows(weight), delta, torch.zeros_like(delta))
            key = MADE + unstored.reader.key
            elements[key] = elements[key] + whole if key in elements else whole
    return _moving(elements)


def tied_elements(norms: list[Norm], tensors: Blocks, target: Mapping[Block, Tensor] | None) -> dict[str, Tensor]:
    """What tables that are heads as well trade with others (`isomerge.symmetry.norms.TiedTrade`).

    Args:
        norms: of a unit.
        tensors: its blocks.
        target: the anchor's, to whose rows the table's come nearest, by least squares; None: to none along the
            reciprocals of the gains on average.
    """
    elements = {}
    for norm in norms:
        if norm.trades and norm.gain is not None:
            table = norm.trades[0].table
            along = gain_along(norm, tensors[norm.gain], 1, 0).reciprocal()
            gap = _gap(tensors, target, table) @ along / along.square().sum()
            elements[TIED + table.key] = tied_constants(norm, gap)
    return _moving(elements)


def tied_constants(norm: Norm, gap: Tensor) -> Tensor:
    """The constants [trades] of which the sums in every row are nearest to what is asked for [rows]; float64."""
    rows = torch.zeros(len(gap), len(norm.trades), dtype=torch.float64, device=gap.device)
    for column, trade in zip(rows.unbind(1), norm.trades, strict=True):
        column[slice(*trade.rows)] = 1
    return torch.linalg.solve(rows.mT @ rows, rows.mT @ gap)


def _paid(
    bias: UnstoredBias,
    delta: Tensor,
    weight: float,
    tensors: Blocks,
    target: Mapping[Block, Tensor],
    centred: Collection[Block],
) -> Tensor:
    """The nearest bias where an output's pays for it: ``weight |d - delta|^2 + |into - W d - target|^2``."""
    assert bias.into is not None
    w, wanted = bias.map(delta, tensors)
    rest = (tensors[bias.into].double() - target[bias.into].double()).flatten()
    if bias.into in centred:
        w, rest = w - w.mean(0), rest - rest.mean()
    cost = weight * torch.eye(len(wanted), dtype=torch.float64, device=w.device) + w.mT @ w
    return bias.spread(torch.linalg.solve(cost, weight * wanted + w.mT @ rest), tensors[bias.reader])


def _passed_on(bias: UnstoredBias, made: Mapping[str, Tensor], tensors: Mapping[Block, Tensor]) -> Tensor | float:
    """What is taken off an output's bias where a reader makes more of its norm's."""
    delta = made.get(MADE + bias.reader.key)
    return 0.0 if delta is None else bias.through(delta, tensors)


def formed_bias(norm: Norm, tensors: Mapping[Block, Tensor]) -> Tensor:
    """The bias that a norm has in the form of `isomerge.models.layer_norm_form`: zero, or where a reader has none,
    one everywhere behind its gains; float64. Where what it has along the ones alone is free, as much along them;
    and where values take it up, it has what these wrote, so that no output is inverted, and these have none."""
    assert norm.gain is not None
    gain = gain_along(norm, tensors[norm.gain], 1, 0)
    whole = torch.zeros_like(gain)
    if norm.opened:
        whole = torch.ones_like(gain) if norm.scales else gain
    if not norm.level and norm.through is None:
        return whole
    assert norm.bias is not None
    bias = tensors[norm.bias].double()
    bias = bias if norm.through is None else bias + norm.through.written(tensors)
    along = gain.reciprocal() if norm.opened else torch.ones_like(gain)
    return bias + ((whole - bias) * along).sum() / along.sum()


def brought_onto(
    spec: Spec, free: LayerNorms, anchor: Blocks, moved: Blocks, gaps: Mapping[Block, float] | None = None
) -> Alignment:
    """The moves of LayerNorms that bring a unit nearest to the anchor's, of those that are worth it.

    Args:
        spec: of the moves (`isomerge.symmetry.layer_norms.norm_spec`).
        free: what is whole in the unit.
        anchor, moved: its blocks, the source's moved by all else; not changed.
        gaps: their squared distances, where they are known.

    Returns:
        Stages of moves; none where the distance would not fall by what they are worth.
    """
    plain = _norms_onto(spec, free, anchor, moved, gaps)
    far = far_apart(free, anchor, moved)
    if not far:
        return plain
    beside = Alignment.of(reach_stages(spec, far, moved.__getitem__, anchor), spec)
    both = _norms_onto(spec, free, anchor, beside.applied(moved), far=far) @ beside
    before, after = (distance(anchor, g.applied(moved)) for g in (plain, both))
    return both if before - after >= least(before) else plain


def _norms_onto(
    spec: Spec,
    free: LayerNorms,
    anchor: Blocks,
    moved: Blocks,
    gaps: Mapping[Block, float] | None = None,
    *,
    far: Sequence[Statement] = (),
) -> Alignment:
    """The same of norms alone; behind them biases that these fold into become the anchor's, of statements that are
    brought onto it: of keys that a constant asks, and along the ones what norms over heads read."""

    def ended(g: Alignment) -> Alignment:
        if not far:
            return g
        there, elements = g.applied(moved), Moves()
        for statement in far:
            elements |= statement.drops(there, anchor)
        return Alignment.of(norm_stages(spec, _moving(elements)), spec) @ g

    stay = ended(Alignment(spec))
    gaps = gaps or {b: squared_distance(anchor[b], t) for b, t in stay.applied(moved).items()}
    whole, shares = sum(gaps.values()), list(_shares(free, anchor, moved))
    wanted = least(whole, min((width for _, width, _ in shares), default=1))
    if _at_most(free, shares, gaps) < wanted or not whole:
        return stay
    ones = NormStage(spec, ones_elements(free, moved, anchor))
    writers = NormStage(spec, {key: c for key, c in ones.elements.items() if key.startswith(ONES)})
    trials = [additive_stages(spec, free, anchor, moved), [ones], [writers]]
    for equal in (True, False):
        if scales := scale_elements(free.norms, moved, anchor, equal=equal):
            scale = NormStage(spec, scales)
            trials = [[scale, *additive_stages(spec, free, anchor, scale.applied(moved))], [scale], *trials]
    trials = [ended(Alignment.of(stages, spec)) for stages in trials]
    reached = [(distance(anchor, g.applied(moved)), k) for k, g in enumerate(trials) if g]
    left, place = min(reached, default=(whole, 0))
    return trials[place] if left <= whole - wanted else stay


def reach_stages(
    spec: Spec,
    statements: Sequence[Statement],
    stored: Callable[[Block], Tensor],
    target: Mapping[Block, Tensor] | None,
) -> list[NormStage]:
    """The stages that bring all that some statements leave free to a target's; None: to none of it.

    Args:
        spec: of the moves (`isomerge.symmetry.layer_norms.norm_spec`).
        statements: what is free.
        stored: any block.
        target: the anchor's.
    """
    elements: Moves = {}
    for statement in statements:
        elements |= statement.onto({block: stored(block) for block in statement.blocks}, target)
    return norm_stages(spec, _moving(elements))


def far_apart(free: LayerNorms, anchor: Blocks, moved: Blocks) -> list[Statement]:
    """Those statements of which the anchor's is another; biases that norms over heads read follow their weights."""
    far = [statement for statement in free.reached if statement.share(moved, anchor) > WORTH]
    names = {statement.norm for statement in far if isinstance(statement, Centred)}
    biases = (s for s in free.reached if isinstance(s, Centred) and s.follows and s.norm in names)
    return [*far, *(statement for statement in biases if statement not in far)]


def _moving(elements: Moves) -> Moves:
    """Those elements that move anything."""
    return {key: c for key, c in elements.items() if bool(c.any())}


def additive_stages(
    spec: Spec, free: LayerNorms, target: Mapping[Block, Tensor] | None, tensors: Blocks
) -> list[NormStage]:
    """What tied tables trade, what is added along and against the ones, and what biases fold; of a unit.

    Args:
        spec: see `isomerge.symmetry.layer_norms.norm_spec`.
        free: what is whole in the unit.
        tensors: the unit's blocks.
        target: the anchor's; None: to none of it at all.
    """
    tied, made = NormStage(spec, tied_elements(free.norms, tensors, target)), dict[str, Tensor]()
    tensors = tied.applied(tensors)
    if target is not None:
        folded = NormStage(spec, fold_elements(free.norms, tensors, target)).applied(tensors)
        made = made_elements(free.norms, folded, target, free.writers)
    ones = NormStage(spec, ones_elements(free, tensors, target, folding=True, made=made))
    tensors = ones.applied(tensors)
    fold = NormStage(spec, fold_elements(free.norms, tensors, target))
    tensors = fold.applied(tensors)
    more = NormStage(spec, made_elements(free.norms, tensors, None) if target is None else made)
    stages = [tied, ones, fold, more]
    if free.between:
        stages.append(NormStage(spec, between_elements(free, more.applied(tensors), target)))
    return stages


def _at_most(free: LayerNorms, shares: Sequence[Share], gaps: Mapping[Block, float]) -> float:
    """What of a unit's squared distance moves of norms could take away, by a sample of every tensor."""
    vectors = free.biases | {
        block for norm in free.norms for trade in norm.trades for block in (trade.partner, trade.bias)
    }
    vectors |= {bias.into for norm in free.norms for bias in norm.made if bias.into is not None}
    vectors |= {b for norm in free.norms if norm.scales and norm.gain for b in (norm.gain, *norm.readers)}
    along = sum(share * gaps[block] for block, _, share in shares if block not in vectors)
    return along + sum(gaps[block] for block in vectors)


def is_disguised(free: LayerNorms, anchor: Blocks, source: Blocks) -> bool:
    """Whether some tensor of a unit differs along the ones, or against them, more than chance would have it: such
    models are matched without."""
    hidden = any(statement.share(source, anchor) > DISGUISED for statement in free.reached)
    if hidden or _is_folded(free, anchor, source):
        return True
    for norm in free.norms:
        if norm.sliced and norm.folds and norm.gain is not None and norm.bias is not None:
            # in what reads slices nothing else of it shows: so much beside what a norm gives hides a bias
            moved = (anchor[norm.bias].double() - source[norm.bias].double()).square().sum()
            if float(moved) > DISGUISED * float(gain_along(norm, source[norm.gain], 1, 0).square().sum()):
                return True
        if norm.scales and norm.gain is not None:
            factor = _nearest_scale(norm, gain_along(norm, source[norm.gain], 1, 0), source, anchor)
            if float((factor - 1).abs().max()) > SCALED:
                return True
    shares = _shares(free, anchor, source)
    large = ((width, share) for block, width, share in shares if source[block].ndim > 1 and share > DISGUISED)
    return any(share > by_chance(1, width) for width, share in large)


def _is_folded(free: LayerNorms, anchor: Blocks, source: Blocks) -> bool:
    """Whether some norm's bias, had it the anchor's, took away most of what is between it and all that pays for it,
    and much of what is between the units."""
    for norm in free.norms:
        if norm.bias is None or not norm.folds:
            continue
        fold, delta = Folded(norm.bias, norm), _gap(source, anchor, norm.bias)
        folded = fold.moved(fold.element_keys[0], delta, source)
        before, after = (sum(squared_distance(anchor[b], t[b]) for b in folded) for t in (source, folded))
        chance = by_chance(delta.numel(), sum(source[b].numel() for b in folded))
        if takes_away(before, after, distance(anchor, source), chance):
            return True
    return False


Share = tuple[Block, int, float]


def _shares(free: LayerNorms, anchor: Blocks, source: Blocks) -> Iterator[Share]:
    """Every writer and reader, the width of its stream, and the part of its difference along the ones or against
    them, of a sample of its vectors."""
    places = [(block, axis, None) for block, axis in free.writers.items()]
    read = [(norm.gain, place) for norm in free.norms for place in (norm.slack | norm.opened).items()]
    places += [(block, axis, gain) for gain, (block, axis) in read]
    places += [(table, 1, norm.gain) for norm in free.norms for table in {trade.table for trade in norm.trades}]
    for block, axis, gain in places:
        gap = _sampled(anchor[block], axis) - _sampled(source[block], axis)
        along = torch.ones_like(gap[0])
        if gain is not None:
            along = (source[gain].double() + gain.line.less).reciprocal()
        whole, part = float(gap.square().sum()), float((gap @ along).square().sum() / along.square().sum())
        yield block, len(along), part / whole if whole else 0.0


def _sampled(tensor: Tensor, axis: int) -> Tensor:
    """Some vectors along one axis of a tensor, evenly spread: float64 [at most `SAMPLE` of every other axis,
    width]."""
    places = tuple(
        slice(None) if k == axis else slice(None, None, -(-n // SAMPLE)) for k, n in enumerate(tensor.shape)
    )
    return tensor[places].movedim(axis, -1).reshape(-1, tensor.shape[axis]).double()

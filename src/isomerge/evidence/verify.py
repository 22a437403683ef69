"""Comparing two checkpoints without writing: distances as stored and aligned, and the proof of sameness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import prod

import torch

from isomerge.config.agreement import decisive_differences, open_differences
from isomerge.evidence.distance import ROUNDOFF, SAME, Spread, relative_residuals, risen_note, summarise, why_risen
from isomerge.evidence.report.spaces import plain_names
from isomerge.matching.distances import BlockResidual
from isomerge.matching.frame import has_shared_meaning, reads_once
from isomerge.models.free_streams import given_out_by_any, has_no_head, turned_outputs
from isomerge.models.recognised import Model, Moved
from isomerge.models.tied_tensors import is_body, tied_lines
from isomerge.models.transformers_reading import reading_of, refusal_of
from isomerge.models.unit_plan import unit_layer, with_progress
from isomerge.progress import Observer
from isomerge.records import Json, Record, inline
from isomerge.solve.pairs.in_place import nearest_in_place
from isomerge.solve.pairs.pair import PairSolver, gaps_of
from isomerge.solve.pairs.product_residuals import judge
from isomerge.solve.pairs.residuals import comparing, every_residual, is_turned, residual_of, with_framed_stream
from isomerge.solve.pairs.stream_descent import StreamSolver
from isomerge.solve.pairs.written_gains import with_common_gains
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.fixed import FixedPart, fixed_parts
from isomerge.symmetry.returned import class_of, task_of
from isomerge.symmetry.units import Unit

OUTPUTS_APART = 10.0
"""Times the tolerance of weights: twins' outputs are apart by a tenth of it and less (benchmarks/verify.py)."""
ROUNDED_OUTPUTS = 1e-3
"""Models are run in float32, whatever they are stored in: outputs of deep ones are rounded to about 1e-4."""
FOREIGN = 0.5
"""Relative distance beyond which weights have nothing to do with each other: fine-tunes are nearer."""
MOVED = 0.25
"""Of the distance as stored: where so much is left or less, something had to move, and its rounding counts."""
HALF = 1e-4
"""Unit roundoffs above are those of half precisions, whose rounding hides changes that people make."""
SUBNORMAL = 2.0**-24
"""The least distance of numbers in float16."""
SETTLING = 1e-4
"""Relative distance that a search for a stream's basis may leave between equal functions when it ends too early."""
NAMED = 4
"""Keys that a sentence names."""
AGREEING = 1e-6
"""Outputs of float32 that are this near are equal but for the order of sums."""


class Residual(Record):
    """What is left between two models where it is largest against what rounding explains."""

    largest: float
    """A relative difference."""
    tensor: str
    tolerance: float
    """What the rounding of the coarsest stored dtype explains."""
    rounding: float = 0.0
    """What rounding explains of products, where these decide."""
    layers: Mapping[str, float] = field(default_factory=dict)
    """The largest of every layer, and of what is ``outside``."""
    of_entry: bool = False
    """Whether ``largest`` is of one entry, in parts of itself, where nothing had to move. Else it is of a tensor,
    in parts of its norm or of its largest entry, whichever is more."""

    @property
    def share(self) -> float:
        """Of its tolerance."""
        return self.largest / self.tolerance


class Comparison(Record):
    """Whether two models are one function, and what of their weights says so."""

    same: bool | None
    """None: it cannot be told, and ``reason`` says why."""
    turned: Sequence[str] = field(default_factory=list)
    """The outputs that had to be turned, in a sentence each."""
    reason: str | None = None
    dead_blocks: Sequence[str] = field(default_factory=list)
    """The elements of blocks without a canonical gauge."""
    residual: Residual = field(kw_only=True)

    def of(self, solver: PairSolver) -> Compared:
        """With what was compared: the blocks of a solver's models."""
        return Compared(sum(len(unit.blocks) for unit in solver.plan.units), _only_in_one(solver), proof=self)


class Compared(Record):
    """Whether two models are one function, and by how much of them."""

    compared: int
    """Blocks."""
    only_in_one: Sequence[str]
    """Tensors that the other model lacks: they are not compared."""
    proof: Comparison = inline()


class Differences(Record, kw_only=True):
    """How two models differ."""

    compared: Compared = inline()
    distance: Spread
    streams: Sequence[Json]
    """Of passes over both models."""
    notes: Sequence[str]
    fixed: Sequence[FixedPart]


def compare(solver: PairSolver, observer: Observer) -> Differences:
    """Distances before and after alignment, the residual that no symmetry explains, and whether both are one
    function.

    Reads every tensor of both models once (twice where a space ties a whole stack).
    """
    streams: list[Json] = []
    if solver.plan.selection.frame is not None:
        found_streams = StreamSolver(solver, observer).solve()
        if solver.plan.selection.streams:
            given = with_common_gains(solver, found_streams.alignment, observer)
        else:
            given, _ = nearest_in_place(solver, found_streams.alignment, observer)
        solver = replace(solver, given=given)
        streams = [found_streams.report]
    elif solver.plan.votes:
        solver = replace(solver, votes=solver.collect_votes())
    results = []
    for unit in with_progress(solver.anchor, solver.plan.units, observer):
        anchor, source = solver.load(solver.anchor, unit), solver.load(solver.source, unit)
        results.append(solver.solve(unit, anchor, source)[0])
    distance = summarise(gaps_of(results), plain_names(solver.anchor.declared))
    proof = unlike_settings(solver.anchor, solver.source) or prove(solver, observer)
    doubt = doubt_of_configs(solver.anchor, solver.source) if proof.same else None
    return Differences(
        compared=doubted(proof, doubt).of(solver),
        distance=distance,
        streams=streams,
        notes=[*solver.plan.selection.notes, *risen_note(distance.total, why_risen(streams))],
        fixed=fixed_parts(solver.anchor.spec, solver.anchor.matches.values()),
    )


def prove(solver: PairSolver, observer: Observer) -> Comparison:
    """Whether two models are the same function modulo the symmetries of their spec, algebraically.

    Both are moved to their canonical gauges and matched; what is left over must be within the rounding of the
    coarsest stored dtype of their unit, tensor by tensor. Where it is not, products of the tensors decide, which no
    gauge changes (`isomerge.solve.pairs.product_residuals`). Models that differ are compared once more with their
    norm gains folded and the source's residual stream in the anchor's order; and where a class returns a stream
    beside its predictions, once more with that one turned as well: ``turned`` names what had to be.

    ``same`` is None where what differs may be rounding of the stored numbers; ``reason`` says so in a sentence.
    """
    solver, models = replace(solver, closes=True), (solver.anchor, solver.source)
    returned = frozenset() if any(map(has_no_head, models)) else given_out_by_any(models)
    proof, turned = _residual(comparing(solver), observer), frozenset[str]()
    for streams in dict.fromkeys((turned, returned)):
        if proof.same:
            break
        ready = with_framed_stream(solver, observer, streams)
        if ready.framed:
            framed = _residual(comparing(ready), observer)
            turned = streams if framed.same else turned
            proof = min(proof, framed, key=_favour) if framed.same or not streams else proof
    outputs = [turned_outputs(solver.source, stream) for stream in sorted(turned)]
    return replace(proof, turned=outputs, reason=_reason(proof.residual) if proof.same is None else None)


def _favour(proof: Comparison) -> tuple[int, float]:
    """The order of comparisons in different bases: what is least certain to differ, then what is left of it, which
    in a basis that does not fit says nothing about the models."""
    return (True, None, False).index(proof.same), proof.residual.share


def reconsidered(solver: PairSolver, proof: Comparison, difference: float) -> Comparison:
    """What `prove` found of models whose fingerprints, which no basis changes, are equal but for a relative
    ``difference``.

    Where a tensor is as far apart as foreign weights, and lies in a stream of which embeddings and heads do not
    tell the basis, none may have been found for this stream: the search for it descends, and may end too early.
    That says nothing about the functions. Nor does what is left where fingerprints agree within the tolerance, and
    all tensors to `SETTLING`, of models stored in float64.
    """
    residual = proof.residual
    if proof.same is False and difference <= residual.tolerance < residual.largest <= SETTLING:
        reason = (
            f"fingerprints agree to {difference:.2g}, and {residual.tensor} to {residual.largest:.2g}: the "
            "search for the basis of a residual stream may have ended too early"
        )
        return doubted(proof, reason)
    if proof.same is not False or residual.largest <= FOREIGN:
        return proof
    tensor = residual.tensor
    block = next((b for b in solver.anchor.blocks if b.key == tensor or tensor in b.canonical), None)
    if block is None or not _untold(solver.anchor) & block.names:
        return proof
    reason = (
        f"fingerprints, which no basis changes, agree to {difference:.2g}, but no basis of the residual streams "
        f"was found in which {residual.tensor} does"
    )
    return doubted(proof, reason)


def _untold(model: Model) -> set[str]:
    """The streams that have fewer rows of embeddings and heads than coordinates: none, or a few latents."""
    spec, rows = model.declared, dict.fromkeys(model.declared.streams, 0)
    for block in model.blocks:
        axes = block.atoms
        for name in rows if has_shared_meaning(spec, block) else ():
            if reads_once(spec, axes, name):
                size = prod(model.checkpoint.tensors[model.stored_names(block)[0]].shape)
                rows[name] += size // spec.sizes[name]
    return {name for name, count in rows.items() if count < spec.sizes[name]}


def contradiction(proof: Comparison, outputs: float, doubt: str | None = None) -> str | None:
    """A sentence where outputs on random inputs speak against what weights say; None where they do not.

    Args:
        proof: what `prove` or `refute` returns.
        outputs: their largest difference, as a share of the largest output; of predictions alone where a stream
            that is returned was ``turned``.
        doubt: why equal weights are no equal functions for certain, which explains outputs.
    """
    residual = proof.residual
    if proof.same and outputs > max(OUTPUTS_APART * residual.tolerance, ROUNDED_OUTPUTS):
        apart = f"outputs on random inputs differ by {outputs:.2g} of the largest, more than rounding explains"
        if doubt is not None:
            return apart
        return (
            f"the weights are the same modulo symmetry, but {apart}: one of the models may not be what its "
            "config.json and the spec say, or its weights amplify rounding"
        )
    if proof.same is False and outputs <= AGREEING:
        return (
            f"{residual.tensor} differs by {residual.largest:.2g} modulo symmetry, but outputs on random "
            "inputs agree: the difference may lie where these inputs do not reach, such as in rare tokens, or be a "
            "symmetry that the spec does not declare"
        )
    return None


def doubted(proof: Comparison, reason: str | None) -> Comparison:
    """What `prove` found, with a ``reason`` more why it cannot be told after all; unchanged where there is none."""
    if reason is None:
        return proof
    return replace(proof, same=None, reason="; ".join(filter(None, [proof.reason, reason])))


def unlike_settings(first: Model, second: Model) -> Comparison | None:
    """What `prove` need not ask of two models that are no one function whatever their weights are, as their configs
    differ in what decides it, which ``reason`` names; None where they do not."""
    decided = decisive_differences(first.config, second.config, first.spec.config_keys)
    if not decided:
        return None
    each = "; ".join(d.sentence for d in decided)
    return replace(refute(0.0, "", 0.0), reason=f"config.json differs in what decides the function: {each}")


def unlike_kinds(first: Model, second: Model) -> str | None:
    """That two models give out other things, as a body and a model with a head upon it do, in a sentence that says
    where a head is the embeddings; None of models of one kind, and where a config names no class."""
    tasks = [task_of(model.config) for model in (first, second)]
    if not all(tasks) or tasks[0] == tasks[1]:
        return None
    said = f"{first.ref} is a {class_of(first.config)} and {second.ref} a {class_of(second.config)}"
    for model in (first, second):
        ties = [] if is_body(model.config) else tied_lines(model.spec, model.names, model.config)
        said += "".join(f", whose {head.name} is its {table.name}" for head, table in ties[:1])
    return f"{said}: they give out other things"


def doubt_of_configs(first: Model, second: Model) -> str | None:
    """Why equal weights are no equal functions for certain: the models are of other kinds, the configs differ in a
    key that the spec says nothing of, transformers makes no model of one, or one lacks weights of its class; None
    where there is no such reason."""
    if (kinds := unlike_kinds(first, second)) is not None:
        return f"the weights that both hold are the same, but {kinds}"
    unlike = open_differences(first.config, second.config, first.spec.config_keys)
    if unlike:
        unlike.sort(key=lambda d: (d.key not in first.spec.config_keys, d.key != "model_type"))
        each = [f"{d.key} ({d.said})" for d in unlike[:NAMED]]
        each += [f"{more} more key{'s' if more > 1 else ''}"] if (more := len(unlike) - NAMED) > 0 else []
        named = " and ".join(filter(None, [", ".join(each[:-1]), each[-1]]))
        return (
            f"the weights are the same, but config.json differs in {named}, and it is not known whether the "
            "function depends on that"
        )
    for model in (first, second):
        refusal = refusal_of(model.config, model.checkpoint.shapes)
        if refusal is not None:
            return (
                f"the weights are the same, but transformers makes no model of config.json of {model.ref} "
                f"({refusal})"
            )
    readings = [
        reading_of(m.config, m.checkpoint.shapes) if m.config.get("architectures") else None
        for m in (first, second)
    ]
    lacking = [set() if reading is None else {*reading.lacking} for reading in readings]
    for model, reading, lost, held in zip((first, second), readings, lacking, lacking[::-1], strict=True):
        if reading is not None and lost - held:
            return (
                f"the weights that both hold are the same, but {model.ref} lacks {min(lost - held)}, which "
                f"{reading.kind} of transformers would draw at random"
            )
    return None


def _reason(residual: Residual) -> str:
    return (
        f"{residual.tensor} differs by {residual.largest:.2g}, but rounding of the stored numbers "
        f"may explain {residual.rounding:.2g}: its factors nearly cancel or lack rank"
    )


def refute(difference: float, tensor: str, tolerance: float) -> Comparison:
    """What `prove` returns for models that their fingerprints tell apart as a whole; nothing is matched."""
    return Comparison(False, residual=Residual(difference, tensor, tolerance))


def _residual(solver: PairSolver, observer: Observer) -> Comparison:
    """The largest relative residual (against its own tolerance), its tensor, the largest of every layer, and the
    verdict, by a solver that is `comparing`.

    What decides comes first: a unit that differs for certain, then one that cannot be told, then the largest
    residual. Where something cannot be told and a rotation of the residual stream was found with it, a smaller
    difference elsewhere is no certain one; so all units are looked at then.
    """
    worst_of: dict[bool | None, Residual] = {True: Residual(0.0, "", SAME["F64"])}
    layers: dict[str, float] = {}
    dead: list[str] = []
    turned, certain, left_open = is_turned(solver), 0.0, 0.0
    for unit, rows, dead_here in every_residual(solver, observer):
        dead += dead_here
        largest, tensor, tolerance, roundoff = _against_rounding(solver, unit, rows)
        same, rounding, difference = largest <= tolerance, 0.0, largest
        further = False not in worst_of or (turned and roundoff > HALF and certain <= FOREIGN)
        if not same and further and (unit.elements or unit.votes):
            judgement = judge(solver, unit, tolerance, roundoff)
            same, rounding, difference = judgement.same, judgement.rounding, judgement.residual
            if (beside := judgement if same is None else judgement.beside) is not None:
                left_open = max(left_open, beside.rounding)
                worst_of.setdefault(None, Residual(beside.residual, beside.place, tolerance, beside.rounding))
            # where gauges hold, the tensor that is furthest between them tells more than a product
            if same is not False or dead_here:
                largest, tensor = judgement.residual, judgement.place
        of_entry = False
        if same and largest and roundoff > HALF and (change := _unmoved_change(solver, unit, largest, roundoff)):
            (largest, tensor, of_entry), tolerance, same, difference = change, roundoff, False, change[0]
        certain = max(certain, difference) if same is False else certain
        layer = "outside" if unit_layer(unit) is None else str(unit_layer(unit))
        layers[layer] = max(largest, layers.get(layer, 0.0))
        worst = Residual(largest, tensor, tolerance, rounding, of_entry=of_entry)
        if same not in worst_of or worst.share >= worst_of[same].share:
            worst_of[same] = worst
    open_too = turned and None in worst_of and certain <= left_open
    same = None if open_too else next(said for said in (False, None, True) if said in worst_of)
    return Comparison(same, dead_blocks=dead, residual=replace(worst_of[same], layers=layers))


def _unmoved_change(
    solver: PairSolver, unit: Unit, largest: float, roundoff: float
) -> tuple[float, str, bool] | None:
    """Of a unit in half precision that is as far apart as it is stored, so that nothing had to move: a relative
    difference that is more than one rounding, its tensor, and whether it is of an entry; None where there is none,
    or something moved.

    Args:
        largest: what is left of the unit after all that may move.
        roundoff: of its coarsest dtype.
    """
    rows, change = [], (0.0, "")
    models = [model.without(Moved) for model in (solver.anchor, solver.source)]
    for block in unit.blocks:
        a, b = (model.assemble(block, None) for model in models)
        if a.shape != b.shape or not (a.is_floating_point() and b.is_floating_point()):
            continue
        a, b = a.float(), b.float()
        rows.append(residual_of(block, a, b))
        size = torch.maximum(a.abs(), b.abs())
        beyond = (a - b).abs() > roundoff * size + SUBNORMAL
        if bool(beyond.any()):
            change = max(change, (float(((a - b).abs() / size)[beyond].max()), block.key))
    before, tensor = relative_residuals(rows)
    if largest <= MOVED * before:
        return None
    return (*change, True) if change[1] else (largest, tensor, False) if largest > 2 * roundoff else None


def _against_rounding(solver: PairSolver, unit: Unit, rows: list[BlockResidual]) -> tuple[float, str, float, float]:
    """The residual of a unit that is largest against what rounding explains, its tensor, that tolerance, and the
    unit roundoff: norms that are stored more coarsely than what reads them excuse no more than themselves and the
    biases that their own move."""
    norms = solver.plan.free(unit).norms
    vectors = {
        b for norm in norms for b in (norm.gain, norm.bias, norm.carried, *norm.reader_biases) if b is not None
    }
    rest = [block for block in unit.blocks if block not in vectors]
    whole, apart = _tolerance(solver, unit.blocks), _tolerance(solver, rest)
    if apart == whole or not rest:
        return *relative_residuals(rows), *whole
    keys = {block.key for block in rest}
    parts = [[row for row in rows if (row.tensor in keys) is inside] for inside in (True, False)]
    residuals = [
        (*relative_residuals(part), *least) for part, least in zip(parts, (apart, whole), strict=True) if part
    ]
    return max(residuals, key=lambda each: each[0] / each[2])


def _tolerance(solver: PairSolver, blocks: Sequence[Block]) -> tuple[float, float]:
    """What the rounding of the coarsest dtype of some blocks explains, and its unit roundoff; integers must agree
    exactly."""
    codes = {
        model.checkpoint.tensors[name].dtype
        for model in (solver.anchor, solver.source)
        for block in blocks
        for canonical in block.canonical
        if (name := model.names.get(canonical)) is not None
    }
    coarsest = max((code for code in codes if code in SAME), key=SAME.__getitem__, default="F64")
    return SAME[coarsest], ROUNDOFF[coarsest]


def _only_in_one(solver: PairSolver) -> list[str]:
    lacking = set()
    for model, other in ((solver.anchor, solver.source), (solver.source, solver.anchor)):
        lacking |= {m.canonical for m in model.matches.values() if other.source_of(m.canonical, m) is None}
    return sorted(lacking)

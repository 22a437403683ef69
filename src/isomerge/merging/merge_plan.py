"""A merge, checked and planned before a byte is written: spaces, heads, solvers, the fusion of every unit, the key
of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING

import torch

from isomerge.checkpoint.yaml_text import plain_value
from isomerge.evidence.relation import Level, Pair
from isomerge.evidence.report.facts import Facts
from isomerge.fusion.fusion import Fusion
from isomerge.merging.decision import Decision, decision, learning, learns
from isomerge.merging.fusing import Fuser
from isomerge.merging.heads import Heads, arrange, check_heads, head_blocks, head_lines, heads_of, left_out
from isomerge.merging.merge_checks import check_aligned, check_framed, check_options, check_runs, statistics_of
from isomerge.merging.merge_request import MergeRequest
from isomerge.merging.parameter_checks import check_parameters, idle_density, idle_filters
from isomerge.merging.recipe.merge_recipe import recipe_text
from isomerge.models.compatible import check_compatible
from isomerge.models.recognised import Model, working_dtype
from isomerge.models.row_meanings import in_order
from isomerge.models.stored_form import coarse_note
from isomerge.models.unit_plan import Plan, make_plan
from isomerge.observe.read_files import data_key, file_stamp
from isomerge.options import unused
from isomerge.progress import Observer
from isomerge.records import Json
from isomerge.run.cost import Needs, estimate, room_for_units
from isomerge.run.run_report import Moves
from isomerge.run.run_verdict import RunVerdict, measured, pairs_of, planned_facts, verdict_on
from isomerge.run.running_cost import fusing_memory
from isomerge.run.writing_run import Output, run_key
from isomerge.solve.match_checks import check_matching, check_statistics_files, with_data_for_method
from isomerge.solve.match_inputs import check_data, inputs_key
from isomerge.solve.match_names import SOFT
from isomerge.solve.match_options import OURS, Matching
from isomerge.solve.pairs.pair import CommonGains, PairSolver
from isomerge.solve.standing import (
    Kinship,
    Standing,
    chosen_spaces,
    leaves_alone,
    none_matched,
    own_order,
    standings,
)

if TYPE_CHECKING:
    from isomerge.merging.fusion_statistics import FusionStatistics


DECIDED = ("align", "spaces")
"""Options that are decided by how the models stand, where they are not said."""


@dataclass(frozen=True)
class Matched:
    """What passes over whole models found."""

    streams: Sequence[Json] = ()
    """What is said of every source, where streams (or all, by other ways) were matched."""
    mean: Json | None = None
    """The same of the common mean, of a merge without an anchor."""


@dataclass(frozen=True)
class Bearings:
    """How the models of a merge stand to the one that the others are brought onto, and what was decided by it."""

    order: list[int]
    """The numbers of the models: first of the one that they are brought onto, then of the others."""
    origins: list[Model | None]
    """What the others were tuned from, which is matched in their place; None where it is the base."""
    standings: list[Standing]
    """Of each of the others, or of what it was tuned from."""
    strays: list[Standing]
    """Of models to what they are said to be tuned from."""
    helps: list[bool]
    """Whether matching would help them, where nothing is matched."""
    spaces: str
    left: list[bool]
    """Which of the others are left as they are."""
    notes: list[str]
    """What to tell of the spaces that were chosen."""
    decision: Decision | None = None

    @property
    def all_left(self) -> bool:
        """Whether there are others, and all are left as they are."""
        return bool(self.left) and all(self.left)


@dataclass(frozen=True, eq=False)
class MergePlan:
    """One merge, checked, and decided in all that is known before a byte is written: see `plan_merge`."""

    request: MergeRequest
    models: Sequence[Model]
    bases: Sequence[Model | None]
    """What each of the models was tuned from, where that is not the base."""
    output: Output
    dtype: torch.dtype
    """The working dtype."""
    matching: Matching
    """What the match looks at, with what was decided of it."""
    bearings: Bearings
    spaces: str
    """What may move."""
    first: Plan | None
    """Of models that are transported: what moves before, in the paper's spaces."""
    heads: Heads
    template: Model
    """What names and shapes the output's tensors."""
    plan: Plan
    statistics: FusionStatistics | None = None
    """Of the models, where the method asks for them and they are not gathered."""
    solvers: Sequence[PairSolver] = ()
    """Of every model but the first of the order."""
    named: Sequence[str] = ()
    """What the kept recipe calls the models; empty: none is kept."""
    vocabulary: str = ""
    """What was decided of the models' tokens."""
    gains: CommonGains | None = None
    """The gains that all models have in common, in which they are fused and written, once streams were turned."""

    @property
    def fusion(self) -> Fusion:
        """The method and its parameters."""
        return self.request.fusion

    @property
    def donor(self) -> Model:
        """The model that gives config and tokenizer."""
        return self.models[0]

    @property
    def target(self) -> Model:
        """The model that the others are brought onto."""
        return self.models[self.bearings.order[0]]

    @property
    def sources(self) -> list[Model]:
        """The others."""
        return [self.models[k] for k in self.bearings.order[1:]]

    @property
    def places(self) -> list[int]:
        """Where the models are in what solvers give, the target first."""
        return [self.bearings.order.index(k) for k in range(len(self.models))]

    @property
    def aligns(self) -> bool:
        """Whether models are to be matched."""
        return bool(self.request.align)

    @property
    def matches(self) -> bool:
        """Whether any model is matched."""
        return self.aligns and not self.bearings.all_left

    @property
    def gathers(self) -> bool:
        """Whether the method's statistics are gathered on the spot."""
        return self.fusion.method.statistics is not None and self.statistics is None

    @property
    def runs(self) -> bool:
        """Whether the models are run to be fused."""
        return self.fusion.method.forward or self.gathers or self.request.repair is not None

    @cached_property
    def needs(self) -> Needs:
        """What decides how much memory the run takes, for `isomerge.run.cost`."""
        fusing = fusing_memory(
            self.models,
            self.fusion,
            self.matching,
            repair=self.request.repair is not None,
            gathers=self.gathers,
            aligned=self.matches,
        )
        needs = Needs(False, piecewise=self.fusion.method.elementwise, fusing=fusing)
        return replace(needs, anchor=self.request.anchor, matching=self.matching) if self.matches else needs

    def cost(self) -> dict[str, float]:
        """What it will take in memory and time; output and data are looked at.

        Raises:
            IsomergeError: what a run would refuse.
        """
        self.output.check([*self.models, *self.read])
        check_data(self.matching, self.donor)
        return estimate(self.plan, self.models, self.needs, limit=self.output.max_memory)

    def decided(self) -> list[str]:
        """What was decided, and how to decide otherwise, in a line each; none where all was said."""
        decision, by_recipe = self.bearings.decision, self.request.recipe is not None
        lines = [] if decision is None else decision.lines(recipe=by_recipe)
        key = "tokenizer_source" if by_recipe else "--tokenizer-source"
        return lines + ([f"Decided: {self.vocabulary} ({key} says otherwise)."] if self.vocabulary else [])

    def pairs(self, moves: Moves | None = None) -> list[Pair]:
        """Every model with what it is brought to, with the distances of a run; and fine-tunes that are none of what
        they are said to be tuned from."""
        if self.fusion.picks and not self.aligns:
            return []  # no two are averaged
        bearings = self.bearings
        how = {"align": self.aligns, "left": bearings.left, "helps": bearings.helps}
        base = self.fusion.first == "base" and not bearings.order[0]
        pairs = pairs_of(bearings.standings, self.models, base=base, **how)
        pairs = pairs if moves is None else measured(pairs, moves.spreads)
        strays = pairs_of(bearings.strays, self.models, align=False, base=True)
        return pairs + [pair for pair in strays if pair.level is Level.POOR]

    @cached_property
    def fuser(self) -> Fuser:
        """What applies the fusion: see `fuser_of`."""
        return self.fuser_of(self.fusion)

    def fuser_of(self, fusion: Fusion) -> Fuser:
        """What applies a fusion to the units, its parameters checked for every tensor.

        Raises:
            IsomergeError: parameters that the method does not take for some tensor, or not together.
        """
        fuser = Fuser(fusion, self.plan, self.donor, self.statistics, self.dtype, self.places, gains=self.gains)
        check_parameters(fuser)
        return replace(fuser, notes=[*idle_filters(fuser), *idle_density(fuser)])

    def key(self) -> str:
        """What the output depends on: a run that was killed goes on only under the same."""
        request, bearings = self.request, self.bearings
        settings = (
            list(map(file_stamp, request.stats)),
            self.spaces,
            [getattr(request, name) for name in MergeRequest.declared() if name not in DECIDED],
            self.output.dtype,
            self.output.out_shard_size,
            inputs_key(self.matching, self.donor),
            inputs_key(self.matching, self.target),
            bearings.order,
            data_key(request.repair, self.donor, self.matching.limit),
            [k for k, base in enumerate(self.bases) if base is not None],
            None if self.recipe is None else plain_value(self.recipe),  # what it says, not how it is written
            bearings.left,
            None if self.first is None else bearings.spaces,
        )
        return run_key("merge", self.read, *self.fusion.key(), *settings)

    @cached_property
    def recipe(self) -> str | None:
        """The YAML that is kept with the output; spaces stand in it where they were not a matter of course."""
        if not self.named:
            return None
        return recipe_text(self.request, self.named, self.spaces, firm=bool(self.bearings.notes))

    @property
    def read(self) -> list[Model]:
        """All models that are read."""
        return [*self.models, *(base for base in self.bases if base is not None)]

    def verdict(self, moves: Moves | None = None, facts: Facts | None = None) -> RunVerdict | None:
        """What came out by the distances and the facts of a run, or what will by how the models stand."""
        if facts is None:
            fusion = self.fuser.described(len(self.models))
            facts = replace(
                planned_facts("merge", [self.target.ref, *(source.ref for source in self.sources)]),
                aligned=self.aligns,
                method=fusion.method,
                weights=tuple(w for w in fusion.weights or () if w is not None),
                parameters=fusion.parameters,
                base=fusion.base,
            )
        return verdict_on(self.pairs(moves), facts, self.models, say=self.request.say)


def plan_merge(
    request: MergeRequest,
    models: Sequence[Model],
    output: Output,
    *,
    bases: Sequence[Model | None] = (),
    named: Sequence[str] = (),
    vocabulary: str = "",
    notes: Sequence[str] = (),
    kinship: Kinship | None = None,
) -> MergePlan:
    """Check a merge, look how its models stand, and decide what is left to decide; nothing is written.

    Args:
        request: what is asked for.
        models: opened, in the run's order.
        output: where to, and how.
        bases: what the models that are fused were tuned from, opened; empty or None: the base.
        named: see `MergePlan`.
        vocabulary: see `MergePlan`.
        notes: what is told of the models.
        kinship: asked whether models that are in other coordinates have a common base.

    Raises:
        IsomergeError: models or options that do not fit together.
    """
    fusion, method = request.fusion, request.fusion.method
    matching = with_data_for_method(request.matching, request.spaces or "")
    check_options(request, models[0], matching, bases)
    runs = method.forward or method.statistics is not None or request.repair is not None
    heads = heads_of(request.heads, models, based=fusion.start == 1, soft=runs or matching.match in SOFT)
    if request.heads == "copy" and not any(map(head_blocks, models)):
        unused.note("heads", "none of the models has a classifier head")
    apart = head_lines(models[0].spec) if heads.apart else ()
    looks = bool(request.align) or runs
    said = [*notes, *check_compatible(models[0], models[1:], apart=apart, stored=not looks)]
    if heads.how in ("average", "agreed"):
        models, bases, of_classes = _in_one_order(models, bases, own=int(heads.how == "agreed"))
        said += of_classes
    if any(model.checkpoint.lent for model in models):
        # where vocabularies differ
        from isomerge.models.vocabulary_views import of_common_tokens

        if matching.match in SOFT:
            said.append(f"--match {matching.match} looks at rows of tokens that a model lacks as at its own")
        elif request.align or runs:
            models = of_common_tokens(models)
    said += [] if output.dtype else coarse_note(models)
    dtype = working_dtype(models)
    bases = [*[None] * fusion.start, *bases] if bases else [None] * len(models)
    bearings, matching = _look(
        request, models, bases, dtype, matching, apart=heads.apart, kinship=kinship, observer=output.observer
    )
    first, spaces, layers = None, bearings.spaces, request.layers
    if matching.match in SOFT and spaces.startswith("paper"):  # transported from where the paper moves them
        first = make_plan(models[0], models[1:], spaces, layers)
        spaces, layers = "all", None
    units = make_plan(models[0], models[1:], spaces, layers)
    template, units = arrange(heads, models, _with_notes(units, [*said, *bearings.notes]))
    units = _with_notes(units, _heads_told(heads, models, template))
    units = none_matched(units) if bearings.all_left else units
    if (say := request.say) is not None:
        units = replace(units, selection=replace(units.selection, notes=(*map(say, units.selection.notes),)))
    check_framed(bases, units, spaces)
    check_aligned(request, matching)
    check_matching(matching, len(models) - 1, spaces, models=models)
    decided = (dtype, matching, bearings, spaces, first, heads, template, units)
    plan = MergePlan(request, models, bases, output, *decided, named=named, vocabulary=vocabulary)
    check_statistics_files(matching, [plan.target, *plan.sources])
    # the anchor comes first in what solvers give, and in the files of a match; the fusion wants the run's order
    of_match = [matching.stats[k] for k in plan.places][fusion.start :] if matching.stats else ()
    plan = replace(plan, statistics=statistics_of(fusion, request.stats or of_match, models, matching))
    check_heads(heads, matching.match, runs=plan.runs)
    check_runs(models, units, request)
    plan = replace(plan, solvers=_solvers(plan))
    _ = plan.fuser  # which checks the method's parameters for every tensor
    return plan


def _in_one_order(
    models: Sequence[Model], bases: Sequence[Model | None], own: int
) -> tuple[list[Model], list[Model | None], list[str]]:
    """Models, but for the first ``own``, and what they were tuned from, with their classes in one order; and what
    to tell of it."""
    by_class = in_order([*models[own:], *filter(None, bases)], tokens=False, use="averaged")
    ordered = iter(by_class.models)
    in_one_order = [*models[:own], *(next(ordered) for _ in models[own:])]
    return in_one_order, [None if base is None else next(ordered) for base in bases], by_class.notes


def _heads_told(heads: Heads, models: Sequence[Model], template: Model) -> list[str]:
    """Whose head is written where the base has none, and which tensors are left out."""
    refs, agreed = [model.ref for model in models], heads.how == "agreed"
    tuned = " and ".join(refs[1:])
    averaged_head = [
        f"the class is that of {tuned}, and the head the mean of theirs, as {refs[0]} has no such head"
    ]
    like, averaged = refs[1 if agreed else 0], heads.how == "average"
    return [*(averaged_head if agreed else ()), *left_out(models, template, like, heads=averaged)]


def _with_notes(plan: Plan, notes: Sequence[str]) -> Plan:
    return replace(plan, selection=replace(plan.selection, notes=(*plan.selection.notes, *notes)))


def _look(
    request: MergeRequest,
    models: Sequence[Model],
    bases: Sequence[Model | None],
    dtype: torch.dtype,
    matching: Matching,
    *,
    apart: bool,
    kinship: Kinship | None,
    observer: Observer,
) -> tuple[Bearings, Matching]:
    """See how the models stand, choose the spaces, and which models are left as they are; and what the match looks
    at, in the order of the models, with what was decided of it."""
    order = [request.onto, *(k for k in range(len(models)) if k != request.onto)]
    if request.anchor == "none":  # no place in the command says who is looked from
        order = own_order(models, apart=apart)
        stats = tuple(matching.stats[k] for k in order) if matching.stats else ()
        matching = replace(matching, stats=stats)
    target, sources = models[order[0]], [models[k] for k in order[1:]]
    origins = [bases[k] for k in order[1:]]
    moved = [origin or source for source, origin in zip(sources, origins, strict=True)]
    standing = standings(target, moved, dtype, kinship=kinship, observer=observer)
    strays = [
        standings(origin, [source], dtype, kinship=kinship, observer=observer)[0]
        for source, origin in zip(sources, origins, strict=True)
        if origin is not None
    ]
    fixed = "task vectors are moved inside the layers" if any(origins) else ""
    fixed = "only some layers are matched" if request.layers is not None else fixed
    plain = matching.match == OURS and (matching.decides or not matching.needs_models)
    asked = request.spaces if request.spaces is not None or plain else matching.spaces(None)
    others, seen = models[1:], (order, origins, standing, strays)
    if not request.align:
        spaces, _ = chosen_spaces(None, standing, models[0], others, fixed=fixed)
        helps = [s.same_basis is True or (s.moved and spaces == "all") for s in standing]
        return Bearings(*seen, helps, "none", [], []), matching
    spaces, notes = chosen_spaces(asked, standing, models[0], others, fixed=fixed)
    left = leaves_alone(request.align, standing, plain=plain, together=request.anchor == "none")
    if learns(matching, standing, models[0]) and not any(origins):
        matching = learning(matching)
    elif matching.learn is None:
        why = "" if any(s.strange for s in standing) else ", as nothing shows that models were trained apart"
        for name in matching.of_learning:
            unused.note(name, f"nothing is learned{why}; --learn DATA asks for it")
    decided = decision(
        align=request.align,
        asked=asked,
        spaces=spaces,
        standing=standing,
        left=left,
        matching=matching,
        fixed=fixed,
    )
    return Bearings(*seen, [False] * len(standing), spaces, left, notes, decided), matching


def _solvers(plan: MergePlan) -> list[PairSolver]:
    """Of every source, or of what it was tuned from.

    They are unguarded: the merge must be a function of the orbits, whatever gauges the checkpoints are stored in.
    """
    room = room_for_units(plan.plan, plan.models, plan.output.max_memory, plan.needs)
    device = plan.matching.matching_device
    sources = zip(plan.sources, plan.bearings.origins, plan.bearings.left or repeat(False), strict=False)
    return [
        PairSolver(
            plan.target, origin or source, plan.plan, plan.dtype, guard=False, left=left, device=device, room=room
        )
        for source, origin, left in sources
    ]

"""A merge, checked and planned before a byte is written: spaces, heads, solvers, the fusion of every unit, the key
of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from isomerge.evidence.relation import Level, Pair
from isomerge.fusion.fusion import Fusion
from isomerge.merging.decision import decision, learning, learns
from isomerge.merging.fusing import Fuser
from isomerge.merging.heads import arrange, check_heads, head_blocks, head_lines, heads_of, left_out
from isomerge.merging.merge_checks import (
    check_aligned,
    check_anchors,
    check_described,
    check_framed,
    check_runs,
    check_soft,
    check_transplant,
    statistics_of,
)
from isomerge.merging.merge_options import MergeOptions
from isomerge.merging.parameter_checks import check_parameters, idle_density, idle_filters
from isomerge.merging.recipe.yaml_text import plain_value
from isomerge.models.compatible import check_compatible
from isomerge.models.recognised import Model, working_dtype
from isomerge.models.row_meanings import in_order
from isomerge.models.stored_form import coarse_note
from isomerge.models.unit_plan import Plan, make_plan
from isomerge.observe.read_files import data_key, file_stamp
from isomerge.options import unused
from isomerge.run.cost import room_for_units
from isomerge.run.run_verdict import (
    measured,
    pairs_of,
    planned_report,
    verdict_document,
)
from isomerge.run.running_cost import fusing_memory
from isomerge.run.writing_run import Output, run_key
from isomerge.solve.match_checks import check_matching, check_statistics_files, with_data_for_method
from isomerge.solve.match_inputs import inputs_key
from isomerge.solve.match_names import SOFT
from isomerge.solve.match_options import GENERATE, OURS
from isomerge.solve.pairs.pair import CommonGains, PairSolver
from isomerge.solve.standing import chosen_spaces, leaves_alone, none_matched, own_order, standings


class MergePlan:
    """One merge: checked and planned when it is made, before a byte is written."""

    def __init__(self, models: Sequence[Model], output: Output, fusion: Fusion, options: MergeOptions) -> None:
        matching = with_data_for_method(options.matching, options.spaces or "")
        options = replace(options, matching=matching)
        self.models, self.output, self.fusion, self.options = models, output, fusion, options
        self.donor = models[0]
        self.gains: CommonGains | None = None
        self.beside: dict[str, bytes] = {}
        """Further files of the output, by their names."""
        self.aligns = bool(options.align)
        self.makes_data = GENERATE in (matching.data, matching.learn)
        self._check_options()
        runs = fusion.method.forward or fusion.method.statistics is not None or options.repair is not None
        self.heads = heads_of(options.heads, models, based=fusion.start == 1, soft=runs or matching.match in SOFT)
        if options.heads == "copy" and not any(map(head_blocks, models)):
            unused.note("heads", "none of the models has a classifier head")
        apart = head_lines(self.donor.spec) if self.heads.apart else ()
        looks = self.aligns or runs
        notes = [*options.notes, *check_compatible(self.donor, models[1:], apart=apart, stored=not looks)]
        if self.heads.how in ("average", "agreed"):
            notes += self._bring_classes()
        weighed = not (matching.needs_models or matching.match in SOFT or runs)
        if self.aligns and weighed and any(model.checkpoint.lent for model in models):
            # where vocabularies differ
            from isomerge.models.vocabulary_views import of_common_tokens

            self.models = of_common_tokens(self.models)
        models = self.models
        notes += [] if output.dtype else coarse_note(models)
        self.dtype = working_dtype(models)
        self.told = self._look()
        options, matching = self.options, self.options.matching  # with what was decided
        self.first: Plan | None = None
        layers = options.layers
        if matching.match in SOFT and self.spaces.startswith(
            "paper"
        ):  # transported from where the paper moves them
            self.first = make_plan(self.donor, models[1:], self.spaces, layers)
            self.first_spaces, self.spaces, layers = self.spaces, "all", None
        plan = make_plan(self.donor, models[1:], self.spaces, layers)
        notes += self.told
        plan = replace(plan, selection=replace(plan.selection, notes=(*plan.selection.notes, *notes)))
        self.template, plan = arrange(self.heads, models, plan)
        plan = replace(plan, selection=replace(plan.selection, notes=(*plan.selection.notes, *self._heads_told())))
        self.plan = none_matched(plan) if self.left and all(self.left) else plan
        check_framed(options.source_bases, self.plan, self.spaces)
        check_aligned(self.aligns, matching, fusion, len(models), options.anchor)
        check_matching(matching, len(models) - 1, self.spaces, models=models)
        # the anchor comes first in what solvers give, and in the files of a match; the fusion wants the run's order
        self.places = [self.order.index(k) for k in range(len(models))]
        check_statistics_files(matching, [self.target, *self.sources])
        of_match = [matching.stats[k] for k in self.places][fusion.start :] if matching.stats else ()
        self.statistics = statistics_of(fusion, options.stats or of_match, models, matching)
        self.gathers = fusion.method.statistics is not None and self.statistics is None
        self.runs = fusion.method.forward or self.gathers or options.repair is not None
        check_heads(self.heads, matching.match, runs=self.runs)
        check_runs(models, self.plan, fusion, options.repair)
        self._make_solvers()

    @cached_property
    def cost(self) -> dict[str, Any]:
        """What decides how much memory the run takes: for `isomerge.run.cost`."""
        options, matching = self.options, self.options.matching
        fusing = fusing_memory(
            self.models,
            self.fusion,
            matching,
            repair=options.repair is not None,
            gathers=self.gathers,
            aligned=self.matches,
        )
        needs = {"guard": False, "piecewise": self.fusion.method.elementwise, "fusing": fusing}
        return {**needs, "anchor": options.anchor, "matching": matching} if self.matches else needs

    @property
    def matches(self) -> bool:
        """Whether any model is matched."""
        return self.aligns and not (self.left and all(self.left))

    def _check_options(self) -> None:
        options, fusion, match = self.options, self.fusion, self.options.matching.match
        check_described(self.donor, fusion, options.repair)
        check_anchors(options.anchor, options.onto, options.matching, options.spaces or "")
        check_soft(match, options.stats)
        check_transplant(
            fusion,
            options.source_bases,
            onto=options.onto,
            anchor=options.anchor,
            align=self.aligns,
            repair=options.repair,
            match=match,
        )
        check_compatible(self.donor, [base for base in options.source_bases if base is not None])

    def _bring_classes(self) -> list[str]:
        """Take the classes of all models, and of what they were tuned from, in one order; returns what to tell."""
        bases, own = self.options.source_bases, 1 if self.heads.how == "agreed" else 0
        by_class = in_order([*self.models[own:], *filter(None, bases)], tokens=False, use="averaged")
        ordered = iter(by_class.models)
        self.models = [*self.models[:own], *(next(ordered) for _ in self.models[own:])]
        self.options = replace(self.options, source_bases=[None if b is None else next(ordered) for b in bases])
        return by_class.notes

    def _heads_told(self) -> list[str]:
        """Whose head is written where the base has none, and which tensors are left out."""
        refs, agreed = [model.ref for model in self.models], self.heads.how == "agreed"
        tuned = " and ".join(refs[1:])
        told = [f"the class is that of {tuned}, and the head the mean of theirs, as {refs[0]} has no such head"]
        like, averaged = refs[1 if agreed else 0], self.heads.how == "average"
        return [*(told if agreed else ()), *left_out(self.models, self.template, like, heads=averaged)]

    def _look(self) -> list[str]:
        """See how the models stand, choose the spaces, and which models are left as they are; returns what to tell
        of the choice."""
        options, matching, bases = self.options, self.options.matching, self.options.source_bases
        self.order = [options.onto, *(k for k in range(len(self.models)) if k != options.onto)]
        if options.anchor == "none":  # no place in the command says who is looked from
            self.order = own_order(self.models, apart=self.heads.apart)
            if matching.stats:
                matching = replace(matching, stats=tuple(matching.stats[k] for k in self.order))
                self.options = options = replace(options, matching=matching)
        self.target, *self.sources = (self.models[k] for k in self.order)
        self.bases = [*[None] * self.fusion.start, *bases] if bases else [None] * len(self.models)
        tuned_from = {id(model): base for model, base in zip(self.models, self.bases, strict=True)}
        self.origins = [tuned_from[id(source)] for source in self.sources]
        moved = [origin or source for source, origin in zip(self.sources, self.origins, strict=True)]
        how: dict[str, Any] = {"kinship": options.kinship, "observer": self.output.observer}
        self.standings = standings(self.target, moved, self.dtype, **how)
        self.strays = [
            standings(origin, [source], self.dtype, **how)[0]
            for source, origin in zip(self.sources, self.origins, strict=True)
            if origin is not None
        ]
        fixed = "task vectors are moved inside the layers" if any(self.origins) else ""
        fixed = "only some layers are matched" if options.layers is not None else fixed
        plain = matching.match == OURS and (matching.decides or not matching.needs_models)
        asked = options.spaces if options.spaces is not None or plain else matching.spaces(None)
        standing, others = self.standings, self.models[1:]
        self.helps = [False] * len(standing)
        if not self.aligns:
            spaces, _ = chosen_spaces(None, standing, self.donor, others, fixed=fixed)
            self.helps = [s.same_basis is True or (s.moved and spaces == "all") for s in standing]
            self.spaces, self.left = "none", []
            self.decision = None
            return []
        self.spaces, notes = chosen_spaces(asked, standing, self.donor, others, fixed=fixed)
        self.left = leaves_alone(options.align, standing, plain=plain, together=options.anchor == "none")
        if learns(matching, standing, self.donor) and not any(self.origins):
            self.options = replace(options, matching=learning(matching))
        elif matching.learn is None:
            for name in matching.of_learning:
                unused.note(name, "nothing is learned, as no models were trained apart; --learn DATA asks for it")
        self.decision = decision(
            align=options.align,
            asked=asked,
            spaces=self.spaces,
            standing=standing,
            left=self.left,
            matching=self.options.matching,
            fixed=fixed,
        )
        return notes

    def pairs(self, report: dict[str, Any] | None = None) -> list[Pair]:
        """Every model with what it is brought to, with the distances of a report; and fine-tunes that are none of
        what they are said to be tuned from."""
        if self.fusion.picks and not self.aligns:
            return []  # no two are averaged
        how = {"align": self.aligns, "left": self.left, "helps": self.helps}
        base = self.fusion.first == "base" and not self.order[0]
        pairs = pairs_of(self.standings, self.models, base=base, **how)
        pairs = pairs if report is None else measured(pairs, report)
        strays = pairs_of(self.strays, self.models, align=False, base=True)
        return pairs + [pair for pair in strays if pair.level is Level.POOR]

    def _make_solvers(self) -> None:
        options = self.options
        room = room_for_units(self.plan, self.models, self.output.max_memory, **self.cost)
        # unguarded: the merge must be a function of the orbits, whatever gauges the checkpoints are stored in
        self.solvers = [
            PairSolver(
                self.target,
                origin or source,
                self.plan,
                self.dtype,
                guard=False,
                device=options.matching.matching_device,
                room=room,
            )
            for source, origin in zip(self.sources, self.origins, strict=True)
        ]
        for solver, left in zip(self.solvers, self.left, strict=False):
            solver.left = left
        self.fuser = self.fuser_of(self.fusion)

    def fuser_of(self, fusion: Fusion) -> Fuser:
        """What applies a fusion to the units, its parameters checked for every tensor.

        Raises:
            IsomergeError: parameters that the method does not take for some tensor, or not together.
        """
        fuser = Fuser(fusion, self.plan, self.donor, self.statistics, self.dtype)
        check_parameters(fuser)
        fuser.notes = [*idle_filters(fuser), *idle_density(fuser)]
        fuser.places, fuser.gains = self.places, self.gains
        return fuser

    def key(self) -> str:
        """What the output depends on: a run that was killed goes on only under the same."""
        options = self.options
        settings = (
            list(map(file_stamp, options.stats)),
            self.spaces,
            options.layers,
            self.output.dtype,
            self.output.out_shard_size,
            inputs_key(options.matching, self.donor),
            inputs_key(options.matching, self.target),
            options.anchor,
            self.order,
            data_key(options.repair, self.donor, options.matching.limit),
            [k for k, base in enumerate(self.bases) if base is not None],
            options.heads,
            None if self.recipe is None else plain_value(self.recipe),  # what it says, not how it is written
            self.left,
            None if self.first is None else self.first_spaces,
        )
        return run_key("merge", self.read, *self.fusion.key(), *settings)

    @property
    def recipe(self) -> str | None:
        """The YAML that is kept with the output; spaces stand in it where they were not a matter of course."""
        return None if self.options.recipe is None else self.options.recipe(self.spaces, bool(self.told))

    @property
    def read(self) -> list[Model]:
        """All models that are read."""
        return [*self.models, *(base for base in self.bases if base is not None)]

    def verdict(self, report: dict[str, Any], pairs: Sequence[Pair]) -> dict[str, Any] | None:
        """What came out, or will: see `verdict_document`."""
        return verdict_document(pairs, report, self.models)

    def expected(self) -> dict[str, Any] | None:
        """The verdict before anything is matched, by how the models stand."""
        refs = [self.target.ref, *(source.ref for source in self.sources)]
        described = self.fuser.described(len(self.models))
        return self.verdict(planned_report("merge", refs, align=self.aligns, **described), self.pairs())

"""The verdict of a run: how its models stood before, how far they are apart now, what that means, and what to try
next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from isomerge.errors import visible
from isomerge.evidence.distance import FIXED, SAME, Gap, Spread
from isomerge.evidence.relation import Level, Pair, PairVerdict, Proof, Relation, code_of
from isomerge.evidence.report.advice import Advice, next_steps
from isomerge.evidence.report.facts import Facts, short_names
from isomerge.evidence.report.folder import Written, earlier_alignment
from isomerge.evidence.report.spaces import Wording, wording_for
from isomerge.evidence.report.verdict import by_learning, learned_in_nats
from isomerge.models.recognised import Model, coarsest_dtype
from isomerge.records import Record
from isomerge.solve.standing import Standing


class RunVerdict(Record):
    """What the models of a run are to each other, as reports have it."""

    code: str
    """Of the pair that is furthest apart (`isomerge.evidence.relation.CODES`)."""
    pairs: Sequence[PairVerdict]
    level: str
    sentence: str
    next: Sequence[Advice]

    @property
    def all_left(self) -> bool:
        """Whether all models were left as they are, being aligned already."""
        return all(pair.left_as_it_is for pair in self.pairs)

    @property
    def is_poor(self) -> bool:
        """Whether a merge will most likely not work."""
        return self.level == Level.POOR.name.lower()


def pairs_of(
    standing: Sequence[Standing],
    models: Sequence[Model],
    *,
    align: bool = True,
    left: Sequence[bool] = (),
    base: bool = False,
    helps: Sequence[bool] = (),
) -> list[Pair]:
    """What is known of every model and its anchor before anything is matched.

    Args:
        standing: how the models stand.
        models: all of the run's, for what rounding of their dtypes explains.
        align: whether models are matched at all.
        left: of every one, whether it is left as it is.
        base: whether the anchor is what task vectors are taken from.
        helps: of every one, whether alignment is known to bring it near.
    """
    tolerance = max(SAME.get(coarsest_dtype(model), SAME["F32"]) for model in models)
    return [
        Pair(
            s.anchor,
            s.model,
            None if s.gap == inf else s.gap,
            None,
            s.settled,
            s.same_basis,
            s.kin,
            left=bool(left) and left[k],
            align=align,
            helps=bool(helps) and helps[k],
            base=base,
            tolerance=tolerance,
            look=s.look,
        )
        for k, s in enumerate(standing)
    ]


def measured(pairs: Sequence[Pair], spreads: Sequence[Spread]) -> list[Pair]:
    """The pairs with what a run has measured of each, where anything was matched."""
    if not pairs:  # one model alone
        return []
    with_distances = []
    for pair, spread in zip(pairs, spreads, strict=True):
        share, fixed = spread.share_within(pair.tolerance), spread.spaces.get(FIXED)
        if not pair.align or pair.left or share is None:
            with_distances.append(pair)
        else:
            apart = fixed.share[1] if fixed is not None and fixed.share is not None else 0.0
            before, after = (pair.look.scale * each for each in share)
            matrices = pair.matrices
            if spread.matrices is not None and (own := spread.matrices.share) is not None:
                matrices = (pair.look.scale * own[0], pair.look.scale * own[1])
            distances = {"before": before, "after": after, "fixed": apart}
            with_distances.append(replace(pair, **distances, matrices=matrices, first=pair.relation))
    return with_distances


def verdict_on(
    pairs: Sequence[Pair],
    facts: Facts,
    models: Sequence[Model] = (),
    *,
    say: Callable[[str], str] | None = None,
) -> RunVerdict | None:
    """What the models of a run are to each other, and what to try; None of one model alone.

    Args:
        pairs: of every model with its anchor.
        facts: of the run, as far as they are known.
        models: those of the run, for what can be done with them; none: not known.
        say: how the keys of a recipe are said in a sentence, where one was run.
    """
    if not pairs:
        return None
    worst = max(pairs, key=lambda pair: (pair.level, -1 if pair.relation is None else pair.relation))
    names = _names(pairs)
    verdicts = [pair.verdict(names) for pair in pairs]
    if say is not None:
        verdicts = [replace(each, sentence=say(each.sentence)) for each in verdicts]
    level, sentence = worst.level, "; ".join(dict.fromkeys(each.sentence for each in verdicts))
    code, left = code_of(worst.relation), tuple(pair.model for pair in pairs if pair.left)
    spec = next((str(model.spec_file) for model in models if model.spec_file is not None), facts.spec)
    taught = facts.taught if (earlier := earlier_alignment(facts)) is None else earlier.taught
    facts = replace(facts, relation=code, left_alone=left, left=len(left) == len(pairs), spec=spec, taught=taught)
    if learned_in_nats(taught) and worst.relation is not Relation.SAME:
        level, _, sentence = by_learning(taught)
    apart = any(pair.doubt and pair.proof is Proof.OTHER for pair in pairs)  # no merge takes them
    steps = [] if apart else _steps(facts, worst.relation, level, models)
    if say is not None:
        steps = [_in_recipe(step, say) if step.options else step for step in steps]
    return RunVerdict(code, verdicts, level.name.lower(), sentence, steps)


def _in_recipe(step: Advice, say: Callable[[str], str]) -> Advice:
    """What to try, as the keys of a recipe."""
    return Advice(f"{step.text} In the recipe: {say(' and '.join(step.options))}.")


def _steps(facts: Facts, relation: Relation | None, level: Level, models: Sequence[Model]) -> Sequence[Advice]:
    """What to try where something is amiss; all is well: nothing."""
    if level is Level.GOOD:
        return []
    written = Written(facts, wording=wording_for(models) if models else Wording())
    return next_steps(written, relation, level, measured=False)


def _names(pairs: Sequence[Pair]) -> dict[str, str]:
    refs = list(dict.fromkeys(ref for pair in pairs for ref in (pair.anchor, pair.model)))
    return dict(zip(refs, short_names(refs), strict=True))


def tell_ahead(verdict: RunVerdict | None) -> None:
    """Say before a run begins that it will most likely not work; a warning of the logger ``isomerge``, which Python
    shows on stderr."""
    if verdict is not None and verdict.is_poor:
        logging.getLogger("isomerge").warning("warning: %s", visible(verdict.sentence))


def noted(verdict: RunVerdict | None) -> list[str]:
    """What a report's notes say of the verdict: the sentence, where it is more than that all is well."""
    if verdict is None:
        return []
    left = any(pair.left_as_it_is for pair in verdict.pairs)
    return [verdict.sentence] if left or verdict.is_poor else []


def planned_facts(command: str, models: Sequence[str]) -> Facts:
    """Of a run that has matched nothing yet, as far as the next steps need them."""
    return Facts(command, tuple(models), Spread(Gap(0.0, 0.0, 0.0), {}, {}, {}), paths=tuple(models))

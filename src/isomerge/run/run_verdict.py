"""The verdict of a run: how its models stood before, how far they are apart now, what that means, and what to try
next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from isomerge.errors import visible
from isomerge.evidence.distance import SAME
from isomerge.evidence.relation import CODES, Level, Pair, Proof, Relation
from isomerge.evidence.report.advice import next_steps
from isomerge.evidence.report.facts import FIXED, Facts, facts_of, short_names, spread_of
from isomerge.evidence.report.folder import Written
from isomerge.evidence.report.spaces import Wording, wording_for
from isomerge.evidence.report.verdict import by_learning, learned_in_nats
from isomerge.models.recognised import Model, coarsest_dtype
from isomerge.solve.standing import Standing


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


def measured(pairs: Sequence[Pair], report: Mapping[str, Any]) -> list[Pair]:
    """The pairs with the distances of a run's report, where anything was matched."""
    if not pairs:  # one model alone
        return []
    each = [source["distance"] for source in report.get("sources") or []] or [report["distance"]]
    with_distances = []
    for pair, distance in zip(pairs, each, strict=True):
        spread = spread_of(distance)
        share, fixed = spread.share_within(pair.tolerance), spread.spaces.get(FIXED)
        if not pair.align or pair.left or share is None:
            with_distances.append(pair)
        else:
            apart = fixed.share[1] if fixed is not None and fixed.share is not None else 0.0
            before, after = (pair.look.scale * each for each in share)
            told = {"before": before, "after": after, "fixed": apart, "first": pair.relation}
            if spread.matrices is not None and spread.matrices.share is not None:
                told["matrices"] = tuple(pair.look.scale * each for each in spread.matrices.share)
            with_distances.append(replace(pair, **told))
    return with_distances


def verdict_document(
    pairs: Sequence[Pair],
    report: Mapping[str, Any],
    models: Sequence[Model] = (),
    *,
    say: Callable[[str], str] | None = None,
) -> dict[str, Any] | None:
    """The verdict as reports have it: ``code``, ``level``, ``sentence``, ``pairs``, and ``next``, what to try; None
    of one model alone.

    Args:
        pairs: of every model with its anchor.
        report: of the run, as far as it is known.
        models: those of the run, for what can be done with them; none: not known.
        say: how the keys of a recipe are said in a sentence, where one was run.
    """
    if not pairs:
        return None
    worst = max(pairs, key=lambda pair: (pair.level, -1 if pair.relation is None else pair.relation))
    names = _names(pairs)
    sentences = [(say or str)(pair.sentence(names)) for pair in pairs]
    level, sentence = worst.level, "; ".join(dict.fromkeys(sentences))
    code = "unknown" if worst.relation is None else CODES[worst.relation]
    rows = [pair.document() | {"sentence": said} for pair, said in zip(pairs, sentences, strict=True)]
    document: dict[str, Any] = {"code": code, "pairs": rows}
    facts = facts_of({**report, "verdict": document})
    if learned_in_nats(facts.taught) and worst.relation is not Relation.SAME:
        level, _, sentence = by_learning(facts.taught)
    apart = any(pair.doubt and pair.proof is Proof.OTHER for pair in pairs)  # no merge takes them
    steps = [] if apart else _steps(facts, worst.relation, level, models, say)
    return {**document, "level": level.name.lower(), "sentence": sentence, "next": steps}


def _steps(
    facts: Facts,
    relation: Relation | None,
    level: Level,
    models: Sequence[Model],
    say: Callable[[str], str] | None,
) -> list[dict[str, str]]:
    """What to try where something is amiss; all is well: nothing."""
    if level is Level.GOOD:
        return []
    written = Written(facts, wording=wording_for(models) if models else Wording())
    steps = next_steps(written, relation, level, measured=False)
    return [
        {"text": step.text, "command": step.command}
        if say is None or not step.options
        else {"text": f"{step.text} In the recipe: {say(' and '.join(step.options))}.", "command": ""}
        for step in steps
    ]


def _names(pairs: Sequence[Pair]) -> dict[str, str]:
    refs = list(dict.fromkeys(ref for pair in pairs for ref in (pair.anchor, pair.model)))
    return dict(zip(refs, short_names(refs), strict=True))


def tell_ahead(document: Mapping[str, Any] | None) -> None:
    """Say before a run begins that it will most likely not work; a warning of the logger ``isomerge``, which Python
    shows on stderr."""
    if document is not None and document["level"] == Level.POOR.name.lower():
        logging.getLogger("isomerge").warning("warning: %s", visible(document["sentence"]))


def noted(document: Mapping[str, Any] | None) -> list[str]:
    """What a report's notes say of the verdict: the sentence, where it is more than that all is well."""
    if document is None:
        return []
    left = any(pair["left_as_it_is"] for pair in document["pairs"])
    return [str(document["sentence"])] if left or document["level"] == Level.POOR.name.lower() else []


def planned_report(command: str, models: Sequence[str], **more: Any) -> dict[str, Any]:
    """The report of a run that has matched nothing yet, as far as the next steps need it."""
    nothing = {"before": 0.0, "after": 0.0, "norm": 0.0}
    return {"command": command, "models": list(models), "distance": nothing, **more}

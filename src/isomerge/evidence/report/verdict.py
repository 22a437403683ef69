"""The verdict on a run in plain words: by the loss where it was measured, else by distance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from isomerge.evidence.distance import SAME
from isomerge.evidence.relation import NEAR, RELATIONS, Level, Relation, relation_of
from isomerge.evidence.report.advice import Advice, next_steps
from isomerge.evidence.report.facts import Facts, Taught
from isomerge.evidence.report.folder import Written
from isomerge.evidence.report.loss_facts import STORED, Losses, LossLine, Point
from isomerge.evidence.report.numerals import count, nats, percent, ratio
from isomerge.matching.settled import FAR

CONNECTED = 0.02
"""Models are connected where the error rate rises by no more than this on the line (Frankle et al. 2020)."""
SLIGHT = 0.1
"""And where the loss rises by no more than so many nats: a tenth of the perplexity. Of values: so much of the
loss."""
FAIR = 3
"""A barrier of so many times the above is small; a larger one is a barrier."""


@dataclass(frozen=True)
class Verdict:
    """What came out, and what to try next."""

    level: Level
    title: str
    text: str
    steps: tuple[Advice, ...] = ()


def verdict_of(written: Written, losses: Sequence[Losses] = ()) -> Verdict:
    """The verdict on an output, by the best evidence there is.

    Losses on labelled examples count most, then what learning measured on examples that it held out, then
    distances.
    """
    relation = furthest(written.told, written)
    lines = [measured for measured in losses if measured.lines]
    if lines:
        level, title, text = _by_loss(written, lines)
    elif learned_in_nats(written.told.taught) and relation is not Relation.SAME:
        level, title, text = by_learning(written.told.taught)
    else:
        level, title, text = _by_distance(written, relation)
    if not written.facts.exact:
        text += f" The match {written.facts.match} does not preserve functions: what was merged are other models."
    return Verdict(level, title, text, next_steps(written, relation, level, measured=bool(lines)))


def furthest(facts: Facts, written: Written) -> Relation:
    """Of the model that is furthest from the first; of an anchor of zeros, everything is unrelated."""
    if facts.relation in RELATIONS:  # what the run said of them; it knows more than distances tell
        return RELATIONS[facts.relation]
    spreads = [spread for _, spread in facts.sources] or [facts.distance]
    codes = written.size.dtypes if written.size else ()
    tolerance = max((SAME[code] for code in codes if code in SAME), default=SAME["F32"])
    return max(relation_of(*(s.share_within(tolerance) or (inf, inf)), tolerance) for s in spreads)


def _by_loss(written: Written, losses: Sequence[Losses]) -> tuple[Level, str, str]:
    """The worst line, or the output itself where it was measured."""
    facts = written.facts
    aligned = written.told.aligned
    pairs = [
        (measured, line) for measured in losses if (line := measured.line_of(written.told.spaces, aligned=aligned))
    ]
    measured, line = max(pairs, key=lambda pair: pair[1].barrier)
    ends = line.ends
    merged = next((each.merged for each in losses if each.merged is not None), None)
    excess, drop = line.barrier, line.drop
    if merged is not None:
        models = [*losses[0].lines[0].ends[:1], *(each.lines[0].ends[1] for each in losses)]
        excess = merged.loss - sum(m.loss for m in models) / len(models)
        drop = _mean_accuracy(models) - (merged.accuracy or 0.0) if merged.accuracy is not None else 0.0
    level = graded(excess, drop, _slight(measured, line))
    middle = merged or line.midpoint
    what = "merged model" if merged is not None else "average of the two"
    title = {
        Level.GOOD: "The merge works" if merged or facts.method == "linear" else "The average of the two works",
        Level.FAIR: "A small barrier is left between the models",
        Level.POOR: "A barrier is left between the models",
    }[level]
    if level is Level.POOR and middle.loss > max(end.loss for end in ends):
        title = f"A barrier is left: the {what} is worse than either model"
    text = (
        f"On {count(measured.examples)} examples the {what} has a loss of {_point(middle, measured.unit)}; "
        f"the models themselves have {_point(ends[0])} and {_point(ends[1])}. {_rise(measured, line)}"
    )
    return level, title, text


def learned_in_nats(taught: Sequence[Taught]) -> bool:
    """Whether a match was learned, and its barriers can be graded: squared units have no scale of their own."""
    return bool(taught) and all(t.unit == "nats" for t in taught)


def _slight(losses: Losses, line: LossLine) -> float:
    """A rise of the loss that is slight: of values in parts of what the models themselves lose."""
    squared = losses.unit.startswith("squared")
    return SLIGHT * max(sum(end.loss for end in line.ends) / 2, 1e-12) if squared else SLIGHT


def graded(excess: float, drop: float, slight: float = SLIGHT) -> Level:
    """How good a merge is that costs ``excess`` of loss (``slight`` is little of it) and ``drop`` (0..1) of
    accuracy against its models."""
    size = max(excess / slight, drop / CONNECTED)
    return Level.GOOD if size <= 1 else Level.FAIR if size <= FAIR else Level.POOR


def _mean_accuracy(points: Sequence[Point]) -> float:
    return sum(point.accuracy or 0.0 for point in points) / len(points)


def _point(point: Point, unit: str = "") -> str:
    right = "" if point.accuracy is None else f" ({percent(point.accuracy)} right)"
    return f"{nats(point.loss)} {unit}".rstrip() + right


def _rise(losses: Losses, line: LossLine) -> str:
    """How high the line goes, beside the line of the models as stored."""
    stored = losses.stored
    highest = (
        f"rises by at most {nats(line.barrier)} above them" if line.barrier >= 5e-4 else "does not rise above them"
    )
    if stored is None or line.name == STORED:
        return f"On the straight line between them the loss {highest}."
    if stored.barrier <= _slight(losses, stored) and stored.drop <= CONNECTED:
        return (
            f"On the line between them the loss {highest}; it did not before alignment either, which was not "
            "needed."
        )
    return f"On the line between them the loss {highest}; before alignment it rose by {nats(stored.barrier)}."


def by_learning(taught: Sequence[Taught]) -> tuple[Level, str, str]:
    """The verdict of learning: by the highest loss that it left between the models, on examples held out."""
    worst = max(taught, key=lambda t: t.kept)
    level = graded(worst.kept, 0.0)
    title = {
        Level.GOOD: "Learning removed the barrier",
        Level.FAIR: "Learning left a small barrier",
        Level.POOR: "Learning left a barrier",
    }[level]
    start = f"from {nats(worst.barriers[0])} " if worst.barriers else ""
    text = (
        f"On {count(worst.held_out)} examples that the match was not learned from, the highest loss between the "
        f"models, in excess of their own, went {start}to {nats(worst.kept)} nats."
    )
    if any(t.target == "distill" for t in taught):
        text += " The loss is against the models' own predictions."
    return level, title, text


def _by_distance(written: Written, relation: Relation) -> tuple[Level, str, str]:
    facts = written.told
    share = facts.distance.movable.share or (inf, inf)
    before, after = (ratio(x) for x in share)
    moved = (
        f"Over the weights that symmetries act on, they were {before} of their norm apart and are {after} after "
        "alignment"
    )
    if relation is Relation.SAME:
        if share[0] <= SAME["F32"]:
            return Level.GOOD, "The models are the same", "They have the same weights: a merge gives them back."
        text = f"{moved}: within rounding, one is the other in a different order and basis. A merge gives it back."
        return Level.GOOD, "The models are the same function", text
    if not facts.aligned:
        return _not_aligned(share[0], relation if facts.relation else None)
    if relation is Relation.NEAR and facts.left:
        text = (
            f"They are {before} of their norm apart: fine-tunes of one base, which lie in its coordinates already."
        )
        return Level.GOOD, "Aligned already: the models were left as they are", text
    if relation is Relation.NEAR:
        text = f"{moved}: fine-tunes of one base, which lie in its coordinates already."
        return Level.GOOD, "Near as they were: alignment was not needed", text
    if relation is Relation.RELATED:
        return (
            Level.GOOD,
            "Alignment brought the models together",
            f"{moved}. They are now as near as related models are.",
        )
    why = " (1.41 is what models that have nothing to do with each other have)."
    if facts.relation:  # nothing that weights could tell was left out
        text = f"{moved}{why} Their average will most likely not work; the loss between them tells for certain."
        known = "have a common base, but are far apart" if relation is Relation.DERIVED else "are unrelated"
        return Level.POOR, f"The models {known}", text
    if not facts.streams and written.wording.free_streams is not False:
        why += " The residual streams were not matched, and may be in different bases."
    text = f"{moved}{why} Distance alone does not tell whether their average works; the loss between them does."
    return Level.OPEN, "Still far apart after alignment", text


def _not_aligned(before: float, relation: Relation | None) -> tuple[Level, str, str]:
    """``relation`` is what the run knows of them; of an older version it knows nothing."""
    apart = f"They are {ratio(before)} of their norm apart"
    if before <= NEAR if relation is None else relation is Relation.NEAR:
        text = f"{apart}: fine-tunes of one base, which lie in its coordinates. They can be merged as they are."
        return Level.GOOD, "Near as they are: no alignment is needed", text
    if before < FAR and relation is None:
        text = f"{apart} and were not aligned: more than fine-tunes usually are, less than strangers."
        return Level.FAIR, "It is open whether they lie in the same coordinates", text
    text = (
        f"{apart} (1.41 is what models have that have nothing to do with each other), and they were not aligned: "
        "averaging weights that do not stand for the same things destroys both models."
    )
    return Level.POOR, "The models were averaged in different coordinates", text

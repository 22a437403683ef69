"""The verdict on a run in plain words: by the loss where it was measured, else as the run gave it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from isomerge.evidence.relation import LEVELS, RELATIONS, Level, Relation, title_of
from isomerge.evidence.report.advice import Advice, next_steps
from isomerge.evidence.report.facts import Facts, Taught
from isomerge.evidence.report.folder import Written
from isomerge.evidence.report.loss_facts import STORED, Losses, LossLine, Point
from isomerge.evidence.report.numerals import count, nats, percent, ratio

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

    Losses on labelled examples count most, then what learning measured on examples that it held out, then what the
    run said of its models (`isomerge.evidence.relation`). None makes good news of an output that is not what was
    written.
    """
    relation = RELATIONS.get(written.matched.relation)
    lines = [measured for measured in losses if measured.lines]
    if lines:
        level, title, text = _by_loss(written, lines)
    elif learned_in_nats(written.matched.taught) and relation is not Relation.SAME:
        level, title, text = by_learning(written.matched.taught)
    else:
        level, title, text = _as_told(written.matched, relation)
    if not written.facts.exact:
        text += f" The match {written.facts.match} does not preserve functions: what was merged are other models."
    steps = next_steps(written, relation, level, measured=bool(lines))
    if not written.changed:
        return Verdict(level, title, text, steps)
    first, *more = written.changed
    others = f", and {len(more)} more" if more else ""
    text = (
        f"What lies in {written.folder} is not what the run wrote ({first}{others}). "
        f"{'' if lines else 'Of what it wrote: '}{text}"
    )
    step = Advice("See what has changed.", shlex.join(["isomerge", "fsck", str(written.folder)]))
    return Verdict(max(level, Level.OPEN), "The output is not what was written", text, (step, *steps[:2]))


def _by_loss(written: Written, losses: Sequence[Losses]) -> tuple[Level, str, str]:
    """The worst line, or the output itself where it was measured."""
    facts = written.facts
    aligned = written.matched.aligned
    pairs = [
        (measured, line)
        for measured in losses
        if (line := measured.line_of(written.matched.spaces, aligned=aligned))
    ]
    measured, line = max(pairs, key=lambda pair: pair[1].barrier)
    ends = line.ends
    if all(each.guesses for each in losses):
        text = (
            f"On {count(measured.examples)} examples the models themselves have a loss of "
            f"{_point(ends[0], measured.unit)} and {_point(ends[1])}, which is no better than guessing "
            f"({nats(measured.chance or 0.0)}): what a merge keeps of them cannot be told by these. Measure on "
            "examples of what the models were trained for."
        )
        return Level.OPEN, "Whether the merge works cannot be told by these examples", text
    merged = next((each.merged for each in losses if each.merged is not None), None)
    excess, drop = line.barrier, line.drop
    if merged is not None:
        models = [*losses[0].lines[0].ends[:1], *(each.lines[0].ends[1] for each in losses)]
        excess = merged.loss - sum(m.loss for m in models) / len(models)
        right = sum(m.accuracy or 0.0 for m in models) / len(models)
        drop = 0.0 if merged.accuracy is None else right - merged.accuracy
    level = graded(excess, drop, slight(measured.unit, line.losses))
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


def slight(unit: str, losses: Sequence[float]) -> float:
    """A rise of the loss that is slight: of values in parts of what the models at the ends of the line lose."""
    return SLIGHT * max((losses[0] + losses[-1]) / 2, 1e-12) if unit.startswith("squared") else SLIGHT


def graded(excess: float, drop: float, slight: float = SLIGHT) -> Level:
    """How good a merge is that costs ``excess`` of loss (``slight`` is little of it) and ``drop`` (0..1) of
    accuracy against its models."""
    size = max(excess / slight, drop / CONNECTED)
    return Level.GOOD if size <= 1 else Level.FAIR if size <= FAIR else Level.POOR


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
    if stored.barrier <= slight(losses.unit, stored.losses) and stored.drop <= CONNECTED:
        return (
            f"On the line between them the loss {highest}; it did not before alignment either, which was not "
            "needed."
        )
    return f"On the line between them the loss {highest}; before alignment it rose by {nats(stored.barrier)}."


def by_learning(taught: Sequence[Taught]) -> tuple[Level, str, str]:
    """The verdict of learning: by the highest loss that it left between the models, on examples held out, and by
    what stood there before."""
    worst = max(taught, key=lambda t: t.kept)
    level = graded(worst.kept, 0.0)
    starts = [t.start for t in taught]
    title = {
        Level.GOOD: "Learning left no barrier",
        Level.FAIR: "Learning left a small barrier",
        Level.POOR: "Learning left a barrier",
    }[level]
    if level is Level.GOOD and None not in starts:
        there = any(graded(start, 0.0) is not Level.GOOD for start in starts if start is not None)
        title = "Learning removed the barrier" if there else "There was no barrier for learning to remove"
    start = "" if worst.start is None else f"from {nats(worst.start)} "
    text = (
        f"On {count(worst.held_out)} examples that the match was not learned from, the highest loss between the "
        f"models, in excess of their own, went {start}to {nats(worst.kept)} nats."
    )
    if any(t.target == "distill" for t in taught):
        text += " The loss is against the models' own predictions."
    if any(t.target == "labels" and t.kept < -SLIGHT for t in taught):
        text += " What is below their own is owed to the labels, as in any training."
    return level, title, text


def _as_told(matched: Facts, relation: Relation | None) -> tuple[Level, str, str]:
    """What the run itself said of its models."""
    if matched.sentence:
        return (
            LEVELS[matched.level],
            title_of(relation, aligned=matched.aligned, left=matched.left, base=matched.base),
            f"{matched.sentence}.",
        )
    before, after = (ratio(x) for x in matched.distance.movable.share or (inf, inf))
    text = (
        f"The run has left no verdict. Over the weights that symmetries act on, the models were {before} of their "
        f"norm apart and are {after} after it."
    )
    return Level.OPEN, title_of(None), text

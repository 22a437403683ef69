"""Greedy soup: which models of many are worth averaging (Wortsman et al. 2022, recipe 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isnan

from isomerge.errors import IsomergeError


@dataclass(frozen=True)
class Trial:
    """One candidate's turn."""

    candidate: int
    score: float
    """Of the average of what was chosen before and this candidate."""
    taken: bool


@dataclass(frozen=True)
class Soup:
    """What a greedy soup is made of."""

    chosen: tuple[int, ...]
    """Candidates in the order in which they were taken; the best one first."""
    score: float
    history: tuple[Trial, ...]


def greedy_soup(scores: Sequence[float], evaluate: Callable[[tuple[int, ...]], float]) -> Soup:
    """Take the best candidate, then each next best one unless the average of all that are taken gets worse.

    Candidates are tried once, from the highest score of their own to the lowest; equal ones in the order in which they are
    given. An average as good as the one before is taken, as in the paper.

    Args:
        scores: of every candidate alone, higher is better (an accuracy, or a negative loss); NaN counts as the worst.
        evaluate: the score of the average of some candidates, in the order given, on the same data. It is not asked for
            one candidate alone. NaN is never taken.

    Raises:
        IsomergeError: no candidates, or none whose score is a number.
    """
    known = [-inf if isnan(score) else float(score) for score in scores]
    if not known or max(known) == -inf:
        raise IsomergeError("a soup needs at least one candidate with a score that is a number")
    first, *others = sorted(range(len(known)), key=lambda k: -known[k])
    chosen, best = (first,), known[first]
    history = [Trial(first, best, True)]
    for k in others:
        score = float(evaluate((*chosen, k)))
        taken = score >= best
        if taken:
            chosen, best = (*chosen, k), score
        history.append(Trial(k, score, taken))
    return Soup(chosen, best, tuple(history))

"""How much longer matching onto a common mean takes than matching onto one anchor: counted in passes, from how many
models there are (see `isomerge.solve.many.mean_solver.ManySolver.solve`).
"""

from __future__ import annotations

from dataclasses import dataclass

from isomerge.solve.many.mean_solver import EVERY_START, TRIAL
from isomerge.solve.many.passes import TRIAL_ROUNDS

ROUNDS_RELATED = 2
"""After how many rounds over a unit nothing gains any more, where models are related."""
STARTS = 4
"""Passes that choose between the two starts of residual streams."""


@dataclass(frozen=True)
class Effort:
    """What the common mean takes, in matchings of one model onto others and in passes over all models."""

    matchings: float
    """How often one model is matched onto others; ``count - 1`` onto one anchor, times its passes with residual
    streams."""
    related: float
    """The same of related models."""
    passes: float
    """How often all models are gone through."""


def mean_effort(count: int, settled: int | None) -> Effort:
    """The effort of the descents to every star and from the best of them.

    Args:
        count: how many models there are.
        settled: passes after which residual streams settle, as a rule of thumb; None: no stream turns, and units
            settle apart.
    """
    others, every = count - 1, count <= EVERY_START
    if settled is not None:
        star = STARTS + (settled if every else 0)
        mean = settled + (count * TRIAL if every else TRIAL)
        matchings = float(others * count * star + count * mean)
        return Effort(matchings, matchings, float(count * (star + 1) + mean))
    star = 2 if every else 1
    in_stars = others * count * star
    related, unrelated = (
        in_stars + count * rounds + count * (others + count * rounds)
        for rounds in (ROUNDS_RELATED, min(TRIAL_ROUNDS, count))
    )
    return Effort(float(unrelated), float(related), float(count * (star + 1) + 3))

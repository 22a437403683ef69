"""The sentences of the page: what the numbers of one task allow to be said of an arm beside the standard one.

Means over seeds are compared by `benchmarks.paper.sentences.difference`: one counts where it exceeds its spread
over seeds. Every learning rate was run with one seed, so ranges of rates carry no spread; a step of the sweep is
their resolution.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.paper.results import mean_spread
from benchmarks.paper.sentences import difference, listed
from benchmarks.relational.summary import (
    GRID,
    NEAR,
    Range,
    Summary,
    accuracy_of,
    loss_of,
    orbit,
    width,
)

STANDARD = "standard"
RESOLUTION = math.log10(GRID[1] / GRID[0])
"""Decades between two rates of the sweep."""


def overall(tasks: Sequence[Summary], labels: Mapping[str, str]) -> str:
    """How many comparisons with the standard arm say that its loss is undercut, and how many that it is not."""
    found = [
        difference(*pairs)
        for summary in tasks
        for arm in others(summary, labels)
        if (pairs := summary.paired(arm, STANDARD, loss_of))[0]
    ]
    lower, higher = (sum(one.word == word for one in found) for word in ("lower", "higher"))
    return (
        f"Of {len(found)} comparisons with the standard arm (an arm, a task, each at its own best rate), the "
        f"test loss is lower in {lower}, higher in {higher}, and within the spread over seeds in "
        f"{len(found) - lower - higher}."
    )


def of_quality(summary: Summary, labels: Mapping[str, str]) -> list[str]:
    """Test loss and accuracy of every arm less the standard one's, and whether they count."""
    better: list[str] = []
    worse: list[str] = []
    level: list[str] = []
    for arm in others(summary, labels):
        pairs = summary.paired(arm, STANDARD, loss_of)
        if not pairs[0]:
            continue
        loss = difference(*pairs)
        accuracy = difference(*summary.paired(arm, STANDARD, accuracy_of))
        told = f"{labels[arm]} (loss {loss.text(4, ' nats')}, accuracy {accuracy.text(2, ' points')})"
        (level if not loss.counts else better if loss.mean < 0 else worse).append(told)
    lines = [
        *sentence("A lower test loss than the standard arm", better),
        *sentence("A higher test loss than the standard arm", worse),
        *sentence("Within the spread over seeds, so nothing is claimed", level),
    ]
    return lines or ["No arm has been run beside the standard one yet."]


def of_stability(summary: Summary, labels: Mapping[str, str]) -> list[str]:
    """Whose range of good rates is wider or narrower than the standard one's, and whose runs failed."""
    own = good_range(summary, STANDARD)
    wider, narrower, level = [], [], []
    for arm in others(summary, labels):
        found = good_range(summary, arm)
        if own is None or found is None:
            continue
        if abs(found.decades - own.decades) <= RESOLUTION or (found.open and own.open):
            level.append(labels[arm])
        else:
            (wider if found.decades > own.decades else narrower).append(f"{labels[arm]} ({decades(found)})")
    lines = []
    if own is not None:
        lines.append(
            f"Rates whose loss is within {NEAR} nats of the arm's own best span {decades(own)} for the "
            "standard arm."
        )
    lines += [
        *sentence("Wider by more than a step of the sweep", wider),
        *sentence("Narrower by more than a step of the sweep", narrower),
        *sentence("Not told apart from it by this sweep", level),
    ]
    failed = {arm: failures(summary, arm) for arm in summary.arms([*labels])}
    told = [f"{labels[a]} at {', '.join(f'{r:g}' for r in rates)}" for a, rates in failed.items() if rates]
    return [*lines, f"Failed runs: {'; '.join(told)}." if told else "No run failed."]


def of_time(summary: Summary, labels: Mapping[str, str]) -> list[str]:
    """Processor time per step beside the standard arm's, medians over all runs."""
    if not summary.per_step(STANDARD):
        return []
    own = statistics.median(summary.per_step(STANDARD))
    told = [
        f"{labels[arm]} {statistics.median(found) / own:.2f}"
        for arm in others(summary, labels)
        if (found := summary.per_step(arm))
    ]
    return (
        [f"A step, as a multiple of the standard arm's (medians over all runs): {', '.join(told)}."] if told else []
    )


def of_orbit(summary: Summary, labels: Mapping[str, str]) -> list[str]:
    """How far the standard arm's updates are vertical, and whose are less so."""
    found = summary.values(STANDARD, orbit("vertical"))
    if not found:
        return []
    walked = mean_spread(summary.values(STANDARD, orbit("walked")))[0]
    lines = [
        f"Of plain AdamW's updates to the heads, {100 * mean_spread(found)[0]:.1f} % of the norm is vertical: it "
        f"changes nothing that the model computes. In all, it walks {walked:.2f} times the norm of those weights "
        "along orbits."
    ]
    less, not_less = [], []
    for arm in others(summary, labels):
        pairs = summary.paired(arm, STANDARD, orbit("vertical"))
        if pairs[0]:
            change = difference(*pairs)
            share = f"{labels[arm]} ({100 * mean_spread(pairs[0])[0]:.2g} %)"
            (less if change.counts and change.mean < 0 else not_less).append(share)
    lines += [*sentence("A smaller share", less), *sentence("No smaller share, or within the spread", not_less)]
    return lines


def sentence(what: str, named: Sequence[str]) -> list[str]:
    """``what: a, b and c.``; none where nothing is named."""
    return [f"{what}: {listed(named)}."] if named else []


def others(summary: Summary, labels: Mapping[str, str]) -> Sequence[str]:
    """The arms that have runs, without the standard one."""
    return [arm for arm in summary.arms([*labels]) if arm != STANDARD]


def good_range(summary: Summary, arm: str) -> Range | None:
    """The range of rates whose test loss is near the arm's own best; None where every run failed or none was
    made."""
    losses = summary.losses(arm)
    best = min(losses.values(), default=math.inf)
    return width(losses, best + NEAR) if math.isfinite(best) and len(losses) == len(GRID) else None


def failures(summary: Summary, arm: str) -> list[float]:
    """The rates at which an arm's run of the first seed failed."""
    return [rate for rate, loss in summary.losses(arm).items() if not math.isfinite(loss)]


def decades(found: Range | None) -> str:
    """``1.20 decades``; ``at least`` where the sweep ended before the range did; a dash for none."""
    if found is None:
        return "–"
    return f"{'at least ' if found.open else ''}{found.decades:.2f} decades"

"""Forward-only search: matchings are tried and kept when the midpoint comes closer to its parents, without
gradients.

What is lowered is KL(mean of the two models' distributions || midpoint), or the squared difference of values, on
examples that need no labels. Moves are other
orders of heads (their fibres solved again), small steps of the residual stream, and feed-forward layers matched
again by other evidence. A move is accepted when the divergence on one half of the examples falls; the state that is
kept is the one where it is lowest on the other half, so that the search cannot lose to its start there. Every state
is an exact symmetry of the source.

``docs/lab/experiments.md`` has what this gains, and which moves gain it.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

import torch

from isomerge.observe.data.examples import Examples
from isomerge.progress import Observer
from isomerge.solve.pairs.midpoint import Midpoint
from isomerge.solve.pairs.moves import Moves, Trial
from isomerge.solve.pairs.stream_descent import StreamSolver

# Steps of the residual stream in one round, and the share of accepted ones above which more are made.
STEPS, WORTH = 60, 0.2
# The search ends after so many accepted moves that did not lower the divergence on the held-out half.
PATIENCE = 60
# A move must lower the divergence by this fraction (and by more than rounding does): less is not worth a move.
GAIN = 1e-5
# Rounds in which nothing is accepted, after which the search has settled: random steps deserve a second chance.
IDLE = 2


def search_forward(
    solver: StreamSolver,
    examples: Examples,
    seconds: float,
    observer: Observer,
    *,
    moves: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> dict[str, Any]:
    """Search from a solver's solution and leave the best state in it (``turn`` and ``inner``).

    Args:
        solver: after its descent.
        examples: without labels; half of them judge moves, half guard.
        seconds: how long to search; the move that is tried when they are over is finished.
        observer: told of the divergence, milliseconds gone and in all.
        moves: the number of moves to try, instead of a time: then the result depends on ``seed`` alone.
        seed: of everything that is drawn.
        device: where the model runs.

    Returns:
        A report: ``tried`` and ``accepted`` by kind, ``divergence`` (in ``unit``) before and after on both halves.

    Raises:
        IsomergeError: too few examples to split.
    """

    with torch.no_grad():
        return Search(solver, examples, observer, seed, device).run(seconds, moves)


class Search:
    """The state of one search; see `search_forward`."""

    def __init__(
        self,
        solver: StreamSolver,
        examples: Examples,
        observer: Observer,
        seed: int,
        device: str,
    ) -> None:
        self.solver, self.observer = solver, observer
        self.midpoint = Midpoint(solver, device)
        first, second = examples.split(0.5, seed=seed)
        self.judge, self.guard = (self.midpoint.judged(part) for part in (first, second))
        self.sums = self.midpoint.divergence(self.judge)
        self.rounding = self.judge.count * max(map(self.judge.kind.rounding, self.judge.targets))
        self.history = [(sum(self.sums) / self.judge.count, self.guarded())]
        self.best = (self.history[0], solver.turn, dict(solver.inner))
        self.moves = Moves(self.midpoint, self.judge, seed)
        self.waited = self.rounds = self.idle = 0
        self.again = True
        """Whether every order of heads is worth a try: at first, and when other neurons have been matched since."""
        self.tried: dict[str, int] = {}
        self.accepted: dict[str, int] = {}

    def guarded(self) -> float:
        """The divergence on the held-out half."""
        return sum(self.midpoint.divergence(self.guard)) / self.guard.count

    # ------------------------------------------------------------------- loop

    def run(self, seconds: float, moves: int | None) -> dict[str, Any]:
        """Rounds of moves until the budget is spent, nothing is accepted, or the held-out half has risen for
        long."""
        start, trials = monotonic(), self.round()
        kept, ended = 0, ""
        while not (ended := ended or self.ended(monotonic() - start >= seconds, moves)):
            trial = next(trials, None)
            if trial is not None:
                gone = min(monotonic() - start, seconds)
                self.observer(self.told(trial), int(1000 * gone), int(1000 * seconds))
                self.take(trial)
                continue
            self.rounds += 1
            self.idle = self.idle + 1 if sum(self.accepted.values()) == kept else 0
            ended = "settled" if self.idle >= IDLE else ""
            kept, trials = sum(self.accepted.values()), self.round()
        (value, guarded), self.solver.turn, self.solver.inner = self.best
        before = self.history[0]
        return {
            "seconds": monotonic() - start,
            "rounds": self.rounds,
            "ended": ended,
            "moves": sum(self.tried.values()),
            "tried": self.tried,
            "accepted": self.accepted,
            "examples": [self.judge.count, self.guard.count],
            "unit": self.judge.kind.measure,
            "divergence": {"search": [before[0], value], "held_out": [before[1], guarded]},
        }

    def ended(self, late: bool, moves: int | None) -> str:
        """Why the search ends now, or nothing; ``late`` is whether the time is over, which counts without
        ``moves``."""
        if self.waited >= PATIENCE:
            return "guard"
        if moves is None:
            return "time" if late else ""
        return "moves" if sum(self.tried.values()) >= moves else ""

    def told(self, trial: Trial) -> str:
        """A line of progress."""
        return f"forward search, divergence {self.history[-1][0]:.4f}: {trial.kind}"

    def round(self) -> Iterator[Trial]:
        """The moves of one round: heads, then the streams, then other layers; each is made when its turn comes.

        Feed-forward layers depend on all that comes before them, so they are matched as a whole before each of
        these.
        """
        heads, others = self.moves.units()
        yield from self.moves.functional_pass()
        swaps, self.again = not self.again, False
        for unit in heads:
            yield from self.moves.heads(unit, swaps=swaps)
        yield from self.moves.functional_pass()
        kept = STEPS if self.solver.frame.streams else 0
        while kept >= WORTH * STEPS:
            kept = -sum(self.accepted.values())
            for _ in range(STEPS):
                if (trial := self.moves.stream()) is not None:
                    yield trial
            kept += sum(self.accepted.values())
        yield from self.moves.functional_pass()
        for unit in others:
            yield from self.moves.rematches(unit)

    def take(self, trial: Trial) -> bool:
        """Try a move; keep it when the divergence falls."""
        self.tried[trial.kind] = self.tried.get(trial.kind, 0) + 1
        old = {key: self.midpoint.placed[key] for key in trial.placed}
        self.midpoint.replace(trial.placed)
        sums = self.midpoint.divergence(self.judge, self.sums)
        least = max(GAIN * sum(self.sums), self.rounding)
        if len(sums) < len(self.sums) or not sum(sums) < sum(self.sums) - least:
            self.midpoint.replace(old)
            return False
        self.accepted[trial.kind] = self.accepted.get(trial.kind, 0) + 1
        self.sums = sums
        self.again |= trial.kind == "functional pass"
        self.solver.inner |= trial.inner
        if trial.turn is not None:
            self.solver.turn = trial.turn
        self.history.append((sum(sums) / self.judge.count, self.guarded()))
        self.waited += 1
        if self.history[-1][1] < self.best[0][1]:
            self.best = (self.history[-1], self.solver.turn, dict(self.solver.inner))
            self.waited = 0
        return True

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
from dataclasses import dataclass
from itertools import permutations, product
from math import factorial
from time import monotonic
from typing import Any

import torch
from torch import Generator, Tensor

from isomerge.matching.frame import stream_crosses
from isomerge.observe.data.examples import Examples
from isomerge.progress import Observer
from isomerge.records import Json
from isomerge.solve.canonical.canonical_units import Tap
from isomerge.solve.match_options import SHARES
from isomerge.solve.pairs.midpoint import Judged, Midpoint
from isomerge.solve.pairs.rematch import FunctionalMatch, solve_again, voted_elements
from isomerge.solve.pairs.stream_descent import StreamSolver, UnitPair
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.groups import GROUPS
from isomerge.symmetry.units import Unit

# Steps of the residual stream in one round, and the share of accepted ones above which more are made.
STEPS, WORTH = 60, 0.2
# The search ends after so many accepted moves that did not lower the divergence on the held-out half.
PATIENCE = 60
# A move must lower the divergence by this fraction (and by more than rounding does): less is not worth a move.
GAIN = 1e-5
# Rounds in which nothing is accepted, after which the search has settled: random steps deserve a second chance.
IDLE = 2
# Orders of a layer's heads that are all tried, and how many are drawn where there are more.
ALL_HEADS = 24
ROTATIONS = ("O", "OFixingOnes")


def search_forward(
    solver: StreamSolver,
    examples: Examples,
    seconds: float,
    observer: Observer,
    *,
    moves: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> Json:
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

    def run(self, seconds: float, moves: int | None) -> Json:
        """Rounds of moves until the budget is spent, nothing is accepted, or the held-out half has risen for
        long."""
        start, trials = monotonic(), self.round()
        kept, ended = 0, ""
        while not (ended := ended or self.ended(monotonic() - start >= seconds, moves)):
            trial = next(trials, None)
            if trial is not None:
                gone = min(monotonic() - start, seconds)
                self.observer(self.line_of(trial), int(1000 * gone), int(1000 * seconds))
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

    def line_of(self, trial: Trial) -> str:
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


@dataclass
class Trial:
    """A move: its kind, the units that it changes as they would be placed, and how the solver would know of it."""

    kind: str
    placed: dict[str, UnitPair]
    inner: dict[str, dict[str, Tensor]]
    turn: Alignment | None = None


class Moves:
    """Makes moves from the state that a solver and its midpoint are in when it is asked.

    Args:
        midpoint: the line.
        judged: examples, of which the first batches serve the functional cost.
        seed: of everything that is drawn.
    """

    def __init__(self, midpoint: Midpoint, judged: Judged, seed: int) -> None:

        self.midpoint, self.solver = midpoint, midpoint.solver
        self.rng: Generator = torch.Generator().manual_seed(seed)
        self.functional = FunctionalMatch(midpoint, judged.unpadded)
        self.crosses = self._tap_crosses()
        self._turned: tuple[Alignment | None, dict[str, UnitPair]] = (None, {})

    def units(self) -> tuple[list[Unit], list[Unit]]:
        """The matched units with heads of their own, in a drawn order, and those without, in theirs."""
        matched = [unit for unit in self.midpoint.units.values() if self.solver.pair.plan.is_matched(unit)]
        heads = [unit for unit in matched if self.head_keys(unit)]
        return self._shuffled(heads), [unit for unit in matched if unit not in heads]

    def turned(self, unit: Unit) -> UnitPair:
        """The unit with the source's streams turned and nothing matched inside."""
        if self._turned[0] is not self.solver.turn:
            self._turned = (self.solver.turn, {})
        if unit.key not in self._turned[1]:
            self._turned[1][unit.key] = self.solver.turned_unit(unit)
        return self._turned[1][unit.key]

    def placing(self, kind: str, unit: Unit, elements: dict[str, Tensor]) -> Trial:
        """The move that gives a unit these elements."""
        turned = self.turned(unit).without_taps()
        placed = turned.moved(Alignment(self.solver.local, elements))
        return Trial(kind, {unit.key: placed}, {unit.key: elements})

    def evidence(self) -> tuple[str, ...]:
        """What units can be matched by."""
        return tuple(SHARES) if self.solver.units.activations else ("weights",)

    def head_keys(self, unit: Unit) -> list[str]:
        """The permutations of heads that are one unit's own."""
        spaces = self.solver.local.spaces
        mine = [key for key in unit.elements if not ElementKey.of(key).is_shift]
        return [
            k for k in mine if (s := spaces[ElementKey.of(k).name]).role in ("h", "g") and s.group.compact == "Perm"
        ]

    def heads(self, unit: Unit, *, swaps: bool = False) -> Iterator[Trial]:
        """Every order of a unit's heads, or some drawn ones, with the fibres solved again; ``swaps`` of two
        alone."""

        voted = voted_elements(self.solver, unit)
        now = {key: self.solver.inner[unit.key][key] for key in self.head_keys(unit)}
        count = 1
        for p in now.values():
            count *= factorial(p.shape[-1]) ** (p.numel() // p.shape[-1])
        if count <= ALL_HEADS:
            choices = [
                list(product(permutations(range(p.shape[-1])), repeat=p.numel() // p.shape[-1]))
                for p in now.values()
            ]
            for chosen in self._shuffled(list(product(*choices))):
                fixed = {k: torch.tensor(c).reshape(now[k].shape) for k, c in zip(now, chosen, strict=True)}
                if swaps and sum(int((fixed[k] != now[k]).sum()) for k in now) > 2:
                    continue
                for evidence in self.evidence()[:2]:
                    yield self.placing(
                        "heads", unit, solve_again(self.solver, self.turned(unit), evidence, {**voted, **fixed})
                    )
            return
        for _ in range(ALL_HEADS):  # swaps of two heads, from where the search has come to
            now = {key: self.solver.inner[unit.key][key] for key in now}
            free = [key for key in now if now[key].shape[-1] > 1]
            key = free[self._draw(len(free))]
            fixed = {**now, key: self._swapped(now[key])}
            evidence = self.evidence()[:2][self._draw(min(2, len(self.evidence())))]
            yield self.placing(
                "heads", unit, solve_again(self.solver, self.turned(unit), evidence, {**voted, **fixed})
            )

    def functional_pass(self) -> Iterator[Trial]:
        """All feed-forward layers at once, matched one after the other by what their neurons compute."""
        inner = self.functional.sequence()
        placed = {}
        for key, elements in inner.items():
            placed |= self.placing("", self.midpoint.units[key], elements).placed
        if inner:
            yield Trial("functional pass", placed, inner)

    def rematches(self, unit: Unit) -> Iterator[Trial]:
        """A unit without heads, matched by every evidence and by what its neurons compute."""
        turned = self.turned(unit)
        if (by_function := self.functional.match(unit, turned)) is not None:
            yield self.placing("functional", unit, by_function)
        for evidence in self.evidence():
            elements = solve_again(self.solver, turned, evidence, voted_elements(self.solver, unit))
            yield self.placing("feed-forward", unit, elements)

    def stream(self) -> Trial | None:
        """A small step of one stream: towards what one tap says, or a random one."""
        frame = self.solver.frame
        stream = frame.streams[self._draw(len(frame.streams))]
        space, n = frame.spaces[stream], frame.sizes[stream]
        cross = self._tap_cross(stream) if self._draw(2) else None
        step = stream_step(space.group_name, n, self.rng, cross)
        if step is None:
            return None
        g = Alignment(frame, {stream: step})
        turn = g @ self.solver.turn
        if space.group_name in ROTATIONS:  # products drift off the group
            turn = Alignment(frame, {**turn.elements, stream: space.group.solve(turn[stream])[0]})
        return Trial("stream" if cross is None else "stream by a tap", self.midpoint.turned(g), {}, turn)

    def _tap_crosses(self) -> dict[str, list[Tensor]]:
        """The cross-Grams [n, n] of every tap of every stream, before the source's streams are turned."""
        crosses: dict[str, list[Tensor]] = {}
        for unit in self.midpoint.units.values():
            a, b = self.solver.units.canonical(unit)
            for tap in (key for key in a if isinstance(key, Tap)):
                leaves = self.solver.units.leaves({tap: a[tap]}, b)
                for stream, cross in stream_crosses(self.solver.frame, leaves).items():
                    crosses.setdefault(stream, []).append(cross)
        return crosses

    def _tap_cross(self, stream: str) -> Tensor | None:
        """The cross-Gram of one tap of the stream, drawn at random, with the source turned as it is now."""
        if self.solver.frame.spaces[stream].group_name not in ROTATIONS or not self.crosses.get(stream):
            return None
        cross = self.crosses[stream][self._draw(len(self.crosses[stream]))]
        return cross @ self.solver.turn[stream].mT if stream in self.solver.turn else cross

    # ----------------------------------------------------------------- chance

    def _draw(self, n: int) -> int:

        return int(torch.randint(n, (), generator=self.rng))

    def _shuffled(self, things: list[Any]) -> list[Any]:

        return [things[k] for k in torch.randperm(len(things), generator=self.rng).tolist()]

    def _swapped(self, p: Tensor) -> Tensor:
        """Permutations [*b, n] with two places of one of them exchanged."""
        flat = p.reshape(-1, p.shape[-1]).clone()
        row, i = self._draw(len(flat)), self._draw(flat.shape[1])
        j = (i + 1 + self._draw(flat.shape[1] - 1)) % flat.shape[1]
        flat[row, [i, j]] = flat[row, [j, i]]
        return flat.reshape(p.shape)


def stream_step(group: str, n: int, rng: Generator, cross: Tensor | None = None) -> Tensor | None:
    """A small element of a stream's group; None where there is none.

    Args:
        group: its name.
        n: the width of the stream.
        rng: draws its size (rotations: between 0.01 and 0.3 radians, or 0.03 to 3 times the cross-Gram) and the
            rest.
        cross: a cross-Gram [n, n] to step towards; a random direction without.
    """

    eye = torch.eye(n, dtype=torch.float64)
    size = float(torch.rand((), generator=rng, dtype=torch.float64))
    if group in ROTATIONS:
        if cross is not None:
            towards = cross.double() / torch.linalg.matrix_norm(cross.double(), 2).clamp_min(1e-300)
            return GROUPS[group].solve(eye + 0.03 * 100**size * towards)[0]
        noise = torch.randn(n, n, generator=rng, dtype=torch.float64)
        return GROUPS[group].solve(eye + 0.01 * 30**size * (noise - noise.mT) / (2 * n) ** 0.5)[0]
    i, j = torch.randperm(n, generator=rng)[:2].tolist() if n > 1 else (0, 0)
    step = GROUPS[group].identity((), n)
    if group == "Sign" or (group == "SignedPerm" and size < 0.5):
        step[i] = -step[i]
    elif group in ("Perm", "SignedPerm"):
        step[[i, j]] = step[[j, i]]
    else:
        return None
    return step

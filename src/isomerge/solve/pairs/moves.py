"""The moves of the forward-only search: other orders of heads, steps of the streams, layers matched again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product
from math import factorial
from typing import Any

import torch
from torch import Generator, Tensor

from isomerge.matching.frame import stream_crosses
from isomerge.solve.canonical.canonical_units import Tap
from isomerge.solve.match_options import SHARES
from isomerge.solve.pairs.midpoint import Judged, Midpoint
from isomerge.solve.pairs.rematch import FunctionalMatch, solve_again, voted_elements
from isomerge.solve.pairs.unit_pair import UnitPair
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.element_key import ElementKey
from isomerge.symmetry.groups import GROUPS
from isomerge.symmetry.units import Unit

# Orders of a layer's heads that are all tried, and how many are drawn where there are more.
ALL_HEADS = 24
ROTATIONS = ("O", "OFixingOnes")


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

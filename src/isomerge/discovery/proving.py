"""The court: every proposed space is drawn at random and acted with, and the outputs must stay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from isomerge.discovery.draft import Draft
from isomerge.engine.ties import without_broken_ties
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_alignment, random_turn, with_streams
from isomerge.symmetry.blocks import Block, gather_blocks
from isomerge.symmetry.spec import Match, Spec, by_canonical, coverage
from isomerge.symmetry.spec_text import parse_spec

if TYPE_CHECKING:
    from torch import Tensor

    from isomerge.discovery.specimen import Specimen

PROVEN = 1e-9
"""The largest relative change of outputs that rounding explains: in float64 true spaces give below 1e-10, at a condition
number of 4, and wrong ones above 1e-3."""
MOVED = 1e-3
"""How much some weight must move for a proof not to be empty; weights are of size 0.1 to 1."""


CANNOT_ACT = (IsomergeError, RuntimeError, AssertionError, LookupError, ValueError)
"""What a draft raises that fits its tensors badly, or whose groups cannot act on them: no proof."""


@dataclass(frozen=True)
class Verdict:
    """What the law said of a space."""

    space: str
    role: str
    group: str
    proven: bool
    error: float
    """The largest relative change of outputs; infinite where the spec could not act."""
    index: tuple[str, ...] = ()


@dataclass
class Court:
    """Specimens to prove drafts on, and the record of all verdicts."""

    specimens: Sequence[Specimen]
    seeds: tuple[int, ...] = (1, 2)
    record: list[Verdict] = field(default_factory=list)
    trials: int = 0
    _last: dict[int, _Seen] = field(default_factory=dict)
    """The specimens by their numbers, as the draft that was tried last sees them: its spaces are proven one by one."""

    def error(self, draft: Draft, names: Iterable[str], *, quick: bool = True, disk: bool = False) -> float:
        """The largest change of outputs under random elements of some spaces and shifts; infinite where none can act.

        Args:
            draft: the spec; all of ``names`` must be declared in it.
            names: spaces and shifts that move together.
            quick: stop at the first specimen and element that refutes.
            disk: put the weights in by writing and reading checkpoints.
        """
        worst, names = 0.0, list(names)
        for number in range(len(self.specimens)):
            try:
                seen = self._see(draft, number)
                for seed in self.seeds:
                    worst = max(worst, seen.change(names, seed, disk))
                    if quick and worst > PROVEN:
                        return worst
            except CANNOT_ACT:
                return float("inf")
        self.trials += 1
        return worst

    def _see(self, draft: Draft, number: int) -> _Seen:
        seen = self._last.get(number)
        if seen is None or seen.draft is not draft:
            seen = self._last[number] = _Seen(draft, self.specimens[number])
        return seen

    def idle(self, draft: Draft, name: str) -> bool:
        """Whether a space of a draft cannot move on these specimens: ties have taken it, or it has one element."""
        try:
            return all(self._see(draft, number).idle(name) for number in range(len(self.specimens)))
        except IsomergeError:
            return False

    def turned(self, draft: Draft) -> float:
        """The same for the residual streams by their folded groups, gains folded before and new ones taken on after."""
        worst = 0.0
        for specimen in self.specimens:
            try:
                seen = _Seen(draft, specimen)
                worst = max(worst, *(seen.turn(seed) for seed in self.seeds))
            except CANNOT_ACT:
                return float("inf")
        return worst

    def accepts(self, draft: Draft, *names: str) -> bool:
        """Whether spaces and shifts of a draft are proven; the verdict goes on record."""
        error = self.error(draft, names)
        self.note(draft, names, error)
        return error < PROVEN

    def note(self, draft: Draft, names: Iterable[str], error: float) -> None:
        """Put a verdict on record."""
        for name in names:
            space = draft.spaces.get(name)
            role = "bias" if space is None else space.role or space.name
            group = "translation" if space is None else space.group
            index = () if space is None else space.index
            self.record.append(Verdict(name, role, group, error < PROVEN, error, index))


class _Seen:
    """A specimen as a draft sees it."""

    def __init__(self, draft: Draft, specimen: Specimen) -> None:
        self.draft, self.specimen = draft, specimen
        shapes = {name: tuple(t.shape) for name, t in specimen.stored.items()}
        spec = parse_spec(draft.text(), specimen.config, "draft")
        self.matches: dict[str, Match] = coverage(spec, shapes)
        self.names = by_canonical(self.matches)
        self.spec: Spec = without_broken_ties(spec, self.names, specimen.config)
        self.blocks: list[Block] = gather_blocks(self.spec, self.matches)

    def fresh(self) -> dict[Block, Tensor]:
        return {
            block: block.assemble(lambda n: self.specimen.stored[self.names[n]]).clone().contiguous()
            for block in self.blocks
        }

    def idle(self, name: str) -> bool:
        """Whether the name is of no space or shift here."""
        return name not in self.spec.spaces and all(shift.name != name for shift in self.spec.shifts)

    def change(self, names: list[str], seed: int, disk: bool = False) -> float:
        """The change of outputs under a random element, drawn again while a small group draws the identity."""
        import torch

        active = [n for n in names if n in self.spec.spaces or any(s.name == n for s in self.spec.shifts)]
        for attempt in range(8):
            rng = torch.Generator().manual_seed(100 * seed + attempt)
            blocks = self.fresh()
            random_alignment(self.spec, self.blocks, rng, active).act(blocks)
            moved = self._moved(blocks)
            if moved:
                return self.specimen.change(moved, disk=disk)
        return float("inf")  # nothing moved: nothing is proven

    def turn(self, seed: int) -> float:
        import torch

        spec = with_streams(self.spec)
        blocks, rng = self.fresh(), torch.Generator().manual_seed(seed)
        element = random_turn(spec, self.blocks, blocks.__getitem__, rng, gains=True)
        element.act(blocks)
        return self.specimen.change(self._moved(blocks))

    def _moved(self, blocks: dict[Block, Tensor]) -> dict[str, Tensor]:
        found = {self.names[n]: t for block, x in blocks.items() for n, t in block.split(x)}
        stored = self.specimen.stored
        changed = {
            n: t for n, t in found.items() if not (t.dtype == stored[n].dtype and bool((t == stored[n]).all()))
        }
        if max((float((t - stored[n]).abs().max()) for n, t in changed.items()), default=0.0) < MOVED:
            return {}
        return changed

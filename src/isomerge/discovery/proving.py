"""The court: every proposed space is drawn at random and acted with, and the outputs must stay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from isomerge.discovery.bound_specimen import BoundSpecimen
from isomerge.discovery.draft import Draft
from isomerge.discovery.specimen import Specimen
from isomerge.errors import IsomergeError
from isomerge.symmetry.language.spec_text import parse_spec

PROVEN = 1e-9
"""The largest relative change of outputs that rounding explains: in float64 true spaces give below 1e-10, at a
condition number of 4, and wrong ones above 1e-3."""

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
    _last: dict[int, tuple[Draft, BoundSpecimen]] = field(default_factory=dict)
    """The specimens by their numbers, as the draft that was tried last sees them: its spaces are proven one by
    one."""

    def error(self, draft: Draft, names: Iterable[str], *, quick: bool = True, disk: bool = False) -> float:
        """The largest change of outputs under random elements of some spaces and shifts; infinite where none can
        act.

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

    def _see(self, draft: Draft, number: int) -> BoundSpecimen:
        last, seen = self._last.get(number, (None, None))
        if seen is None or last is not draft:
            seen = _bound(draft, self.specimens[number])
            self._last[number] = (draft, seen)
        return seen

    def idle(self, draft: Draft, name: str) -> bool:
        """Whether a space of a draft cannot move on these specimens: ties have taken it, or it has one element."""
        try:
            return all(self._see(draft, number).idle(name) for number in range(len(self.specimens)))
        except IsomergeError:
            return False

    def turned(self, draft: Draft) -> float:
        """The same for the residual streams by their folded groups, gains folded before and new ones taken on
        after."""
        worst = 0.0
        for specimen in self.specimens:
            try:
                seen = _bound(draft, specimen)
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


def _bound(draft: Draft, specimen: Specimen) -> BoundSpecimen:
    return BoundSpecimen(lambda config, shapes: parse_spec(draft.text(), config, "draft"), specimen)

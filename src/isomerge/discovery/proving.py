"""The court: every proposed space is drawn at random and acted with, and the outputs must stay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from isomerge.discovery.bound_specimen import BoundSpecimen
from isomerge.discovery.draft import Draft
from isomerge.discovery.specimen import Specimen
from isomerge.evidence.law import Law, largest_change, with_streams
from isomerge.symmetry.language.spec import Space
from isomerge.symmetry.language.spec_text import parse_spec

PROVEN = 1e-9
"""The largest relative change of outputs that rounding explains: in float64 true spaces give below 1e-10, at a
condition number of 4, and wrong ones above 1e-3."""
TOGETHER = 10 * PROVEN
"""The same under all spaces at once: rounding adds up."""
SEEDS = (11, 12)
"""Of elements that prove what has been found by others."""

Movers = Mapping[str, Space | None]
"""The spaces, and shifts (None), that can move a specimen."""


def laws(subjects: Sequence[tuple[BoundSpecimen, Movers]]) -> Iterator[Law]:
    """Every space and shift alone, all together in memory and through disk, and the folded streams."""
    spaces = dict(chain.from_iterable(movers.items() for _, movers in subjects))
    for name, space in spaces.items():
        movable = [seen for seen, movers in subjects if name in movers]
        yield law(name, space, largest_change(lambda seen, seed, n=name: seen.change([n], seed), movable, SEEDS))
    movable, every = [seen for seen, movers in subjects if movers], list(spaces)
    for name, disk, seeds in (("all", False, SEEDS), ("all, through disk", True, SEEDS[:1])):
        if movable:
            error = largest_change(lambda seen, seed, d=disk: seen.change(every, seed, d), movable, seeds)
            yield Law(name, "", "", (), error, TOGETHER)
    for name, space in spaces.items():
        if space is not None and space.folded and movable[0].spec.can_fold(name):
            group = with_streams(movable[0].spec).spaces[name].group_name
            error = largest_change(BoundSpecimen.turn, movable, SEEDS)
            yield Law(f"{name} folded", space.role, group, space.index, error, TOGETHER)


def law(name: str, space: Space | None, error: float, group: str = "") -> Law:
    """Of a space, or of a shift (None), alone; ``group`` is what it was tried as, if not its own."""
    if space is None:
        return Law(name, "bias", "translation", (), error, PROVEN)
    return Law(name, space.role or space.name, group or space.group_name, space.index, error, PROVEN)


@dataclass
class Court:
    """Specimens to prove drafts on, and the record of what the law said."""

    specimens: Sequence[Specimen]
    seeds: tuple[int, ...] = (1, 2)
    record: list[Law] = field(default_factory=list)
    _last: dict[int, tuple[Draft, BoundSpecimen]] = field(default_factory=dict)
    """The specimens by their numbers, as the draft that was tried last sees them: its spaces are proven one by
    one."""

    def error(self, draft: Draft, names: Iterable[str]) -> float:
        """The change of outputs under random elements of spaces and shifts that the draft declares: the largest, or
        the first that refutes; infinite where none can act."""
        moving = list(names)
        return self._change(draft, lambda seen, seed: seen.change(moving, seed))

    def turned(self, draft: Draft) -> float:
        """The same for the residual streams by their folded groups, gains folded before and new ones taken on
        after."""
        return self._change(draft, BoundSpecimen.turn)

    def _change(self, draft: Draft, change: Callable[[BoundSpecimen, int], float]) -> float:
        subjects = (self._see(draft, number) for number in range(len(self.specimens)))
        return largest_change(change, subjects, self.seeds, enough=PROVEN)

    def _see(self, draft: Draft, number: int) -> BoundSpecimen:
        last, seen = self._last.get(number, (None, None))
        if seen is None or last is not draft:
            seen = bound(draft, self.specimens[number])
            self._last[number] = (draft, seen)
        return seen

    def accepts(self, draft: Draft, *names: str) -> bool:
        """Whether spaces and shifts of a draft are proven; that goes on record."""
        error = self.error(draft, names)
        self.note(draft, names, error)
        return error < PROVEN

    def note(self, draft: Draft, names: Iterable[str], error: float) -> None:
        """Put on record what the law said."""
        for name in names:
            space = draft.spaces.get(name)
            role = "bias" if space is None else space.role or space.name
            group = "translation" if space is None else space.group
            self.record.append(Law(name, role, group, () if space is None else space.index, error, PROVEN))


def bound(draft: Draft, specimen: Specimen) -> BoundSpecimen:
    """A specimen as a draft sees it.

    Raises:
        IsomergeError: the draft does not describe its tensors.
    """
    return BoundSpecimen(lambda config, shapes: parse_spec(draft.text(), config, "draft"), specimen)

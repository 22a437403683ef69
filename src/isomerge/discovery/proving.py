"""The court: every proposed space is drawn at random and acted with on a specimen as a spec sees it, and the
outputs must stay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from isomerge.discovery.draft import Draft
from isomerge.discovery.specimen import Specimen
from isomerge.evidence.law import Law, largest_change, random_turn, randomly_moved, with_streams
from isomerge.matching.stream_groups import returned_streams
from isomerge.models.tied_tensors import tied_lines, without_broken_ties
from isomerge.symmetry.blocks import Block, gather_blocks
from isomerge.symmetry.language.spec import Match, Space, Spec, by_canonical, coverage
from isomerge.symmetry.language.spec_text import parse_spec

DRAWS = 8
"""How often an element is drawn again: a small group draws the identity now and then."""

SpecOf = Callable[[Mapping[str, Any], Mapping[str, tuple[int, ...]]], Spec]
"""From a config and the shapes of the stored tensors to the spec that is bound to them."""


class BoundSpecimen:
    """A specimen, and a spec that is bound to its config.

    Args:
        spec_of: makes the spec.
        specimen: the tiny model.

    Raises:
        IsomergeError: the spec does not describe the specimen's tensors.
    """

    def __init__(self, spec_of: SpecOf, specimen: Specimen) -> None:
        self.specimen = specimen
        shapes = {name: tuple(t.shape) for name, t in specimen.stored.items()}
        spec = spec_of(specimen.config, shapes)
        self.matches: dict[str, Match] = coverage(spec, shapes)
        self.names = by_canonical(self.matches)
        self.declared = spec
        """The spec before ties have taken spaces from it."""
        self.spec: Spec = without_broken_ties(spec, self.names, specimen.config)
        self.blocks: list[Block] = gather_blocks(self.spec, self.matches)

    @cached_property
    def kept(self) -> frozenset[str]:
        """The streams that the class returns, with the gains over them outside of layers: no command moves them by
        itself."""
        config = self.specimen.config
        tied = bool(tied_lines(self.spec, self.names, config))
        streams = returned_streams(self.spec, list(self.names), config, tied)
        gains = (n for n in self.spec.gains if not self.spec.scope(self.spec.spaces[n]))
        return streams | {n for n in gains if (streams - {*self.spec.within}) & set(self.spec.spaces[n].index)}

    def fresh(self) -> dict[Block, Tensor]:
        """The blocks' tensors, new ones each time."""
        return {
            block: block.assemble(lambda n: self.specimen.stored[self.names[n]]).clone().contiguous()
            for block in self.blocks
        }

    def idle(self, name: str) -> bool:
        """Whether the name is of no space or shift here."""
        return name not in self.spec.spaces and all(shift.name != name for shift in self.spec.shifts)

    def change(self, names: list[str], seed: int, disk: bool = False) -> float:
        """The change of outputs under a random element of some spaces and shifts; infinite where none moves
        anything."""
        moved = self.moved(names, seed)
        return self.specimen.change(moved, disk=disk) if moved else float("inf")

    def moved(self, names: list[str], seed: int, spec: Spec | None = None) -> dict[str, Tensor]:
        """The stored tensors that a random element moves, as it leaves them; empty where none is moved.

        Args:
            names: spaces and shifts; those that are idle here are left out.
            seed: of the element.
            spec: draws from the groups of this one.
        """
        active = [n for n in names if not self.idle(n)]
        seeds = range(100 * seed, 100 * seed + DRAWS)
        return self.changed(randomly_moved(spec or self.spec, self.blocks, self.fresh, seeds, active))

    def turn(self, seed: int) -> float:
        """The change of outputs when gains are folded, the streams are turned by their largest groups, and new
        gains taken on."""
        spec = with_streams(self.spec)
        blocks, rng = self.fresh(), torch.Generator().manual_seed(seed)
        random_turn(spec, self.blocks, blocks.__getitem__, rng, gains=True).act(blocks)
        return self.specimen.change(moved) if (moved := self.changed(blocks)) else float("inf")

    def changed(self, blocks: Mapping[Block, Tensor]) -> dict[str, Tensor]:
        """The stored tensors that differ from the specimen's own."""
        tensors = {self.names[n]: t for block, x in blocks.items() for n, t in block.split(x)}
        stored = self.specimen.stored
        return {
            n: t for n, t in tensors.items() if not (t.dtype == stored[n].dtype and bool((t == stored[n]).all()))
        }


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

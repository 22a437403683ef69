"""A specimen as a spec sees it: random elements of its spaces act on its blocks, and its outputs are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from isomerge.discovery.specimen import Specimen
from isomerge.evidence.law import random_turn, randomly_moved, with_streams
from isomerge.matching.stream_groups import returned_streams
from isomerge.models.tied_tensors import tied_lines, without_broken_ties
from isomerge.symmetry.blocks import Block, gather_blocks
from isomerge.symmetry.language.spec import Match, Spec, by_canonical, coverage

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

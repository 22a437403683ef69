"""Work units: the blocks that must be solved, moved and written together.

Two blocks belong to one unit when they carry the same element of an active space (one layer's heads tie its query,
key, value and output projections) or of a shift. Spaces without a layer that tie a whole stack together (T5's
self-attention heads) do not join units: they are voted for by all of them (``voted``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from isomerge.symmetry.alignment import element_key
from isomerge.symmetry.blocks import Block
from isomerge.symmetry.language.spec import Space, Spec
from isomerge.symmetry.stage import find_shifts


@dataclass(frozen=True)
class Unit:
    """Blocks that share elements, in the order of the spec."""

    key: str
    blocks: tuple[Block, ...]
    elements: tuple[str, ...]
    """The keys of the elements that are solved for the unit (votes excluded)."""
    votes: tuple[str, ...] = ()
    """The keys of the stack-wide elements that act on it."""


def elements_of(spec: Spec, block: Block) -> dict[str, Space]:
    """The element keys that act on a block, with their spaces."""
    names = dict.fromkeys(a.name for a in block.atoms if a.name in spec.spaces)
    return {element_key(spec, spec.spaces[n], dict(block.scope)): spec.spaces[n] for n in names}


def voted(spec: Spec) -> frozenset[str]:
    """The spaces that tie layers together: no layer index of their own, but fibres that have one."""
    with_layer = {i for s in spec.spaces.values() if spec.scope(s) for i in s.index}
    return frozenset(n for n, s in spec.spaces.items() if not spec.scope(s) and n in with_layer)


def plan_units(spec: Spec, blocks: list[Block], together: Iterable[Sequence[Block]] = ()) -> list[Unit]:
    """Group blocks into units; every block is in exactly one. Those of each group of ``together`` are in one."""
    stack_wide = voted(spec)
    parent = {block.key: block.key for block in blocks}

    def root(key: str) -> str:
        while parent[key] != key:
            key = parent[key]
        return key

    owner: dict[str, str] = {}
    own: dict[str, list[str]] = {}
    votes: dict[str, list[str]] = {}
    for block in blocks:
        for key, space in elements_of(spec, block).items():
            if space.name in stack_wide:
                votes.setdefault(block.key, []).append(key)
                continue
            own.setdefault(block.key, []).append(key)
            parent[root(block.key)] = root(owner.setdefault(key, block.key))
    for _, key, parts in find_shifts(spec, blocks):
        first, *rest = (part.key for part in parts.values())
        own.setdefault(first, []).append(key)
        for other in rest:
            parent[root(other)] = root(first)
    for first, *rest in together:
        for other in rest:
            parent[root(other.key)] = root(first.key)
    grouped: dict[str, list[Block]] = {}
    for block in blocks:
        grouped.setdefault(root(block.key), []).append(block)
    return [_unit(part, own, votes) for part in grouped.values()]


def _unit(blocks: list[Block], own: dict[str, list[str]], votes: dict[str, list[str]]) -> Unit:
    elements = dict.fromkeys(key for block in blocks for key in own.get(block.key, ()))
    shared = dict.fromkeys(key for block in blocks for key in votes.get(block.key, ()))
    return Unit(blocks[0].key, tuple(blocks), tuple(elements), tuple(shared))

"""The language of typed axes: what every index of a checkpoint tensor stands for.

A pattern has one axis per tensor dimension, in the manner of einops with two extra marks:

===========  ==============================================================================
``a b``      two axes (rows first)
``(a b)``    one axis that factors: ``a`` slow, ``b`` fast
``a'``       a dual axis: a group element g acts on it by g^-T; ``(a b)'`` distributes
``[a | b]``  one axis that is a concatenation
``diag(a)``  the diagonal of a matrix from a to a, such as a norm's gain: g acts as g diag g^-1
``3``        a plain axis of that size
``*``        (alone) a tensor of any shape that no symmetry touches
===========  ==============================================================================

A contraction of two tensors over an axis is invariant when the two ends are dual: that is the whole theory
(architecture notes, section 2.1). ``views`` is the converter: it splits a tensor (fused or not, Linear or
Conv1D) into writable views whose axes are all plain atoms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

from torch import Tensor

from isomerge.errors import IsomergeError

VOCABULARY = "vocab"
"""What specs call an axis, and a size, over tokens."""
LABELS = "labels"
"""The axis of a classifier's classes."""


@dataclass(frozen=True)
class Atom:
    """One named index; ``dual`` marks the side on which a group element acts by its inverse transpose.

    ``diag`` marks the diagonal of a matrix from the index to itself.
    """

    name: str
    dual: bool = False
    diag: bool = False


@dataclass(frozen=True)
class Product:
    """An axis that factors, slow index first."""

    parts: tuple[Axis, ...]


@dataclass(frozen=True)
class Concat:
    """An axis that is a concatenation of blocks."""

    parts: tuple[Axis, ...]


Axis = Atom | Product | Concat

_TOKEN = re.compile(r"\s*([A-Za-z_]\w*'?|\d+|[()\[\]|*]'?)")


def _tokens(pattern: str) -> list[str]:
    tokens, at = [], 0
    text = pattern.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if not token:
            raise IsomergeError(f"axis pattern {pattern!r}: {text[at:].split()[0]!r} is not in the language")
        tokens.append(token[1])
        at = token.end()
    return tokens


class _Parser:
    """Recursive descent over the tokens of one pattern."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.tokens = pattern, _tokens(pattern)

    def fail(self, why: str) -> IsomergeError:
        return IsomergeError(f"axis pattern {self.pattern!r}: {why}")

    def sequence(self, stops: str) -> list[Axis]:
        terms: list[Axis] = []
        while self.tokens and self.tokens[0][0] not in stops:
            terms.append(self.term())
        return terms

    def term(self) -> Axis:
        token = self.tokens.pop(0)
        if token == "(":
            return self.close(")", self.group(self.sequence(")]|")))
        if token == "diag" and self.tokens and self.tokens[0] == "(":
            return diagonal(self.term())
        if token == "[":
            blocks = [self.group(self.sequence("|])"))]
            while self.tokens and self.tokens[0] == "|":
                self.tokens.pop(0)
                blocks.append(self.group(self.sequence("|])")))
            return self.close("]", Concat(tuple(blocks)))
        if token[0] in ")]|*":
            raise self.fail(f"unexpected {token!r}")
        return Atom(token.rstrip("'"), token.endswith("'"))

    def group(self, parts: list[Axis]) -> Axis:
        if not parts:
            raise self.fail("an empty group or block")
        return parts[0] if len(parts) == 1 else Product(tuple(parts))

    def close(self, bracket: str, node: Axis) -> Axis:
        if not self.tokens or self.tokens[0][0] != bracket:
            raise self.fail(f"expected {bracket!r}")
        return dual(node) if self.tokens.pop(0).endswith("'") else node


@lru_cache(maxsize=4096)
def parse(pattern: str) -> tuple[Axis, ...] | None:
    """Parse one axis pattern; ``None`` stands for ``*``, a tensor of any shape.

    Raises:
        IsomergeError: the pattern is not in the language; the message names the offending part.
    """
    if pattern.strip() == "*":
        return None
    parser = _Parser(pattern)
    axes = parser.sequence("")
    return tuple(axes)


def dual(axis: Axis) -> Axis:
    """The dual axis; duality distributes over products and concatenations."""
    if isinstance(axis, Atom):
        return axis if axis.name.isdigit() else replace(axis, dual=not axis.dual)
    return type(axis)(tuple(dual(part) for part in axis.parts))


def diagonal(axis: Axis) -> Axis:
    """The axis as the diagonal of a matrix."""
    if isinstance(axis, Atom):
        return replace(axis, diag=True)
    return type(axis)(tuple(diagonal(part) for part in axis.parts))


def renamed(axis: Axis, name: Callable[[str], str]) -> Axis:
    """The axis with every atom called ``name`` of what it is called now."""
    if isinstance(axis, Atom):
        return replace(axis, name=name(axis.name))
    return type(axis)(tuple(renamed(part, name) for part in axis.parts))


def atoms(axes: tuple[Axis, ...]) -> Iterator[Atom]:
    """All atoms of the axes, in order."""
    for axis in axes:
        if isinstance(axis, Atom):
            yield axis
        else:
            yield from atoms(axis.parts)


def leaf_atoms(axes: tuple[Axis, ...]) -> Iterator[tuple[Atom, ...]]:
    """The atoms of every block of the concatenations: what `views` yields, without tensors."""
    for at, axis in enumerate(axes):
        if isinstance(axis, Product):
            yield from leaf_atoms((*axes[:at], *axis.parts, *axes[at + 1 :]))
            return
        if isinstance(axis, Concat):
            for block in axis.parts:
                yield from leaf_atoms((*axes[:at], block, *axes[at + 1 :]))
            return
    yield tuple(atoms(axes))


class TypedAxes:
    """What the axes say of a tensor, such as of a line of a spec or of a block: nothing of a tensor of any shape.

    A name is an atom's, also a number's (``3``).
    """

    axes: tuple[Axis, ...] | None

    @cached_property
    def atoms(self) -> tuple[Atom, ...]:
        """All atoms of the axes, in order."""
        return tuple(atoms(self.axes or ()))

    @cached_property
    def parts(self) -> tuple[tuple[Atom, ...], ...]:
        """The atoms of every part of the concatenations, as `views` numbers them; one part where there is none."""
        return tuple(leaf_atoms(self.axes or ()))

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all atoms."""
        return frozenset(atom.name for atom in self.atoms)

    @cached_property
    def names_by_axis(self) -> tuple[frozenset[str], ...]:
        """The names of each axis' atoms."""
        return tuple(frozenset(atom.name for atom in atoms((axis,))) for axis in self.axes or ())

    @cached_property
    def reads(self) -> frozenset[str]:
        """The names of the dual atoms, which it is contracted over; gains read nothing."""
        return frozenset(atom.name for atom in self.atoms if atom.dual and not atom.diag)

    @cached_property
    def writes(self) -> frozenset[str]:
        """The names of the atoms that are neither dual nor of a gain; numbers are among them."""
        return frozenset(atom.name for atom in self.atoms if not (atom.dual or atom.diag))

    def axis_of(self, name: str | None) -> int:
        """The first axis that has a name, which must be among the `names`."""
        return next(k for k, names in enumerate(self.names_by_axis) if name in names)


def size(axis: Axis, sizes: Mapping[str, int]) -> int | None:
    """The length of an axis; ``None`` when it is a single atom of free size.

    Raises:
        IsomergeError: a free atom inside a product or a concatenation, whose length cannot be known.
    """
    if isinstance(axis, Atom):
        return int(axis.name) if axis.name.isdigit() else sizes.get(axis.name)
    parts = [size(part, sizes) for part in axis.parts]
    if any(part is None for part in parts):
        missing = ", ".join(a.name for a in atoms((axis,)) if size(a, sizes) is None)
        raise IsomergeError(f"the size of axis {missing} is not known: add a `size` line to the spec")
    return (prod if isinstance(axis, Product) else sum)(part for part in parts if part is not None)


def shape(axes: tuple[Axis, ...], sizes: Mapping[str, int]) -> tuple[int | None, ...]:
    """The shape that the axes stand for; ``None`` where the size is free."""
    return tuple(size(axis, sizes) for axis in axes)


def show(axis: Axis) -> str:
    """The axis as it is written in a spec."""
    if any(a.diag for a in atoms((axis,))):
        return f"diag({show(_plain(axis)).strip('()')})"
    if isinstance(axis, Atom):
        return axis.name + ("'" if axis.dual and not axis.name.isdigit() else "")
    if isinstance(axis, Product):
        return "(" + " ".join(show(part) for part in axis.parts) + ")"
    return "[" + " | ".join(show(part) for part in axis.parts) + "]"


def _plain(axis: Axis) -> Axis:
    """The axis without its mark of a diagonal."""
    if isinstance(axis, Atom):
        return replace(axis, diag=False)
    return type(axis)(tuple(_plain(part) for part in axis.parts))


def views(
    tensors: tuple[Tensor, ...], axes: tuple[Axis, ...], sizes: Mapping[str, int]
) -> Iterator[tuple[tuple[Tensor, ...], tuple[Atom, ...]]]:
    """Split tensors of one shape into writable views whose axes are atoms.

    Args:
        tensors: tensors of the shape that ``axes`` stand for; contiguous, so that every result is a view.
        axes: the parsed pattern.
        sizes: sizes of the named indices.

    Yields:
        The matching views of every tensor, and their atoms: one pair per block of the concatenations.
    """
    while any(isinstance(axis, Product) for axis in axes):  # all at once: this is asked for every tensor many times
        shape = [
            extent
            for axis, stored in zip(axes, tensors[0].shape, strict=True)
            for extent in ([length(part, sizes) for part in axis.parts] if isinstance(axis, Product) else [stored])
        ]
        tensors = tuple(t.view(shape) for t in tensors)
        axes = tuple(part for axis in axes for part in (axis.parts if isinstance(axis, Product) else (axis,)))
    for at, axis in enumerate(axes):
        if isinstance(axis, Concat):
            start = 0
            for block in axis.parts:
                extent = length(block, sizes)
                parts = tuple(t.narrow(at, start, extent) for t in tensors)
                yield from views(parts, (*axes[:at], block, *axes[at + 1 :]), sizes)
                start += extent
            return
    yield tensors, tuple(axis for axis in axes if isinstance(axis, Atom))


def length(axis: Axis, sizes: Mapping[str, int]) -> int:
    """The length of an axis whose size is known."""
    extent = size(axis, sizes)
    if extent is None:
        raise IsomergeError(f"the size of axis {show(axis)} is not known: add a `size` line to the spec")
    return extent

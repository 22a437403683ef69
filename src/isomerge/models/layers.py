"""Checkpoints with another stack of layers: slices of one or of several models, one after the other.

A checkpoint is taken apart into its stack of layers and the tensors around it, by the lines of its spec. As in
mergekit's ``slices``, layers are renumbered in their order, what comes before the layers (embeddings) is the first
slice's and what comes after (last norm, head) the last slice's; which is which is the order of the spec's lines. A
head that is tied to the embeddings goes with them. A layer may occur several times. No weights are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from isomerge.archs import spec_for
from isomerge.checkpoint.reader import Checkpoint, Derived
from isomerge.config.agreement import disagreement
from isomerge.config.layer_config import FORMS, Layered, check_numbered, stacked_config
from isomerge.config.tied_head import is_tied
from isomerge.errors import IsomergeError
from isomerge.symmetry.axes import atoms
from isomerge.symmetry.language.spec import Line, Match, Spec, coverage


@dataclass(eq=False)
class Stack:
    """A checkpoint taken apart into its layers and what is around them; lists are of tensor names."""

    checkpoint: Checkpoint
    spec_file: str | Path | None

    @cached_property
    def spec(self) -> Spec:
        """The spec of the checkpoint."""

        return spec_for(self.checkpoint.config, self.spec_file, self.checkpoint.shapes)

    @cached_property
    def index(self) -> str:
        """The index that numbers the layers."""
        self._check_further()
        stored = {match.line for match in self.matches.values()}
        lines = [line for line in self.spec.lines if line in stored or not line.optional]
        found = {(i, line.stack) for line in lines for i in self.indices(line)}
        if len(found) != 1:
            what = (
                "no layers" if not found else f"several stacks of layers ({', '.join(sorted(p for _, p in found))})"
            )
            raise IsomergeError(
                f"{self.checkpoint.ref}: the spec for {self.spec.model_type} describes {what}, so its layers "
                f"cannot be "
                "sliced; slices are for models with one stack"
            )
        if any(number.axis for line in self.spec.lines for number in line.numbers):
            raise self.by_number()
        return found.pop()[0]

    def by_number(self) -> IsomergeError:
        """What is said where a slice would make another kind of a layer."""
        return IsomergeError(
            f"{self.checkpoint.ref}: what a layer of {self.spec.model_type} is depends on its number, so its "
            f"layers cannot be sliced"
        )

    def described(self, layer: int) -> frozenset[tuple[str, str]]:
        """The lines of a layer's tensors, with their axes, whatever the numbers of the layers of their kind."""
        lines = (self.matches[name].line for name in self.layers[layer])
        return frozenset((unlisted(line), line.shown) for line in lines)

    def _check_further(self) -> None:
        """Refuse layers that predict further tokens: they belong behind the last layer, and slices change which
        that is."""
        # parts that a file may lack whole; a tower or a head that is fixed, it has
        extra = [p for p in self.spec.fixed if all(line.optional for line in self.spec.lines if p.has(line.name))]
        for name, match in self.matches.items():
            line = match.line
            aside = line.axes is None and any(part.has(line.name) for part in extra)
            behind = range(*self.spec.depths.get(line.stack, (0, 0)))
            if aside or any(match.binding[i] in behind for i in self.indices(line)[:1]):
                raise IsomergeError(
                    f"{self.checkpoint.ref}: tensor {name} is of a layer that predicts further tokens from the "
                    f"last of all "
                    "layers, which slices change: load the model with transformers and save it again, which "
                    "leaves such "
                    "layers out, and slice the result"
                )

    def indices(self, line: Line) -> list[str]:
        """The indices of a line's name that are no axes."""
        return [i for i in line.indices if i not in self.spec.sizes]

    @cached_property
    def matches(self) -> dict[str, Match]:
        """The line of every tensor, by its name."""

        try:
            return coverage(self.spec, {name: info.shape for name, info in self.checkpoint.tensors.items()})
        except IsomergeError as error:
            raise IsomergeError(f"{self.checkpoint.ref}: {error}") from None

    @cached_property
    def layers(self) -> dict[int, list[str]]:
        """The tensors of every layer."""
        found: dict[int, list[str]] = {}
        for name, match in self.matches.items():
            if self.index in match.binding:
                found.setdefault(match.binding[self.index], []).append(name)
        return found

    @property
    def depth(self) -> int:
        """How many layers there are."""
        return max(self.layers, default=-1) + 1

    @cached_property
    def layered(self) -> Layered:
        """What its config says of the layers, and the kinds of tensors that they have."""
        kinds = {
            layer: frozenset(self.kind(self.matches[n]) for n in names) for layer, names in self.layers.items()
        }
        return Layered(self.checkpoint.ref, self.checkpoint.config, self.depth, kinds, self.spec.numbered)

    def around(self) -> tuple[list[str], list[str]]:
        """What is before the layers and what is after them."""
        order = [line.name for line in self.spec.lines]
        first = min(at for at, line in enumerate(self.spec.lines) if self.indices(line))
        outside = {n: m.line for n, m in self.matches.items() if self.index not in m.binding}
        tied = any(x.tied for x in outside.values()) and is_tied(self.checkpoint.config, stored=True)
        home = {x.canonical({}): x for x in outside.values() if not x.indices}
        # what is tied goes with the tensor that stands in for it
        placed = {n: home.get(str(x.tied), x) if tied else x for n, x in outside.items()}
        before = [n for n, x in placed.items() if order.index(x.name) < first]
        return before, [n for n in outside if n not in before]

    @cached_property
    def templates(self) -> dict[tuple[Any, ...], str]:
        """A name for every kind of tensor, to be renumbered."""
        return {self.kind(match): name for name, match in self.matches.items()}

    @cached_property
    def forms(self) -> set[str]:
        """Its names but for their numbers: layers of one model may call the same tensor otherwise (hybrid
        layers)."""
        return {_form(name) for name in self.matches}

    def own(self, stack: Stack, name: str) -> str:
        """What this model calls a tensor of another stack, but for the layer."""
        return name if _form(name) in self.forms else self.templates.get(self.kind(stack.matches[name]), name)

    def kind(self, match: Match) -> tuple[Any, ...]:
        """A tensor but for its layer: equal for two checkpoints of one architecture."""
        return unlisted(match.line), tuple(sorted((i, v) for i, v in match.binding.items() if i != self.index))

    def renumbered(self, name: str, layer: int) -> str:
        """A tensor's name in another layer: the one number is changed that the spec reads as the layer's."""
        match = self.spec.match(name)
        wanted = {**match.binding, self.index: layer}
        pieces = name.split(".")
        for at, piece in enumerate(pieces):
            if piece == str(match.binding[self.index]):
                found = ".".join([*pieces[:at], str(layer), *pieces[at + 1 :]])
                if self.spec.match(found).binding == wanted:
                    return found
        raise IsomergeError(
            f"{self.checkpoint.ref}: the layer of tensor {name} is no part of its name between dots"
        )


def unlisted(line: Line) -> str:
    """A line's name without the numbers that its layers are, or are not: these are lists of its own config."""
    return LISTED.sub(r"\1\2", line.name)


LISTED = re.compile(r"({\w+)([=!])[^}]*")
"""The index of a layer, and the numbers that it is (``=``) or is not (``!``)."""


def _form(name: str) -> str:
    return ".".join("#" if piece.isdecimal() else piece for piece in name.split("."))


TOKENS = "vocab"
"""The size, and the axis, over tokens."""


def stack_layers(
    parts: Sequence[tuple[Checkpoint, range]],
    donor: Checkpoint | None = None,
    *,
    spec_file: str | Path | None = None,
) -> Checkpoint:
    """A view whose layers are those of ``parts``, one after the other, numbered from 0.

    Args:
        parts: checkpoints and the numbers of their layers, in the order of the new stack.
        donor: whose config, companion files and names the view has; the first part's when None.
        spec_file: a spec text of the user's own, for architectures without a built-in one.

    Raises:
        IsomergeError: no parts or layers, layers that a model does not have, models of different architectures,
            sizes or functions, an encoder and a decoder that both have layers, a config that does not state its
            depth, or layers whose kind would change with their index.
    """
    if not parts or not any(layers for _, layers in parts):
        raise IsomergeError("a stack needs slices with layers: give at least one model with a layer_range [a, b)")
    donor = parts[0][0] if donor is None else donor
    opened = {id(checkpoint): Stack(checkpoint, spec_file) for checkpoint in (donor, *(one for one, _ in parts))}
    giver = opened[id(donor)]
    slices = [(opened[id(checkpoint)], layers) for checkpoint, layers in parts]
    for stack, layers in slices:
        _check_alike(giver, stack)
        for layer in layers:
            if layer not in stack.layers:
                raise IsomergeError(
                    f"{stack.checkpoint.ref} has no layer {layer}: its layers are 0 to {stack.depth - 1}, so a "
                    f"layer_range ends at {stack.depth} at most"
                )
    view = _stacked(giver, slices)
    try:  # lines refuse tensors whose shape goes with the number of layers, as that of ESM's contacts does
        made = Stack(view, spec_file)
        whole = made.layered
    except IsomergeError as error:
        raise IsomergeError(
            f"{error}; tensors around the layers fit only as many layers as their model has: choose slices of "
            f"{giver.depth} layers"
        ) from None
    order = [(stack, layer) for stack, layers in slices for layer in layers]
    check_numbered(whole, [(stack.layered, layer) for stack, layer in order])
    for number, (stack, layer) in enumerate(order):
        if made.described(number) != stack.described(layer):
            raise giver.by_number()
    return view


def _check_alike(one: Stack, two: Stack) -> None:
    """Refuses layers that would compute another function, or not fit, in the donor's model."""
    if one is two:
        return
    pair = f"{one.checkpoint.ref} and {two.checkpoint.ref}"
    if one.spec.origin != two.spec.origin:
        kinds = f"{one.spec.model_type}, {two.spec.model_type}"
        raise IsomergeError(f"{pair} have different architectures ({kinds}): their layers cannot be stacked")
    for size, value in one.spec.sizes.items():
        if size != "vocab" and two.spec.sizes[size] != value:
            raise IsomergeError(
                f"{pair} have different shapes ({size} is {value} and {two.spec.sizes[size]}): their layers "
                f"cannot be "
                "stacked"
            )
    # lists over layers are cut and joined: they may differ
    keys = [key for key in (*one.spec.config_keys, "tie_word_embeddings") if key not in FORMS]
    if (found := disagreement(one.checkpoint.config, two.checkpoint.config, keys)) is not None:
        raise IsomergeError(
            f"{pair} differ in config.json: {found.key} is {found.mine!r} and {found.theirs!r}; layers of the "
            f"two compute "
            "different functions of equal weights and cannot be stacked"
        )


def _check_tokens(giver: Stack, stack: Stack, names: list[str]) -> None:
    """Refuses tables over other tokens than the donor's, whose tokenizer and config the stack has."""

    mine, theirs = giver.spec.sizes.get(TOKENS), stack.spec.sizes.get(TOKENS)
    table = next((n for n in names if any(x.name == TOKENS for x in atoms(stack.matches[n].line.axes or ()))), None)
    if mine != theirs and table is not None:
        raise IsomergeError(
            f"{stack.checkpoint.ref}: tensor {table} is for {theirs} tokens, but {giver.checkpoint.ref}, whose "
            f"tokenizer the "
            f"slices have, has {mine}: give the recipe a tokenizer source, such as union"
        )


def _stacked(giver: Stack, slices: list[tuple[Stack, range]]) -> Checkpoint:
    """The view: tensors that keep name and place are the donor's own, all others are read from where they are."""
    donor = giver.checkpoint
    first, last = slices[0][0], slices[-1][0]
    sources: dict[str, tuple[Checkpoint, str]] = {}
    for stack, names in ((first, first.around()[0]), (last, last.around()[1])):
        _check_tokens(giver, stack, names)
        for name in names:
            sources[giver.own(stack, name)] = (stack.checkpoint, name)
    order = [(stack, layer) for stack, layers in slices for layer in layers]
    for number, (stack, layer) in enumerate(order):
        for name in stack.layers[layer]:
            sources[giver.renumbered(giver.own(stack, name), number)] = (stack.checkpoint, name)
    derived = {
        name: Derived(replace(source.tensors[stored], name=name, offset=-1), partial(source.read, stored))
        for name, (source, stored) in sources.items()
        if not (source is donor and stored == name)
    }
    spans = [
        f"{stack.checkpoint.ref}[{layers.start}:{layers.stop}{f':{layers.step}' if layers.step != 1 else ''}]"
        for stack, layers in slices
    ]
    notes = [(stack.checkpoint.identity(), list(layers)) for stack, layers in slices]
    return donor.derive(
        derived,
        sources=[stack.checkpoint for stack, _ in slices],
        origin=f"layers {notes}",
        ref=", ".join(spans),
        config=stacked_config(giver.layered, [(stack.layered, layer) for stack, layer in order]),
        drop=[name for name in donor.tensors if name not in sources],
    )

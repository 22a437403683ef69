"""Checkpoints with another stack of layers: slices of one or of several models, one after the other.

A checkpoint is taken apart into its stack of layers and the tensors around it, by the lines of its spec. As in
mergekit's ``slices``, layers are renumbered in their order, what comes before the layers (embeddings) is the first
slice's and what comes after (last norm, head) the last slice's; which is which is the order of the spec's lines. A
head that is tied to the embeddings goes with them. A layer may occur several times. No weights are read.

Of a model of several stacks one has another depth. Which key says how many layers a stack has, in which group of
keys (``text_config``), follows from the model's spec: the stack's ``depth``. What the group says of every layer is
cut as the layers are. What else says the same number is known from transformers, which has further names for some
keys: a BART of older days also has ``num_hidden_layers``, which is its encoder's depth and would count before
``encoder_layers``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from isomerge.archs import spec_for
from isomerge.checkpoint.reader import Checkpoint
from isomerge.config.agreement import disagreement, read_by_transformers
from isomerge.config.config_parts import group_of, groups
from isomerge.config.keys import DEPTHS, PARTS
from isomerge.config.layer_config import (
    FORMS,
    Layered,
    check_numbered,
    depth_keys,
    entries,
    placed,
    read_group,
    stacked_config,
)
from isomerge.errors import IsomergeError
from isomerge.models.tied_tensors import is_tied
from isomerge.models.transformers_reading import reading_of
from isomerge.records import Config, Json
from isomerge.symmetry.axes import VOCABULARY
from isomerge.symmetry.language.spec import Line, Match, Spec, coverage

LISTED = re.compile(r"({\w+)([=!])[^}]*")
"""The index of a layer, and the numbers that it is (``=``) or is not (``!``)."""
KEYS = (*DEPTHS, "num_encoder_layers", "num_decoder_layers")
"""What may say how many layers a stack has."""
NUMBERING = re.compile("layer|block|index|indices|idx")
"""What is in the names of keys that list numbers of layers."""
MANY = 1 << 31
"""Layers of a stack of which nothing says how many there are."""
Depths = Mapping[str, tuple[int, int]]
"""The least and the most layers of every stack, as of `isomerge.symmetry.language.spec.Spec.depths`."""


@dataclass(frozen=True)
class Part:
    """A part of a model that has layers of its own, as an encoder beside a decoder."""

    name: str
    pieces: tuple[str, ...]
    """What is in the names of its tensors, one of them."""

    def has(self, stack: str) -> bool:
        """Whether a stack of layers is its own, by what the names of its tensors begin with."""
        return any(piece in stack for piece in self.pieces)


@dataclass(frozen=True)
class Depth:
    """What says how many layers a stack has."""

    config: Config
    """The ``config.json``, with the depths that transformers takes where it has none."""
    group: tuple[str, ...]
    """The way to the group of keys; empty where it is the whole."""
    keys: tuple[str, ...]
    """The keys in the group."""
    alone: bool
    """Whether the group says the depth of no other stack."""


@dataclass(eq=False)
class Stack:
    """A checkpoint taken apart into its layers and what is around them; lists are of tensor names.

    Of a model of several stacks ``part`` says which is meant; the other ones are then around it."""

    checkpoint: Checkpoint
    spec_file: str | Path | None
    part: Part | None = None

    @cached_property
    def spec(self) -> Spec:
        """The spec of the checkpoint."""
        return spec_for(self.checkpoint.config, self.spec_file, self.checkpoint.shapes)

    @property
    def index(self) -> str:
        """The index that numbers the layers."""
        return self.place[0]

    @property
    def beside(self) -> str | None:
        """Of a model of several stacks, what the names of this one's tensors begin with; None where it is alone."""
        return None if len(self.places) == 1 else self.place[1]

    def inside(self, match: Match) -> bool:
        """Whether a tensor is one of the layers'."""
        return self.index in match.binding and self.beside in (None, match.line.stack)

    @cached_property
    def places(self) -> set[tuple[str, str]]:
        """All stacks of layers: the index of each, and what the names of its tensors begin with."""
        stored = {match.line for match in self.matches.values()}
        lines = [line for line in self.spec.lines if line in stored or not line.optional]
        return {(i, line.stack) for line in lines for i in self.indices(line)}

    @cached_property
    def place(self) -> tuple[str, str]:
        """The one of `places` that is of the part.

        Raises:
            IsomergeError: there are no layers, or it is open which are meant.
        """
        self._check_further()
        if any(number.axis for line in self.spec.lines for number in line.numbers):
            raise self.by_number()
        stacks = self.places
        if len(stacks) == 1:
            return next(iter(stacks))
        beginning = f"{self.checkpoint.ref}: the spec for {self.spec.model_type} describes"
        if not stacks:
            raise IsomergeError(f"{beginning} no layers, so its layers cannot be sliced")
        names = ", ".join(sorted(name for _, name in stacks))
        if self.part is None:
            order = dict.fromkeys(line.stack for line in self.spec.lines)
            parts = [part for name in order if (part := _part_of(name, [other for _, other in stacks]))]
            advice = f", as in `modules: {{{parts[0]}: {{slices: ...}}}}`" if parts else ""
            advice += f" (or {', '.join(parts[1:])})" if parts[1:] else ""
            raise IsomergeError(
                f"{beginning} several stacks of layers ({names}): say in the recipe whose layers are sliced{advice}"
            )
        own = [stack for stack in stacks if self.part.has(stack[1])]
        if len(own) != 1:
            how = "none of which is" if not own else f"and {len(own)} of them are"
            raise IsomergeError(
                f"{beginning} several stacks of layers ({names}), {how} of `modules.{self.part.name}`: its layers "
                f"cannot be sliced"
            )
        if any(value != values[0] for values in self.spec.numbered.values() for value in values):
            raise self.by_number()
        return own[0]

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
                    "last of all layers, which slices change: load the model with transformers and save it again, "
                    "which leaves such layers out, and slice the result"
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
        layers: dict[int, list[str]] = {}
        for name, match in self.matches.items():
            if self.inside(match):
                layers.setdefault(match.binding[self.index], []).append(name)
        return layers

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
        ref, config = self.checkpoint.ref, self.checkpoint.config
        numbered = self.spec.numbered if self.beside is None else {}
        if (self.beside is None and depth_keys(config, self.depth)) or self.said is None:
            return Layered(ref, config, self.depth, kinds, numbered)
        return Layered(ref, self.said.config, self.depth, kinds, numbered, self.said.group)

    def depths_of(self, config: Config) -> Depths:
        """What a config says of every stack."""
        return spec_for(config, self.spec_file, self.checkpoint.shapes).depths

    @cached_property
    def said(self) -> Depth | None:
        """What says how many layers there are; None where nothing does, or only what says other stacks' depths as
        well."""
        config = _with_defaults(self.checkpoint.config)
        before = self.depths_of(config)
        for group in groups(config):
            keys = group_of(config, group)
            stacks_of = {key: self._follow(config, group, key, before) for key in KEYS if key in keys}
            own = tuple(key for key in stacks_of if keys[key] == self.depth and stacks_of[key] == {self.place[1]})
            if own:
                return Depth(config, group, own, all(stacks <= {self.place[1]} for stacks in stacks_of.values()))
        return None

    def _follow(self, config: Config, group: tuple[str, ...], key: str, before: Depths) -> set[str]:
        """The stacks whose depth a key in a group says; without a change they have those of ``before``."""
        keys = group_of(config, group)
        for more in (1, -1) if type(keys[key]) is int else ():
            with suppress(IsomergeError):  # lists over layers may be too short for one more
                after = self.depths_of(placed(config, group, {**keys, key: keys[key] + more}))
                return {stack for stack, depth in before.items() if after.get(stack) != depth}
        return set()

    def unsaid(self) -> IsomergeError:
        """What is said where a new number of layers cannot be written."""
        return IsomergeError(
            f"{self.checkpoint.ref}: config.json does not say apart from other numbers that {self.place[1]}* are "
            f"{self.depth} layers, so the number of layers of the slices cannot be written"
        )

    def around(self) -> tuple[list[str], list[str]]:
        """What is before the layers and what is after them."""
        order = [line.name for line in self.spec.lines]
        lines = enumerate(self.spec.lines)
        first = min(at for at, x in lines if self.indices(x) and self.beside in (None, x.stack))
        outside = {n: m.line for n, m in self.matches.items() if not self.inside(m)}
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
        index = self.index if self.inside(match) else None
        return unlisted(match.line), tuple(sorted((i, v) for i, v in match.binding.items() if i != index))

    def renumbered(self, name: str, layer: int) -> str:
        """A tensor's name in another layer: the one number is changed that the spec reads as the layer's."""
        match = self.spec.match(name)
        wanted = {**match.binding, self.index: layer}
        pieces = name.split(".")
        for at, piece in enumerate(pieces):
            if piece == str(match.binding[self.index]):
                renamed = ".".join([*pieces[:at], str(layer), *pieces[at + 1 :]])
                if self.spec.match(renamed).binding == wanted:
                    return renamed
        raise IsomergeError(
            f"{self.checkpoint.ref}: the layer of tensor {name} is no part of its name between dots"
        )


def _part_of(stack: str, stacks: Sequence[str]) -> str | None:
    """The name of the part that has this one of several stacks alone, and stands first in what its names begin
    with."""
    pieces = [(name, piece) for name, every in PARTS.items() for piece in every if piece in stack]
    own = [x for x in pieces if [other for other in stacks if Part(x[0], PARTS[x[0]]).has(other)] == [stack]]
    return min(own, key=lambda x: stack.index(x[1]))[0] if own else None


def unlisted(line: Line) -> str:
    """A line's name without the numbers that its layers are, or are not: these are lists of its own config."""
    return LISTED.sub(r"\1\2", line.name)


def _form(name: str) -> str:
    return ".".join("#" if piece.isdecimal() else piece for piece in name.split("."))


def stack_layers(
    parts: Sequence[tuple[Checkpoint, range]],
    donor: Checkpoint | None = None,
    *,
    spec_file: str | Path | None = None,
    part: Part | None = None,
) -> Checkpoint:
    """A view whose layers are those of ``parts``, one after the other, numbered from 0.

    Args:
        parts: checkpoints and the numbers of their layers, in the order of the new stack.
        donor: whose config, companion files and names the view has; the first part's when None.
        spec_file: a spec text of the user's own, for architectures without a built-in one.
        part: of models of several stacks the one whose layers are meant, the only one that has so many when None;
            another one's are as what comes before or after it.

    Raises:
        IsomergeError: no parts or layers, layers that a model does not have, models of different architectures,
            sizes or functions, an encoder and a decoder that both have layers and no ``part``, a config that does
            not state its depth, or layers whose kind would change with their index.
    """
    if not parts or not any(layers for _, layers in parts):
        raise IsomergeError("a stack needs slices with layers: give at least one model with a layer_range [a, b)")
    donor = parts[0][0] if donor is None else donor
    every = (donor, *(model for model, _ in parts))
    opened = {id(checkpoint): Stack(checkpoint, spec_file, part) for checkpoint in every}
    giver = opened[id(donor)]
    slices = [(opened[id(checkpoint)], layers) for checkpoint, layers in parts]
    if part is None and len(giver.places) > 1:
        part = _fitting(giver, slices)
        for stack in opened.values():
            stack.part = part
    for stack, layers in slices:
        _check_alike(giver, stack)
        for layer in layers:
            if layer not in stack.layers:
                raise IsomergeError(
                    f"{stack.checkpoint.ref} has no layer {layer}: its layers are 0 to {stack.depth - 1}, so a "
                    f"layer_range ends at {stack.depth} at most"
                )
    if giver.beside is not None:
        for stack in (slices[0][0], slices[-1][0]):
            _check_beside(giver, stack)
    view = _stacked(giver, slices)
    try:  # lines refuse tensors whose shape goes with the number of layers, as that of ESM's contacts does
        made = Stack(view, spec_file, part)
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
    if giver.beside is not None:
        check_read(view.config, view.shapes, (donor.config, donor.shapes), donor.ref)
    return view


def _fitting(giver: Stack, slices: Sequence[tuple[Stack, range]]) -> Part | None:
    """The one of several stacks that has as many layers as slices name in every model; None where more have."""
    deep = [
        name
        for _, name in giver.places
        if all(max(layers, default=0) < stack.spec.depths.get(name, (0, MANY))[1] for stack, layers in slices)
    ]
    return Part(deep[0], (deep[0],)) if len(deep) == 1 else None


def _check_beside(giver: Stack, stack: Stack) -> None:
    """Refuse a model whose other stacks, which come with what is around its layers, are not as deep as the
    donor's."""
    depths, others = ({k: v for k, v in x.spec.depths.items() if k != giver.beside} for x in (giver, stack))
    if depths != others:
        names = ", ".join(sorted(name for name in depths if depths[name] != others.get(name)))
        raise IsomergeError(
            f"{giver.checkpoint.ref} and {stack.checkpoint.ref} have different numbers of layers in {names}, which "
            f"are not sliced: their layers cannot be stacked"
        )


def _check_alike(first: Stack, second: Stack) -> None:
    """Refuses layers that would compute another function, or not fit, in the donor's model."""
    if first is second:
        return
    pair = f"{first.checkpoint.ref} and {second.checkpoint.ref}"
    if first.spec.origin != second.spec.origin:
        kinds = f"{first.spec.model_type}, {second.spec.model_type}"
        raise IsomergeError(f"{pair} have different architectures ({kinds}): their layers cannot be stacked")
    for size, value in first.spec.sizes.items():
        if size != "vocab" and second.spec.sizes[size] != value:
            raise IsomergeError(
                f"{pair} have different shapes ({size} is {value} and {second.spec.sizes[size]}): their layers "
                "cannot be stacked"
            )
    # lists over layers are cut and joined: they may differ
    keys = [key for key in (*first.spec.config_keys, "tie_word_embeddings") if key.rpartition(".")[2] not in FORMS]
    if (difference := disagreement(first.checkpoint.config, second.checkpoint.config, keys)) is not None:
        raise IsomergeError(
            f"{pair} differ in config.json: {difference.sentence}; "
            "layers of the two compute different functions of equal weights and cannot be stacked"
        )


def _check_tokens(giver: Stack, stack: Stack, names: list[str]) -> None:
    """Refuses tables over other tokens than the donor's, whose tokenizer and config the stack has."""
    mine, theirs = giver.spec.sizes.get(VOCABULARY), stack.spec.sizes.get(VOCABULARY)
    table = next((n for n in names if VOCABULARY in stack.matches[n].line.names), None)
    if mine != theirs and table is not None:
        raise IsomergeError(
            f"{stack.checkpoint.ref}: tensor {table} is for {theirs} tokens, but {giver.checkpoint.ref}, whose "
            f"tokenizer the slices have, has {mine}: give the recipe a tokenizer source, such as union"
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
        name: source.as_it_is(stored)
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
        config=_config(giver, order),
        drop=[name for name in donor.tensors if name not in sources],
    )


def _config(giver: Stack, order: Sequence[tuple[Stack, int]]) -> Json:
    """The config of a new stack.

    Raises:
        IsomergeError: of several stacks the config does not say the one's depth apart from others', or it says
            something of layers, and not of which stack.
    """
    donor = giver.checkpoint
    if all(stack is giver for stack, _ in order) and [layer for _, layer in order] == [*range(giver.depth)]:
        return dict(donor.config)
    layers = [(stack.layered, layer) for stack, layer in order]
    if not giver.layered.group and giver.beside is None:
        return stacked_config(giver.layered, layers)
    if (said := giver.said) is None:
        raise giver.unsaid()
    keys = dict(group_of(said.config, said.group))
    if key := next((key for key in keys if _is_of_layers(keys, key, giver.depth, said.alone)), None):
        how = "and not of which of its stacks" if key in FORMS else "by numbers that slices change"
        raise IsomergeError(
            f"{donor.ref}: config.json says something of single layers ({key}), {how}: its layers cannot be sliced"
        )
    further = _further_names(said.config, said.group)
    depth = (*said.keys, *(name for name, key in further.items() if key in said.keys and name in keys))
    new = stacked_config(giver.layered, layers, depth) if said.alone else keys | dict.fromkeys(depth, len(order))
    made = placed(said.config, said.group, new)
    before = giver.depths_of(said.config)
    if giver.depths_of(made) != {**before, giver.place[1]: (len(order), len(order))}:
        raise giver.unsaid()
    return made


def _is_of_layers(keys: Config, key: str, depth: int, alone: bool) -> bool:
    """Whether a key may say something of single layers that is not cut with them: what is a form of that, where the
    keys are of several stacks, or a list of numbers of layers that is no such form."""
    if key in FORMS:
        return not alone and entries(keys, key, depth) is not None
    value = keys[key] if isinstance(keys[key], list) and NUMBERING.search(key) else []
    return bool(value) and all(type(number) is int and 0 <= number < depth for number in value)


def _with_defaults(config: Config) -> Config:
    """A config with the depths that transformers takes where it has none (a T5 of older days says one number for
    encoder and decoder, a LLaVA none for what is as in LLaMA)."""
    try:
        stored = read_by_transformers(config).to_dict()
    except Exception:  # of a config that it refuses, each class raises what it likes
        return config
    return _completed(config, stored)


def _completed(config: Config, stored: Config) -> Json:
    more = {key: stored[key] for key in KEYS if type(stored.get(key)) is int and config.get(key) is None}
    groups = {key: value for key, value in config.items() if isinstance(value, Mapping)}
    parts = {key: _completed(v, stored[key]) for key, v in groups.items() if isinstance(stored.get(key), Mapping)}
    return {**config, **more, **parts}


def _further_names(config: Config, group: Sequence[str]) -> dict[str, str]:
    """transformers' further names for keys of a group."""
    try:
        return dict(type(read_group(config, group)).attribute_map)
    except Exception:  # of a config that it refuses, each class raises what it likes
        return {}


def check_read(
    config: Config,
    shapes: Mapping[str, tuple[int, ...]],
    before: tuple[Config, Mapping[str, tuple[int, ...]]],
    ref: str,
) -> None:
    """Refuse slices of which transformers would leave tensors out, or miss some, where it did not before: what a
    layer has may depend on its number (T5's first layer has the table of distances of all).

    Args:
        config, shapes: of the slices.
        before: those of the model that the config is from.
        ref: the model, for messages.

    Raises:
        IsomergeError: naming a tensor.
    """
    was, now = reading_of(*before), reading_of(config, shapes)
    if was is None or now is None:
        return
    lacking = sorted(set(now.lacking) - set(was.lacking))
    ignored = sorted(set(now.ignored) - set(was.ignored))
    if lacking or ignored:
        what = f"would miss {lacking[0]}" if lacking else f"would not read {ignored[0]}"
        raise IsomergeError(
            f"{ref}: of these slices transformers {what}, as what a layer has depends on its number: choose slices "
            f"that keep such layers at their places"
        )

"""Checkpoints with another stack of layers: slices of one or of several models, one after the other.

As in mergekit's ``slices``, layers are renumbered in their order, what comes before the layers (embeddings) is the
first slice's and what comes after (last norm, head) the last slice's; which is which is the order of the spec's lines.
A head that is tied to the embeddings goes with them. A layer may occur several times. No weights are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from isomerge.checkpoint.agreement import disagreement
from isomerge.checkpoint.reader import Checkpoint, Derived
from isomerge.errors import IsomergeError
from isomerge.models.layer_config import FORMS
from isomerge.models.layer_rules import check_numbered, stacked_config
from isomerge.models.stack import Stack

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
        IsomergeError: no parts or layers, layers that a model does not have, models of different architectures, sizes
            or functions, an encoder and a decoder that both have layers, a config that does not state its depth, or layers
            whose kind would change with their index.
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
        whole = Stack(view, spec_file).layered
    except IsomergeError as error:
        raise IsomergeError(
            f"{error}; tensors around the layers fit only as many layers as their model has: choose slices of {giver.depth} layers"
        ) from None
    check_numbered(whole, [(stack.layered, layer) for stack, layers in slices for layer in layers])
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
                f"{pair} have different shapes ({size} is {value} and {two.spec.sizes[size]}): their layers cannot be "
                "stacked"
            )
    # lists over layers are cut and joined: they may differ
    keys = [key for key in (*one.spec.config_keys, "tie_word_embeddings") if key not in FORMS]
    if (found := disagreement(one.checkpoint.config, two.checkpoint.config, keys)) is not None:
        raise IsomergeError(
            f"{pair} differ in config.json: {found.key} is {found.mine!r} and {found.theirs!r}; layers of the two compute "
            "different functions of equal weights and cannot be stacked"
        )


def _check_tokens(giver: Stack, stack: Stack, names: list[str]) -> None:
    """Refuses tables over other tokens than the donor's, whose tokenizer and config the stack has."""
    from isomerge.symmetry.axes import atoms

    mine, theirs = giver.spec.sizes.get(TOKENS), stack.spec.sizes.get(TOKENS)
    table = next((n for n in names if any(x.name == TOKENS for x in atoms(stack.matches[n].line.axes or ()))), None)
    if mine != theirs and table is not None:
        raise IsomergeError(
            f"{stack.checkpoint.ref}: tensor {table} is for {theirs} tokens, but {giver.checkpoint.ref}, whose tokenizer the "
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

"""A model seen through views: one after the other, each over what is seen before, and itself as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from isomerge.evidence.law import random_alignment
from isomerge.models.layer_norm_form import LayerNormForm, in_layer_norm_form
from isomerge.models.recognised import Model, Moved, recognise
from isomerge.models.zero_gains import OpenedGains, open_zero_gains
from isomerge.symmetry.alignment import Alignment
from toys import Toy, write_toy

ToyMaker = Callable[..., Toy]
F64 = torch.float64


def element(model: Model, seed: int) -> Alignment:
    """A random element of all spaces, of the stream as well."""
    return random_alignment(model.spec, model.blocks, torch.Generator().manual_seed(seed), [*model.spec.spaces])


def test_one_after_the_other(toy: ToyMaker) -> None:
    """What two moves make of a block is what their product makes of it, in this order alone."""
    model = recognise(toy("llama").folder)
    g, h = element(model, 1), element(model, 2)
    seen = model.seen(Moved(g)).seen(Moved(h))
    apart = 0.0
    for block in model.blocks:
        moved, swapped = model.assemble(block, F64), model.assemble(block, F64)
        (h @ g).act_linearly(block, moved)
        (g @ h).act_linearly(block, swapped)
        assert torch.allclose(seen.assemble(block, F64), moved, atol=1e-9)
        apart = max(apart, float((swapped - moved).abs().max()))
    assert apart > 1e-3
    assert not model.views
    assert not seen.without(Moved).views


def test_a_model_has_one_form(toy: ToyMaker) -> None:
    """The form of a model that is seen in it takes its place."""
    model = in_layer_norm_form(recognise(toy("gpt2").folder))
    again = in_layer_norm_form(model)
    assert [type(view) for view in again.views] == [type(view) for view in model.views] == [LayerNormForm]


def test_gains_are_opened_before_a_model_is_moved(toy: ToyMaker, tmp_path: Path) -> None:
    """Also those of a model that is seen moved already: zeros lie where they are stored. (A stream that is turned has
    them elsewhere: looked for there, they would be missed.)"""
    model = toy("llama")
    name = next(name for name in model.stored if name.endswith("layers.1.input_layernorm.weight"))
    gain = model.stored[name].clone()
    gain[[1, 5]] = 0
    folder = write_toy(model, {**model.stored, name: gain}, tmp_path / "zeros")
    first, later = recognise(folder), recognise(folder)
    g = element(first, 1)
    open_zero_gains([first], first.spec.gains)
    first, later = first.seen(Moved(g)), later.seen(Moved(g))
    open_zero_gains([later], later.spec.gains)
    assert isinstance(later.views[0], OpenedGains)
    assert later.views[0].gains
    for block in first.blocks:
        assert torch.equal(first.assemble(block, F64), later.assemble(block, F64))

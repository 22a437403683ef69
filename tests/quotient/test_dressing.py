"""Dressed activations are the same for all disguises of a model, which computes what it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import isomerge
from isomerge.errors import IsomergeError
from isomerge.observe.live.modules import load_module
from isomerge.quotient.dressing import Dressing, dressed, dressed_activations, layers_of
from isomerge.symmetry.alignment import Alignment
from solve.disguises import turn
from toys import inputs, relative, save_toy

NAMES = ("gpt2", "llama", "vit", "bert", "qwen2")
CLOSE = 1e-5
"""Transformers computes some norms in float32, whatever the model's dtype."""


def twins(name: str, folder: Path) -> list[Path]:
    """A model and a disguise of it, all spaces turned."""
    one = save_toy(name, folder / "one", dtype=torch.float64)
    return [one, turn(name, one, folder / "two", 3)]


def batch(module: Any) -> dict[str, Tensor]:
    """Inputs in float64."""
    return {n: x.double() if x.is_floating_point() else x for n, x in inputs(module.config).items()}


def apart(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    """The largest relative difference of any layer's activations."""
    assert one.keys() == two.keys()
    assert one
    return max(relative(one[name], two[name]) for name in one)


@pytest.mark.parametrize("name", NAMES)
def test_twins_have_the_same_dressed_activations(name: str, tmp_path: Path) -> None:
    """Bare ones differ, as do those dressed by the other's element: both mutants are told."""
    modules = [load_module(folder, torch.float64) for folder in twins(name, tmp_path)]
    fields = [isomerge.canon(tmp_path / place)[0] for place in ("one", "two")]
    x = batch(modules[0])
    one, two = (dressed_activations(m, u, **x) for m, u in zip(modules, fields, strict=True))
    assert list(one) == layers_of(modules[0])
    assert apart(one, two) < CLOSE
    bare = [dressed_activations(m, Alignment(fields[0].spec), **x) for m in modules]
    wrong = dressed_activations(modules[1], fields[0], **x)
    assert apart(*bare) > 0.1
    assert apart(one, wrong) > 0.1
    assert apart(one, bare[0]) > 0.1


def test_outputs_are_unchanged_and_hooks_go(tmp_path: Path) -> None:
    """Bit for bit, while the hooks are on and after."""
    module = load_module(save_toy("gpt2", tmp_path / "one"), torch.float64)
    field, x = isomerge.canon(tmp_path / "one")[0], batch(module)
    with torch.no_grad():
        before = module(**x).logits
        with Dressing(module, field, ["transformer.h.1"]) as dressing:
            assert torch.equal(module(**x).logits, before)
        assert list(dressing.activations) == ["transformer.h.1"]
        dressing.activations.clear()
        assert torch.equal(module(**x).logits, before)
    assert not dressing.activations


def test_messages(tmp_path: Path) -> None:
    """What cannot be dressed is told in a sentence."""
    module = load_module(save_toy("gpt2", tmp_path / "one"), torch.float64)
    field = isomerge.canon(tmp_path / "one")[0]
    with pytest.raises(IsomergeError, match=r"no submodule h\.7"):
        Dressing(module, field, ["h.7"])
    with pytest.raises(IsomergeError, match="expected 48 numbers on the last axis"):
        dressed(torch.zeros(2, 3), field)
    with pytest.raises(IsomergeError, match="0 lists of layers"):
        layers_of(torch.nn.Linear(2, 2))
    two = isomerge.canon(save_toy("t5-gated", tmp_path / "two"))[0]
    with pytest.raises(IsomergeError, match="can move 0 residual streams"):
        Dressing(module, two)

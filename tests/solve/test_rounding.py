"""What the stored dtype cannot carry is not chosen, and never written as if it were the same function."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import isomerge
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_alignment
from isomerge.matching.distances import TensorGap
from isomerge.matching.local import move_unit
from isomerge.matching.selection import select_spaces
from isomerge.models.recognised import recognise
from isomerge.models.stored_form import StoredForm
from isomerge.solve.rounding import TAKEN, TOLERANCE, Rounded, RoundingOf, check_rounding
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.units import plan_units
from solve.disguises import single
from toys import outputs, relative, save_toy


def stretched(folder: Path, condition: float, *spaces: str) -> Alignment:
    """A random element of some spaces."""
    model = recognise(folder)
    rng = torch.Generator().manual_seed(2)
    return random_alignment(model.spec, model.blocks, rng, spaces, condition=condition)


def errors(folder: Path, g: Alignment, dtype: str) -> dict[str, float]:
    """What rounding does to every tensor of a model that is moved and stored in a dtype."""
    model = recognise(folder)
    blocks = {block: model.assemble(block, torch.float32) for block in model.blocks}
    found = RoundingOf(model, StoredForm(model, dtype), torch.float32).errors(g, blocks, g.applied(blocks))
    return {block.key: error for block, error in found.items()}


def test_errors_grow_with_the_stretch_and_with_nothing_else(tmp_path: Path) -> None:
    """A stretched head loses what it stretches; factors per channel, which floating point carries, and permutations
    do not."""
    a = single("llama", tmp_path / "a")
    plain = max(errors(a, stretched(a, 4.0, "ov"), "bfloat16").values())
    assert 1e-3 < plain < 5e-3
    wild = {dtype: max(errors(a, stretched(a, 1e4, "ov"), dtype).values()) for dtype in ("bfloat16", "float16")}
    assert wild["bfloat16"] > 20 * plain
    assert wild["float16"] < 0.3 * wild["bfloat16"]
    assert max(errors(a, stretched(a, 1e4, "u", "n1"), "bfloat16").values()) < 2 * plain
    assert errors(a, stretched(a, 4.0, "h", "ff"), "bfloat16") == {}


def test_a_changed_function_is_not_written(tmp_path: Path) -> None:
    """An element that bfloat16 cannot carry ends in an error that names the tensor; float32 carries it."""
    a = single("llama", tmp_path / "a")
    g = stretched(a, 1e3, "ov")
    with pytest.raises(IsomergeError, match=r"rounding .*self_attn\.[vo]_proj.*dtype='float32'"):
        isomerge.apply(g, a, out=tmp_path / "half", dtype="bfloat16")
    assert not (tmp_path / "half").exists()
    report = isomerge.apply(g, a, out=tmp_path / "out", dtype="float32")
    assert 0 < report["rounding"]["error"] < report["rounding"]["tolerance"] == TOLERANCE["float32"]
    assert relative(outputs(tmp_path / "out"), outputs(a)) < 1e-3


def test_of_several_elements_one_is_taken_that_is_carried(tmp_path: Path) -> None:
    """What may not be taken is left for the next; where nothing may, the unit stays."""
    model, other = (recognise(save_toy("llama", tmp_path / str(k), seed=k)) for k in range(2))
    selection = select_spaces(model.spec, "default")
    unit = next(u for u in plan_units(selection.spec, model.blocks) if any(k.startswith("ov") for k in u.elements))
    a, b = ({block: m.assemble(block, torch.float64) for block in unit.blocks} for m in (model, other))
    asked: list[Alignment] = []

    def all_but_the_first(g: Alignment, moved: dict) -> bool:
        asked.append(g)
        return len(asked) > 1

    free = move_unit(selection, a, b, guard=True)
    second = move_unit(selection, a, b, guard=True, carries=all_but_the_first)
    assert asked[0].digest() == free.alignment.digest() != second.alignment.digest() == asked[1].digest()
    assert not move_unit(selection, a, b, guard=True, carries=lambda g, moved: False).alignment


def test_the_figure_is_that_of_the_tensor_nearest_to_its_tolerance() -> None:
    """Not the largest error; nothing to tell is no error."""
    a, b, c = (TensorGap(name, [], None, 1.0, 0.0, 0.0) for name in "abc")
    gaps = [replace(a, rounding=1e-3, tolerance=1e-2), replace(b, rounding=1e-4, tolerance=1e-4), c]
    assert Rounded.of(gaps) == Rounded(1e-4, 1e-4, "b")
    assert Rounded.of([c]) is None
    check_rounding(Rounded.of(gaps), "m")
    check_rounding(None, "m")
    for error in (2e-4, float("nan"), float("inf")):
        with pytest.raises(IsomergeError, match="tensor b by"):
            check_rounding(Rounded(error, 1e-4, "b"), "m")
    assert 0 < TAKEN < 1

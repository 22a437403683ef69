"""Finite moves on small wires (`symmetry.wires`), without any model: of every kind an element leaves the function, its
inverse gives back every number, and two of them are their product; to the rounding of float64.

Whether texts are right about models is asked elsewhere (`test_statements`); here what a move does is tried by itself,
at random sizes, and moves that are wrong by a sign must be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isomerge.evidence.law import random_alignment
from isomerge.symmetry import norm_stage
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.bases import BASIS
from isomerge.symmetry.blocks import Block, Blocks
from isomerge.symmetry.carried import CARRY
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.layer_norms import layer_norms, norm_spec
from isomerge.symmetry.moves import FOLD, SCALE
from isomerge.symmetry.moves import KINDS as KINDS_OF_BLOCKS
from isomerge.symmetry.norm_stage import NormStage, norm_stages
from isomerge.symmetry.probed import TOKEN, TURN
from isomerge.symmetry.reached import REACHES
from symmetry.norm_wires import NORM_WIRES
from symmetry.statement_wires import STATEMENT_WIRES
from symmetry.twins import Weights, random_elements
from symmetry.wires import Wire, drawn

WIRES = [*NORM_WIRES, *STATEMENT_WIRES]
SEEDS = st.integers(0, 2**32 - 1)
EXACT, TOLD, MOVED = 1e-9, 1e-7, 1e-4
EVERY = pytest.mark.parametrize("wire", WIRES, ids=str)
TURNED = pytest.mark.parametrize("wire", [wire for wire in WIRES if "Perm" in wire.text], ids=str)
KINDS = [(wire, kind) for wire in WIRES for kind in wire.kinds]
EACH = pytest.mark.parametrize(("wire", "kind"), KINDS, ids=str)


def tame(key: str, element: Tensor) -> Tensor:
    """An element that is no worse conditioned than weights are: maps near the identity, and biases that keep most of
    what they have along the reciprocals of gains."""
    if key.startswith((TURN, BASIS)):
        return torch.eye(element.shape[-1], dtype=torch.float64) + 0.2 * element
    return 0.1 * element if key.startswith(FOLD) else element


@dataclass(frozen=True)
class Drawn:
    """A wire of some sizes, its tensors, and random elements of all that is free in it."""

    wire: Wire
    full: Spec
    """With all that is declared."""
    spec: Spec
    """With what moves of norms know."""
    tensors: Blocks
    elements: Weights
    others: Weights
    """As many more."""

    @classmethod
    def of(cls, wire: Wire, seed: int) -> Drawn:
        """All from one seed."""
        rng = torch.Generator().manual_seed(seed)
        spec = wire.bound(rng)
        blocks = wire.blocks(spec)
        tensors, heads = drawn(spec, blocks, rng), {line.tied for line in spec.lines}
        free = layer_norms(spec, blocks, tied=lambda block: block.line.name in heads)
        every = [random_elements(free, tensors.__getitem__, rng) for _ in range(2)]
        return cls(
            wire, spec, norm_spec(spec), tensors, *({k: tame(k, e) for k, e in some.items()} for some in every)
        )

    def stage(self, kind: str, elements: Weights) -> NormStage:
        """Those of one kind."""
        return NormStage(self.spec, {key: element for key, element in elements.items() if key.startswith(kind)})

    def turn(self, seed: int) -> Alignment:
        """A random element of all spaces and shifts, but for those of a table that is the head as well."""
        heads = {line.tied for line in self.full.lines}
        names = [*self.full.spaces, *(shift.name for shift in self.full.shifts if shift.bias not in heads)]
        return random_alignment(self.full, list(self.tensors), torch.Generator().manual_seed(seed), names)

    def change(self, tensors: Blocks) -> float:
        """How much of the outputs other tensors change, relative to the largest."""
        before, after = (self.wire.outputs(self.spec, each) for each in (self.tensors, tensors))
        return float((after - before).abs().max() / before.abs().max())


def apart(first: Blocks, second: Blocks) -> float:
    """The largest difference of two numbers, relative to the largest of their tensor or to one."""
    gaps = ((t - second[block]).abs().max() / t.abs().max().clamp_min(1) for block, t in first.items())
    return max(map(float, gaps))


def product(key: str, first: Tensor, second: Tensor) -> Tensor:
    """The element that does at once what two do, the first one first."""
    if key.startswith(SCALE):
        return first * second
    if key.startswith(TURN):
        return second @ first
    return first @ second if key.startswith(BASIS) else first + second


def not_undone(key: str, element: Tensor) -> Tensor:
    """No inverse: the sign is wrong, or a factor or a map not inverted."""
    return element


def transposed(key: str, element: Tensor) -> Tensor:
    """No inverse, but of rotations: a map transposed."""
    return element.mT


def may_be_anything(wire: Wire, block: Block) -> bool:
    """Whether nothing reads a tensor (`Wire.anything`)."""
    return block.key.endswith(wire.anything or ("?",))


def jumbled(before: Blocks, after: Blocks, rng: torch.Generator) -> Iterator[tuple[Block, Blocks]]:
    """A move that is wrong in one tensor: of what it adds there each number is multiplied by another one; the tensor,
    and all of them."""
    for block, moved in after.items():
        if apart({block: moved}, before) > MOVED:
            factors = torch.randn(moved.shape, generator=rng, dtype=torch.float64)
            yield block, {**after, block: before[block] + factors * (moved - before[block])}


@EACH
@settings(max_examples=3)
@given(SEEDS)
def test_elements_of_a_kind(wire: Wire, kind: str, seed: int) -> None:
    """Others change no output, and only what is said to be changed; the inverse undoes them, on either side; and two of
    them do what their sum does, or their product."""
    case = Drawn.of(wire, seed)
    before, kept = case.tensors, {block: t.clone() for block, t in case.tensors.items()}
    first, second = (case.stage(kind, elements) for elements in (case.elements, case.others))
    after = first.applied(before)
    assert apart(before, after) > MOVED
    assert apart(kept, before) == 0
    assert {block for block, t in after.items() if not torch.equal(t, kept[block])} <= first.changed(before)
    assert case.change(after) < EXACT
    assert apart(before, first.inverse().applied(after)) < EXACT
    assert apart(before, first.applied(first.inverse().applied(before))) < EXACT
    both = {key: product(key, element, second[key]) for key, element in first.items()}
    assert apart(second.applied(after), NormStage(case.spec, both).applied(before)) < EXACT


@EVERY
@settings(max_examples=3)
@given(SEEDS)
def test_elements_of_all_kinds(wire: Wire, seed: int) -> None:
    """Kind after kind, and then spaces and shifts: no output changes, and the inverse of all undoes it."""
    case = Drawn.of(wire, seed)
    assert not [kind for kind in wire.kinds if not any(key.startswith(kind) for key in case.elements)]
    every = case.turn(1) @ Alignment.of(norm_stages(case.spec, case.elements), case.spec)
    moved = every.applied(case.tensors)
    assert apart(case.tensors, moved) > MOVED
    assert case.change(moved) < EXACT
    assert apart(case.tensors, every.inverse().applied(moved)) < EXACT


@TURNED
@settings(max_examples=3)
@given(SEEDS)
def test_spaces_and_shifts(wire: Wire, seed: int) -> None:
    """The same of all spaces and shifts of a wire, and of two elements and their product."""
    case = Drawn.of(wire, seed)
    first, second = case.turn(1), case.turn(2)
    after = first.applied(case.tensors)
    assert case.change(after) < EXACT
    assert apart(case.tensors, first.inverse().applied(after)) < EXACT
    assert apart(second.applied(after), (second @ first).applied(case.tensors)) < EXACT


@TURNED
def test_a_tensor_that_is_left_behind_is_told(wire: Wire) -> None:
    """Where all others have moved with spaces and shifts, the outputs are others; but for what may be anything."""
    case = Drawn.of(wire, 1)
    moved = case.turn(1).applied(case.tensors)
    left = {block for block, t in moved.items() if apart({block: t}, case.tensors) > MOVED}
    assert left
    for block in left:
        assert (case.change({**moved, block: case.tensors[block]}) > TOLD) == (not may_be_anything(wire, block))


def test_every_kind_has_a_wire() -> None:
    """Of all that may move."""
    assert {kind for _, kind in KINDS} == {*KINDS_OF_BLOCKS, *REACHES, CARRY, BASIS}


@EACH
def test_a_move_that_is_wrong_is_told(wire: Wire, kind: str) -> None:
    """What is added to any one tensor, made wrong, changes the outputs; but of tensors that may be anything."""
    case = Drawn.of(wire, 1)
    moved = case.stage(kind, case.elements).applied(case.tensors)
    wrong = list(jumbled(case.tensors, moved, torch.Generator().manual_seed(2)))
    assert wrong
    for block, tensors in wrong:
        assert (case.change(tensors) > TOLD) == (not may_be_anything(wire, block)), block.key


WRONG = [(wire, kind, not_undone) for wire, kind in KINDS]
WRONG += [
    (wire, kind, transposed) for wire, kind in KINDS if kind == BASIS or (kind == TURN and TOKEN in wire.kinds)
]


@pytest.mark.parametrize(("wire", "kind", "wrong"), WRONG, ids=lambda x: getattr(x, "__name__", str(x)))
def test_an_inverse_that_is_wrong_is_told(
    wire: Wire, kind: str, wrong: Callable[[str, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What adds once more, and maps that are transposed and not inverted, do not give the tensors back."""
    case = Drawn.of(wire, 1)
    stage = case.stage(kind, case.elements)
    monkeypatch.setattr(norm_stage, "undone", wrong)
    assert apart(case.tensors, stage.inverse().applied(stage.applied(case.tensors))) > MOVED

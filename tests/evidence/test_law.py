"""The judge of the law: what cannot be tried is not proven, and every space that can move does."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from isomerge.evidence.law import CANNOT_ACT, Law, at_rest, largest_change, random_alignment, randomly_moved
from toys import Toy


@pytest.mark.parametrize("error", CANNOT_ACT)
def test_what_cannot_act_proves_nothing(error: type[Exception]) -> None:
    """Nor do no models, nor no elements; what is no error of a spec is not taken for one."""

    def raises(model: str, seed: int) -> float:
        if seed == 2:
            raise error("no")
        return 0.0

    assert largest_change(raises, "a", (1, 2)) == math.inf
    assert largest_change(raises, "a", (1,)) == 0.0
    assert largest_change(raises, "", (1,)) == math.inf
    assert largest_change(raises, "a", ()) == math.inf
    with pytest.raises(ZeroDivisionError):
        largest_change(lambda model, seed: 1 / 0, "a", (1,))


def test_what_refutes_is_enough() -> None:
    """No model and no element is tried behind it; the largest change of all counts else."""
    tried: list[tuple[str, int]] = []

    def change(model: str, seed: int) -> float:
        tried.append((model, seed))
        return {"a": 1e-12, "b": 1e-2, "c": 1e-1}[model] * seed

    assert largest_change(change, "abc", (1, 2), enough=1e-9) == 1e-2
    assert tried == [("a", 1), ("a", 2), ("b", 1)]
    assert largest_change(change, "abc", (1, 2)) == 0.2


@pytest.mark.parametrize(("error", "holds"), [(0.0, True), (1e-9, False), (math.inf, False), (math.nan, False)])
def test_rounding_explains_what_is_below_its_bound(error: float, holds: bool) -> None:
    """And no number that is none."""
    assert Law("g", "", "Perm", (), error, 1e-9).holds == holds


def test_every_space_moves(toy: Callable[..., Toy]) -> None:
    """A first element that leaves the two key-value heads where they are is passed over, where another one moves all;
    it is taken where there is no other. A space that moves no weight moves none."""
    model = toy("llama")
    seeds = range(40)
    resting = [
        s for s in seeds if at_rest(random_alignment(model.spec, model.blocks, torch.Generator().manual_seed(s)))
    ]
    moving = next(s for s in seeds if s not in resting)
    assert resting

    def moved(*seeds: int, names: list[str] | None = None) -> dict[str, torch.Tensor]:
        return model.named(randomly_moved(model.spec, model.blocks, model.fresh, seeds, names))

    assert all(
        torch.equal(x, y) for x, y in zip(moved(resting[0], moving).values(), moved(moving).values(), strict=True)
    )
    assert not all(
        torch.equal(x, y) for x, y in zip(moved(resting[0]).values(), moved(moving).values(), strict=True)
    )
    assert moved(1, names=[]) == {}

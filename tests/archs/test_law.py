"""The law: a random element of every declared space, written to disk, leaves the outputs of every toy unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from depth import thorough
from families import IDLE
from isomerge.symmetry.stage import find_shifts
from toys import SAMPLE, TRIED, Toy, load_toy, outputs, relative, write_toy

SHARD = 8_000


def declared(toy: Toy) -> list[str]:
    """All spaces and shifts of a toy's spec that move something; trades between tables that it has."""
    spaces = [name for name, space in toy.spec.spaces.items() if space.group_name != "Fixed"]
    return [*spaces, *(s.name for s in toy.spec.shifts if not s.trades or s.name in there(toy))]


def there(toy: Toy) -> set[str]:
    """The shifts whose tensors a toy has."""
    return {shift.name for shift, _, _ in find_shifts(toy.spec, toy.blocks)}


@pytest.mark.parametrize("name", SAMPLE)
def test_every_space_alone(name: str, toy: Callable[..., Toy], tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each space and each shift alone changes weights and leaves the outputs."""
    model = toy(name)
    for space in declared(model):
        with subtests.test(space=space):
            moved = model.drawn([space])
            if (name, space) in IDLE:
                assert model.change(moved) == 0
                continue
            assert model.change(moved) > 1e-3
            assert relative(outputs(write_toy(model, moved, tmp_path / "out")), model.reference) < model.tolerance


@pytest.mark.parametrize("name", [n for n in TRIED if n not in SAMPLE])
def test_every_space_moves(name: str, toy: Callable[..., Toy]) -> None:
    """Each space and each shift alone changes weights: the law for all of them together is about each of them."""
    model = toy(name)
    for space in declared(model):
        assert (model.change(model.drawn([space])) > 1e-3) != ((name, space) in IDLE), space


@pytest.mark.parametrize(("name", "condition"), [*((n, 4.0) for n in TRIED), *((n, 100.0) for n in SAMPLE)])
def test_all_spaces_together(name: str, condition: float, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """All spaces and shifts at once, also far from the identity (there rounding counts for more)."""
    model = toy(name)
    moved = model.drawn(None, condition)
    assert model.change(moved) > 1e-3
    written = outputs(write_toy(model, moved, tmp_path / "out"))
    assert relative(written, model.reference) < model.tolerance * (1 if condition < 10 else 10)


@pytest.mark.parametrize("name", ["gpt2", "mixtral"])
def test_sharded(name: str, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """The same from and to many shards."""
    whole = toy(name)
    sharded = load_toy(name, write_toy(whole, whole.stored, tmp_path / "in", out_shard_size=SHARD))
    assert len(list((tmp_path / "in").glob("model-*.safetensors"))) > 2
    out = write_toy(sharded, sharded.drawn(None), tmp_path / "out", out_shard_size=SHARD)
    assert len(list(out.glob("model-*.safetensors"))) > 2
    assert relative(outputs(out), whole.reference) < whole.tolerance


def test_idle_spaces_are_declared(toy: Callable[..., Toy]) -> None:
    """The exceptions above name spaces that exist."""
    assert all(space in declared(toy(name)) for name, space in IDLE)


@thorough
def test_every_trade_is_tried(toy: Callable[..., Toy]) -> None:
    """Specs of many model types name tables that few of them have: some toy has them, wherever its encoder stands."""
    tried: dict[tuple[str, ...], bool] = {}
    for name in TRIED:
        model = toy(name)
        found = there(model)
        for shift in model.spec.shifts:
            if shift.trades:
                key = tuple(str(line).rpartition(")")[2] for line in (shift.bias, shift.into))
                tried[key] = tried.get(key, False) or shift.name in found
    assert tried
    assert not [key for key, seen in tried.items() if not seen]

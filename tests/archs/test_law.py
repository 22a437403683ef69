"""The law: a random element of every declared space, written to disk, leaves the outputs of every toy unchanged."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from archs.test_mutants import mutated
from depth import thorough
from families import IDLE, IN_EVERY_RUN
from isomerge.symmetry.stage import find_shifts
from mutants import mutant
from toys import ALONE_IN_EVERY_RUN, EACH_SPACE_ALONE, SAMPLE, TRIED, Toy, load_toy, outputs, relative, write_toy

Kind = tuple[str | bool, ...]
SHARD = 8_000
HIDDEN = mutant(
    "starcoder2", "queries and keys stay where they are", "kv", "space g: Perm[l, kv]\n => ",
    "space c as qk: Complex[l, kv, pair]\n => ", "(kv g c pair) => rows", "(kv c' pair) => keys",
)  # fmt: skip


def present(toy: Toy) -> set[str]:
    """The shifts whose tensors a toy has."""
    return {shift.name for shift, _, _ in find_shifts(toy.spec, toy.blocks)}


def declared(toy: Toy) -> dict[str, Kind]:
    """All spaces and shifts of a toy's spec that move something, by what they are; trades between tables that it has."""
    spec, shifts = toy.spec, present(toy)
    kinds: dict[str, Kind] = {
        name: (name, space.group_name, space.residual, name in spec.gains, name in spec.latents)
        for name, space in spec.spaces.items()
        if space.group_name != "Fixed"
    }
    for shift in spec.shifts:
        if not shift.trades or shift.name in shifts:
            form = (f.name for f in fields(shift) if f.name != "name" and getattr(shift, f.name) != f.default)
            kinds[shift.name] = (shift.name, *form)
    return kinds


def wrong_alone(model: Toy, folder: Path) -> list[str]:
    """The spaces and shifts of a toy of which a random element alone moves nothing, or changes the outputs; the idle
    ones move nothing."""
    laws = [model.law([space], folder) for space in declared(model)]
    idle = {space for name, space in IDLE if name == model.name}
    return [law.name for law in laws if not (math.isinf(law.error) if law.name in idle else law.holds)]


@pytest.mark.parametrize("name", EACH_SPACE_ALONE)
def test_every_space_alone(name: str, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Each space and each shift alone changes weights and leaves the outputs."""
    model = toy(name)
    assert declared(model)
    assert wrong_alone(model, tmp_path / "out") == []


def test_a_wrong_space_that_others_hide_is_seen(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """A text in which values go with their queries in all but one space, of two things, which a random element of all
    spaces may leave as they are: alone it is seen, and so it is among all."""
    model = mutated(toy(HIDDEN.toy), HIDDEN)
    assert wrong_alone(model, tmp_path / "alone") == [HIDDEN.space]
    assert model.law([name for name in declared(model) if name != HIDDEN.space], tmp_path / "others").holds
    assert 1e-3 < model.law(None, tmp_path / "together").error < math.inf


@thorough
def test_every_kind_of_space_is_tried_alone(toy: Callable[..., Toy]) -> None:
    """In a run of a part of the toys as well: no other toy of it has a space of another name, group or place, or a shift
    of another form."""
    kinds = {name: {*declared(toy(name)).values()} for name in IN_EVERY_RUN}
    alone = set[Kind]().union(*(kinds[name] for name in ALONE_IN_EVERY_RUN))
    assert {name: more - alone for name, more in kinds.items() if more - alone} == {}


@pytest.mark.parametrize("name", [n for n in TRIED if n not in EACH_SPACE_ALONE])
def test_every_space_moves(name: str, toy: Callable[..., Toy]) -> None:
    """Each space and each shift alone changes weights: the law for all of them together is about each of them."""
    model = toy(name)
    idle = {space for space in declared(model) if model.change(model.drawn([space])) <= 1e-3}
    assert idle == {space for toy_name, space in IDLE if toy_name == name}


@pytest.mark.parametrize(("name", "condition"), [*((n, 4.0) for n in TRIED), *((n, 100.0) for n in SAMPLE)])
def test_all_spaces_together(name: str, condition: float, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """All spaces and shifts at once, also far from the identity (there rounding counts for more)."""
    assert toy(name).law(None, tmp_path / "out", condition).holds


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
        shifts = present(model)
        for shift in model.spec.shifts:
            if shift.trades:
                key = tuple(str(line).rpartition(")")[2] for line in (shift.bias, shift.into))
                tried[key] = tried.get(key, False) or shift.name in shifts
    assert tried
    assert not [key for key, has_one in tried.items() if not has_one]

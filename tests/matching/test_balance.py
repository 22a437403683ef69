"""The canonical gauge: reached by a symmetry, balanced, biases folded, and the same from everywhere on an orbit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from isomerge.evidence.law import random_alignment
from isomerge.matching import balance, gram
from isomerge.matching.balance import canonical_gauge
from isomerge.matching.distances import distance
from isomerge.matching.narrow import narrow_widths, ranks
from isomerge.matching.selection import select_spaces
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import whole_leaves
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.language.spec_text import parse_spec
from isomerge.symmetry.stage import bias_view, canonical_part, find_shifts
from isomerge.symmetry.units import Unit, plan_units
from matching.drawn import Blocks, draw, moved
from toys import STREAMS_ALONE, TRIED, Toy, outputs, relative, write_toy

ToyMaker = Callable[..., Toy]


def units(toy: Toy) -> tuple[Spec, list[Unit]]:
    """The default spaces but latents, which turn once gains are folded, and the units that they make."""
    spec = select_spaces(toy.spec, "default").unfolded
    return spec, plan_units(spec, toy.blocks)


def gauged(toy: Toy, blocks: Blocks) -> tuple[Alignment, Blocks]:
    """The canonical gauge of every unit: what was applied, and where it leads."""
    spec, parts = units(toy)
    elements: dict[str, torch.Tensor] = {}
    reached: Blocks = {}
    for unit in parts:
        mine = {block: blocks[block].clone() for block in unit.blocks}
        found, dead = canonical_gauge(spec, mine)
        assert not dead
        elements |= found.elements
        reached |= mine
    return Alignment(spec, elements), reached


def square(blocks: Blocks) -> float:
    """The squared norm, of gains as they act."""
    return sum(float((t + block.line.less).square().sum()) for block, t in blocks.items())


def side_grams(spec: Spec, name: str, blocks: Blocks) -> tuple[torch.Tensor, torch.Tensor]:
    """The self-Grams of a space's plain and dual ends, summed over every tensor that it acts on."""
    batch, total = spec.batch(spec.spaces[name]), {False: torch.zeros(()), True: torch.zeros(())}
    for block, tensor in blocks.items():
        for (view,), found, _ in whole_leaves(spec, block, tensor):
            names = [a.name for a in found]
            if name in names:
                lead = [*(names.index(i) for i in batch), names.index(name)]
                x = view.movedim(lead, list(range(len(lead)))).unsqueeze(-1).flatten(len(lead))
                total[found[lead[-1]].dual] = total[found[lead[-1]].dual] + x @ x.mT
    return total[False], total[True]


def assert_balanced(spec: Spec, name: str, blocks: Blocks) -> None:
    """Both ends look the same, as far as the group can see; of a narrow one all that it has."""
    plus, minus = side_grams(spec, name, blocks)
    assert min(plus.ndim, minus.ndim) > 0, f"{name} has one end only"
    if spec.spaces[name].group_name == "Complex":
        plus, minus = (gram.diagonal(dim1=-2, dim2=-1).sum(-1) for gram in (plus, minus))
    if narrow_widths(spec, spec.spaces[name], blocks) is not None:
        small, large = sorted((plus, minus), key=lambda gram: int(ranks(gram).sum()))
        plus, minus = small @ small, small @ large
    assert torch.allclose(plus, minus, rtol=1e-6, atol=1e-9), name


@pytest.mark.parametrize("name", ["bert-relu", "llama-biased", "mixtral", "t5-gated", "deepseek_v3"])
@pytest.mark.parametrize("piece", [8, 60])
def test_grams_in_pieces(name: str, piece: int, toy: ToyMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the pieces, along whatever axis lies outermost in memory: the Grams of the whole tensors."""
    model, checked = toy(name), 0
    spec, parts = units(model)
    whole = model.fresh()
    monkeypatch.setattr(gram, "PIECE", piece)
    monkeypatch.setattr(gram, "FEWEST", 2)
    for unit in parts:
        mine = {block: whole[block] for block in unit.blocks}
        for name_ in spec.spaces.keys() & {key.partition("[")[0] for key in unit.elements}:
            found, wanted = gram.self_grams(spec, name_, mine), side_grams(spec, name_, mine)
            if found is not None:
                assert all(torch.allclose(x, y, rtol=1e-12) for x, y in zip(found, wanted, strict=True))
                checked += 1
    assert checked > 3


def test_what_is_given_stays(toy: ToyMaker) -> None:
    """Tensors that move are replaced: those that were given may be read again."""
    model = toy("llama-biased")
    spec, parts = units(model)
    for unit in parts:
        mine = {block: model.fresh()[block] for block in unit.blocks}
        given = dict(mine)
        kept = {block: t.clone() for block, t in mine.items()}
        g, _ = canonical_gauge(spec, mine)
        assert all(torch.equal(t, kept[block]) for block, t in given.items())
        assert any(mine[block] is not t for block, t in given.items()) == bool(len(g))


@pytest.mark.parametrize("name", [n for n in TRIED if n not in STREAMS_ALONE])
def test_it_is_a_symmetry_and_can_be_undone(name: str, toy: ToyMaker) -> None:
    """What is reported is what was done, and its inverse goes back."""
    model = toy(name)
    start = model.fresh()
    g, reached = gauged(model, start)
    assert distance(reached, moved(g, start)) < 1e-18 * square(start)
    assert distance(start, moved(g.inverse(), reached)) < 1e-18 * square(start)
    assert distance(start, reached) > 1e-3


@pytest.mark.parametrize("name", ["bert-relu", "gpt2", "llama-biased", "qwen3-biased", "mixtral", "t5-gated"])
def test_it_is_the_same_function(name: str, toy: ToyMaker, tmp_path) -> None:
    """The model in its canonical gauge answers alike."""
    model = toy(name)
    written = write_toy(model, model.named(gauged(model, model.fresh())[1]), tmp_path / "out")
    assert relative(outputs(written), model.reference) < model.tolerance


@pytest.mark.parametrize("name", TRIED)
def test_both_sides_are_balanced(name: str, toy: ToyMaker) -> None:
    """Self-Grams of the plain and the dual side are equal, as far as the group can see."""
    model = toy(name)
    spec, parts = units(model)
    _, reached = gauged(model, model.fresh())
    loose = {n for n, s in spec.spaces.items() if s.group_name in ("GL", "Scale", "PositiveScale", "Complex")}
    checked = set()
    for unit in parts:
        for name_ in loose & {key.partition("[")[0] for key in unit.elements}:
            assert_balanced(spec, name_, {block: reached[block] for block in unit.blocks})
            checked.add(name_)
    assert checked == loose


MEETING = """
model meeting
size a = 3
size b = 3
space a: GL
space b: GL
one.weight  a b z
two.weight  a' x
three.weight  b' y
"""


def test_spaces_that_meet_are_balanced_in_turn() -> None:
    """Where two non-compact spaces share a tensor, turns are taken until both are balanced."""
    spec = parse_spec(MEETING, {}, "meeting.spec")
    start = draw(spec, 1, "weight", spread=1.0)
    reached = {block: t.clone() for block, t in start.items()}
    g, dead = canonical_gauge(spec, reached)
    assert dead == []
    assert_balanced(spec, "a", reached)
    assert_balanced(spec, "b", reached)
    assert distance(reached, moved(g, start)) < 1e-18 * square(start)


def test_turns_end_where_rounding_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 no turn moves less than its last bit: they end there, balanced as well as float32 can tell."""
    spec = parse_spec(MEETING, {}, "meeting.spec")
    start = {block: t.float() for block, t in draw(spec, 1, "weight", spread=1.0).items()}
    turns: list[Alignment] = []
    once = balance._balance_once
    monkeypatch.setattr(balance, "_balance_once", lambda *given: (turns.append(once(*given)), turns[-1])[1])
    exact = {block: t.double() for block, t in start.items()}
    canonical_gauge(spec, exact)
    assert 3 < len(turns) < balance.SWEEPS
    turns.clear()
    canonical_gauge(spec, start)
    assert 3 < len(turns) < balance.SWEEPS
    assert distance(start, exact) < 1e-10 * square(exact)


@pytest.mark.parametrize("name", TRIED)
def test_free_biases_are_zero(name: str, toy: ToyMaker) -> None:
    """What no output depends on is dropped; what value biases carried is in the output bias."""
    model = toy(name)
    _, reached = gauged(model, model.fresh())
    for shift, _, blocks in find_shifts(model.spec, model.blocks):
        bias = blocks[shift.bias]
        view, atoms = bias_view(model.spec, shift, bias, reached[bias])
        if shift.along is None:
            assert view.count_nonzero() == 0
        else:
            assert float(canonical_part(model.spec, shift, view, atoms).abs().max()) <= 1e-12 * float(
                view.abs().max()
            )
        if shift.into is not None:
            into = blocks[shift.into]
            assert (reached[into] - model.fresh()[into]).abs().max() > 1e-3


@pytest.mark.parametrize("name", TRIED)
def test_it_does_not_depend_on_the_gauge(name: str, toy: ToyMaker) -> None:
    """From a continuously moved copy the same norm is reached."""
    model = toy(name)
    spec, _ = units(model)
    g = random_alignment(spec, model.blocks, torch.Generator().manual_seed(4), condition=30.0)
    _, one = gauged(model, model.fresh())
    start = moved(g, model.fresh())
    _, two = gauged(model, start)
    assert square(two) == pytest.approx(square(one), rel=1e-8)


def test_dead_blocks_are_named_and_left(toy: ToyMaker) -> None:
    """A head without values stays as it is; the others are balanced."""
    model = toy("bert")
    spec, parts = units(model)
    unit = next(u for u in parts if "ov[1]" in u.elements)
    mine = {block: model.fresh()[block] for block in unit.blocks}
    for block, tensor in mine.items():
        if "value" in block.key:
            tensor[:8] = 0
    found, dead = canonical_gauge(spec, mine)
    assert dead == ["ov[1]"]
    eye = torch.eye(8, dtype=torch.float64)
    assert torch.equal(found["ov[1]"][0], eye)
    assert not torch.equal(found["ov[1]"][1], eye)

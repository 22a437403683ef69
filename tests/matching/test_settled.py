"""The cheap test for units that lie in the same coordinates already: no part that was moved escapes it, no training
trips it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

from isomerge.matching.frame import folded_gains
from isomerge.matching.general_linear_orbit import space_sides
from isomerge.matching.selection import select_spaces
from isomerge.matching.settled import is_turned, settled
from isomerge.models.recognised import recognise
from isomerge.solve.standing import same_basis
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Blocks
from isomerge.symmetry.language.spec import Spec
from isomerge.symmetry.stage import find_shifts, shift_shape
from isomerge.symmetry.units import Unit, elements_of, plan_units
from toys import Toy, load_toy, save_toy
from unet_models import UNETS

TOYS = ("llama", "gpt2", "bert", "mixtral", "vit", "t5-gated", "deepseek_v3")
KINDS = ("tuned", "one matrix", "pruned", "half precision", "quantised")


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Toy]:
    """Saved toys of several architectures."""
    folder = tmp_path_factory.mktemp("toys")
    return {name: load_toy(name, save_toy(name, folder / name, seed=3)) for name in TOYS}


def units_of(toy: Toy) -> tuple[Spec, list[Unit]]:
    """The units inside the layers that something may move."""
    spec = select_spaces(toy.spec, "default").spec
    return spec, [unit for unit in plan_units(spec, toy.blocks) if unit.elements]


def trained(blocks: Blocks, kind: str) -> Blocks:
    """What becomes of weights in other hands, without any change of coordinates."""
    rng = torch.Generator().manual_seed(7)
    found = {}
    for number, (block, t) in enumerate(blocks.items()):
        t = t.clone()
        noise = torch.randn(t.shape, generator=rng, dtype=t.dtype) * (t.std() if t.numel() > 1 else 0.0)
        if kind == "tuned":
            t = t + 0.1 * noise
        elif kind == "one matrix" and number == 0:
            t = t + 0.3 * noise
        elif kind == "pruned":
            t = t * (t.abs() >= t.abs().flatten().median())
        elif kind == "half precision":
            t = t.bfloat16().to(t.dtype)
        elif kind == "quantised":
            step = t.abs().max() / 15
            t = (t / step).round() * step
        found[block] = t
    return found


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("kind", KINDS)
def test_training_moves_nothing(toys: dict[str, Toy], name: str, kind: str) -> None:
    """Fine-tunes, pruned, rounded and quantised copies are where they were."""
    toy = toys[name]
    spec, units = units_of(toy)
    fresh = toy.fresh()
    for unit in units:
        anchor = {block: fresh[block].double() for block in unit.blocks}
        assert settled(spec, anchor, trained(anchor, kind)), (unit.key, kind)


def test_norms_over_one_channel_tell_nothing(tmp_path: Path) -> None:
    """What a norm takes away of a group is all of a bias where the group is one channel: that a fine-tune's differs there
    is no sign that somebody moved it, unless it differs far more than all else. Fails where every difference of it
    counts as added."""
    UNet2DConditionModel(
        **{**UNETS["unet"], "norm_num_groups": 16, "block_out_channels": (16, 16)}
    ).save_pretrained(tmp_path)
    model = recognise(tmp_path)
    spec, moved = select_spaces(model.spec, "default").spec, set()
    for unit in [unit for unit in plan_units(spec, model.blocks) if unit.elements]:
        anchor = model.unit(unit.blocks, torch.float64)
        tuned = trained(anchor, "tuned")
        assert settled(spec, anchor, tuned), unit.key
        for shift, key, _ in find_shifts(spec, list(unit.blocks)):
            added, shape = {block: t.clone() for block, t in tuned.items()}, shift_shape(spec, shift)
            rng = torch.Generator().manual_seed(2)
            Alignment(spec, {key: 10 * torch.randn(shape, generator=rng, dtype=torch.float64)}).act(added)
            assert not settled(spec, anchor, added), (unit.key, key)
            moved.add(shift.name)
    assert moved


@pytest.mark.parametrize("name", TOYS)
def test_no_part_that_moved_escapes(toys: dict[str, Toy], name: str) -> None:
    """Of a fine-tune, one element of one space is moved, of one head or expert alone: the unit is not settled."""
    toy, seen = toys[name], set()
    spec, units = units_of(toy)
    fresh, rng = toy.fresh(), torch.Generator().manual_seed(1)
    for unit in units:
        whole = {block: fresh[block].double() for block in unit.blocks}
        anchor, tuned = (folded(spec, blocks) for blocks in (whole, trained(whole, "tuned")))
        for key, space in {k: s for b in unit.blocks for k, s in elements_of(spec, b).items()}.items():
            if key in unit.votes:
                continue
            moved = one_moved(spec, key, space.name, tuned, rng)
            if moved is not None:
                seen.add(space.group_name)
                assert not settled(spec, anchor, moved), (unit.key, key)
    assert seen, "nothing was moved"


@pytest.mark.parametrize("most", [1, 2])
def test_a_part_of_the_heads_tells_of_a_turn_of_all(toys: dict[str, Toy], most: int) -> None:
    """What some heads are asked with is the whole's, of heads at even distances; none of these may be turned."""
    toy = toys["gpt2"]
    spec, units = units_of(toy)
    fresh, rng, tried = toy.fresh(), torch.Generator().manual_seed(1), 0
    for unit in units:
        anchor = {block: fresh[block].double() for block in unit.blocks}
        tuned = trained(anchor, "tuned")
        for key, space in {k: s for b in unit.blocks for k, s in elements_of(spec, b).items()}.items():
            if space.group_name != "GL" or not (batch := spec.batch(space)):
                continue
            whole, some = (space_sides(spec, space, anchor, tuned, most=k) for k in (None, most))
            step = -(-spec.sizes[batch[0]] // most)
            torch.testing.assert_close(some.plus, whole.plus[::step])
            torch.testing.assert_close(some.moved_minus, whole.moved_minus[::step])
            n, heads = spec.sizes[space.name], spec.sizes[batch[0]]
            turns = torch.linalg.qr(torch.randn(heads, n, n, generator=rng, dtype=torch.float64)).Q
            moved = {block: t.clone() for block, t in tuned.items()}
            Alignment(spec, {key: turns}).act(moved)
            assert not is_turned(spec, anchor, tuned, most=most)
            assert is_turned(spec, anchor, moved, most=most), key
            tried += heads > most
    assert tried


@pytest.mark.parametrize("name", TOYS)
def test_no_addition_escapes(toys: dict[str, Toy], name: str) -> None:
    """Of a fine-tune, one shift is made: the unit is not settled, though every slice is near its counterpart."""
    toy, seen = toys[name], set()
    spec, units = units_of(toy)
    fresh, rng = toy.fresh(), torch.Generator().manual_seed(1)
    for unit in units:
        anchor = {block: fresh[block].double() for block in unit.blocks}
        for shift, key, parts in find_shifts(spec, list(unit.blocks)):
            moved = {block: t.clone() for block, t in trained(anchor, "tuned").items()}
            shape = shift_shape(spec, shift)
            Alignment(spec, {key: torch.randn(shape, generator=rng, dtype=torch.float64)}).act(moved)
            seen.add(shift.name)
            assert not settled(spec, anchor, moved), (unit.key, key, parts)
    assert seen == {shift.name for shift, _, _ in find_shifts(spec, toy.blocks)}


def folded(spec: Spec, blocks: Blocks) -> Blocks:
    """The blocks with the gains over latents folded into what reads them, so that a latent can be turned."""
    return folded_gains(spec, list(blocks), blocks.__getitem__).applied(blocks)


def one_moved(spec: Spec, key: str, name: str, blocks: Blocks, rng: torch.Generator) -> Blocks | None:
    """The blocks with one entry of one element sampled, far from the identity; None where the group has no such
    element."""
    space = spec.spaces[name]
    batch, n = tuple(spec.sizes[i] for i in spec.batch(space)), spec.sizes[name]
    for _ in range(20):
        element, sample = space.group.identity(batch, n), space.group.sample(batch, n, rng)
        element = element.to(sample.dtype).clone()
        first = (0,) * len(batch)
        element[first] = sample[first]
        there = {block: t.clone() for block, t in blocks.items()}
        Alignment(spec, {key: element}).act(there)
        one = sum(float((there[b] - blocks[b]).square().sum()) for b in blocks)
        touched = sum(float(blocks[b].square().sum()) for b in blocks) / max(torch.Size(batch).numel(), 1)
        if one > 0.5 * touched:
            return there
    return None


def test_streams(toys: dict[str, Toy], tmp_path) -> None:
    """Embeddings tell whether a stream is in one basis: of a fine-tune it is, of a copy with two coordinates
    exchanged it is not."""
    from safetensors.torch import load_file, save_file

    paths = [save_toy("llama", tmp_path / str(k), seed=3, dtype=torch.float32) for k in range(3)]
    for path, exchanged in ((paths[1], False), (paths[2], True)):
        weights = load_file(path / "model.safetensors")
        for k in weights:
            if "embed_tokens" in k or "lm_head" in k:
                weights[k] = weights[k] + 0.05 * torch.randn(
                    weights[k].shape, generator=torch.Generator().manual_seed(1)
                )
                if exchanged:
                    order = torch.arange(weights[k].shape[1])
                    order[:2] = torch.tensor([1, 0])
                    weights[k] = weights[k][:, order].contiguous()
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    anchor, tuned, moved = (recognise(path) for path in paths)
    assert same_basis(anchor, tuned) is True
    assert same_basis(anchor, moved) is False

"""The law of moved statistics: of a model and of the model moved, gathered anew from disk, they are one another
moved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from depth import more
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_alignment, random_turn, with_streams
from isomerge.merging.fusion_statistics import FusionStatistics
from isomerge.models.recognised import recognise
from isomerge.observe.stats.statistics import COORDINATEWISE, check_closed, moved_fisher
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.groups import GROUPS
from observe.test_fisher_information import labelled
from observe.test_statistics import near
from solve.disguises import single
from toys import load_toy, save_toy, write_toy


def moved_twin(name: str, tmp_path: Path, *, rotations: bool) -> tuple[Path, Path, Alignment]:
    """A toy, the same moved by a random element (float64 on disk, so that only running rounds), and the element."""
    a = save_toy(name, tmp_path / "a")
    toy = load_toy(name, a)
    blocks, rng = toy.fresh(), torch.Generator().manual_seed(3)
    if rotations:
        spec = with_streams(toy.spec)
        g = random_turn(spec, toy.blocks, lambda b: blocks[b].double(), rng, condition=3.0, gains=True)
    else:
        names = [n for n, s in toy.spec.spaces.items() if s.group_name in COORDINATEWISE]
        g = random_alignment(toy.spec, toy.blocks, rng, names, condition=3.0)
    g.act(blocks)
    return a, write_toy(toy, toy.named(blocks), tmp_path / "moved"), g


def both(a: Path, b: Path, kinds: list[str], folder: Path, count: int = 5) -> FusionStatistics:
    """The statistics of two checkpoints on the same examples, through files."""
    models = [recognise(f) for f in (a, b)]
    return FusionStatistics.gathered(models, [labelled(a, count)], kinds, folder, normalize=False)


@pytest.mark.parametrize(
    "name",
    ["gpt2-untied", "t5-gated", "dinov2", "qwen3", *more("llama", "gpt2", "vit-plain", "bert", "deberta-shared")],
)
def test_diagonal_fishers_move_under_permutations_signs_and_scales(name: str, tmp_path: Path) -> None:
    """F' = F / s^2, permuted. Gradients are float32 (1e-7 per operation, some hundred deep); squares double
    that."""
    a, b, g = moved_twin(name, tmp_path, rotations=False)
    statistics = both(a, b, ["fisher"], tmp_path)
    gaps, still = {}, []
    blocks = recognise(a).blocks
    # a free key bias has no gradient but the rounding of others: a square of 1e-6 of theirs
    noise = 1e-10 * max(float(f.max()) for block in blocks if (f := statistics.fishers(block)[1]) is not None)
    for block in blocks:
        moved, there = statistics.fishers(block, [g, None])
        (here, _) = statistics.fishers(block)
        if there is None:  # buffers
            assert here is None
            continue
        gaps[block.key] = float((moved - there).abs().max()) / max(float(there.max()), noise)
        still.append(near(here, there))
    assert len(gaps) >= 20
    assert {k: gap for k, gap in gaps.items() if gap > 1e-4} == {}
    assert sorted(still)[len(still) // 2] > 0.1  # most are not where they were


@pytest.mark.parametrize(
    "name",
    ["gpt2-untied", "t5-gated", "qwen3", "deberta-shared", *more("llama", "vit", "bert", "dinov2", "llama-biased")],
)
def test_factors_move_under_everything(name: str, tmp_path: Path) -> None:
    """A -> g A g^T (with shifts of biases) and G -> g^-T G g^-1, rotations of the stream and of heads included."""
    a, b, g = moved_twin(name, tmp_path, rotations=True)
    statistics = both(a, b, ["kfac"], tmp_path)
    gaps, unmoved = {}, []
    for block in recognise(a).blocks:
        moved, there = statistics.factors(block, [g, None])
        if there is None:
            assert moved is None
            continue
        here = statistics.factors(block)[0]
        assert moved.axis == there.axis
        gaps[f"A {block.key}"] = near(moved.inputs, there.inputs)
        gaps[f"G {block.key}"] = near(moved.outputs, there.outputs)
        unmoved += [near(here.inputs, there.inputs), near(here.outputs, there.outputs)]
    assert len(gaps) >= 2 * 12
    # the elements' condition (3, twice over a product of two) multiplies the rounding of float32 activations
    assert {k: gap for k, gap in gaps.items() if gap > 1e-4} == {}
    assert sorted(unmoved)[len(unmoved) // 2] > 0.1
    if any(key.startswith("shift.vb") for key in g):
        # without its shift, an element would leave the input of the output projections elsewhere
        bare = Alignment(g.spec, {k: v for k, v in g.elements.items() if "shift." not in k})
        via = {shift.via for shift in g.spec.shifts}
        block = next(x for x in recognise(a).blocks if x.line.name in via)
        wrong, there = statistics.grams(block, [bare, None])
        assert near(wrong.gram, there.gram) > 1e-3


def test_rotations_of_diagonals_are_refused(tmp_path: Path) -> None:
    """By tensor, space and ways out; what is rotated nowhere moves on; near-identities and permutations pass."""
    a = single("vit", tmp_path / "a")
    toy = load_toy("vit", a)
    rng = torch.Generator().manual_seed(0)
    g = random_alignment(toy.spec, toy.blocks, rng, ["ov", "ff"])
    by_key = {block.key: block for block in toy.blocks}
    value = by_key["encoder.layer.1.attention.attention.value.weight"]
    with pytest.raises(IsomergeError) as error:
        check_closed(g, value, "model-a")
    for said in ("model-a", value.key, "space ov (GL)", "fisher_kfac", "--spaces", "--data"):
        assert said in str(error.value)
    check_closed(g, by_key["encoder.layer.1.intermediate.dense.weight"])
    n = toy.spec.sizes["ov"]
    order = torch.randperm(n, generator=rng)
    near_one = torch.eye(n, dtype=torch.float64).expand(6, n, n) + 1e-9
    fisher = torch.rand(value_shape(toy, value), generator=rng, dtype=torch.float64)
    assert near(moved_fisher(Alignment(toy.spec, {"ov[1]": near_one}), value, fisher), fisher) < 1e-6
    scales = torch.rand(6, n, 1, generator=rng, dtype=torch.float64) + 0.5
    monomial = scales * torch.eye(n, dtype=torch.float64)[order]
    moved = moved_fisher(Alignment(toy.spec, {"ov[1]": monomial}), value, fisher)
    wanted = fisher.unflatten(0, (6, n))[:, order] / scales**2
    assert near(moved, wanted.flatten(0, 1)) < 1e-12


def value_shape(toy, block) -> tuple[int, ...]:
    """The stored shape of a block."""
    return tuple(toy.stored[toy.names[block.canonical[0]]].shape)


def test_shifts_and_phases_are_refused(tmp_path: Path) -> None:
    """A value bias that is folded changes what the next layer reads; a phase turns pairs of RoPE coordinates."""
    toy = load_toy("gpt2", single("gpt2", tmp_path / "a"))
    by_key = {block.key: block for block in toy.blocks}
    g = random_alignment(toy.spec, toy.blocks, torch.Generator().manual_seed(0), ["vb", "kb"])
    with pytest.raises(IsomergeError, match=r"h.2.attn.c_proj.weight cannot follow the shift vb"):
        check_closed(g, by_key["h.2.attn.c_proj.weight"])
    check_closed(g, by_key["h.2.attn.c_attn.bias"])
    check_closed(Alignment(g.spec, {k: v * 0 for k, v in g.elements.items()}), by_key["h.2.attn.c_proj.weight"])
    toy = load_toy("llama", single("llama", tmp_path / "b"))
    block = next(b for b in toy.blocks if b.key == "layers.0.self_attn.q_proj.weight")
    key, shape = "c[0]", tuple(toy.spec.sizes[n] for n in ("kv", "pair"))
    turn = GROUPS["Complex"].sample(shape, 2, torch.Generator().manual_seed(0))
    with pytest.raises(IsomergeError, match=r"space c \(Complex\)"):
        check_closed(Alignment(toy.spec, {key: turn}), block)
    quarter = torch.tensor([0.0, 2.0], dtype=torch.float64).expand(*shape, 2)
    check_closed(Alignment(toy.spec, {key: quarter}), block)

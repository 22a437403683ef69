"""Circuit averaging: exact on twins, the best of its rank otherwise, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_alignment
from isomerge.fusion.circuits import circuits, find_circuits, invariants, products
from isomerge.symmetry.blocks import Block
from matching.drawn import draw, named, small_spec
from toys import Toy, outputs, relative, write_toy

Blocks = dict[Block, torch.Tensor]
# between them: fused and separate projections, free and other biases, grouped queries, position terms, head-less
# stacks
NAMES = ["gpt2", "bert", "vit", "llama-biased", "qwen2", "deberta-unshared", "deberta-shared", "t5-gated"]


def linear_spaces(toy: Toy) -> list[str]:
    """The GL spaces of a toy."""
    return [n for n, s in toy.spec.spaces.items() if s.group_name == "GL"]


def twin(toy: Toy, names: list[str], seed: int = 1) -> Blocks:
    """The toy's blocks moved by random elements."""
    blocks, rng = toy.fresh(), torch.Generator().manual_seed(seed)
    random_alignment(toy.spec, toy.blocks, rng, names).act(blocks)
    return blocks


def rng(seed: int) -> torch.Generator:
    """A seeded generator."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> torch.Tensor:
    """Float64 noise."""
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_twins_need_no_alignment(name: str, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """A model and its twin under any general linear maps of heads and shifts of free biases: the function of both.

    A plain average of the two is another function.
    """
    here = toy(name)
    shifts = [s.name for s in here.spec.shifts]
    units = [here.fresh(), twin(here, linear_spaces(here) + shifts)]
    found = circuits(here.spec, units, weight=[0.4, 0.6])
    assert found
    merged = {**here.fresh(), **found}
    error = relative(outputs(write_toy(here, here.named(merged), tmp_path / "merged")), here.reference)
    assert error < here.tolerance
    plain = {b: (t + units[1][b]) / 2 for b, t in units[0].items()}
    assert relative(outputs(write_toy(here, here.named(plain), tmp_path / "plain")), here.reference) > 1e-2


@pytest.mark.parametrize("name", ["gpt2", "llama-biased"])
def test_equal_models(name: str, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Three times one model, and one model alone: its function."""
    here = toy(name)
    for count in (1, 3):
        found = circuits(here.spec, [here.fresh() for _ in range(count)], weight=[1.0] * count)
        folder = write_toy(here, here.named({**here.fresh(), **found}), tmp_path / str(count))
        assert relative(outputs(folder), here.reference) < here.tolerance


def test_rotated_twins_where_only_rotations_are_free(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """With the spaces restricted to O, rotations of heads change nothing, and the stored gauge is kept."""
    here = toy("bert")
    spec = here.spec.with_group("qk", "O").with_group("ov", "O")
    blocks = here.fresh()
    random_alignment(spec, here.blocks, rng(3), ["qk", "ov"]).act(blocks)
    found = circuits(spec, [here.fresh(), blocks], weight=[1.0, 2.0])
    folder = write_toy(here, here.named({**here.fresh(), **found}), tmp_path / "out")
    assert relative(outputs(folder), here.reference) < here.tolerance
    key = next(b for b in found if b.key.endswith("0.attention.self.query.weight"))
    # the turn is the nearest to the first model's: equal up to a rotation here means equal
    assert torch.allclose(found[key], here.fresh()[key], atol=1e-9)


def test_what_is_averaged_as_it_is(toy: Callable[..., Toy]) -> None:
    """Rotary queries and keys, gated layers and norms are left; fused blocks keep the average of what is not
    covered."""
    here = toy("llama-biased")
    units = [here.fresh(), toy("llama-biased", 1).fresh()]
    units[1] = {b: units[1][o] for b, o in zip(units[0], units[1], strict=True)}
    names = {b.key.rsplit("layers.0.", 1)[-1] for b in circuits(here.spec, units, weight=[1.0, 1.0])}
    assert {n for n in names if not n.startswith("layers")} == {
        "self_attn.v_proj.weight", "self_attn.v_proj.bias", "self_attn.o_proj.weight", "self_attn.o_proj.bias"
    }  # fmt: skip
    gpt = toy("gpt2")
    spec = gpt.spec.restrict(["h", "ov", "vb"])
    two = [gpt.fresh(), twin(gpt, ["qk"])]
    found = circuits(spec, two, weight=[1.0, 3.0])
    block = next(b for b in found if b.key.endswith("0.attn.c_attn.weight"))
    width = gpt.spec.sizes["res"]
    expected = (two[0][block] + 3 * two[1][block]) / 4
    assert torch.allclose(found[block][:, : 2 * width], expected[:, : 2 * width])


def test_free_biases_are_folded(toy: Callable[..., Toy]) -> None:
    """BERT's key and value biases become zero; the output bias takes what the value bias carried."""
    here = toy("bert")
    unit = here.fresh()
    found = circuits(here.spec, [unit], weight=[1.0])
    layer = {b.key.partition("layer.0.attention.")[2]: b for b in found if "layer.0." in b.key}
    for name in ("self.key.bias", "self.value.bias"):
        assert not found[layer[name]].any()
    carried = unit[layer["output.dense.weight"]] @ unit[layer["self.value.bias"]]
    assert torch.allclose(found[layer["output.dense.bias"]], unit[layer["output.dense.bias"]] + carried)


def test_biases_that_are_not_free_are_columns(toy: Callable[..., Toy]) -> None:
    """Qwen2 has value biases and no output bias: the circuit of every head holds ``W_O b_V``."""
    here = toy("qwen2")
    unit = here.fresh()
    found = circuits(here.spec, [unit, twin(here, ["ov"])], weight=[1.0, 1.0])
    kv, g, n = (here.spec.sizes[s] for s in ("kv", "g", "ov"))

    def carried(blocks: Blocks) -> torch.Tensor:
        layer = {b.key.partition("layers.1.self_attn.")[2]: t for b, t in blocks.items()}
        output = layer["o_proj.weight"].reshape(-1, kv, g, n)
        return torch.einsum("rkgn,kn->rkg", output, layer["v_proj.bias"].reshape(kv, n))

    assert torch.allclose(carried(found), carried(unit), atol=1e-10)
    assert carried(unit).abs().max() > 0.1


@pytest.mark.parametrize(("count", "p", "d", "n"), [(2, 9, 7, 3), (3, 20, 31, 4), (2, 2, 9, 5), (3, 6, 6, 1)])
def test_best_of_its_rank(count: int, p: int, d: int, n: int) -> None:
    """The thin form against the truncated decomposition of the dense average; both sides balanced."""
    plain = [normal(n, p, seed=i) for i in range(count)]
    dual = [normal(n, d, seed=10 + i) for i in range(count)]
    shares = [0.5, 0.8, -0.3][:count]
    dense = sum(w * a.mT @ b for w, a, b in zip(shares, plain, dual, strict=True))
    u, s, vh = torch.linalg.svd(dense, full_matrices=False)
    best = (u[:, :n] * s[:n]) @ vh[:n]
    left, right = products(plain, dual, shares)
    assert (left.shape, right.shape) == ((n, p), (n, d))
    assert torch.allclose(left.mT @ right, best, atol=1e-10)
    assert torch.allclose(left @ left.mT, right @ right.mT, atol=1e-10)


def test_best_of_its_rank_under_rotations() -> None:
    """The factor of the average Gram against the dense one."""
    plain, dual = [normal(3, 8, seed=i) for i in range(2)], [normal(3, 5, seed=9 + i) for i in range(2)]
    both = [torch.cat(x, 1) for x in zip(plain, dual, strict=True)]
    dense = 0.3 * both[0].mT @ both[0] + 0.7 * both[1].mT @ both[1]
    values, vectors = torch.linalg.eigh(dense)
    factor = torch.cat(invariants(plain, dual, [0.3, 0.7]), 1)
    assert torch.allclose(factor.mT @ factor, (vectors[:, -3:] * values[-3:]) @ vectors[:, -3:].mT, atol=1e-10)


def test_grouped_queries_by_hand() -> None:
    """Llama's values and outputs: the stacked circuits of a group, cut together, against the dense matrices."""
    config = {
        "hidden_size": 12, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 2, "intermediate_size": 4,
        "hidden_act": "silu",
    }  # fmt: skip
    spec = small_spec("llama", **config)
    units = [draw(spec, seed, "v_proj.weight", "o_proj.weight") for seed in (0, 1)]
    units[1] = {b: units[1][o] for b, o in zip(units[0], units[1], strict=True)}
    found = named(circuits(spec, units, weight=[1.0, 1.0]))
    kv, g, n = 2, 3, 2

    def stacked(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        values = weights["v_proj.weight"].reshape(kv, n, 12)
        output = weights["o_proj.weight"].reshape(12, kv, g, n)
        return torch.einsum("knx,ykgn->kxyg", values, output).flatten(2)

    mean = (stacked(named(units[0])) + stacked(named(units[1]))) / 2
    u, s, vh = torch.linalg.svd(mean, full_matrices=False)
    best = (u[..., :n] * s[..., None, :n]) @ vh[:, :n]
    assert torch.allclose(stacked(found), best, atol=1e-10)


def test_inputs_weights_and_dtype(toy: Callable[..., Toy]) -> None:
    """Inputs stay; a weight of zero leaves a model out; float32 stays float32; weights that cancel are refused."""
    here = toy("gpt2")
    a, b = here.fresh(), twin(here, ["qk"], seed=5)
    copies = [{k: t.clone() for k, t in unit.items()} for unit in (a, b)]
    noisy = {k: t + 0.1 * normal(*t.shape, seed=4) for k, t in b.items()}
    found = circuits(here.spec, [a, noisy], weight=[2.0, 0.0])
    alone = circuits(here.spec, [a], weight=[1.0])
    for block, tensor in found.items():
        assert torch.allclose(tensor, alone[block], atol=1e-9)
    circuits(here.spec, [a, b], weight=[1.0, 1.0])
    for unit, copy in zip((a, b), copies, strict=True):
        assert all(torch.equal(unit[k], copy[k]) for k in unit)
    single = circuits(here.spec, [{k: t.float() for k, t in a.items()}], weight=[1.0])
    assert {t.dtype for t in single.values()} == {torch.float32}
    with pytest.raises(IsomergeError, match="circuits: the weights sum to zero"):
        circuits(here.spec, [a, b], weight=[1.0, -1.0])


def test_units_without_circuits(toy: Callable[..., Toy]) -> None:
    """A feed-forward unit has none, and nothing comes back."""
    here = toy("bert")
    unit = {b: t for b, t in here.fresh().items() if "intermediate" in b.key}
    assert unit
    assert find_circuits(here.spec, unit) == []
    assert circuits(here.spec, [unit, unit], weight=[1.0, 1.0]) == {}

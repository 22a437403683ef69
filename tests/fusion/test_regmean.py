"""RegMean against least squares on the inputs themselves, its laws, and Grams that are singular."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from isomerge.errors import IsomergeError
from isomerge.fusion.regmean import InputGram, regmean
from isomerge.merging.fusion_statistics import FusionStatistics
from isomerge.models.recognised import recognise
from isomerge.observe.live.modules import load_module, parameter_names
from isomerge.symmetry.groups.orthogonal import random_orthogonal
from observe.test_statistics import examples_for
from solve.disguises import single


def drawn(
    seed: int, models: int = 3, out: int = 5, width: int = 7, rows: int = 40
) -> tuple[list[Tensor], list[Tensor]]:
    """Weights [out, width] and inputs [rows, width] of unlike covariance, float64."""
    rng = torch.Generator().manual_seed(seed)
    weights = [torch.randn(out, width, generator=rng, dtype=torch.float64) for _ in range(models)]
    mixes = [torch.randn(width, width, generator=rng, dtype=torch.float64) for _ in range(models)]
    return weights, [torch.randn(rows, width, generator=rng, dtype=torch.float64) @ mix for mix in mixes]


def gram_of(x: Tensor, axis: int = 1) -> InputGram:
    """E x x^T."""
    return InputGram(x.mT @ x / len(x), axis)


def least_squares(weights: list[Tensor], inputs: list[Tensor], shares: list[float]) -> Tensor:
    """argmin sum_k s_k |X_k W^T - X_k W_k^T|^2 / n_k, by lstsq of the stacked rows: no Gram is formed."""
    scaled = [x * (s / len(x)) ** 0.5 for x, s in zip(inputs, shares, strict=True)]
    answers = [x @ w.mT for x, w in zip(scaled, weights, strict=True)]
    return torch.linalg.lstsq(torch.cat(scaled), torch.cat(answers)).solution.mT


@pytest.mark.parametrize("shares", [[1.0, 1.0, 1.0], [3.0, 0.5, 1.0], [2.0, 0.0, 1.0]])
def test_it_is_least_squares_on_the_inputs(shares: list[float]) -> None:
    """For every weighting, for Linear and for Conv1D, which stores the transpose."""
    weights, inputs = drawn(0)
    wanted = least_squares(weights, inputs, shares)
    found = regmean(weights, weight=shares, grams=[gram_of(x) for x in inputs], alpha=1.0)
    turned = regmean([w.mT for w in weights], weight=shares, grams=[gram_of(x, 0) for x in inputs], alpha=1.0)
    assert torch.allclose(found, wanted, atol=1e-9)
    assert torch.allclose(turned.mT, wanted, atol=1e-9)
    average = sum(s * w for s, w in zip(shares, weights, strict=True)) / sum(shares)
    assert not torch.allclose(found, average, atol=0.1)


def test_alpha_shrinks_what_is_off_the_diagonal() -> None:
    """0 weighs every input alone; between, the ridge of the paper, as explicit matrices have it."""
    weights, inputs = drawn(1)
    grams = [gram_of(x) for x in inputs]
    sizes = [g.gram.diagonal() for g in grams]
    alone = sum(w * d for w, d in zip(weights, sizes, strict=True)) / sum(sizes)
    assert torch.allclose(regmean(weights, weight=[1.0] * 3, grams=grams, alpha=0.0), alone, atol=1e-12)
    shrunk = [0.9 * g.gram + 0.1 * torch.diag(d) for g, d in zip(grams, sizes, strict=True)]
    wanted = sum(w @ g for w, g in zip(weights, shrunk, strict=True)) @ torch.linalg.inv(sum(shrunk))
    assert torch.allclose(regmean(weights, weight=[1.0] * 3, grams=grams, alpha=0.9), wanted, atol=1e-10)


def test_it_moves_along_with_its_inputs() -> None:
    """W R^T of x -> R x for every invertible R when alpha is 1; with shrinkage for scales and permutations only."""
    weights, inputs = drawn(2)
    rng = torch.Generator().manual_seed(0)
    r = random_orthogonal((), 7, rng) @ torch.diag(torch.rand(7, generator=rng, dtype=torch.float64) + 0.3)
    scales = torch.diag(torch.tensor([1.0, 1e-4, 3.0, 1e3, 0.5, 2.0, 1.0], dtype=torch.float64))
    for alpha, g in ((1.0, r), (0.7, scales), (0.0, scales)):
        plain = regmean(weights, weight=[1.0] * 3, grams=[gram_of(x) for x in inputs], alpha=alpha)
        moved = [w @ torch.linalg.inv(g) for w in weights]
        found = regmean(moved, weight=[1.0] * 3, grams=[gram_of(x @ g.mT) for x in inputs], alpha=alpha)
        assert torch.allclose(found @ g, plain, atol=1e-8)


@pytest.mark.parametrize("dead", [0, 2])
def test_what_no_data_see_stays_the_average(dead: int) -> None:
    """Three inputs of rank seven and dead coordinates, stored in float32: least squares where there are data."""
    weights, inputs = drawn(3, rows=2)
    for x in inputs:
        x[:, :dead] = 0
    inputs[1], inputs[2] = inputs[0], inputs[0] * 2
    grams = [InputGram(gram_of(x).gram.float().double()) for x in inputs]
    found = regmean(weights, weight=[1.0] * 3, grams=grams, alpha=1.0)
    average = sum(weights) / 3
    seen = torch.linalg.svd(inputs[0])[2]
    # float32 Grams of condition 10 or so
    assert torch.allclose(found @ seen[2:].mT, average @ seen[2:].mT, atol=1e-4)
    assert torch.allclose(found[:, :dead], average[:, :dead], atol=1e-12)
    wanted = (weights[0] + weights[1] + 4 * weights[2]) / 6
    assert torch.allclose(found @ inputs[0].mT, wanted @ inputs[0].mT, atol=1e-4)


def test_other_tensors_are_averaged() -> None:
    """Whatever has no Gram, or has one of some models alone; dtypes are kept; weights must make sense."""
    weights, inputs = drawn(4)
    average = (weights[0] + 2 * weights[1] + weights[2]) / 4
    one = [gram_of(inputs[0]), None, gram_of(inputs[2])]
    for grams in (one, [None] * 3):
        assert torch.allclose(regmean(weights, weight=[1.0, 2.0, 1.0], grams=grams, alpha=0.9), average)
    small = [w.float() for w in weights]
    found = regmean(small, weight=[1.0] * 3, grams=[gram_of(x) for x in inputs], alpha=0.9)
    assert found.dtype == torch.float32
    assert all(torch.equal(w, v.float()) for w, v in zip(small, weights, strict=True))
    same = regmean([weights[0]] * 3, weight=[1.0] * 3, grams=[gram_of(x) for x in inputs], alpha=0.9)
    assert torch.allclose(same, weights[0], atol=1e-12)
    for weight, alpha, said in (([1.0, -1.0, 1.0], 0.9, "of at least 0"), ([0.0] * 3, 0.9, "one positive"),
                                ([1.0] * 3, 1.5, "`alpha` is 1.5")):  # fmt: skip
        with pytest.raises(IsomergeError, match=said):
            regmean(weights, weight=weight, grams=[None] * 3, alpha=alpha)


@pytest.mark.parametrize("name", ["vit", "gpt2"])
def test_from_files_it_is_least_squares_on_what_layers_read(name: str, tmp_path: Path) -> None:
    """Of real layers, Linear and Conv1D: on the rows that each model's layer is given, hooked here."""
    folders = [single(name, tmp_path / "a"), single(name, tmp_path / "b", 5)]
    models = [recognise(f) for f in folders]
    examples = [examples_for(folders[0], 30, seed, padded=False) for seed in (0, 1)]
    statistics = FusionStatistics.gathered(models, examples, ["regmean"], tmp_path)
    checked = 0
    for block in models[0].blocks:
        if not block.key.endswith(("1.output.dense.weight", "1.mlp.c_fc.weight", "1.attn.c_proj.weight")):
            continue
        weights, inputs = [], []
        for model, given in zip(models, examples, strict=True):
            module = load_module(model)
            path = parameter_names(module, model.spec)[block.canonical[0]].removesuffix(".weight")
            layer, seen = module.get_submodule(path), []
            layer.register_forward_pre_hook(lambda _m, x, seen=seen: seen.append(x[0].double().flatten(0, -2)))
            with torch.no_grad():
                module(**given.tensors)
            weights.append(layer.weight.detach().double())
            inputs.append(seen[0])
        turned = name == "gpt2"
        wanted = least_squares([w.mT if turned else w for w in weights], inputs, [1.0, 1.0])
        found = regmean(weights, weight=[1.0, 1.0], grams=statistics.grams(block), alpha=1.0)
        # Grams in float32, of condition 1e3
        assert torch.allclose(found.mT if turned else found, wanted, atol=1e-3 * float(wanted.abs().max()))
        checked += 1
    assert checked == (2 if name == "gpt2" else 1)

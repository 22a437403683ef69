"""REPAIR: planted variance collapse is undone, and the wanted statistics are met on the examples it saw."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fusion.test_regression import Router, damaged, pair, seen_by
from isomerge.errors import IsomergeError
from isomerge.fusion.forward.repair import Moments, repair
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.module_state import average
from isomerge.observe.live.modules import load_module
from isomerge.observe.stats.layer_sequence import find_order, matrix
from observe.test_sequence import Parallel, images
from observe.test_statistics import examples_for
from solve.disguises import single


def collapsed(module: nn.Module, examples: Examples) -> nn.Module:
    """A copy with every unit of every layer rescaled, and shifted where it has a bias; heads excepted."""
    found, rng = copy.deepcopy(module), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for group in find_order(module, examples).groups:
            for layer in group:
                part: Any = found.get_submodule(layer.path)
                if layer.head:
                    continue
                scale = torch.rand(len(matrix(part)), generator=rng) * 0.9 + 0.1
                matrix(part).mul_(scale[:, None])
                if part.bias is not None:
                    part.bias.mul_(scale).add_(torch.randn(len(scale), generator=rng))
    return found


@pytest.mark.parametrize("name", ["vit", "gpt2", "llama", "bert", "deberta-shared"])
def test_planted_collapse_is_undone(name: str, tmp_path: Path) -> None:
    """The weights come back, with biases and without, stored as rows or as columns."""
    folder = single(name, tmp_path / "m")
    module, examples = load_module(folder), examples_for(folder, 16)
    merged = collapsed(module, examples)
    found = repair(merged, [module, module], [1, 2], examples, batch_size=8)
    assert len(found.layers) >= 12
    for row in found.layers:
        assert 0.1 < row["before"] < 0.9
        assert row["shifted"] == (name != "llama")
        for new, old in zip(
            merged.get_submodule(row["layer"]).parameters(),
            module.get_submodule(row["layer"]).parameters(),
            strict=True,
        ):
            assert torch.allclose(new, old, rtol=0, atol=1e-4 * float(old.detach().abs().max())), row["layer"]


@pytest.mark.parametrize("name", ["vit", "gpt2", "llama"])
def test_statistics_are_met(name: str, tmp_path: Path) -> None:
    """On the examples that it saw, by hooks of the test's own and numpy, with unequal weights and padding."""
    a, b = pair(name, tmp_path, 0.7)
    ends, examples = [load_module(a), load_module(b)], examples_for(a, 20)
    merged = average(ends, [0.25, 0.75])
    old = copy.deepcopy(merged)
    found = repair(merged, ends, [1, 3], examples, batch_size=6)
    changed = {row["layer"] for row in found.layers}
    for path in [p for p in changed if "layers.1" in p or "h.1" in p]:
        one, two = (seen_by(end, examples, path, "out") for end in ends)
        x = seen_by(merged, examples, path, "out")
        wanted = 0.25 * one.std(0) + 0.75 * two.std(0)
        np.testing.assert_allclose(x.std(0), wanted, rtol=1e-4)
        mean, wanted = x.mean(0), 0.25 * one.mean(0) + 0.75 * two.mean(0)
        if name != "llama":
            np.testing.assert_allclose(mean, wanted, atol=1e-4 * np.abs(one).max())
        before = seen_by(old, examples, path, "out")
        assert np.abs(before.std(0) / x.std(0) - 1).max() > 0.01
    same = {n for n, p in merged.named_parameters() if torch.equal(p, old.get_parameter(n))}
    assert same == {n for n, _ in old.named_parameters() if n.rpartition(".")[0] not in changed}
    assert found.kept["classifier" if name == "vit" else "lm_head"]
    assert changed.isdisjoint(found.kept)


def test_dead_units_and_few_tokens() -> None:
    """A unit that is constant in the merge is shifted, not blown up; what nobody reads twice stays as it is."""
    module = Parallel()
    merged = copy.deepcopy(module)
    with torch.no_grad():
        merged.first.weight[2] = 0
    found = repair(merged, [module], [1], images(50), batch_size=9)
    row = next(r for r in found.layers if r["layer"] == "first")
    assert row["dead"] == 1
    assert not merged.first.weight[2].any()
    mean = seen_by_call(module, "first")[:, 2].mean()
    assert merged.first.bias[2].item() == pytest.approx(mean, abs=1e-5)
    assert found.kept == {"unused": "the first example does not reach it", "head": "no layer reads its outputs"}
    lonely = repair(copy.deepcopy(module), [module], [1], images(1))
    assert lonely.kept["first"] == "it reads too few tokens"
    assert [r["layer"] for r in lonely.layers] == ["twice"]


def seen_by_call(module: nn.Module, path: str) -> np.ndarray:
    """The outputs of a layer of `Parallel` on fifty images."""
    x = images(50).tensors["pixel_values"].flatten(1)
    with torch.no_grad():
        return module.get_submodule(path)(x).double().numpy()


def test_experts_count_their_own_tokens() -> None:
    """Statistics need no pairs of tokens, so experts are repaired too."""
    rng = torch.Generator().manual_seed(0)
    examples = Examples({"pixel_values": torch.randn(30, 6, 4, generator=rng)}, False)
    module = Router(1)
    merged = collapsed(module, examples)
    # what is given to the experts decides where tokens go
    for part in ("inner", "experts.2"):  # the first example reaches two experts
        merged.get_submodule(part).load_state_dict(module.get_submodule(part).state_dict())
    found = repair(merged, [module], [1], examples)
    reached = {"inner", *(f"experts.{k}" for k in range(3))} - found.kept.keys()
    assert {row["layer"] for row in found.layers} == reached
    assert len(reached) >= 3
    for new, old in zip(merged.parameters(), module.parameters(), strict=True):
        assert torch.allclose(new, old, atol=1e-5)


@pytest.mark.parametrize("sizes", [[100], [1, 99], [0, 30, 1, 69]])
def test_moments(sizes: list[int]) -> None:
    """Joined batches are one; a large mean does not hide a small deviation."""
    x = np.random.default_rng(0).normal(1e5, 1e-2, size=(100, 3))
    moments = Moments()
    for part in np.split(x, np.cumsum(sizes)[:-1]):
        moments.add(torch.from_numpy(part))
    assert moments.n == 100
    np.testing.assert_allclose(moments.mean.numpy(), x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.deviation.numpy(), x.std(0), rtol=1e-6)


def test_refusals(tmp_path: Path) -> None:
    """Weights, and activations that are no numbers."""
    folder = single("vit", tmp_path / "m")
    module, examples = load_module(folder), examples_for(folder, 4)
    with pytest.raises(IsomergeError, match="none may be negative"):
        repair(module, [module, module], [2, -1], examples)
    broken = damaged(module, examples)
    with torch.no_grad():
        broken.get_parameter("vit.layers.1.mlp.fc1.bias").fill_(float("nan"))
    with pytest.raises(IsomergeError, match=r"fc1 are not finite"):
        repair(copy.deepcopy(module), [module, broken], [1, 1], examples)

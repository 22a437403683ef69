"""Sequential regression: exact where it must be, the least-squares optimum on its own inputs, and better than the
average."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from isomerge.errors import IsomergeError
from isomerge.evidence.digits import example_models, held_out_digits, training_digits
from isomerge.evidence.law import random_turn, with_streams
from isomerge.fusion.forward.sequential_regression import default_ridge, regress, solve_ridge
from isomerge.fusion.regression import output_error, regress_with_control
from isomerge.models.recognised import recognise
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.module_state import average
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import evaluate, outputs_of
from isomerge.observe.stats.layer_sequence import find_order
from observe.aligned import aligned_module
from observe.test_sequence import Parallel, images
from observe.test_statistics import examples_for
from solve.disguises import perturb, single
from toys import load_toy, relative, write_toy


def logits(module: nn.Module, examples: Examples) -> torch.Tensor:
    """On all examples, where there is no padding."""
    with torch.no_grad():
        found = outputs_of(module, next(examples.batches(len(examples)))).logits
    mask = examples.tensors.get("attention_mask")
    return found if mask is None else found[mask == 1]


def pair(name: str, folder: Path, noise: float = 0.5) -> tuple[Path, Path]:
    """A toy and a noisy copy of it."""
    return single(name, folder / "a"), perturb(folder / "a", folder / "b", noise)


def damaged(module: nn.Module, examples: Examples) -> nn.Module:
    """A copy whose linear layers are noise."""
    found, rng = copy.deepcopy(module), torch.Generator().manual_seed(1)
    for group in find_order(module, examples).groups:
        for layer in group:
            for p in found.get_submodule(layer.path).parameters():
                p.data = torch.randn(p.shape, generator=rng) * 0.1
    return found


EVERY = ["vit", "gpt2", "llama", "t5-gated", "bert", "deberta-shared", "dinov2", "mixtral"]


@pytest.mark.parametrize("name", EVERY)
def test_equal_endpoints_come_back(name: str, tmp_path: Path) -> None:
    """From their average, and from layers that are noise: every target can be met exactly."""
    folder = single(name, tmp_path / "m")
    module, examples = load_module(folder), examples_for(folder, 60)
    wanted = logits(module, examples)
    if name in ("vit", "mixtral"):  # noisy attention would send tokens to other experts
        same = average([module, module], [0.5, 0.5])
        regress(same, [module, module], [1, 1], examples)
        assert relative(logits(same, examples), wanted) <= 1e-4
    if name == "mixtral":
        return
    healed = damaged(module, examples)
    assert relative(logits(healed, examples), wanted) > 0.1
    found = regress(healed, [module], [1], examples, ridge=0.0, batch_size=60)
    assert relative(logits(healed, examples), wanted) <= 1e-4
    assert all(row["after"] <= 1e-8 < row["before"] for row in found.layers)


def seen_by(module: nn.Module, examples: Examples, path: str, side: str) -> np.ndarray:
    """What a submodule is given or gives, float64, by a hook of the test's own."""
    found: list[Any] = []
    part = module.get_submodule(path)
    handle = (
        part.register_forward_pre_hook(lambda _, x: found.append(x[0]))
        if side == "in"
        else part.register_forward_hook(lambda _m, _x, y: found.append(y))
    )
    logits(module, examples)
    handle.remove()
    mask = examples.tensors.get("attention_mask")
    (x,) = found
    return (x.flatten(0, -2) if mask is None else x[mask == 1]).double().numpy()


LAYERS = {
    "vit": {
        "vit.layers.1.attention.k_proj": None,
        "vit.layers.1.attention.o_proj": "vit.layers.1.layernorm_after",
        "classifier": None,
    },
    "gpt2": {"transformer.h.1.attn.c_attn": None, "transformer.h.2.mlp.c_proj": "transformer.ln_f"},
    "llama": {
        "model.layers.1.mlp.up_proj": None,
        "model.layers.1.mlp.down_proj": "model.layers.2.input_layernorm",
    },
    "bert": {"bert.encoder.layer.1.output.dense": "bert.encoder.layer.1.output.LayerNorm"},
}
"""Layers with the norm that reads the stream that they add to."""


@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_is_the_least_squares_optimum(name: str, tmp_path: Path) -> None:
    """Against numpy's lstsq, on the inputs that a layer has in the final model, which later layers do not
    change."""
    a, b = pair(name, tmp_path)
    ends, examples = [load_module(a), load_module(b)], examples_for(a, 40)
    start, ridge = average(ends, [0.25, 0.75]), 0.01
    merged = copy.deepcopy(start)
    found = regress(merged, ends, [1, 3], examples, ridge=ridge, batch_size=15)
    for path, norm in LAYERS[name].items():
        place = (norm, "in") if norm else (path, "out")
        one, two = (seen_by(end, examples, *place) for end in ends)
        target = 0.25 * one + 0.75 * two
        if norm:
            target += seen_by(merged, examples, path, "out") - seen_by(merged, examples, norm, "in")
        x = seen_by(merged, examples, path, "in")
        (old, _), (weight, bias) = numbers(start, path), numbers(merged, path)
        d = (x.var(0) if bias is not None else np.square(x).mean(0)).mean()
        ones = [np.ones((len(x), 1))] if bias is not None else []
        rows = np.concatenate([x, *ones], 1)
        shrink = np.eye(x.shape[1], rows.shape[1]) * np.sqrt(len(x) * ridge * d)
        right = np.concatenate([target, np.sqrt(len(x) * ridge * d) * old.T])
        best = np.linalg.lstsq(np.concatenate([rows, shrink]), right, rcond=None)[0]
        fitted = np.concatenate([weight.T, *([bias[None]] if bias is not None else [])])
        assert np.abs(fitted - best).max() <= 1e-4 * np.abs(best).max()  # weights are stored in float32
        assert np.abs(fitted[: x.shape[1]] - old.T).max() > 0.01
        row = next(r for r in found.layers if r["layer"] == path)
        error = np.square(rows @ best - target).sum() / np.square(target - target.mean(0)).sum()
        assert row["after"] == pytest.approx(error, rel=1e-3)
        assert row["tokens"] == len(x)


def numbers(module: nn.Module, path: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Weight [outputs, inputs] and bias of a layer."""
    part: Any = module.get_submodule(path)
    weight = part.weight.detach().double().numpy()
    bias = None if part.bias is None else part.bias.detach().double().numpy()
    return (weight if isinstance(part, nn.Linear) else weight.T), bias


@pytest.mark.parametrize(("name", "most"), [("vit", 0.85), ("llama", 0.8), ("bert", 0.7)])
def test_closer_to_the_parents_than_the_average(name: str, most: float, tmp_path: Path) -> None:
    """On held-out inputs, by a margin (random models; measured .77, .71, .63)."""
    a, b = pair(name, tmp_path)
    ends = [load_module(a), load_module(b)]
    merged = average(ends, [0.5, 0.5])
    held_out = examples_for(a, 60, seed=1)
    before = output_error(merged, ends, [1, 1], held_out)
    regress(merged, ends, [1, 1], examples_for(a, 200), batch_size=100)
    after = output_error(merged, ends, [1, 1], held_out)
    assert after["error"] < most * before["error"]
    assert after["divergence"] < 0.9 * before["divergence"]


def test_digits_without_alignment() -> None:
    """Two trained classifiers from different seeds: their plain average guesses, 64 unlabelled images repair most
    of it."""
    ends = [load_module(folder) for folder in example_models()]
    fitted = Examples({"pixel_values": training_digits()[0]["pixel_values"][:64]}, False)
    test = Examples(dict(zip(("pixel_values", "labels"), held_out_digits(), strict=True)), True)
    merged = average(ends, [0.5, 0.5])
    before = evaluate(merged, test, 450)
    regress(merged, ends, [1, 1], fitted, batch_size=64)
    after = evaluate(merged, test, 450)
    assert before.accuracy is not None
    assert after.accuracy is not None
    assert before.accuracy < 0.3
    assert after.accuracy > 0.85


class Router(nn.Module):
    """Tokens go to one of three linear experts each, by numbers that differ between models."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.inner = nn.Linear(4, 4)
        self.direction = nn.Parameter(torch.randn(4, 3))
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 5)

    def forward(self, pixel_values: torch.Tensor) -> SimpleNamespace:
        """Top-1 routing."""
        x = torch.tanh(self.inner(pixel_values.flatten(0, 1)))
        chosen, y = (x @ self.direction).argmax(-1), torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            if bool((chosen == k).any()):
                y[chosen == k] = expert(x[chosen == k])
        return SimpleNamespace(logits=self.head(y.reshape(len(pixel_values), -1, 4).mean(1)))


def test_experts_keep_the_average() -> None:
    """They read other tokens in every model; what reads all tokens is regressed."""
    rng = torch.Generator().manual_seed(0)
    examples = Examples({"pixel_values": torch.randn(30, 6, 4, generator=rng)}, False)
    ends: list[nn.Module] = [Router(1), Router(2)]
    merged = average(ends, [0.5, 0.5])
    old = copy.deepcopy(merged)
    found = regress(merged, ends, [1, 1], examples, batch_size=8)
    assert {row["layer"] for row in found.layers} == {"inner", "head"}
    assert found.kept.keys() == {f"experts.{k}" for k in range(3)}
    for k in range(3):
        expert = f"experts.{k}"
        assert all(
            map(torch.equal, merged.get_submodule(expert).parameters(), old.get_submodule(expert).parameters())
        )
    assert not torch.equal(merged.get_parameter("head.weight"), old.get_parameter("head.weight"))


def test_a_layer_that_runs_twice() -> None:
    """It is regressed once, on all that it was given, and what comes after it sees the new weights."""
    one, two = Parallel(), Parallel()
    with torch.no_grad():
        for p in two.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    merged = average([one, two], [0.5, 0.5])
    before = output_error(merged, [one, two], [1, 1], images(200, 1))
    found = regress(merged, [one, two], [1, 1], images(200))
    row = next(r for r in found.layers if r["layer"] == "twice")
    assert row["tokens"] == 400
    assert row["after"] < row["before"]
    assert output_error(merged, [one, two], [1, 1], images(200, 1))["error"] < 0.9 * before["error"]


def test_padding_batches_and_weights(tmp_path: Path) -> None:
    """Padded tokens, the size of batches and the sum of weights change nothing; weight one for a model gives it
    back."""
    a, b = pair("llama", tmp_path)
    ends, examples = [load_module(a), load_module(b)], examples_for(a, 30)

    def fitted(given: Examples, weights: list[float], **how: Any) -> torch.Tensor:
        merged = average(ends, [w / sum(weights) for w in weights])
        regress(merged, ends, weights, given, **how)
        return logits(merged, examples)

    plain = fitted(examples, [1, 1])
    mask = examples.tensors["attention_mask"]
    other = examples.tensors["input_ids"].where(mask == 1, 3)
    assert not torch.equal(other, examples.tensors["input_ids"])
    assert (
        relative(fitted(replace(examples, tensors={**examples.tensors, "input_ids": other}), [1, 1]), plain) <= 1e-4
    )
    assert relative(fitted(examples, [7, 7], batch_size=13), plain) <= 1e-4
    assert relative(fitted(examples, [0, 2]), logits(ends[1], examples)) <= 1e-4
    assert relative(fitted(examples, [1, 3]), plain) > 1e-2


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 1.0])
def test_solve_ridge(ridge: float) -> None:
    """Against lstsq, with fewer rows than columns: the smallest step. Nothing is learned from zeros."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 9)), rng.normal(size=(5, 2))
    gram, cross = (torch.from_numpy(x.T @ z / 5) for z in (x, y))
    found = solve_ridge(gram, cross, ridge)
    size = np.sqrt(5 * ridge * np.diag(x.T @ x / 5).mean())
    best = np.linalg.lstsq(
        np.concatenate([x, size * np.eye(9)]), np.concatenate([y, np.zeros((9, 2))]), rcond=1e-12
    )[0]
    np.testing.assert_allclose(found.numpy(), best, atol=1e-9)
    assert not solve_ridge(torch.zeros(9, 9).double(), cross, ridge).any()


def test_control_beside_the_regression(tmp_path: Path) -> None:
    """A disguised twin: aligned, nothing is lost; the control says what the same data make of it as it is
    stored."""
    folder = single("vit", tmp_path / "a")
    toy, blocks = load_toy("vit", folder), load_toy("vit", folder).fresh()
    rng = torch.Generator().manual_seed(2)
    element = random_turn(with_streams(toy.spec, "largest"), toy.blocks, lambda x: blocks[x].double(), rng)
    element.act(blocks)
    twin = recognise(write_toy(toy, toy.named(blocks), tmp_path / "b"))
    anchor, examples = load_module(folder), examples_for(folder, 64)
    back = aligned_module(twin, element.inverse())
    asked: list[str] = []

    def stored() -> list[nn.Module]:
        asked.append("stored")
        return [anchor, load_module(twin)]

    merged, found, report = regress_with_control([anchor, back], stored, [1, 1], examples)
    assert (report["fitted"], report["measured"], report["held_out"], report["ridge"]) == (56, 8, True, 1e-2)
    assert asked == ["stored"]
    assert report["regression"]["error"] < 1e-3 < 0.1 < report["control"]["regression"]["error"]
    assert report["control"]["regression"]["error"] < report["control"]["average"]["error"]
    assert report["control"]["average"]["divergence"] > 1e-3
    assert relative(logits(merged, examples), logits(anchor, examples)) < 1e-2
    assert len(found.layers) == 19
    alone = regress_with_control([anchor, load_module(twin)], None, [1, 1], examples)[2]
    assert alone["control"] == {k: alone[k] for k in ("average", "regression")}
    assert alone["regression"] == pytest.approx(report["control"]["regression"])
    assert not regress_with_control([anchor, anchor], None, [1, 1], examples.head(9))[2]["held_out"]


def test_refusals(tmp_path: Path, toy: Callable) -> None:
    """Weights, ridge, and models that give no numbers."""
    folder = single("vit", tmp_path / "a")
    module, examples = load_module(folder), examples_for(folder, 4)
    for weights in ([1.0], [1, -1], [float("nan"), 1]):
        with pytest.raises(IsomergeError, match="2 numbers are needed"):
            regress(module, [module, module], weights, examples)
    with pytest.raises(IsomergeError, match=r"ridge -1.*at least 0"):
        regress(module, [module], [1], examples, ridge=-1.0)
    broken = copy.deepcopy(module)
    with torch.no_grad():
        broken.get_parameter("vit.layers.1.mlp.fc1.bias").fill_(float("inf"))
    with pytest.raises(IsomergeError, match=r"vit\.layers\.1\.mlp\.fc1 are not finite"):
        regress(copy.deepcopy(module), [module, broken], [1, 1], examples)
    assert default_ridge(255) == 10 * default_ridge(256)

"""Where stored tensors are in live modules: names, stacks, halves and transposes, with gradients to what is
stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import isomerge
from isomerge.errors import IsomergeError
from isomerge.models import conversions
from isomerge.models.conversions import conversion_of
from isomerge.models.recognised import recognise
from isomerge.observe.live.modules import load_module
from isomerge.observe.live.parameter_places import every_weight, places_of
from isomerge.observe.live.substitution import substituted
from isomerge.observe.losses import outputs_of
from isomerge.observe.stats.fisher_information import gather_fisher
from observe.test_modules import CONVERTED
from observe.test_statistics import examples_for, gathered
from solve.disguises import single
from toys import TRIED, outputs, relative

FEW = ["mixtral", "deepseek_v3", "dinov2-swiglu"]


@pytest.mark.parametrize("name", [n for n in CONVERTED if n in TRIED])
def test_places_are_where_transformers_puts_tensors(name: str, toy: Callable, tmp_path: Path) -> None:
    """Live tensors made of stored ones are the live ones, bit by bit; read back, the stored ones; written, another
    model's."""
    folders = [single(name, tmp_path / str(seed), seed) for seed in (0, 1)]
    models = [recognise(folder) for folder in folders]
    one, two = (load_module(model) for model in models)
    places = places_of(one, models[0])
    stored = [{c: m.read(s, torch.float32) for c, s in m.names.items()} for m in models]
    left = (
        stored[0].keys() - places.names.keys() - places.parts.keys()
    )  # layers that transformers does not load, counters
    ahead = name.endswith("-ahead")
    assert ahead or all(models[0].matches[models[0].names[c]].line.axes is None for c in left)
    stored = [{c: x for c, x in tensors.items() if c not in left} for tensors in stored]
    assert places.names.keys() | places.parts.keys() == stored[0].keys()
    weights, others = every_weight(one), every_weight(two)
    live = places.live(stored[0])
    assert {id(weights[n]) for n in live} == {id(x) for x in weights.values()}
    assert all(torch.equal(weights[n], x) for n, x in live.items())
    assert all(torch.equal(places.read(weights, c), x) for c, x in stored[0].items())
    with torch.no_grad():
        for canonical, x in stored[1].items():
            places.write(weights, canonical, x)
    assert all(torch.equal(x, others[n]) for n, x in weights.items())


@pytest.mark.parametrize("name", [n for n in CONVERTED if n in TRIED])
def test_large_tensors_are_where_all_their_numbers_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Followed axis by axis, as large tensors are, pieces are those of the numbers of all elements. Mutants: a corner
    from another run's axis, and axes in the stored tensor's order."""
    model = recognise(single(name, tmp_path / "m"))
    module, shapes = load_module(model), model.checkpoint.shapes
    at_once = conversions._followed(module, shapes)
    monkeypatch.setattr(conversions, "LARGE", 0)
    by_axis = conversions._followed(module, shapes)
    assert by_axis.whole == at_once.whole
    assert by_axis.fused.keys() == at_once.fused.keys()
    for live, pieces in at_once.fused.items():
        for (stored, piece), (other, same) in zip(pieces, by_axis.fused[live], strict=True):
            assert (stored, piece.span(1)) == (other, same.span(1))
            assert piece.elements is not None or piece == same


def test_a_layer_of_experts_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts of the sizes that people use, without their values: no more numbers than some rows have. A layer of
    Mixtral took 30 GB."""
    from transformers import MixtralConfig, MixtralForCausalLM

    with torch.device("meta"):
        module: nn.Module = MixtralForCausalLM(MixtralConfig(num_hidden_layers=2, vocab_size=100))
    experts = {"w1": (14336, 4096), "w2": (4096, 14336), "w3": (14336, 4096)}
    shapes = {
        f"model.layers.{layer}.block_sparse_moe.experts.{k}.{w}.weight": shape
        for layer in range(2)
        for k in range(8)
        for w, shape in experts.items()
    }
    counted, plain = [], torch.arange
    monkeypatch.setattr(torch, "arange", lambda *given, **how: counted.append(made := plain(*given, **how)) or made)
    found = conversion_of(module, shapes)
    monkeypatch.undo()
    assert sum(len(pieces) for pieces in found.fused.values()) == len(shapes)
    assert 0 < sum(x.numel() for x in counted) < 1 << 22


@pytest.mark.parametrize("name", [n for n in FEW if n in TRIED])
def test_gradients_reach_what_is_stored(name: str, tmp_path: Path) -> None:
    """A small step of all stored tensors changes the loss by what their gradients say, experts and halves among
    them."""
    folder = single(name, tmp_path / "m")
    model, batch = recognise(folder), next(examples_for(folder, 4, padded=False).batches(4))
    module = load_module(model, torch.float64)
    batch = {k: x.double() if x.is_floating_point() else x for k, x in batch.items()}
    places, rng = places_of(module, model), torch.Generator().manual_seed(0)
    stored = {c: model.read(s, torch.float64).requires_grad_() for c, s in model.names.items()}
    step = {
        c: torch.randn(x.shape, generator=rng, dtype=torch.float64) for c, x in stored.items() if c in places.parts
    }

    def loss(size: float) -> torch.Tensor:
        with substituted(module, places.live({c: x + size * step.get(c, 0.0) for c, x in stored.items()})):
            return outputs_of(module, batch).logits.log_softmax(-1)[..., 0].mean()

    loss(0.0).backward()
    gradients = {c: x.grad for c, x in stored.items()}
    found = sum(float((g * x).sum()) for c, x in step.items() if (g := gradients[c]) is not None)
    with torch.no_grad():
        wanted = float(loss(1e-4) - loss(-1e-4)) / 2e-4
    assert abs(wanted) > 1e-3
    assert found == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("name", [n for n in ("mixtral", "dinov2-swiglu") if n in TRIED])
def test_fused_models_are_learned(name: str, tmp_path: Path) -> None:
    """Learning moves the midpoint and keeps the function."""
    a, b = single(name, tmp_path / "a"), single(name, tmp_path / "b", 1)
    examples = examples_for(a, 12, padded=False)
    save_file(dict(examples.tensors), tmp_path / "data.safetensors")
    data = str(tmp_path / "data.safetensors")
    _, report = isomerge.align(
        b, onto=a, out=tmp_path / "out", learn=data, steps=3, batch_size=4, learn_target="distill", spaces="default"
    )
    history = report["streams"][0]["learned"]["history"]
    assert len({h["barrier"] for h in history}) > 1
    assert relative(outputs(tmp_path / "out"), outputs(b)) <= 1e-4


@pytest.mark.parametrize("name", [n for n in FEW if n in TRIED])
def test_statistics_of_fused_models(name: str, tmp_path: Path) -> None:
    """Activations are read outside experts; the Fisher of every stored tensor is there, that of a fused one in
    parts."""
    folder = single(name, tmp_path / "m")
    examples = examples_for(folder, 3, padded=False)
    model, statistics = gathered(folder, examples)
    assert statistics.activations.values
    assert not any("experts.0" in key for key in statistics.taps)
    module = load_module(model)
    fishers = gather_fisher(model, module, examples, labels="sampled", factors=False).fishers
    parts = places_of(module, model).parts
    blocks = {block.key: block for block in model.blocks}
    assert any(blocks[key].canonical[0] in parts and bool(x.any()) for key, x in fishers.items())
    assert {key for key, block in blocks.items() if block.canonical[0] in parts} <= fishers.keys()


def test_conversions_that_compute_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does more than move elements cannot be followed, and says so."""
    from transformers.core_model_loading import MergeModulelist

    model = recognise(single("mixtral", tmp_path / "m"))
    module, plain = load_module(model), MergeModulelist.convert

    def doubled(self: MergeModulelist, *given: object, **how: object) -> dict:
        return {name: 2 * x for name, x in plain(self, *given, **how).items()}  # type: ignore[arg-type]

    monkeypatch.setattr(MergeModulelist, "convert", doubled)
    with pytest.raises(IsomergeError, match=r"MixtralForCausalLM from .*cannot be followed: match by weights"):
        places_of(module, model)


def test_lost_parts_are_told(tmp_path: Path) -> None:
    """An expert alone makes no stack."""
    model = recognise(single("mixtral", tmp_path / "m"))
    places = places_of(load_module(model), model)
    name = next(iter(places.parts))
    with pytest.raises(IsomergeError, match="is missing"):
        places.live({name: model.read(model.names[name], torch.float32)})


def test_plain_modules_keep_their_names() -> None:
    """Nothing is stored, nothing is found."""
    from transformers import GPT2Config, GPT2Model

    module: nn.Module = GPT2Model(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11, n_positions=4))
    found = conversion_of(module, {"wte.weight": (11, 8), "other": (3,)})
    assert (found.whole, found.fused) == ({"wte.weight": "wte.weight"}, {})

"""Live modules: aligned, averaged, and back under a checkpoint's own names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file

import isomerge
from families.gpt import GPT_OF_THREE
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_turn, with_streams
from isomerge.models.recognised import recognise
from isomerge.observe.live.module_state import average, state_of
from isomerge.observe.live.modules import load_module
from observe.aligned import aligned_module
from observe.test_modules import CONVERTED
from solve.disguises import single, untied
from toys import TRIED, inputs, load_toy, overwrite, relative

pytestmark = pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here")


@pytest.mark.parametrize("name", ["vit", "gpt2-untied", "llama", "t5-gated", "bert", "deberta-conv"])
def test_aligned_module_is_what_apply_writes(name: str, tmp_path: Path) -> None:
    """The weights of the moved checkpoint, stage by stage, and the same function."""
    folder = single(name, tmp_path / "a")
    toy, model = load_toy(name, folder), recognise(folder)
    spec = with_streams(toy.spec, "declared" if name.startswith(("bert", "deberta")) else "largest")
    blocks, rng = toy.fresh(), torch.Generator().manual_seed(3)
    element = random_turn(spec, toy.blocks, lambda b: blocks[b].double(), rng, gains=True)
    isomerge.apply(element, folder, out=tmp_path / "moved")
    module = aligned_module(model, element)
    written = load_file(tmp_path / "moved" / "model.safetensors")
    state = state_of(module, model)
    assert all(torch.equal(state[stored], written[stored]) for stored in state)
    plain, given = load_module(folder), inputs(module.config)
    assert any(not torch.equal(a, b) for a, b in zip(module.parameters(), plain.parameters(), strict=True))
    given = {k: v.float() if v.is_floating_point() else v for k, v in given.items()}
    with torch.no_grad():
        assert relative(module(**given).logits, plain(**given).logits) <= 1e-3  # float32, condition 4
    assert all(map(torch.equal, aligned_module(model).parameters(), plain.parameters()))


@pytest.mark.parametrize(
    "name", ["vit", "gpt2", "gpt2-untied", "llama-biased", "bert", "deberta-conv", "t5-gated", "mt5", "deit"]
)
def test_state_is_what_is_stored(name: str, toy: Callable) -> None:
    """Every stored tensor, under its own name."""
    model = recognise(toy(name).folder)
    state = state_of(load_module(model, torch.float64), model)
    assert state.keys() == toy(name).stored.keys()
    assert all(torch.equal(state[n], t) for n, t in toy(name).stored.items())


def test_a_tied_head_that_is_stored_as_well(tmp_path: Path) -> None:
    """It follows the embeddings; what is no parameter is left out; an untied one has weights of its own."""
    folder = single("llama-tied", tmp_path / "m")
    found = load_file(folder / "model.safetensors")
    found["lm_head.weight"] = found["model.embed_tokens.weight"].clone()
    found["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    overwrite(folder, found)
    model = recognise(folder)
    module = load_module(model)
    with torch.no_grad():
        module.get_parameter("model.embed_tokens.weight").mul_(2)
    state = state_of(module, model)
    assert torch.equal(state["lm_head.weight"], 2 * found["lm_head.weight"])
    assert torch.equal(state["lm_head.weight"], state["model.embed_tokens.weight"])
    assert set(found) - set(state) == {"model.layers.0.self_attn.rotary_emb.inv_freq"}
    other = recognise(untied(single("gpt2", tmp_path / "g"), tmp_path / "untied"))
    state = state_of(aligned_module(other), other)
    assert state["lm_head.weight"].data_ptr() != state["transformer.wte.weight"].data_ptr()


def test_untied_models_have_two_tensors(tmp_path: Path) -> None:
    """A head that is untied when the model is recognised is not moved with the embeddings."""
    model = recognise(single("gpt2", tmp_path / "g"), untie=True)
    module = aligned_module(model)
    with torch.no_grad():
        module.get_parameter("lm_head.weight").zero_()
    state = state_of(module, model)
    assert not state["lm_head.weight"].any()
    assert module.get_parameter("transformer.wte.weight").any()
    assert state.keys() == set(model.names.values())


@pytest.mark.parametrize("name", [n for n in (*CONVERTED, "qwen3_vl_moe-published") if n in TRIED])
def test_fused_parameters_are_as_others(name: str, toy: Callable) -> None:
    """They come back under the names of the file, and what `apply` writes is the module that is moved."""
    model = recognise(toy(name).folder)
    state = state_of(load_module(model, torch.float64), model)
    stored = toy(name).stored
    apart = {n for n, t in stored.items() if not t.is_floating_point()}  # tables and counts are no weights
    assert state.keys() <= stored.keys()
    assert name.endswith("-ahead") or stored.keys() - state.keys() <= apart
    assert all(torch.equal(t, stored[n].to(t.dtype)) for n, t in state.items())  # routers' biases stay in float32


def test_fused_modules_are_moved(tmp_path: Path) -> None:
    """A mixture of experts, by random elements of all of its spaces."""
    folder = single("mixtral", tmp_path / "a")
    toy, model = load_toy("mixtral", folder), recognise(folder)
    blocks, rng = toy.fresh(), torch.Generator().manual_seed(3)
    spec = with_streams(toy.spec, "largest")
    element = random_turn(spec, toy.blocks, lambda b: blocks[b].double(), rng, gains=True)
    isomerge.apply(element, folder, out=tmp_path / "moved")
    state = state_of(aligned_module(model, element), model)
    written = load_file(tmp_path / "moved" / "model.safetensors")
    assert all(torch.equal(state[stored], written[stored]) for stored in written)


def test_parameters_without_a_tensor_are_refused(toy: Callable) -> None:
    """Of another shape, or not stored at all: nothing is left out without a word."""
    model = recognise(toy("gpt2").folder)
    other = tf.GPT2LMHeadModel(tf.GPT2Config(**{**GPT_OF_THREE, "vocab_size": GPT_OF_THREE["vocab_size"] + 4}))
    with pytest.raises(
        IsomergeError, match=r"transformer.wte.weight of shape \[71, 48\].*stores .*wte.weight of shape \[67, 48\]"
    ):
        state_of(other, model)
    deeper = tf.GPT2LMHeadModel(tf.GPT2Config(**{**GPT_OF_THREE, "n_layer": GPT_OF_THREE["n_layer"] + 1}))
    with pytest.raises(IsomergeError, match="stores no tensor for it"):
        state_of(deeper, model)


def test_average(tmp_path: Path) -> None:
    """Of parameters, by their shares; the models stay, ties stay."""
    folders = [single("gpt2", tmp_path / str(k), k) for k in range(3)]
    modules = [load_module(f) for f in folders]
    old = [{n: p.clone() for n, p in m.named_parameters()} for m in modules]
    shares = [0.5, 0.7, -0.2]
    merged = average(modules, shares)
    for name, p in merged.named_parameters():
        wanted = torch.stack([s * o[name].double() for s, o in zip(shares, old, strict=True)]).sum(0)
        assert torch.allclose(p.double(), wanted, atol=1e-6), name
    assert all(torch.equal(p, o[n]) for m, o in zip(modules, old, strict=True) for n, p in m.named_parameters())
    assert merged.get_parameter("lm_head.weight") is merged.get_parameter("transformer.wte.weight")

"""Specimens: small sizes that keep the ratios, tensors found in the module, float64 throughout, weights put
back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from depth import more
from isomerge.discovery import building
from isomerge.discovery.building import real_config, specimens
from isomerge.discovery.discover import check_reached
from isomerge.discovery.lines import LineFound, expression, find_lines
from isomerge.discovery.redundancy import TINY, tiny_specimen
from isomerge.discovery.shrinking import SCALES, is_in_stages, kind_of, shrunk
from isomerge.discovery.specimen import double_precision, places_of
from isomerge.errors import IsomergeError

CONFIG = {
    "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 40, "vocab_size": 50000,
    "intermediate_size": 11008, "max_position_embeddings": 8192, "pad_token_id": 49999, "num_experts": 16, "hidden_act": "silu",
    "layer_types": ["full"] * 20 + ["sliding"] * 20, "layer_norm_eps": 1e-5,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "stages"), [("swin", 2), *more(("segformer", 4))])
def test_stages_are_made_small(kind: str, stages: int) -> None:
    """Stages stay stages, of one layer each and wider than the first one; Swin's windows must be filled up, as they
    are of images that do not fit."""
    module = tiny_specimen(real_config({"model_type": kind}), 0, TINY).module
    config = module.config
    assert len(config.depths) == stages
    assert set(config.depths) == {1}
    assert sum(p.numel() for p in module.parameters()) < 5000
    if kind == "swin":
        assert config.image_size // config.patch_size % config.window_size
        assert config.hidden_size == 2 * config.embed_dim


def test_other_lists_of_depths_are_left() -> None:
    """Hiera pools its queries from stage to stage, and has no windows of one size."""
    assert not is_in_stages(real_config({"model_type": "hiera"}).to_dict())
    assert not is_in_stages(real_config({"model_type": "llama"}).to_dict())


@pytest.mark.parametrize("scale", SCALES)
def test_shrunk_keeps_what_fits_together(scale: Any) -> None:
    """Groups stay groups, heads divide the width, tokens stay in the vocabulary, every kind of layer is left."""
    small = shrunk(CONFIG, scale)
    assert small["num_attention_heads"] % small["num_key_value_heads"] == 0
    assert small["num_attention_heads"] > small["num_key_value_heads"] > 1
    assert small["hidden_size"] % small["num_attention_heads"] == 0
    assert small["pad_token_id"] < small["vocab_size"]
    assert len(small["layer_types"]) == small["num_hidden_layers"]
    assert set(small["layer_types"]) == {"full", "sliding"}
    assert (small["hidden_act"], small["layer_norm_eps"]) == ("silu", 1e-5)


def test_sizes_tell_axes_apart() -> None:
    """No two sizes of different kinds are equal in both specimens, and all differ between them."""
    one, two = (shrunk(CONFIG, scale) for scale in SCALES)
    keys = [k for k in CONFIG if kind_of(k, CONFIG)]
    assert len({(one[k], two[k]) for k in keys}) == len(keys) - 1  # experts and query heads may agree
    assert all(one[k] != two[k] for k in keys)


def test_every_kind_of_layer_is_seen() -> None:
    """A layer in eight of another kind would be in no specimen of two layers."""
    small = shrunk({**CONFIG, "attn_layer_period": 8, "sliding_window_pattern": 6, "moe_layer_freq": 1}, SCALES[0])
    assert (small["attn_layer_period"], small["sliding_window_pattern"], small["moe_layer_freq"]) == (2, 2, 1)


@pytest.mark.parametrize(("shared", "small"), [(1, 1), (32, 4)])
def test_one_key_for_all_or_for_each(shared: int, small: int) -> None:
    """Multi-query stays multi-query, and full attention full."""
    found = shrunk({**CONFIG, "num_key_value_heads": shared}, SCALES[0])
    assert found["num_key_value_heads"] == small
    assert found["num_attention_heads"] == 4


def test_unknown_width_is_refused() -> None:
    """Without a width nothing can be made small."""
    with pytest.raises(IsomergeError, match="no key for the width"):
        shrunk({"layers": 3, "feature_count": 12}, SCALES[0])


@pytest.mark.parametrize(
    ("lengths", "wanted"),
    [
        ((64, 72), "hidden_size"),
        ((256, 288), "4 * hidden_size"),
        ((16, 24), "hidden_size // num_attention_heads"),
        ((256, 216), "hidden_size * num_attention_heads"),
        ((160, 180), "hidden_size * ratio"),
        ((40, 57), None),
        ((64, 64), None),
    ],
)
def test_expressions(lengths: tuple[int, int], wanted: str | None) -> None:
    """What both configs say, and nothing that only one says."""
    one = {"hidden_size": 64, "num_attention_heads": 4, "ratio": 2.5}
    two = {"hidden_size": 72, "num_attention_heads": 3, "ratio": 2.5}
    assert expression(lengths, one, two) == wanted


def test_renamed_and_fused_tensors_are_found() -> None:
    """By their numbers: under another name, transposed, as one expert of many, as half of one."""
    fused = torch.randn(3, 8, 5, generator=torch.Generator().manual_seed(0))
    plain = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    stored = {
        "w1": fused[1, :4].clone(), "w3": fused[1, 4:].clone(), "all": fused[2].clone(), "old.gamma": plain.clone(),
        "turned": plain.mT.clone(), "stranger": torch.ones(4, 6), "steps": torch.zeros(2, dtype=torch.int64),
    }  # fmt: skip
    parameters = {"experts": fused, "new.weight": plain}
    found = places_of(stored, parameters)
    assert set(found) == {"w1", "w3", "all", "old.gamma", "turned"}
    for name, place in found.items():
        assert torch.equal(place.view(parameters[place.parameter]), stored[name])


def test_float64_throughout() -> None:
    """Casts to float32 are not carried out inside, and are again outside."""
    x = torch.tensor([1 / 3], dtype=torch.float64)
    with double_precision():
        parts = [
            x.float(),
            x.to(torch.float32),
            x.to(dtype=torch.float32),
            torch.softmax(x, 0, dtype=torch.float32),
        ]
        assert {part.dtype for part in parts} == {torch.float64}
        assert torch.zeros(1).dtype == torch.float64
    assert x.float().dtype == torch.float32
    assert torch.zeros(1).dtype == torch.float32


def test_a_specimen_is_what_it_was() -> None:
    """Other weights change the outputs while they are held, and no longer."""
    one, two = specimens(real_config({"model_type": "gpt2"}), 0)
    name = "transformer.h.0.mlp.c_fc.weight"
    assert one.change({name: one.stored[name] * 1.5}) > 1e-3
    assert one.change({}) == 0
    lines = {line.name: line for line in find_lines(one, two)}
    assert lines["h.{l}.attn.c_attn.weight"].out == 1  # Conv1D writes columns
    assert lines["wte.weight"].stack == ""
    assert lines["h.{l}.ln_1.bias"].stack == "h.{l}"


@pytest.mark.parametrize("name", ["blocks.{n}.layer.0.q.weight", "layers.{n}.mlp.2.weight"])
def test_numbers_that_do_not_grow_are_names(name: str) -> None:
    """Only what there is more of in the larger specimen is an index."""

    def fake(layers: int) -> Any:
        tensors = {name.replace("{n}", str(i)): torch.zeros(2, 2) for i in range(layers)}
        tensors |= {n.replace(".0.q", ".1.q").replace(".2.w", ".0.w"): t for n, t in tensors.items()}
        module = SimpleNamespace(named_modules=list)
        return SimpleNamespace(stored=tensors, keys={}, module=module, origins={}, prefix="")

    found = {line.name for line in find_lines(fake(2), fake(3))}
    assert name.replace("{n}", "{l}") in found
    assert len(found) == 2


def test_samples_are_taken_where_something_is_computed() -> None:
    """LLaVA reads its tower before the last layer: that one is in the weights, and no output depends on it."""

    def fake(layers: int) -> Any:
        tensors = {f"layers.{i}.{part}.weight": torch.zeros(2, 2) for i in range(layers) for part in "qk"}
        return SimpleNamespace(
            stored=tensors, keys={}, module=SimpleNamespace(named_modules=list), origins={}, prefix=""
        )

    used = {"layers.0.q.weight", "layers.0.k.weight", "layers.1.k.weight"}
    found = {line.name: line.samples[0] for line in find_lines(fake(3), fake(4), used)}
    assert found == {"layers.{l}.q.weight": "layers.1.q.weight", "layers.{l}.k.weight": "layers.1.k.weight"}
    assert find_lines(fake(3), fake(4))[0].samples[0] == "layers.2.q.weight"


def test_what_is_not_tiny_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that discovery does not know how to make small end in a sentence, not in hours."""
    monkeypatch.setattr(building, "LARGEST", 1000)
    with pytest.raises(IsomergeError, match=r"has more than 1,000 parameters \(Embedding has 131 by 64\)"):
        specimens(real_config({"model_type": "gpt2"}), 0)


def test_matrices_that_no_output_depends_on_are_refused() -> None:
    """Of a matrix that does nothing in any layer nothing is proven, nor of what is around it."""

    def line(name: str) -> LineFound:
        return LineFound(name, (name, name), ((2, 2), (3, 3)), "layers.{l}", 0, (name.replace("{l}", "0"),))

    lines = [line("layers.{l}.q.weight"), line("layers.{l}.v.weight")]
    known = {"layers.0.q.weight", "layers.0.v.weight"}
    check_reached(lines, known, known, "Toy")
    with pytest.raises(IsomergeError, match=r"no output of a tiny Toy depends on layers.{l}.q.weight"):
        check_reached(lines, known, {"layers.0.v.weight"}, "Toy")


def test_unknown_classes_are_refused() -> None:
    """What transformers has no code for cannot be run."""
    with pytest.raises(IsomergeError, match=r"cannot make a model of model_type 'nonesuch'"):
        real_config({"model_type": "nonesuch"})

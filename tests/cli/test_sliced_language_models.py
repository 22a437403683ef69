"""``slices`` of the language model in a model of images, against models whose layers were put in order by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
import yaml
from torch import nn

import isomerge as package
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.errors import IsomergeError
from isomerge.models.layers import Part, stack_layers
from raw_files import one_sentence
from toys import config_of, inputs, loaded, save_toy, tensors, without_chance

Layers = Callable[[Any], Any]
MODELS: dict[str, tuple[str, Layers]] = {
    "gemma3": ("language_model", lambda m: m.model.language_model),
    "llava": ("language_model", lambda m: m.model.language_model),
    "qwen2_vl": ("text_decoder", lambda m: m.model.language_model),
    "idefics2": ("text_model", lambda m: m.model.text_model),
}
"""Toys, two layers in each part; what recipes call their language models, and where these are in transformers' modules."""


def write(**content: Any) -> str:
    Path("r.yml").write_text(yaml.safe_dump({"merge_method": "passthrough", **content}, sort_keys=False))
    return "r.yml"


def slices(model: str, *spans: tuple[int, int]) -> dict[str, Any]:
    return {"slices": [{"sources": [{"model": model, "layer_range": list(span)}]} for span in spans]}


def rewritten(folder: str, made: dict[str, Any]) -> None:
    Path(folder, "config.json").write_text(json.dumps(made))


def logits(module: Any) -> torch.Tensor:
    given = {k: v.double() if v.is_floating_point() else v for k, v in inputs(module.config).items()}
    with torch.no_grad(), without_chance(module.config):
        return module(**given, use_cache=False).logits


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", MODELS)
def test_layers_are_those_of_a_stack_by_hand(name: str) -> None:
    """As one of several modules; and as plain slices, which only the language model has layers enough for. With the depth
    written beside the group, or lists over layers left as they were, transformers' module has other layers."""
    part, language = MODELS[name]
    save_toy(name, Path("a"))
    rest = {"models": [{"model": "a"}]}
    package.merge(
        write(modules={part: slices("a", (0, 2), (1, 2), (0, 2)), "multi_modal_projector": rest}), out="deep"
    )
    package.merge(write(**slices("deep", (3, 5), (1, 3))), out="plain")
    for out, order in (("deep", [0, 1, 1, 0, 1]), ("plain", [0, 1, 1, 1])):
        text = config_of(out)["text_config"]
        assert text["num_hidden_layers"] == len(order)
        assert {**config_of(out), "text_config": None} == {**config_of("a"), "text_config": None}
        by_hand = loaded("a")
        model = language(by_hand)
        if (kinds := getattr(model.config, "layer_types", None)) is not None:
            model.config.layer_types = [kinds[number] for number in order]
            assert text.get("layer_types", kinds[:1] * len(order)) == model.config.layer_types
        model.config.num_hidden_layers = len(order)
        model.layers = nn.ModuleList([model.layers[number] for number in order])
        torch.testing.assert_close(logits(loaded(out)), logits(by_hand), rtol=1e-9, atol=1e-9)
    own = {n: x for n, x in tensors(Path("a")).items() if ".layers." not in n or "vision" in n or "visual" in n}
    assert all(torch.equal(x, tensors(Path("plain"))[n]) for n, x in own.items())


def test_rules_of_numbers_are_written_out_in_the_group() -> None:
    """Also where the config is flat, as Qwen2-VL's of older days: what transformers makes of the rule for the language model
    goes with the layers."""
    save_toy("qwen2_vl", Path("a"))
    whole = config_of("a")
    text = {k: v for k, v in whole.pop("text_config").items() if k not in ("layer_types", "model_type")}
    text |= {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
    for made in ({**whole, "text_config": {**text, "model_type": "qwen2_vl_text"}}, {**text, **whole}):
        rewritten("a", made)
        base = open_checkpoint("a")
        view = stack_layers([(base, range(1, -1, -1))], part=Part("language_model", ("language_model.",)))
        changed = view.config.get("text_config", view.config)
        assert changed["layer_types"] == ["sliding_attention", "full_attention"]
        assert ("layer_types" in view.config) == ("text_config" not in made)


def test_depths_that_transformers_takes_by_default() -> None:
    """A group that says nothing of its depth has that of its class, and gets the new one."""
    save_toy("llava", Path("a"))
    base, depth = open_checkpoint("a"), tf.LlamaConfig().num_hidden_layers
    language = Part("language_model", ("language_model.",))
    deep = stack_layers([(base, range(2))] * (depth // 2), part=language)
    text = {k: v for k, v in deep.config["text_config"].items() if k != "num_hidden_layers"}
    silent = replace(deep, config={**deep.config, "text_config": text})
    assert stack_layers([(silent, range(3))], part=language).config["text_config"]["num_hidden_layers"] == 3


def test_what_is_refused() -> None:
    """In one sentence, with the model's own parts; a list of numbers of layers that nothing here knows how to cut; and parts
    whose layers are something by their numbers."""
    save_toy("gemma3", Path("a"))
    for recipe in (write(**slices("a", (0, 2))), write(**slices("a", (0, 1), (9, 10)))):
        with pytest.raises(IsomergeError) as error:
            package.merge(recipe, out="out")
        one_sentence(error.value, "`modules: {language_model: {slices: ...}}` (or vision_tower)")
    made = config_of("a")
    rewritten("a", {**made, "text_config": {**made["text_config"], "loud_layers": [1], "loud_kernels": [1]}})
    with pytest.raises(IsomergeError) as error:
        package.merge(write(modules={"language_model": slices("a", (1, 2))}), out="out")
    one_sentence(error.value, "single layers (loud_layers), by numbers that slices change")
    save_toy("modernvbert", Path("b"))
    with pytest.raises(IsomergeError, match="depends on its number"):
        package.merge(write(modules={"text_model": slices("b", (0, 1))}), out="out")
    assert not Path("out").exists()

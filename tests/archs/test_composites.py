"""Models made of others: names of all exports, configs that leave keys out, and parts that must agree."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers as tf
from safetensors.torch import save_file

import isomerge
from depth import EVERY
from isomerge.archs import expanded_texts, spec_for
from isomerge.errors import IsomergeError
from isomerge.models.compatible import check_compatible
from isomerge.models.recognised import recognise
from isomerge.symmetry.language.expressions import evaluate
from isomerge.symmetry.language.spec import coverage
from solve.disguises import disguise
from toys import Toy, config_of

COMPOSED = ["llava", "paligemma", "gemma3"] if EVERY else ["llava"]


def later(name: str) -> str:
    """What transformers 4.52 to 4.57 called a tensor of a multimodal model."""
    if name.startswith("language_model.lm_head"):
        return name.removeprefix("language_model.")
    name = name.replace("language_model.model.", "language_model.").replace(
        "vision_tower.", "vision_tower.vision_model."
    )
    return f"model.{name}"


def exported(model: Toy, folder: Path) -> Path:
    """The toy with the later names."""
    shutil.copytree(model.folder, folder)
    save_file(
        {later(n): t for n, t in model.stored.items()}, folder / "model.safetensors", metadata={"format": "pt"}
    )
    return folder


@pytest.mark.parametrize("name", COMPOSED)
def test_both_exports_are_one_model(name: str, toy: Callable[..., Toy], tmp_path: Path) -> None:
    """A disguised copy in the names of another version of transformers is recognised and aligned; names are its
    own."""
    one = toy(name)
    two = exported(one, tmp_path / "later")
    assert not set(recognise(two).checkpoint.tensors) & set(one.stored)
    assert recognise(two).names.keys() == recognise(one.folder).names.keys()
    moved = disguise(name, one.folder, tmp_path / "moved", 3)
    _, report = isomerge.align(moved, onto=two, out=tmp_path / "back")
    assert report["distance"]["after"] <= 1e-4 * report["distance"]["before"]
    assert set(recognise(tmp_path / "back").checkpoint.tensors) == set(one.stored)


NO_STREAM = {
    "SeamlessM4TModel": "the encoder's states stand in the coordinates of sinusoids",
    "SeamlessM4Tv2Model": "the encoder's states stand in the coordinates of sinusoids",
    "EmbeddingGemma2Model": "what is called a hidden state is projected",
    "EmbeddingGemma2TextModel": "what is called a hidden state is projected",
}


def test_base_classes_with_heads_give_out_no_stream() -> None:
    """Classes that specs call ``headed`` are base classes whose own outputs have no hidden state that may be turned,
    only their parts' have."""
    declared = {
        kind: name
        for name, (_, text) in expanded_texts().items()
        for line in text.splitlines()
        if line.startswith("headed ")
        for kind in line.split()[1:]
    }
    assert "CLIPModel" in declared
    for kind in declared if EVERY else ("CLIPModel",):
        model = getattr(tf, kind)
        fields = set(dataclasses.fields(_output_class(model))) if kind != "BarkModel" else set()
        assert kind.endswith("Model")
        states = {"last_hidden_state", "encoder_last_hidden_state", "pooler_output"}
        assert bool({f.name for f in fields} & states) == (kind in NO_STREAM)


def _output_class(model: type) -> type:
    """What a class of transformers gives out, from the annotation of its forward."""
    module, told = inspect.getmodule(model), str(inspect.signature(model.forward).return_annotation)
    return next(
        found for word in re.findall(r"\w+", told) if dataclasses.is_dataclass(found := getattr(module, word, None))
    )


# what the configs of well-known checkpoints say of their parts: keys of the default value are left out
SPARSE: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    (
        "llava",  # llava-hf/llava-1.5-7b-hf
        {
            "text_config": {"model_type": "llama", "vocab_size": 32064, "rms_norm_eps": 1e-5},
            "vision_config": {
                "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
            },
        },
        {"res": 4096, "kv": 32, "head": 128, "ff": 11008, "vocab": 32064, "vision_res": 1024, "vision_qk": 64, "project": 4096},
    ),
    (
        "llava_next",  # llava-hf/llava-v1.6-mistral-7b-hf
        {
            "text_config": {"model_type": "mistral", "intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 32064},
            "vision_config": {
                "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
            },
        },
        {"res": 4096, "kv": 8, "g": 4, "ff": 14336, "vision_ff": 4096},
    ),
    (
        "paligemma",  # google/paligemma-3b-pt-224
        {
            "text_config": {
                "model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8,
                "num_key_value_heads": 1, "vocab_size": 257216,
            },
            "vision_config": {
                "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16,
                "vision_use_head": False,
            },
        },
        {"res": 2048, "kv": 1, "g": 8, "head": 256, "vision_res": 1152, "vision_qk": 72},
    ),
    (
        "gemma3",  # google/gemma-3-4b-it
        {
            "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240},
            "vision_config": {
                "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16,
                "vision_use_head": False,
            },
        },
        {"res": 2560, "kv": 4, "g": 2, "head": 256, "vocab": 262208},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "config", "sizes"), SPARSE, ids=lambda x: x if isinstance(x, str) else "")
def test_keys_that_are_left_out(kind: str, config: dict[str, Any], sizes: dict[str, int]) -> None:
    """The sizes of the parts are those of the checkpoints' tensors."""
    found = spec_for({"model_type": kind, **config}).sizes
    assert {name: found[name] for name in sizes} == sizes


MADE_UP = {"pools", "apart", "aside", "shared", "normed", "read", "tokens", "heads", "words", "own"}
"""Names of texts, not of configs: of what a class is for, or has."""


def test_defaults_are_those_of_transformers() -> None:
    """Every ``default`` of a packaged text is the default of the class of its model."""
    tried = 0
    for kind, (_, text) in expanded_texts().items():
        if kind not in tf.CONFIG_MAPPING:
            continue
        theirs, ours = tf.CONFIG_MAPPING[kind]().to_dict(), {"model_type": kind}
        for found in re.finditer(r"^default (\w+) = (.+?)(?: if ((?:(?! else ).)+))?$", text, re.M):
            if found[1] in MADE_UP:
                continue
            if found[1] not in ours and (not found[3] or evaluate(found[3], ours)):
                ours[found[1]] = evaluate(found[2], ours)
                assert ours[found[1]] == theirs[found[1]], (kind, found[1])
                tried += 1
    assert tried > 20


def test_parts_must_agree(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """A key of a part is compared, under its full name; models of other parts are no pair."""
    one = toy("llava")
    config = config_of(one.folder)

    def changed(folder: str, part: str, **change: Any) -> Path:
        out = shutil.copytree(one.folder, tmp_path / folder)
        (out / "config.json").write_text(json.dumps({**config, part: {**config[part], **change}}))
        return out

    pairs = [
        (changed("eps", "text_config", rms_norm_eps=1e-3), "differ in config.json: text_config.rms_norm_eps is"),
        (changed("rope", "text_config", rope_parameters={"rope_theta": 5e5}), "text_config.rope is"),
        (changed("act", "vision_config", hidden_act="gelu_new"), "vision_config.hidden_act is"),
    ]
    for folder, says in pairs:
        with pytest.raises(IsomergeError, match=says):
            check_compatible(recognise(one.folder), [recognise(folder)])
    check_compatible(recognise(one.folder), [recognise(changed("kind", "text_config", model_type="mistral"))])


def test_a_part_without_a_spec() -> None:
    """The sentence says which part, and nothing is guessed."""
    with pytest.raises(
        IsomergeError, match=r"llava.spec, line \d+: config.json: vision_config is a 'swiftformer', for which"
    ):
        spec_for(
            {
                "model_type": "llava",
                "text_config": {"model_type": "llama"},
                "vision_config": {"model_type": "swiftformer"},
            }
        )


def test_unknown_tensors_are_named(toy: Callable[..., Toy]) -> None:
    """A convolution or a state space that no line describes stops the run by name; it is never averaged in
    silence."""
    one = toy("llava")
    shapes = {
        **{n: tuple(t.shape) for n, t in one.stored.items()},
        "language_model.model.layers.0.mixer.conv1d.weight": (4, 1, 4),
    }
    with pytest.raises(
        IsomergeError, match=r"mixer.conv1d.weight is not described by any line of the spec for llava"
    ):
        coverage(one.spec, shapes)


def test_texts_are_bound_whatever_the_class_is() -> None:
    """A config that names no class, or one that nobody knows, says nothing of heads, and is read; an ``in`` that is
    no list (`task in ("MaskedLM")`) refused the one and took the other for that head."""
    asked = [kind for kind, (_, text) in expanded_texts().items() if kind in tf.CONFIG_MAPPING and " task " in text]
    assert len(asked) > 5
    for kind in asked:
        config = {**tf.CONFIG_MAPPING[kind]().to_dict(), "model_type": kind}
        without = spec_for({**config, "architectures": None})
        unknown = spec_for({**config, "architectures": ["SomethingElse"]})
        assert without.sizes == unknown.sizes, kind

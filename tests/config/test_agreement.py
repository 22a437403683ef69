"""Two ``config.json`` of one function agree, whatever format each is written in; of two functions they do not."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from isomerge.archs import spec_for
from isomerge.config import agreement
from isomerge.config.agreement import (
    SUMMARISING,
    Difference,
    as_transformers_reads,
    config_value,
    disagreement,
    undeclared_differences,
)

BODY: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 40,
    "tie_word_embeddings": False,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16}
LONG = {"type": "longrope", "long_factor": [1.0] * 3, "short_factor": [2.0] * 3}
SECTIONS = {"type": "mrope", "mrope_section": [2, 1, 1]}
# configs as they were published before transformers 5, whose rotary positions, windows, activations or ties are
# said otherwise now
PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt_neox": {"rotary_emb_base": 10000, "rotary_pct": 0.25},
    "phi": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "phi3": {"rope_scaling": LONG, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 16},
    "stablelm": {"rope_theta": 10000, "partial_rotary_factor": 0.25},
    "qwen2": {"rope_theta": 1e6, "use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 28},
    "gemma": {"head_dim": 8, "hidden_act": "gelu", "hidden_activation": None},
    "gemma3_text": {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "head_dim": 8},
    "modernbert": {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "global_attn_every_n_layers": 3},
    "olmo3": {"rope_theta": 5e5, "rope_scaling": YARN, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    "glm4": {"rope_theta": 1e4, "partial_rotary_factor": 0.5, "head_dim": 8},
    "qwen2_vl": {"rope_theta": 1e6, "rope_scaling": SECTIONS},
    "t5": {"d_model": 48, "d_kv": 8, "d_ff": 40, "num_heads": 6, "feed_forward_proj": "gated-gelu"},
}  # fmt: skip
# one key of each that changes what is computed, and no shape
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("gpt_neox", {"rotary_emb_base": 20000}),
    ("phi3", {"rope_scaling": {**LONG, "type": "longrope", "long_factor": [3.0] * 3}}),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 2}),
    ("gemma", {"hidden_act": "relu", "hidden_activation": "relu"}),
    ("gemma3_text", {"rope_local_base_freq": 3e4}),
    ("modernbert", {"local_rope_theta": 160000.0}),
    ("olmo3", {"rope_scaling": None}),
    ("t5", {"feed_forward_proj": "gated-silu"}),
]


def published(kind: str, **changes: Any) -> dict[str, Any]:
    """A config in its old format."""
    return {"model_type": kind, **BODY, **PUBLISHED[kind], **changes}


def saved(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same config as the installed transformers saves it."""
    AutoConfig.for_model(**deepcopy(config)).save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


def keys(config: dict[str, Any]) -> list[str]:
    """What is compared."""
    return [*spec_for(config).config_keys, "tie_word_embeddings"]


@pytest.mark.parametrize("kind", PUBLISHED)
def test_an_old_and_a_new_format_agree(kind: str, tmp_path: Path) -> None:
    """A published config, and that of a fine-tune of it; as they stand, some key differs."""
    old = published(kind)
    new = saved(old, tmp_path)
    assert any(config_value(old, key) != config_value(new, key) for key in keys(old))
    assert disagreement(old, new, keys(old)) is None
    assert disagreement(new, old, keys(new)) is None
    assert old == published(kind)


@pytest.mark.parametrize(("kind", "change"), OTHERS, ids=lambda case: str(case))
def test_another_function_disagrees(kind: str, change: dict[str, Any], tmp_path: Path) -> None:
    """Old against new, and old against old."""
    for two in (saved(published(kind), tmp_path), published(kind)):
        assert disagreement(published(kind, **change), two, keys(two)) is not None


def test_a_key_left_out_is_its_default() -> None:
    """As transformers reads it: a Llama that says nothing of its base has 10000."""
    plain = {"model_type": "llama", **BODY}
    assert (
        disagreement(plain, {**plain, "rope_theta": 10000.0, "hidden_act": "silu"}, ["rope", "hidden_act"]) is None
    )
    found = disagreement(plain, {**plain, "hidden_act": "relu"}, ["rope", "hidden_act"])
    assert found is not None
    assert (found.key, found.mine, found.theirs) == ("hidden_act", "silu", "relu")


def test_infinity_is_said_in_two_ways(tmp_path: Path) -> None:
    """JSON has no word for it, so that transformers 5 writes one of its own."""
    old = {"model_type": "mamba2", "time_step_limit": [0.0, float("inf")]}
    new = saved(old, tmp_path)
    assert new["time_step_limit"] != old["time_step_limit"]
    assert disagreement(old, new, ["time_step_limit"]) is None
    assert disagreement({**old, "time_step_limit": [0.0, 0.1]}, new, ["time_step_limit"]) is not None


def test_what_transformers_cannot_read_is_compared_as_it_stands() -> None:
    """A key that either leaves out is not compared, rotary positions always are."""
    one = {"model_type": "nobody's", "act": "relu", "rope_theta": 5.0}
    assert as_transformers_reads(one) is None
    assert disagreement(one, {**one, "act": "gelu"}, ["act"]) == ("act", "relu", "gelu")
    assert disagreement(one, {"model_type": "nobody's", "rope_theta": 5}, ["act", "rope"]) is None
    assert disagreement(one, {"model_type": "nobody's"}, ["act", "rope"]) is not None


def test_a_summary_counts_where_one_is_read() -> None:
    """Of transformers' classes those that `SUMMARISING` names, and of no others do its keys decide."""
    for kind in ("convbert", "electra", "flaubert", "gpt2", "openai", "roformer", "xlm", "xlnet"):
        source = inspect.getsource(importlib.import_module(f"transformers.models.{kind}.modeling_{kind}"))
        parts = [part.partition("(")[::2] for part in source.split("\nclass ")[1:]]
        reading = [name for name, body in parts if re.search(r"SequenceSummary\(config\)", body)]
        assert reading
        assert all(name.endswith(SUMMARISING) for name in reading)
    for names, is_told in ((["GPT2LMHeadModel"], False), (["GPT2DoubleHeadsModel"], True), ([], True)):
        one = {"model_type": "gpt2", "architectures": names, "summary_type": "mean"}
        found = disagreement(one, {**one, "summary_type": "first"}, ["summary_type"])
        assert (found is not None) is is_told


def test_what_one_of_two_types_does_not_know_is_told() -> None:
    """A window, of a type of models that has one, beside one that has none; rotary positions are always compared."""
    plain = {"model_type": "llama", **BODY}
    other = {**plain, "model_type": "mistral", "sliding_window": 4}
    told = {each.key: each.theirs for each in undeclared_differences(plain, other, ["sliding_window", "rope"])}
    assert (told["model_type"], told["sliding_window"]) == ("mistral", 4)
    assert undeclared_differences(plain, {**plain, "sliding_window": 4}, ["sliding_window", "rope"]) == []


def test_names_of_classes_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers copies them word by word, and there may be very many; what else differs is told."""
    one = {"model_type": "vit", "hidden_act": "relu", "id2label": {"0": "a"}, "label2id": {"a": 0}}
    two = {**one, "hidden_act": "gelu", "id2label": {"0": "b", "1": "c"}, "label2id": {"b": 0, "c": 1}}
    seen: list[Any] = []
    monkeypatch.setattr(agreement, "as_transformers_reads", lambda c: seen.append(c) or as_transformers_reads(c))
    assert disagreement(one, two, ["hidden_act"]) == ("hidden_act", "relu", "gelu")
    (difference,) = undeclared_differences(one, two, [])
    assert difference == ("hidden_act", "relu", "gelu")
    assert undeclared_differences(one, {**two, "hidden_act": "relu"}, []) == []
    assert len(seen) == 4
    assert not any({"id2label", "label2id"} & config.keys() for config in seen)


def test_long_values_are_cut() -> None:
    """A sentence names both, however long they are."""
    difference = Difference("key", "x" * 10_000_000, 3)
    assert difference.sentence.startswith("key is 'xxx")
    assert difference.sentence.endswith("... and 3")
    assert len(difference.sentence) < 200

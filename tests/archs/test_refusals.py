"""What a spec text does not describe is refused by the config alone, in the text's own words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isomerge.archs import infer_model_types, spec_for
from isomerge.config.agreement import config_value, has_key
from isomerge.errors import IsomergeError
from isomerge.symmetry.blocks import leaves
from toys import Toy, config_of

CASES: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is not 1"),
    ("llama", {"rope_parameters": None, "partial_rotary_factor": 0.5}, "partial_rotary_factor is not 1"),
    ("falcon-grouped", {"parallel_attn": False}, "new_decoder_architecture without parallel_attn"),
    (
        "bloom",
        {"apply_residual_connection_post_layernorm": True},
        "apply_residual_connection_post_layernorm is true",
    ),
    ("electra", {"position_embedding_type": "relative_key"}, "position_embedding_type is not absolute"),
    ("electra", {"is_decoder": True, "add_cross_attention": True}, "cross-attention in ELECTRA"),
    ("albert", {"position_embedding_type": "relative_key"}, "position_embedding_type is not absolute"),
    ("marian", {"share_encoder_decoder_embeddings": False}, "two tables of embeddings"),
    ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq is not 1"),
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv is set"),
    ("nomic_bert", {"prenorm": True}, "prenorm is true"),
    ("nomic_bert", {"rotary_emb_fraction": 0.0}, "rotary_emb_fraction is not 1"),
    ("nomic_bert", {"rotary_emb_interleaved": True}, "rotary_emb_interleaved is true"),
    ("nomic_bert", {"moe_every_n_layers": 2}, "a mixture of experts"),
    ("xlm-roberta-xl", {"position_embedding_type": "relative_key"}, "position_embedding_type is not absolute"),
    ("whisper", {"use_weighted_layer_sum": True}, "use_weighted_layer_sum is true"),
]


@pytest.mark.parametrize(("name", "change", "says"), CASES, ids=lambda case: str(case))
def test_refused(name: str, change: dict[str, Any], says: str, toy: Callable[..., Toy]) -> None:
    """The toy's own config is described; with the change it is not."""
    config = config_of(toy(name).folder)
    spec_for(config)
    with pytest.raises(IsomergeError, match=f"config.json: .*{says}"):
        spec_for({**config, **change})


@pytest.mark.parametrize(
    ("name", "old", "pair", "rest"),
    [
        ("gpt_neox", {"rotary_pct": 0.25}, 1, 6), ("gpt_neox", {}, 1, 6),
        ("phi", {"partial_rotary_factor": 0.75}, 3, 2), ("phi", {}, 2, 4), ("stablelm", {"partial_rotary_factor": 0.25}, 1, 6), ("phi3", {}, 4, 0),
    ],
)  # fmt: skip
def test_partial_rotary_positions_of_old_configs(
    name: str, old: dict[str, float], pair: int, rest: int, toy: Callable[..., Toy]
) -> None:
    """Configs from before transformers 5 have the factor beside the other keys, or leave it at its default."""
    spec = spec_for({**config_of(toy(name).folder), "rope_parameters": None, **old})
    assert (spec.sizes["pair"], spec.sizes["rest"]) == (pair, rest)
    assert ("rest" in spec.spaces) == (rest > 0)


def test_blocks_of_length_zero_are_left_out(toy: Callable[..., Toy]) -> None:
    """They keep their number, so that shifts name the same block with them and without."""

    def numbers(name: str) -> list[int]:
        model = toy(name)
        block = next(b for b in model.blocks if "query_key_value.weight" in b.key)
        return [number for _, _, number in leaves(model.spec, block, model.fresh()[block])]

    assert numbers("gpt_neox") == [0, 1, 2, 3, 4]
    assert numbers("gpt_neox-full") == [0, 2, 4]


def test_keys_in_groups_are_compared() -> None:
    """``a.b`` is read from the group, and is unknown where group or key is missing."""
    config = {"text_config": {"hidden_act": "relu", "none": None}, "flat": 3}
    assert config_value(config, "text_config.hidden_act") == "relu"
    assert has_key(config, "text_config.hidden_act")
    assert has_key(config, "text_config.none")
    for key in ("text_config.missing", "missing.key", "flat.key"):
        assert config_value(config, key) is None
        assert not has_key(config, key)


def test_a_config_without_model_type(toy: Callable[..., Toy]) -> None:
    """The only spec that fits is taken, and none where several fit in different ways."""

    def inferred(name: str, prefix: str = "") -> list[str]:
        config = config_of(toy(name).folder)
        del config["model_type"]
        stored = {n: tuple(t.shape) for n, t in toy(name).stored.items() if n.startswith(prefix)}
        return infer_model_types(config, {n.removeprefix(prefix): shape for n, shape in stored.items()})

    assert inferred("bert") == ["bert"]
    assert inferred("bert", "bert.") == ["bert", "electra", "roberta"]  # bodies alike, with the same symmetries
    assert inferred("t5-gated") == ["t5"]
    assert inferred("gpt2") == ["gpt2"]
    with pytest.raises(
        IsomergeError, match=r"no model_type, and the specs of .*gemma, .*llama.* another way: add the"
    ):
        inferred("llama")

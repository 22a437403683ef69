"""Switches of a config that change what a block computes: the law for the toy with each, or a refusal in one
sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from depth import more
from families.detection import RESNET
from families.exaone import EXAONE_EYE
from families.vision_stages import SEGMENTED
from isomerge.errors import IsomergeError
from isomerge.models.compatible import check_compatible
from isomerge.models.recognised import recognise
from toys import TOYS, Toy, config_of, load_toy, outputs, randomise, relative, save_toy

HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
# toy, what is switched, and the groups of the spaces that follow from it
HELD: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("stablelm-parallel", {"qk_layernorm": True, "rope_parameters": HALF, "use_qkv_bias": True}, {"t": "Scale", "rt": "Scale"}),
    ("stablelm-parallel", {"qk_layernorm": True}, {"t": "Scale"}),
    ("mpt", {"attn_config": {"alibi": True, "clip_qkv": 0.5}}, {"qk": "SignedPerm", "ov": "SignedPerm"}),
    ("t5-gated", {"is_gated_act": False}, {}),
    ("t5-relu", {"dense_act_fn": "gelu"}, {}),
    ("imagegpt", {"tie_word_embeddings": True}, {}),  # the head is all embeddings but one
    ("minimax_m2", {"rope_parameters": HALF | {"partial_rotary_factor": 1.0}}, {}),  # goes before an older rotary_dim
    *more(
        ("sam", {"mask_decoder_config": {**SEGMENTED["mask_decoder_config"], "attention_downsample_rate": 1}}, {}),
        ("deepseek_v4", {"tie_word_embeddings": True}, {}),
        ("gemma4_text", {"head_dim": 16}, {}),  # all heads are as wide, and per_layer_config is written empty
        ("recurrent_gemma", {"head_dim": 16}, {}),
        ("table-transformer", {"position_embedding_type": "learned"}, {}),
        ("zaya", {"rope_parameters": {"hybrid": HALF, "hybrid_sliding": HALF}}, {}),
    ),
]  # fmt: skip
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("gpt_neox", {"head_dim": 6}, "head_dim is not hidden_size / num_attention_heads"),
    ("deepseek_v3", {"topk_group": 1}, "num_experts_per_tok is more than topk_group groups have"),
    (
        "deepseek_v3",
        {"n_shared_experts": 0},
        r"is empty: the spec for deepseek_v3 .* does not describe models without this part",
    ),
    *more(
        (
            "gemma3n_text",
            {"intermediate_size": [40, 41, 40, 40, 40, 40]},
            "intermediate_size differs between layers",
        ),
        ("beit-shared", {"use_mean_pooling": False}, "norms what a norm gave out"),
        ("segformer", {"num_encoder_blocks": 1}, "SegFormer with four stages"),
        (
            "zaya",
            {"rope_parameters": {"hybrid": HALF, "hybrid_sliding": {**HALF, "partial_rotary_factor": 1.0}}},
            "partial_rotary_factor differs",
        ),
        (
            "deepseek_v4",
            {"rope_parameters": {"main": HALF, "compress": {**HALF, "partial_rotary_factor": 1.0}}},
            "partial_rotary_factor differs",
        ),
    ),
]
# switches that no stored shape tells: two models that differ in one cannot be averaged
COMPARED: list[tuple[str, dict[str, Any]]] = [
    ("deberta-unshared", {"pooler_hidden_act": "relu"}),
    ("t5-gated", {"dense_act_fn": "relu"}),
    ("gemma", {"use_bidirectional_attention": True}),
    ("flaubert", {"pre_norm": True}),
    ("bert", {"is_decoder": True}),
    *more(
        ("detr", {"backbone_config": {**RESNET, "downsample_in_bottleneck": True}}),
        ("rt_detr", {"batch_norm_eps": 0.01}),
        ("modernbert-decoder", {"sliding_window": 2}),
        ("zamba2", {"hybrid_layer_ids": [3, 1]}),
        ("dpt", {"hidden_act": "relu"}),
        ("zamba", {"hidden_mamba_act": "relu"}),
        ("sam", {"mask_decoder_config": {**SEGMENTED["mask_decoder_config"], "hidden_act": "silu"}}),
        ("sam", {"prompt_encoder_config": {**SEGMENTED["prompt_encoder_config"], "image_size": 21}}),
        ("detr", {"backbone_config": {**RESNET, "hidden_act": "silu"}}),
        (
            "exaone4_5",
            {"vision_config": {**EXAONE_EYE, "rope_parameters": {"rope_type": "default", "rope_theta": 10.0}}},
        ),
    ),
]
SWITCHES = ("c", "rest", "t", "rt", "qk", "ov", "u", "eu", "du")


def switched(name: str, changes: dict[str, Any], folder: Path) -> Path:
    """A toy with other settings, saved."""
    plain = TOYS[name][0]()
    settings = {**deepcopy(plain.config.to_dict()), **changes}
    model = type(plain)(type(plain.config).from_dict(settings)).double().eval()
    randomise(model, 0)
    model.tie_weights()
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("name", "changes", "groups"), HELD, ids=lambda case: str(case)[:40])
def test_the_law_with_a_switch(name: str, changes: dict[str, Any], groups: dict[str, str], tmp_path: Path) -> None:
    """All spaces together leave what the model says."""
    toy = load_toy(name, switched(name, changes, tmp_path / "in"))
    found = {n: toy.spec.spaces[n].group_name for n in SWITCHES if n in toy.spec.spaces}
    assert groups.items() <= found.items()
    assert toy.law(None, tmp_path / "out").holds


@pytest.mark.parametrize(("name", "changes", "says"), REFUSED)
def test_a_switch_is_refused(name: str, changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    """In the spec's own words."""
    with pytest.raises(IsomergeError, match=says):
        load_toy(name, switched(name, changes, tmp_path))


@pytest.mark.parametrize(("name", "changes"), COMPARED, ids=lambda case: str(case))
def test_a_switch_is_compared(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Equal weights, other outputs: no pair."""
    one, two = save_toy(name, tmp_path / "one"), switched(name, changes, tmp_path / "two")
    assert relative(outputs(two), outputs(one)) > 1e-4
    with pytest.raises(IsomergeError, match=f"differ in config.json: {next(iter(changes))}"):
        check_compatible(recognise(one), [recognise(two)])


def test_a_key_left_out_is_the_default_of_its_class(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """A config that a spec cannot size as it stands is read as transformers reads it: here Qwen3's heads are 128
    wide."""
    whole = switched("qwen3", {"head_dim": 128}, tmp_path / "whole")
    config = config_of(whole)
    assert config.pop("head_dim") == 128
    (whole / "config.json").write_text(json.dumps(config))
    assert recognise(whole).spec.sizes["ov"] == 128
    plain = toy("qwen3").folder
    (tmp_path / "config.json").write_text(
        json.dumps({k: v for k, v in config_of(plain).items() if k != "hidden_size"})
    )
    (tmp_path / "model.safetensors").symlink_to(plain / "model.safetensors")
    with pytest.raises(IsomergeError, match=r"config.json: size res = hidden_size is None"):
        recognise(tmp_path)


def test_groups_of_experts_that_a_config_leaves_out(toy: Callable[..., Toy]) -> None:
    """DeepSeek-V3's class has eight groups; an expert outside of its group is another model's."""
    from isomerge.archs import spec_for

    config = {k: v for k, v in config_of(toy("deepseek_v3").folder).items() if k != "n_group"}
    assert spec_for({**config, "n_routed_experts": 16}).sizes["eg"] == 8
    assert spec_for({**config, "n_group": 1}).sizes["eg"] == 1


def test_a_decoder_alone_keeps_the_basis_that_it_hears_in(toy: Callable[..., Toy], tmp_path: Path) -> None:
    """Whisper's decoder, saved alone as an assistant's is, reads what the encoder of another file wrote."""
    import transformers as tf

    whole = toy("whisper")
    model = tf.WhisperForCausalLM(tf.WhisperConfig(**config_of(whole.folder)))
    model.save_pretrained(tmp_path)
    spec = recognise(tmp_path).spec
    assert {"res_in", "enf"} <= whole.spec.spaces.keys()
    assert not {"res_in", "enf"} & spec.spaces.keys()
    assert "res" in spec.spaces


PARTS: list[tuple[str, dict[str, dict[str, Any]], str]] = [
    ("qwen3_vl", {"vision_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 55.0}}}, "vision_config.rope"),
    *more(
        ("llama4", {"vision_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 55.0}}}, "vision_config.rope"),
        ("gemma3n", {"vision_config": {"rms_norm_eps": 0.01}}, "vision_config.rms_norm_eps"),
        ("gemma4_unified", {"audio_config": {"rms_norm_eps": 0.01}}, "audio_config.rms_norm_eps"),
        ("sam", {"prompt_encoder_config": {"image_embedding_size": 1}}, "prompt_encoder_config.image_embedding_size"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "says"), PARTS)
def test_a_switch_of_a_part_is_compared(
    name: str, changes: dict[str, dict[str, Any]], says: str, tmp_path: Path
) -> None:
    """The same for a key of a group, beside which the group keeps what it says."""
    one = save_toy(name, tmp_path / "one")
    whole = {part: {**config_of(one)[part], **new} for part, new in changes.items()}
    two = switched(name, whole, tmp_path / "two")
    assert relative(outputs(two), outputs(one)) > 1e-4
    with pytest.raises(IsomergeError, match=f"differ in config.json: {says}"):
        check_compatible(recognise(one), [recognise(two)])


def test_a_projector_behind_which_embeddings_are_of_another_width(tmp_path: Path) -> None:
    """BLIP-2 around an OPT whose embeddings are projected: transformers would read what is wider as rows of what is
    narrower."""
    changed = {**TOYS["blip-2"][0]().config.to_dict()["text_config"], "word_embed_proj_dim": 24}
    with pytest.raises(IsomergeError, match=r"word_embed_proj_dim is not text_config.hidden_size"):
        load_toy("blip-2", switched("blip-2", {"text_config": changed}, tmp_path))

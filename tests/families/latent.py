"""Latent attention by others than DeepSeek: Kimi, Ling, LongCat, A.X, Youtu."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers, drawn_words
from toy_models import behind, causal
from toy_settings import (
    DELTA,
    IMAGE,
    KNOWN,
    LANGUAGE_MODELS,
    LATENT,
    LATENT_EXPERTS,
    ROUTED_LATENT,
    Inputs,
)

KIMI_EYE: dict[str, Any] = {
    "hidden_size": 60, "intermediate_size": 44, "num_attention_heads": 5, "num_hidden_layers": 2, "patch_size": 2, "pos_emb_height": 6, "pos_emb_width": 6,
}  # fmt: skip
KIMI: dict[str, Any] = {
    "text_config": {**LATENT_EXPERTS, **KNOWN, "model_type": "deepseek_v3"}, "vision_config": KIMI_EYE, "projection_hidden_size": 60, "image_token_id": IMAGE,
    "video_token_id": 64, "vision_start_token_id": 65, "vision_end_token_id": 66, "tie_word_embeddings": False,
}  # fmt: skip
AXK2: dict[str, Any] = {
    **{k: v for k, v in LATENT_EXPERTS.items() if k != "first_k_dense_replace"}, **KNOWN, "mlp_layer_types": ["dense", "sparse"], "index_topk": 4,
    "index_head_dim": 8, "index_n_heads": 2, "gated_norm_rank": 5,
}  # fmt: skip


def _in_squares(_: Any, rng: torch.Generator) -> Inputs:
    """Images as square patches, all in a row."""
    return {
        "input_ids": drawn_words(rng, 4), "pixel_values": drawn_numbers(rng, 48, 3, 2, 2), "image_grid_thw": torch.tensor([[1, 4, 4]] * 3),
    }  # fmt: skip


LONGCAT: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "num_layers": 2, "num_attention_heads": 6, "ffn_hidden_size": 40, "q_lora_rank": 18,
    "kv_lora_rank": 14, "qk_nope_head_dim": 8, "qk_rope_head_dim": 6, "head_dim": 6, "v_head_dim": 7, "moe_topk": 3,
    "n_routed_experts": 4, "zero_expert_num": 3, "expert_ffn_hidden_size": 20, "max_position_embeddings": 32, "routed_scaling_factor": 1.5,
    "attention_bias": True, "router_bias": True,
}  # fmt: skip
KIMI_LINEAR: dict[str, Any] = {
    **{k: v for k, v in LATENT.items() if k != "q_lora_rank"}, "num_local_experts": 6, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "n_shared_experts": 2, "moe_intermediate_size": 20, "linear_head_dim": 5, "linear_num_heads": 3, "linear_conv_kernel_dim": 3,
    "layer_types": ["linear_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"], "attention_bias": True,
}  # fmt: skip
LING: dict[str, Any] = {
    **{k: v for k, v in LATENT.items() if k != "q_lora_rank"}, **DELTA, "num_local_experts": 6, "num_experts_per_tok": 2, "n_group": 2,
    "topk_group": 1, "n_shared_experts": 2, "moe_intermediate_size": 20, "head_dim": 6, "short_conv_kernel_size": 3,
    "mlp_layer_types": ["dense", "sparse"], "attention_bias": True, "num_mtp_layers": 0,
}  # fmt: skip

MORE_TOYS: dict[str, Toy] = {
    "youtu": (lambda: causal("Youtu", LATENT, attention_bias=True, pad_token_id=None), 1e-5),
    "axk1": (lambda: causal("AXK1", ROUTED_LATENT, mlp_layer_types=["dense", "sparse"]), 1e-5),
    "axk1-halves": (
        lambda: causal(
            "AXK1",
            ROUTED_LATENT,
            mlp_layer_types=["sparse", "sparse"],
            rope_interleave=False,
            n_group=1,
            topk_group=1,
        ),
        1e-5,
    ),
    "longcat_flash": (lambda: causal("LongcatFlash", LONGCAT), 1e-5),
    "longcat_flash-busy": (
        lambda: causal("LongcatFlash", LONGCAT, zero_expert_num=0, attention_bias=False, router_bias=False),
        1e-5,
    ),
    "kimi_linear": (lambda: causal("KimiLinear", KIMI_LINEAR), 1e-5),
    "kimi_linear-queried": (
        lambda: causal("KimiLinear", KIMI_LINEAR, q_lora_rank=18, n_group=1, topk_group=1),
        1e-5,
    ),
    "bailing_hybrid": (lambda: causal("BailingHybrid", LING), 1e-5),
    "bailing_hybrid-ahead": (lambda: behind(causal("BailingHybrid", LING)), 1e-5),
    "kimi_k25": (lambda: tf.Kimi_K25ForConditionalGeneration(tf.Kimi_K25Config(**KIMI)), 1e-5),
    "axk2": (lambda: tf.AXK2ForCausalLM(tf.AXK2Config(**AXK2)), 1e-5),
    "axk2-light": (
        lambda: tf.AXK2ForCausalLM(
            tf.AXK2Config(**{**AXK2, "n_group": None, "topk_group": None, "attention_bias": True})
        ),
        1e-5,
    ),
}

MORE_NAMES: dict[str, Saved] = {
    "Youtu": (LATENT, LANGUAGE_MODELS),
    "AXK1": ({**ROUTED_LATENT, "mlp_layer_types": ["dense", "sparse"]}, LANGUAGE_MODELS),
    "BailingHybrid": (LING, LANGUAGE_MODELS),
    "KimiLinear": (KIMI_LINEAR, LANGUAGE_MODELS),
    "LongcatFlash": (LONGCAT, LANGUAGE_MODELS),
    "Kimi_K25": (KIMI, ["ForConditionalGeneration"]),
    "AXK2": (AXK2, ["Model", "ForCausalLM", "ForSequenceClassification", "ForTokenClassification"]),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(["youtu", "longcat_flash-busy", "kimi_linear", "kimi_linear-queried", "bailing_hybrid"], "O"),
    **dict.fromkeys(["axk1", "axk1-halves", "longcat_flash"], "SignedPerm"),
    "bailing_hybrid-ahead": {},
    "kimi_k25": {"res": "O"},
    **{key: {"res": "Perm"} for key in ["axk2", "axk2-light"]},
}

INPUTS: dict[str, Drawn] = {
    "kimi_k25": _in_squares,
}

CONVERTED = {
    "axk1",
    "axk1-halves",
    "longcat_flash",
    "longcat_flash-busy",
    "kimi_linear",
    "kimi_linear-queried",
    "bailing_hybrid",
    "bailing_hybrid-ahead",
    "kimi_k25",
    "axk2",
    "axk2-light",
}

MUTANTS = [
    mutant(
        "kimi_linear",
        "fading of other keys",
        "dk",
        "dt_bias (dh dk) => dt_bias (dh other)",
        "size vocab => size other = dk\nsize vocab",
    ),
    mutant("youtu", "half-split pairs", "c", "[nope | pair c] => [nope | c pair]", "pair c' => c' pair"),
    mutant("youtu", "key without positions not dual", "nope", "[nope' | ov] => [nope | ov]"),
    mutant(
        "axk1",
        "experts scaled through the norm behind them",
        "n2",
        "post_mlp_layernorm.weight diag(res) => post_mlp_layernorm.weight diag(res n2)",
    ),
    mutant("axk1-halves", "interleaved pairs", "c", "[nope | c pair] => [nope | pair c]", "c' pair => pair c'"),
    mutant("longcat_flash", "a factor past the experts that do nothing", "n2", "and idle == 0 => "),
    mutant(
        "longcat_flash",
        "idle experts in the router's bias",
        "idle",
        "e_score_correction_bias [e | idle] => e_score_correction_bias [e | other]",
        "size ff = => size other = idle\nsize ff =",
    ),
    mutant(
        "longcat_flash-busy",
        "the second MLP behind the first norm",
        "n4",
        "mlps.{s:1}.up_proj.weight (dff du) (res n4)' => mlps.{s:1}.up_proj.weight (dff du) (res n2)'",
    ),
    mutant("longcat_flash", "half-split pairs", "c", "[nope | pair c] => [nope | c pair]", "pair c' => c' pair"),
    mutant("kimi_linear", "the shared key not dual", "rope", "[lat | rope'] => [lat | rope]"),
    mutant(
        "kimi_linear",
        "the delta rule past the gain",
        "n1",
        "self_attn.b_proj.weight dh (res n1)' => self_attn.b_proj.weight dh res'",
    ),
    mutant(
        "kimi_linear",
        "the delta rule writes other coordinates",
        "res",
        "o_proj.weight res (dh dv' ds') => o_proj.weight other (dh dv' ds')",
    ),
    mutant("kimi_linear-queried", "no factor in the reader", "qg", "(qlat qg)' => qlat'"),
    mutant(
        "bailing_hybrid",
        "the gate of the head forgotten",
        "h",
        "g_proj.weight h (res n1)' => g_proj.weight rows (res n1)'",
    ),
    mutant("bailing_hybrid", "half-split pairs", "c", "[nope | pair c] => [nope | c pair]", "pair c' => c' pair"),
    mutant(
        "bailing_hybrid",
        "the delta rule writes other coordinates",
        "res",
        "dense.weight res (dh dv' ds') => dense.weight other (dh dv' ds')",
    ),
    mutant(
        "kimi_k25",
        "halves of a head turned together",
        "vc",
        "[vh vpair vc | vh vpair vc' | vh vov] => [vh vc vpair | vh vc' vpair | vh vov]",
    ),
    mutant(
        "kimi_k25",
        "past the gain of the projector's norm",
        "np",
        "project (merge vres np)' => project (merge vres)'",
    ),
    mutant("kimi_k25", "neurons of the projector not permuted back", "project", "res project' => res other"),
    mutant(
        "axk2",
        "any matrix on gated values",
        "ov",
        "space ov: Perm[l, h] => space ov: GL[l, h]",
        "space os as scale: Scale[l, h, ov]\n => ",
        "[nope' | ov os] => [nope' | ov]",
        "(h ov' os') => (h ov')",
        "[nope | pair c | ov] => [nope | pair c | gates]",
        "size vocab => size gates = ov\nsize vocab",
    ),
    mutant(
        "axk2",
        "values without their gates",
        "ov",
        "[nope | pair c | ov] => [nope | pair c | gates]",
        "size vocab => size gates = ov\nsize vocab",
    ),
    mutant("axk2", "gates scaled with their values", "os", "[nope | pair c | ov] => [nope | pair c | ov os]"),
    mutant(
        "axk2",
        "the latent's gain where no norm is in front",
        "qg",
        "[qlat qg | qlat]' => [qlat qg | qlat qg]'",
    ),
    mutant("axk2", "signs through the gate of a norm", "res", "residual res: Perm => residual res: SignedPerm"),
    mutant("axk2", "neurons of the gate not permuted back", "gn", "W_up.weight res gn' => W_up.weight res other"),
    mutant(
        "axk2-light",
        "a dense layer's norm with a gate",
        "ggn",
        "W_down.weight ggn (res n2)' => W_down.weight neurons (res n2)'",
    ),
]

"""Constructors of tiny language models of the newest kinds, and of files that hold layers nothing runs (see
`toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import transformers as tf
from safetensors.torch import load_file, save_file

from toy_experts import LOCAL
from toy_hybrids import NEMOTRON_H
from toy_languages import ERNIE, GROUPED, HEADS, LATENT, MIXED, ROUTED_LATENT, TWO
from toy_models import LAYERS
from toy_seeing import GRID, IMAGE

TWO_ROPES: dict[str, Any] = {
    "full_attention": {"rope_type": "default", "rope_theta": 500.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
EXAONE: dict[str, Any] = {
    **GROUPED, "num_experts": 6, "num_shared_experts": 2, "layer_types": LAYERS, "sliding_window": 4,
}  # fmt: skip

MELLUM: dict[str, Any] = {
    **{k: v for k, v in MIXED.items() if k != "num_experts"}, "num_local_experts": 4, "layer_types": LAYERS, "sliding_window": 4, "attention_bias": True,
    "mlp_layer_types": ["dense", "sparse"], "rope_parameters": TWO_ROPES,
}  # fmt: skip
GLM5: dict[str, Any] = {
    **ROUTED_LATENT, "mlp_layer_types": ["dense", "sparse"], "index_topk": 4, "index_head_dim": 8, "index_n_heads": 2,
    "indexer_types": ["full", "shared"],
}  # fmt: skip
HY3: dict[str, Any] = {
    **MIXED, "num_shared_experts": 2, "attention_bias": True, "mlp_bias": True, "mlp_layer_types": ["dense", "sparse"],
}  # fmt: skip

MIMO: dict[str, Any] = {
    **TWO, "v_head_dim": 6, "head_dim": 10, "n_routed_experts": 6, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 20, "layer_types": LAYERS, "sliding_window": 4, "attention_bias": True,
    "num_attention_heads": 8, "num_key_value_heads": 2, "mlp_layer_types": ["dense", "sparse"],
    "rope_parameters": {kind: {**each, "partial_rotary_factor": 0.64} for kind, each in TWO_ROPES.items()},
}  # fmt: skip
MINIMAX: dict[str, Any] = {
    **TWO, "num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": ["linear_attention", "full_attention"], "block_size": 4,
    "full_attn_alpha_factor": 0.7, "linear_attn_beta_factor": 1.3, "mlp_alpha_factor": 1.2,
}  # fmt: skip

LONGCAT: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "num_layers": 2, "num_attention_heads": 6, "ffn_hidden_size": 40, "q_lora_rank": 18,
    "kv_lora_rank": 14, "qk_nope_head_dim": 8, "qk_rope_head_dim": 6, "head_dim": 6, "v_head_dim": 7, "moe_topk": 3,
    "n_routed_experts": 4, "zero_expert_num": 3, "expert_ffn_hidden_size": 20, "max_position_embeddings": 32, "routed_scaling_factor": 1.5,
    "attention_bias": True, "router_bias": True,
}  # fmt: skip

KIMI: dict[str, Any] = {
    **{k: v for k, v in LATENT.items() if k != "q_lora_rank"}, "num_local_experts": 6, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "n_shared_experts": 2, "moe_intermediate_size": 20, "linear_head_dim": 5, "linear_num_heads": 3, "linear_conv_kernel_dim": 3,
    "layer_types": ["linear_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"], "attention_bias": True,
}  # fmt: skip
LAGUNA: dict[str, Any] = {
    **MIXED, "shared_expert_intermediate_size": 24, "layer_types": LAYERS, "sliding_window": 4, "attention_bias": True,
    "num_attention_heads_per_layer": [8, 6], "mlp_layer_types": ["dense", "sparse"], "moe_routed_scaling_factor": 1.4,
    "moe_router_logit_softcapping": 2.0,
    "rope_parameters": {kind: {**each, "partial_rotary_factor": part} for (kind, each), part in zip(TWO_ROPES.items(), (0.5, 1.0), strict=True)},
}  # fmt: skip
FILTER: dict[str, Any] = {**LOCAL, "head_dim": 8, "sliding_window": 4, "pad_token_id": 0, "num_labels": 5}

DELTA: dict[str, Any] = {"layer_types": ["linear_attention", "full_attention"]}
OLMO: dict[str, Any] = {
    **HEADS, **DELTA, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 3,
    "linear_conv_kernel_dim": 3, "attention_bias": True,
}  # fmt: skip
LING: dict[str, Any] = {
    **{k: v for k, v in LATENT.items() if k != "q_lora_rank"}, **DELTA, "num_local_experts": 6, "num_experts_per_tok": 2, "n_group": 2,
    "topk_group": 1, "n_shared_experts": 2, "moe_intermediate_size": 20, "head_dim": 6, "short_conv_kernel_size": 3,
    "mlp_layer_types": ["dense", "sparse"], "attention_bias": True, "num_mtp_layers": 0,
}  # fmt: skip
HRM: dict[str, Any] = {
    **{k: v for k, v in TWO.items() if k != "num_key_value_heads"}, "H_cycles": 2, "L_cycles": 2, "embedding_scale": 3.0,
    "attention_bias": True, "mlp_bias": True,
}  # fmt: skip

SPEAKER: dict[str, Any] = {**TWO, "model_type": "exaone4", "layer_types": LAYERS, "sliding_window": 4}
EYE: dict[str, Any] = {
    **GRID, "num_heads": 6, "num_key_value_heads": 3, "hidden_size": 72, "out_hidden_size": 48, "intermediate_size": 44, "window_size": 8,
    "fullatt_block_indexes": [1],
}  # fmt: skip


def _causal(kind: str, settings: dict[str, Any], **changes: Any) -> Any:
    return getattr(tf, f"{kind}ForCausalLM")(getattr(tf, f"{kind}Config")(**{**settings, **changes}))


def ahead(model: Any, last: str, ahead: str, beside: Mapping[str, str]) -> Any:
    """A layer that predicts a further token stands in the file as well, as it is published; transformers leaves it
    out.

    Args:
        model: to be saved.
        last: what the names of its last layer begin with.
        ahead: what stands there in the names of the further layer's tensors.
        beside: the layer's other tensors, like which one each of them is; "fused" reads two streams.
    """

    def save(folder: Path) -> None:
        save_alone(folder)
        held = load_file(folder / "model.safetensors")
        fused = next(t for k, t in held.items() if k in ("lm_head.weight", "head.weight"))[:48].repeat(1, 2)
        more = {name: (fused if like == "fused" else held[like]).clone() for name, like in beside.items()}
        more |= {k.replace(last, ahead): t.clone() for k, t in held.items() if k.startswith(last)}
        save_file(held | more, folder / "model.safetensors", metadata={"format": "pt"})

    save_alone, model.save_pretrained = model.save_pretrained, save
    return model


def _behind(model: Any) -> Any:
    """The same, where the further layer is numbered like the others (DeepSeek, GLM)."""
    names = {f"{n}.weight": "model.norm.weight" for n in ("enorm", "hnorm", "shared_head.norm")}
    names |= {"eh_proj.weight": "fused", "embed_tokens.weight": "lm_head.weight"}
    beside = {f"model.layers.2.{name}": like for name, like in names.items()}
    return ahead(model, "model.layers.1.", "model.layers.2.", beside)


def _ernie_ahead() -> Any:
    names = {
        "mtp_emb_norm": "model.norm.weight",
        "mtp_hidden_norm": "model.norm.weight",
        "mtp_linear_proj": "fused",
    }
    beside = {f"model.{name}.0.weight": like for name, like in names.items()}
    model = _causal("Ernie4_5_Moe", ERNIE, moe_layer_start_index=0, moe_layer_end_index=0)
    return ahead(model, "model.layers.1.", "model.mtp_block.0.", beside)


def _exaone_ahead() -> Any:
    norms = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    beside = {f"mtp.{name}.weight": "model.norm.weight" for name in norms} | {"mtp.fc.weight": "fused"}
    return ahead(_causal("ExaoneMoe", EXAONE), "model.layers.1.", "mtp.layers.0.", beside)


def _exaone_seeing() -> Any:
    config = tf.Exaone4_5_Config(text_config=SPEAKER, vision_config=EYE, image_token_id=IMAGE, video_token_id=64)
    return tf.Exaone4_5_ForConditionalGeneration(config)


def _exaone_seeing_ahead() -> Any:
    norms, stem = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"), "model.language_model."
    beside = {f"mtp.{name}.weight": f"{stem}norm.weight" for name in norms} | {"mtp.fc.weight": "fused"}
    return ahead(_exaone_seeing(), f"{stem}layers.1.", "mtp.layers.0.", beside)


def _mellum_ahead() -> Any:
    norms = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    beside = {f"mtp.{name}.weight": "model.norm.weight" for name in norms} | {"mtp.fc.weight": "fused"}
    model = _causal("Mellum", MELLUM, attention_bias=False)
    return ahead(model, "model.layers.1.", "mtp.layers.0.", beside)


def _nemotron_ahead() -> Any:
    first = {f"mtp.layers.0.{name}.weight": "backbone.norm_f.weight" for name in ("enorm", "hnorm", "norm")}
    beside = {
        **first,
        "mtp.layers.0.eh_proj.weight": "fused",
        "mtp.layers.1.final_layernorm.weight": "backbone.norm_f.weight",
    }
    beside |= {f"mtp.layers.0.mixer.{x}_proj.weight": f"backbone.layers.1.mixer.{x}_proj.weight" for x in "qkvo"}
    model = _causal("NemotronH", NEMOTRON_H, moe_latent_size=22)
    return ahead(model, "backbone.layers.3.", "mtp.layers.1.", beside)


# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm is computed in float32.
NEWEST: dict[str, tuple[Callable[[], Any], float]] = {
    "ernie4_5_moe-ahead": (_ernie_ahead, 1e-5),
    "exaone_moe-ahead": (_exaone_ahead, 1e-5),
    "nemotron_h-ahead": (_nemotron_ahead, 1e-5),
    "nemotron_h-latent": (lambda: _causal("NemotronH", NEMOTRON_H, moe_latent_size=22, mlp_bias=True), 1e-5),
    "glm4_moe-ahead": (lambda: _behind(_causal("Glm4Moe", GROUPED, n_routed_experts=6, use_qk_norm=True)), 1e-5),
    "deepseek_v3-ahead": (
        lambda: _behind(_causal("DeepseekV3", ROUTED_LATENT, first_k_dense_replace=1, num_nextn_predict_layers=0)),
        1e-5,
    ),
    "mellum": (lambda: _causal("Mellum", MELLUM), 1e-5),
    "mellum-ahead": (_mellum_ahead, 1e-5),
    "glm_moe_dsa": (lambda: _causal("GlmMoeDsa", GLM5, rope_interleave=False), 1e-5),
    "axk1": (lambda: _causal("AXK1", ROUTED_LATENT, mlp_layer_types=["dense", "sparse"]), 1e-5),
    "axk1-halves": (lambda: _causal("AXK1", ROUTED_LATENT, mlp_layer_types=["sparse", "sparse"], rope_interleave=False, n_group=1, topk_group=1), 1e-5),
    "hy_v3": (lambda: _causal("HYV3", HY3), 1e-5),
    "mimo_v2_flash": (lambda: _causal("MiMoV2Flash", MIMO), 1e-5),
    "minimax": (lambda: _causal("MiniMax", MINIMAX), 1e-5),
    "longcat_flash": (lambda: _causal("LongcatFlash", LONGCAT), 1e-5),
    "longcat_flash-busy": (lambda: _causal("LongcatFlash", LONGCAT, zero_expert_num=0, attention_bias=False, router_bias=False), 1e-5),
    "kimi_linear": (lambda: _causal("KimiLinear", KIMI), 1e-5),
    "kimi_linear-queried": (lambda: _causal("KimiLinear", KIMI, q_lora_rank=18, n_group=1, topk_group=1), 1e-5),
    "laguna": (lambda: _causal("Laguna", LAGUNA), 1e-5),
    "laguna-each": (lambda: _causal("Laguna", LAGUNA, gating="per-element"), 1e-5),
    "openai_privacy_filter": (lambda: tf.OpenAIPrivacyFilterForTokenClassification(tf.OpenAIPrivacyFilterConfig(**FILTER)), 1e-5),
    "olmo_hybrid": (lambda: _causal("OlmoHybrid", OLMO), 1e-5),
    "olmo_hybrid-unturned": (lambda: _causal("OlmoHybrid", OLMO, rope_parameters={"rope_theta": None, "rope_type": "default"}, linear_value_head_dim=5), 1e-5),
    "bailing_hybrid": (lambda: _causal("BailingHybrid", LING), 1e-5),
    "hrm_text": (lambda: _causal("HrmText", HRM), 1e-5),
    "bailing_hybrid-ahead": (lambda: _behind(_causal("BailingHybrid", LING)), 1e-5),
    "exaone4_5": (_exaone_seeing, 1e-5),
    "exaone4_5-ahead": (_exaone_seeing_ahead, 1e-5),
}  # fmt: skip

PLAINLY = ("openai_privacy_filter", "exaone4_5")
CONVERTED_NEWEST = [name for name in NEWEST if not name.startswith(PLAINLY)]
"""Those that transformers stores otherwise than it computes with them."""

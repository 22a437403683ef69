"""Constructors of tiny language models that are kin of others, or whose texts stand alone (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import transformers as tf
from safetensors.torch import load_file, save_file

from toy_models import CAUSAL, LAYERS
from toy_seeing import GRID, IMAGE, SECTIONS

KNOWN: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TWO: dict[str, Any] = {**CAUSAL, **KNOWN, "num_hidden_layers": 2}
HEADS: dict[str, Any] = {k: v for k, v in TWO.items() if k != "head_dim"}
BIASED: dict[str, Any] = {**TWO, "attention_bias": True, "mlp_bias": True}
SCALED: dict[str, Any] = {
    **TWO,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "llama_4_scaling_beta": 0.4, "original_max_position_embeddings": 3,
    },
}  # fmt: skip
YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 3, "llama_4_scaling_beta": 0.4,
    "partial_rotary_factor": 6 / 14,
}  # fmt: skip
SWASH: dict[str, Any] = {
    **TWO, "layer_types": LAYERS, "sliding_window": 4, "layer_rope_theta": [10000.0, 0], "attention_bias": True,
}  # fmt: skip
MIXED: dict[str, Any] = {**TWO, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
GROUPED: dict[str, Any] = {
    **TWO, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 20, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "attention_bias": True,
}  # fmt: skip
LATENT: dict[str, Any] = {
    **HEADS, "num_key_value_heads": 6, "q_lora_rank": 18, "kv_lora_rank": 14, "qk_rope_head_dim": 6, "qk_nope_head_dim": 8, "v_head_dim": 7,
}  # fmt: skip
ROUTED_LATENT: dict[str, Any] = {
    **LATENT, "n_routed_experts": 12, "n_shared_experts": 2, "moe_intermediate_size": 10, "num_experts_per_tok": 4, "n_group": 4,
    "topk_group": 3, "attention_bias": True,
}  # fmt: skip
ERNIE: dict[str, Any] = {
    **HEADS, "use_bias": True, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 20, "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1, "moe_layer_end_index": 1, "moe_layer_interval": 1,
}  # fmt: skip
NEXT: dict[str, Any] = {
    **TWO, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 6, "linear_value_head_dim": 10, "linear_conv_kernel_dim": 3, "attention_bias": True,
}  # fmt: skip
NEXT_MIXED: dict[str, Any] = {
    **{k: v for k, v in NEXT.items() if k != "intermediate_size"}, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 20, "shared_expert_intermediate_size": 24,
}  # fmt: skip
SCOUT: dict[str, Any] = {
    **TWO, "intermediate_size": 20, "intermediate_size_mlp": 28, "num_local_experts": 4, "num_experts_per_tok": 1, "no_rope_layers": [1, 0],
    "interleave_moe_layer_step": 2, "attention_bias": True, "layer_types": ["chunked_attention", "full_attention"],
    "attention_chunk_size": 4, "floor_scale": 2, "attn_scale": 0.3,
}  # fmt: skip
SECTIONS_OF_A_PART: dict[str, Any] = {**SECTIONS, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}
EYES: dict[str, Any] = {
    **GRID,
    "hidden_size": 60,
    "out_hidden_size": 48,
    "intermediate_size": 44,
    "num_position_embeddings": 16,
}
PLAIN: dict[str, Any] = {k: v for k, v in HEADS.items() if k != "num_key_value_heads"}
EIGHT: dict[str, Any] = {
    "vocab_size": 67, "n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 32, "n_ctx": 32, "n_inner": 40, **KNOWN,
}  # fmt: skip
FIRST: dict[str, Any] = {"vocab_size": 67, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 32, **KNOWN}
NEAR, FULL = LAYERS
LENT: dict[str, Any] = {
    "num_hidden_layers": 6, "layer_types": [NEAR, NEAR, FULL] * 2, "sliding_window": 4, "num_kv_shared_layers": 3,
}  # fmt: skip
"""Keys and values of a layer that no other reads, of one that two others read, and of one that another one
reads."""
GEMMA3N: dict[str, Any] = {
    **TWO, **LENT, "hidden_size_per_layer_input": 7,
    "vocab_size_per_layer_input": 67, "altup_num_inputs": 3, "laurel_rank": 5, "activation_sparsity_pattern": [0.6, *[0.0] * 5],
    "intermediate_size": [40] * 6, "attention_bias": True,
}  # fmt: skip
GEMMA4: dict[str, Any] = {
    **TWO, **LENT, "global_head_dim": 16,
    "hidden_size_per_layer_input": 7, "vocab_size_per_layer_input": 67, "final_logit_softcapping": 3.0, "attention_bias": True,
}  # fmt: skip
GEMMA4_ROUTED: dict[str, Any] = {
    **TWO, "layer_types": LAYERS, "sliding_window": 4, "global_head_dim": 12, "hidden_size_per_layer_input": 0, "enable_moe_block": True,
    "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 20, "attention_k_eq_v": True, "num_global_key_value_heads": 3,
}  # fmt: skip
SHARED_SWASH: dict[str, Any] = {
    **HEADS, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 20, "shared_intermediate_size": 24,
    "layer_types": LAYERS, "sliding_window": 4, "layer_rope_theta": [10000.0, 0], "attention_bias": True,
}  # fmt: skip
AFMOE: dict[str, Any] = {
    **MIXED, "num_shared_experts": 2, "num_dense_layers": 1, "layer_types": LAYERS, "sliding_window": 4, "mup_enabled": True,
    "attention_bias": True,
}  # fmt: skip
COMMANDED: dict[str, Any] = {
    **{k: v for k, v in MIXED.items() if k != "tie_word_embeddings"}, "intermediate_size": 20, "num_shared_experts": 2,
    "layer_types": LAYERS, "sliding_window": 4, "attention_bias": True, "mlp_layer_types": ["dense", "sparse"], "prefix_dense_intermediate_size": 28,
}  # fmt: skip
JET: dict[str, Any] = {
    **{k: v for k, v in TWO.items() if k not in ("head_dim", "num_attention_heads")}, "kv_channels": 8, "num_key_value_heads": 3,
    "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
SPOKEN_MODERN: dict[str, Any] = {
    **PLAIN, "layer_types": LAYERS, "local_attention": 8, "attention_bias": True, "mlp_bias": True, "norm_bias": True,
    "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip


def _causal(kind: str, settings: dict[str, Any], **changes: Any) -> Any:
    return getattr(tf, f"{kind}ForCausalLM")(getattr(tf, f"{kind}Config")(**{**settings, **changes}))


def _llama(kind: str, settings: dict[str, Any]) -> Any:
    """Of model types that transformers runs as Llama, and gives a config alone."""
    return tf.LlamaForCausalLM(getattr(tf, f"{kind}Config")(**settings))


def _seeing(kind: str, text: dict[str, Any], **vision: Any) -> Any:
    config = getattr(tf, f"{kind}Config")(
        text_config=text, vision_config={**EYES, **vision}, image_token_id=IMAGE, video_token_id=64, vision_start_token_id=65,
        vision_end_token_id=66, tie_word_embeddings=False,
    )  # fmt: skip
    return getattr(tf, f"{kind}ForConditionalGeneration")(config)


def _llama4() -> Any:
    vision = {
        "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 240, "image_size": 8, "patch_size": 2,
        "projector_input_dim": 22, "projector_output_dim": 22, "vision_output_dim": 22,
    }  # fmt: skip
    config = tf.Llama4Config(
        text_config=SCOUT, vision_config=vision, image_token_index=IMAGE, mm_tokens_per_image=4
    )
    return tf.Llama4ForConditionalGeneration(config)


def _fused() -> Any:
    """Experts in one tensor, as transformers holds them and Qwen publishes them."""
    model: Any = tf.Qwen3_5MoeForCausalLM(tf.Qwen3_5MoeTextConfig(**NEXT_MIXED))
    model.save_pretrained = partial(model.save_pretrained, save_original_format=False)
    return model


def _published() -> Any:
    """Qwen3-VL-MoE as Qwen published it: rows and columns of the experts are exchanged."""
    model: Any = _seeing(
        "Qwen3VLMoe", {**MIXED, "rope_parameters": SECTIONS, "attention_bias": True}, deepstack_visual_indexes=[0]
    )

    def save(folder: Path) -> None:
        save_held(folder)
        held = load_file(folder / "model.safetensors")
        turned = {k: t.mT.contiguous() if ".experts." in k else t for k, t in held.items()}
        save_file(turned, folder / "model.safetensors", metadata={"format": "pt"})

    save_held, model.save_pretrained = model.save_pretrained, save
    return model


def _ahead() -> Any:
    """A layer that predicts a further token stands beside the others in the file; transformers leaves it out."""
    model: Any = tf.Qwen3_5ForCausalLM(tf.Qwen3_5TextConfig(**NEXT))

    def save(folder: Path) -> None:
        save_alone(folder)
        held = load_file(folder / "model.safetensors")
        norms = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
        mtp = {f"mtp.{n}.weight": held["model.norm.weight"] + i for i, n in enumerate(norms)}
        mtp["mtp.fc.weight"] = held["lm_head.weight"][:48].repeat(1, 2)
        last = {k: t.clone() for k, t in held.items() if k.startswith("model.layers.1.") and "bias" not in k}
        mtp |= {k.replace("model.layers.1.", "mtp.layers.0."): t for k, t in last.items()}
        save_file(held | mtp, folder / "model.safetensors", metadata={"format": "pt"})

    save_alone, model.save_pretrained = model.save_pretrained, save
    return model


# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm is computed in float32.
LANGUAGES: dict[str, tuple[Callable[[], Any], float]] = {
    "ministral": (lambda: _causal("Ministral", TWO, layer_types=LAYERS, sliding_window=4), 1e-5),
    "ministral3": (lambda: _causal("Ministral3", SCALED), 1e-5),
    "cwm": (lambda: _causal("Cwm", TWO, layer_types=LAYERS, sliding_window=4), 1e-5),
    "internlm3": (lambda: _llama("InternLM3", BIASED), 1e-5),
    "iquestcoder": (lambda: _llama("IQuestCoder", TWO), 1e-5),
    "hyperclovax": (lambda: _causal("HyperCLOVAX", BIASED, logits_scaling=0.5, residual_multiplier=0.7), 1e-5),
    "granite_swa": (lambda: _causal("GraniteSWA", SWASH, mlp_bias=True), 1e-5),
    "eurobert": (lambda: tf.EuroBertForMaskedLM(tf.EuroBertConfig(**BIASED)), 1e-5),
    "helium": (lambda: _causal("Helium", BIASED), 1e-5),
    "vaultgemma": (lambda: _causal("VaultGemma", TWO, layer_types=LAYERS, sliding_window=4), 1e-5),
    "jais2": (lambda: _causal("Jais2", BIASED), 1e-9),
    "hunyuan_v1_dense": (lambda: _causal("HunYuanDenseV1", TWO, attention_bias=True), 1e-5),
    "nanochat": (lambda: _causal("NanoChat", TWO), 1e-5),
    "olmo": (lambda: _causal("Olmo", HEADS, attention_bias=True), 1e-5),
    "olmo-clipped": (lambda: _causal("Olmo", HEADS, attention_bias=True, clip_qkv=0.5), 1e-5),
    "flex_olmo": (lambda: _causal("FlexOlmo", HEADS, num_experts=4, num_experts_per_tok=2, attention_bias=True), 1e-5),
    "dots1": (lambda: _causal("Dots1", GROUPED, n_routed_experts=6), 1e-5),
    "solar_open": (lambda: _causal("SolarOpen", {k: v for k, v in GROUPED.items() if k != "first_k_dense_replace"}, n_routed_experts=6), 1e-5),
    "exaone_moe": (lambda: _causal("ExaoneMoe", GROUPED, num_experts=6, num_shared_experts=2, layer_types=LAYERS, sliding_window=4), 1e-5),
    "hunyuan_v1_moe": (lambda: _causal("HunYuanMoEV1", TWO, num_experts=4, moe_topk=2, attention_bias=True), 1e-5),
    "ernie4_5_moe": (lambda: _causal("Ernie4_5_Moe", ERNIE), 1e-5),
    "minimax_m2": (lambda: _causal("MiniMaxM2", TWO, num_local_experts=4, num_experts_per_tok=2, rotary_dim=4), 1e-5),
    "qwen3_5_text": (lambda: tf.Qwen3_5ForCausalLM(tf.Qwen3_5TextConfig(**NEXT)), 1e-5),
    "qwen3_5_moe_text": (lambda: tf.Qwen3_5MoeForCausalLM(tf.Qwen3_5MoeTextConfig(**NEXT_MIXED)), 1e-5),
    "qwen3_5_moe_text-fused": (_fused, 1e-5),
    "qwen3_vl_moe": (lambda: _seeing("Qwen3VLMoe", {**MIXED, "rope_parameters": SECTIONS, "attention_bias": True}, deepstack_visual_indexes=[0]), 1e-5),
    "qwen3_vl_moe-published": (_published, 1e-5),
    "qwen3_5": (lambda: _seeing("Qwen3_5", {**NEXT, "rope_parameters": SECTIONS_OF_A_PART}), 1e-5),
    "qwen3_5_moe": (lambda: _seeing("Qwen3_5Moe", {**NEXT_MIXED, "rope_parameters": SECTIONS_OF_A_PART}), 2e-5),
    "llama4_text": (lambda: tf.Llama4ForCausalLM(tf.Llama4TextConfig(**SCOUT)), 1e-5),
    "llama4_text-plain": (lambda: tf.Llama4ForCausalLM(tf.Llama4TextConfig(**SCOUT, use_qk_norm=False)), 1e-5),
    "codegen": (lambda: tf.CodeGenForCausalLM(tf.CodeGenConfig(**EIGHT, rotary_dim=4)), 1e-5),
    "persimmon": (lambda: _causal("Persimmon", PLAIN), 1e-5),
    "persimmon-plain": (lambda: _causal("Persimmon", PLAIN, qk_layernorm=False), 1e-5),
    "biogpt": (lambda: tf.BioGptForCausalLM(tf.BioGptConfig(**PLAIN)), 1e-9),
    "gemma3n_text": (lambda: tf.Gemma3nForCausalLM(tf.Gemma3nTextConfig(**GEMMA3N)), 1e-5),
    "gemma4_text": (lambda: tf.Gemma4ForCausalLM(tf.Gemma4TextConfig(**GEMMA4)), 1e-5),
    "gemma4_text-routed": (lambda: tf.Gemma4ForCausalLM(tf.Gemma4TextConfig(**GEMMA4_ROUTED)), 1e-5),
    "qwen3_5_text-ahead": (_ahead, 1e-5),
    "gpt_neox_japanese": (lambda: _causal("GPTNeoXJapanese", PLAIN, intermediate_multiple_size=2), 1e-5),
    "openai-gpt": (lambda: tf.OpenAIGPTLMHeadModel(tf.OpenAIGPTConfig(**FIRST)), 1e-9),
    "granitemoe_swa": (lambda: _causal("GraniteMoeSWA", SHARED_SWASH), 1e-5),
    "afmoe": (lambda: _causal("Afmoe", AFMOE), 1e-5),
    "llama4": (_llama4, 1e-5),
    "jetmoe": (lambda: _causal("JetMoe", JET), 1e-5),
    "modernbert-decoder": (lambda: tf.ModernBertDecoderForCausalLM(tf.ModernBertDecoderConfig(**SPOKEN_MODERN)), 1e-5),
    "youtu": (lambda: _causal("Youtu", LATENT, attention_bias=True, pad_token_id=None), 1e-5),
    "minicpm3": (lambda: _causal("MiniCPM3", LATENT, attention_bias=True), 1e-5),
    "glm4_moe_lite": (lambda: _causal("Glm4MoeLite", ROUTED_LATENT), 1e-5),
    "mistral4": (lambda: _causal("Mistral4", ROUTED_LATENT, first_k_dense_replace=1, rope_parameters=YARN), 1e-5),
    "deepseek_v32": (lambda: _causal("DeepseekV32", ROUTED_LATENT, first_k_dense_replace=1, index_topk=4, index_head_dim=8, index_n_heads=2), 1e-5),
    "cohere2_moe": (lambda: _causal("Cohere2Moe", COMMANDED), 1e-5),
    "apertus": (lambda: _causal("Apertus", TWO, attention_bias=True), 1e-5),
}  # fmt: skip

CONVERTED_LANGUAGES = [
    "flex_olmo", "dots1", "solar_open", "exaone_moe", "hunyuan_v1_moe", "ernie4_5_moe", "minimax_m2", "qwen3_5_moe_text", "qwen3_5_moe",
    "afmoe", "glm4_moe_lite", "deepseek_v32", "cohere2_moe",
]  # fmt: skip
"""Those that transformers stores otherwise than it computes with them."""

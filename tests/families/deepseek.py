"""DeepSeek's: latent attention, experts, images; Janus."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import StreamMutant, mutant
from toy_inputs import in_codes, in_pixels
from toy_models import ahead, behind, causal, composed
from toy_settings import (
    COMPOSED_MODELS,
    DECODER_CLASSES,
    HEADS,
    IMAGE,
    KNOWN,
    LANGUAGE_MODELS,
    LATENT_EXPERTS,
    LLAMA,
    QWEN2,
    ROUTED_LATENT,
    SIGLIP,
    TEXT,
    TOWER,
)


def _deepseek(version: str, **changes: Any) -> Any:
    config = getattr(tf, f"Deepseek{version}Config")(**{**LATENT_EXPERTS, **changes})
    return getattr(tf, f"Deepseek{version}ForCausalLM")(config)


ROTATED_WITHOUT_POSITIONS = (
    "space c as qk: Complex[l, pair] => ",
    "size pair = qk_rope_head_dim // 2 => size rope = qk_rope_head_dim",
    "space ov: GL[l, h] => space ov: GL[l, h]\nspace rope as qk: GL[l]",
    "pair c' => rope'",
    "pair c => rope",
    "c' pair => rope'",
    "c pair => rope",
)
JANUS: dict[str, Any] = {
    "text_config": {**TEXT, **KNOWN, "model_type": "llama"},
    "vision_config": {**{k: v for k, v in TOWER.items() if k != "intermediate_size"}, "mlp_ratio": 0.75, "projection_dim": 48, "num_image_tokens": 16},
    "vq_config": {
        "embed_dim": 4, "num_embeddings": 11, "latent_channels": 4, "base_channels": 32, "channel_multiplier": [1, 2], "num_res_blocks": 1, "num_patches": 4,
        "projection_dim": 48, "image_token_embed_dim": 48,
    },
    "image_token_id": IMAGE, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK4: dict[str, Any] = {
    **{k: v for k, v in HEADS.items() if k not in ("num_key_value_heads", "intermediate_size")}, "num_hidden_layers": 3, "head_dim": 12,
    "partial_rotary_factor": 0.5, "q_lora_rank": 18, "num_attention_heads": 6, "o_groups": 2, "o_lora_rank": 14, "moe_intermediate_size": 20,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "hc_mult": 3, "hc_sinkhorn_iters": 3, "swiglu_limit": 0.6, "sliding_window": 4,
    "index_n_heads": 4, "index_head_dim": 8, "index_topk": 2, "num_nextn_predict_layers": 0,
    "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 3},
    "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
    "mlp_layer_types": ["hash_moe", "moe", "moe"],
}  # fmt: skip


def _deepseek4(**changes: Any) -> Any:
    model = tf.DeepseekV4ForCausalLM(tf.DeepseekV4Config(**{**DEEPSEEK4, **changes}))
    told = model.model.layers[0].mlp.gate.tid2eid  # which experts a word goes to
    told.copy_(torch.arange(told.numel()).reshape(told.shape) % 4)
    return model


def _deepseek4_ahead() -> Any:
    like = {"enorm": "norm", "hnorm": "norm", "norm": "norm"}
    beside = {f"mtp.0.{name}.weight": f"model.{other}.weight" for name, other in like.items()}
    beside |= {f"mtp.0.{x}_proj.weight": "head.weight" for x in "eh"}
    return ahead(_deepseek4(), "model.layers.2.", "mtp.0.", beside)


WINDOWS: dict[str, Any] = {
    "hidden_size": 60, "output_channels": 14, "num_hidden_layers": 3, "num_attention_heads": 5, "image_size": 8, "patch_size": 2, "window_size": 3,
    "global_attn_indexes": [1], "mlp_dim": 44,
}  # fmt: skip
DEEPSEEK_VL: dict[str, Any] = {"text_config": LLAMA, "vision_config": SIGLIP, "image_token_id": IMAGE, "tie_word_embeddings": False}  # fmt: skip
GOT_OCR2: dict[str, Any] = {"text_config": QWEN2, "vision_config": WINDOWS, "image_token_index": IMAGE, "tie_word_embeddings": False}  # fmt: skip

TOYS: dict[str, Toy] = {
    "deepseek_v3": (lambda: _deepseek("V3", attention_bias=True, num_nextn_predict_layers=0), 1e-5),
}

MORE_TOYS: dict[str, Toy] = {
    "deepseek_v2": (lambda: _deepseek("V2", topk_method="group_limited_greedy"), 1e-5),
    "deepseek_v2-lite": (
        lambda: _deepseek(
            "V2",
            q_lora_rank=None,
            n_group=None,
            topk_group=None,
            n_routed_experts=5,
            mlp_bias=True,
            attention_bias=True,
        ),
        1e-5,
    ),
    "deepseek_v3-halves": (lambda: _deepseek("V3", rope_interleave=False, n_group=1, topk_group=1), 1e-5),
    "deepseek_v32": (
        lambda: causal(
            "DeepseekV32", ROUTED_LATENT, first_k_dense_replace=1, index_topk=4, index_head_dim=8, index_n_heads=2
        ),
        1e-5,
    ),
    "deepseek_v3-ahead": (
        lambda: behind(causal("DeepseekV3", ROUTED_LATENT, first_k_dense_replace=1, num_nextn_predict_layers=0)),
        1e-5,
    ),
    "deepseek_vl": (partial(composed, "DeepseekVL", DEEPSEEK_VL), 1e-5),
    "got_ocr2": (partial(composed, "GotOcr2", GOT_OCR2), 1e-5),
    "deepseek_v4": (_deepseek4, 1e-5),
    "deepseek_v4-ahead": (_deepseek4_ahead, 1e-5),
    "janus": (lambda: tf.JanusForConditionalGeneration(tf.JanusConfig(**JANUS)), 1e-5),
}

NAMES: dict[str, Saved] = {
    "DeepseekV2": ({**LATENT_EXPERTS, "topk_method": "group_limited_greedy"}, DECODER_CLASSES[:-2]),
    "DeepseekV3": (LATENT_EXPERTS, DECODER_CLASSES[:-1]),
}

MORE_NAMES: dict[str, Saved] = {
    "DeepseekV32": ({**ROUTED_LATENT, "first_k_dense_replace": 1}, LANGUAGE_MODELS),
    "DeepseekVL": (DEEPSEEK_VL, COMPOSED_MODELS),
    "GotOcr2": (GOT_OCR2, COMPOSED_MODELS),
    "DeepseekV4": (DEEPSEEK4, LANGUAGE_MODELS),
    "Janus": (JANUS, ["Model", "ForConditionalGeneration"]),
}

STREAMS: dict[str, Streams] = {
    **dict.fromkeys(["deepseek_v2", "deepseek_v2-lite", "deepseek_v3", "deepseek_v3-halves", "deepseek_v32"], "O"),
    "deepseek_v3-ahead": "SignedPerm",
    "deepseek_vl": {"res": "O", "vision_res": "OFixingOnes"},
    "got_ocr2": {
        "res": "O",
        "vres": "OFixingOnes",
        "neck1": "OFixingOnes",
        "neck2": "OFixingOnes",
        "up1": "O",
        "up2": "O",
    },
    "deepseek_v4": {"res": "O"},
    "deepseek_v4-ahead": {},
    "janus": {"res": "O", "vres": "OFixingOnes", "drawn": "O"},
}

IDLE = {
    ("deepseek_vl", "vb"),
    ("got_ocr2", "vb"),
    ("janus", "vb"),
}

INPUTS: dict[str, Drawn] = {
    "janus": in_codes,
    "deepseek_vl": in_pixels(16),
    "got_ocr2": in_pixels(1),
}

CONVERTED = {
    "deepseek_v32",
    "deepseek_v3-ahead",
    "deepseek_v4",
    "deepseek_v4-ahead",
    "deepseek_v2",
    "deepseek_v2-lite",
    "deepseek_v3",
    "deepseek_v3-halves",
}

MUTANTS = [
    mutant("deepseek_v3", "half-split pairs", "c", "[nope | pair c] => [nope | c pair]", "pair c' => c' pair"),
    mutant(
        "deepseek_v3-halves", "interleaved pairs", "c", "[nope | c pair] => [nope | pair c]", "c' pair => pair c'"
    ),
    mutant("deepseek_v3", "any matrix on the rotated part", "rope", *ROTATED_WITHOUT_POSITIONS),
    mutant(
        "deepseek_v3",
        "a complex number per head",
        "c",
        "Complex[l, pair] => Complex[l, h, pair]",
        "pair c' => pair 2",
    ),
    mutant(
        "deepseek_v3",
        "experts leave their group",
        "e",
        "space eg as expert: Perm[l] if eg > 1 => ",
        "Perm[l, eg] if eg > 1 => Perm[l] if eg > 1",
        "size eg = n_group or 1 => size eg = 1",
        "if eg > 1 => if eg > 2",
        "if eg == 1 => if eg < 2",
    ),
    mutant(
        "deepseek_v3",
        "the router's bias forgotten",
        "e",
        "e_score_correction_bias (eg e) => e_score_correction_bias rows",
    ),
    mutant(
        "deepseek_v3",
        "the latent's gain forgotten",
        "lat",
        "kv_a_layernorm.weight diag(lat lg) => kv_a_layernorm.weight other",
        "space lg as latent: Scale[l, lat] => ",
        "(lat lg)' => lat'",
    ),
    mutant("deepseek_v3", "no factor in the reader", "qg", "(qlat qg)' => qlat'"),
    mutant("deepseek_v2", "values before keys", "ov", "(h [nope' | ov]) => (h [ov | nope'])"),
    mutant("deepseek_v2", "key without positions not dual", "nope", "[nope' | ov] => [nope | ov]"),
    mutant(
        "deepseek_v2-lite",
        "shared experts' gate scaled",
        "su",
        "shared_experts.gate_proj.weight sff => shared_experts.gate_proj.weight (sff su)",
    ),
    mutant(
        "deepseek_v32",
        "the indexer's heads without their weights",
        "ih",
        "weights_proj.weight ih => weights_proj.weight rows",
    ),
    mutant("deepseek_v32", "the indexer past the latent", "qlat", "(ih ix) (qlat qg)' => (ih ix) latent"),
    mutant("deepseek_v32", "the indexer's key past the gain", "n1", "wk.weight ix (res n1)' => wk.weight ix res'"),
    mutant(
        "deepseek_v4",
        "a factor through the cut",
        "u",
        "space u as scale: Sign[l, e, ff] => space u as scale: Scale[l, e, ff]",
        "size u = 1\n => ",
    ),
    mutant("deepseek_v4", "a sign per coordinate", "sg", "Sign[l, pair] => Sign[l, pair, c]"),
    mutant(
        "deepseek_v4",
        "what compresses keys without its gates",
        "nope",
        "compressor.wgate.weight [nope | pair c] (res n1)' => compressor.wgate.weight gates (res n1)'",
    ),
    mutant(
        "deepseek_v4",
        "the copies' coordinates fast",
        "res",
        "hc_attn_fn mixes (stream res)' => hc_attn_fn mixes (res stream)'",
    ),
    mutant("deepseek_v4", "a group's latent not dual", "rank", "res (og rank') => res (og rank)"),
    mutant("deepseek_vl", "past the tower's last gain", "vision_nf", "(vision_res vision_nf)' => vision_res'"),
    mutant("deepseek_vl", "hidden bias forgotten", "project", "linear1.bias project => linear1.bias rows"),
    mutant(
        "got_ocr2",
        "a matrix per head under shared tables",
        "vqk",
        "vqk as qk: GL[v] if => vqk as qk: GL[v, vh] if",
        "place vqk' if => place places if",
    ),
    mutant("got_ocr2", "a table not dual", "vqk", "rel_pos_h place vqk' => rel_pos_h place vqk"),
    mutant("got_ocr2", "the neck's gain forgotten", "kn2", "up1 (neck2 kn2)' => up1 neck2'"),
    mutant("janus", "past the tower's last gain", "vnf", "(project pu) (vres vnf)' => (project pu) vres'"),
    mutant("janus", "embeddings of codes not turned back", "drawn", "pencil drawn' => pencil other"),
    mutant("janus", "what is drawn read past the last gain", "nf", "stroke (res nf)' => stroke res'"),
    mutant("janus", "neurons of the head forgotten", "stroke", "codes stroke' => codes other"),
]

STREAM_MUTANTS = [
    StreamMutant(
        "deepseek_v3",
        "a latent turned and its gain not folded into what reads it",
        "O",
        ("(h [nope' | ov]) (lat lg)' => (h [nope' | ov]) lat'",),
        "lat",
    ),
    StreamMutant(
        "deepseek_v32",
        "the indexer reads a latent that is not turned",
        "O",
        ("(ih ix) (qlat qg)' => (ih ix) latent",),
        "qlat",
    ),
]

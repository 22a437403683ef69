"""Ai2's OLMo and Molmo."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tf

from families.tables import Drawn, Saved, Streams, Toy
from mutants import mutant
from toy_inputs import drawn_numbers, drawn_words
from toy_models import causal
from toy_settings import (
    CLASSIFYING_LANGUAGE_MODELS,
    COMPOSED_MODELS,
    DECODER_CLASSES,
    DELTA,
    HEADS,
    IMAGE,
    KNOWN,
    KNOWN_CAUSAL_WITHOUT_HEAD,
    LANGUAGE_MODELS,
    LAYERS,
    ROUTED_BODY,
    TEXT,
    TOWER,
    Inputs,
)

MOLMO: dict[str, Any] = {
    "text_config": {**TEXT, **KNOWN, "additional_vocab_size": 5, "num_hidden_layers": 2},
    "vision_config": {**TOWER, "image_size": [8, 8], "num_key_value_heads": 5, "head_dim": 12, "num_hidden_layers": 3},
    "adapter_config": {
        "vision_feature_layer": [2, 0], "hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8, "intermediate_size": 36, "text_hidden_size": 48,
    },
    "image_patch_id": IMAGE, "image_start_token_id": 65, "image_end_token_id": 66, "low_res_image_start_token_id": 64, "frame_start_token_id": 63, "frame_end_token_id": 62,
}  # fmt: skip


def _molmo(**changes: Any) -> Any:
    config = tf.Molmo2Config(**{**MOLMO, "text_config": {**MOLMO["text_config"], **changes}})
    return tf.Molmo2ForConditionalGeneration(config)


def _in_crops(_: Any, rng: torch.Generator) -> Inputs:
    """Images as rows of patches, of which four at once are pooled for a token."""
    pooled = torch.arange(16).reshape(4, 2, 2).permute(0, 2, 1).reshape(4, 4)
    return {
        "input_ids": drawn_words(rng, 4), "pixel_values": drawn_numbers(rng, 3, 16, 12), "image_token_pooling": torch.cat([pooled + 16 * n for n in range(3)]),
        "image_grids": torch.tensor([[2, 2, 0, 0]] * 3), "image_num_crops": torch.tensor([1] * 3),
    }  # fmt: skip


OLMO: dict[str, Any] = {
    **HEADS, **DELTA, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 3,
    "linear_conv_kernel_dim": 3, "attention_bias": True,
}  # fmt: skip

MORE_TOYS: dict[str, Toy] = {
    "olmoe": (lambda: tf.OlmoeForCausalLM(tf.OlmoeConfig(**ROUTED_BODY, num_experts=5, pad_token_id=0)), 1e-5),
    "olmo2": (lambda: causal("Olmo2", KNOWN_CAUSAL_WITHOUT_HEAD), 1e-5),
    "olmo3": (lambda: causal("Olmo3", KNOWN_CAUSAL_WITHOUT_HEAD, layer_types=LAYERS, sliding_window=4), 1e-5),
    "olmo": (lambda: causal("Olmo", HEADS, attention_bias=True), 1e-5),
    "olmo-clipped": (lambda: causal("Olmo", HEADS, attention_bias=True, clip_qkv=0.5), 1e-5),
    "flex_olmo": (
        lambda: causal("FlexOlmo", HEADS, num_experts=4, num_experts_per_tok=2, attention_bias=True),
        1e-5,
    ),
    "olmo_hybrid": (lambda: causal("OlmoHybrid", OLMO), 1e-5),
    "olmo_hybrid-unturned": (
        lambda: causal(
            "OlmoHybrid",
            OLMO,
            rope_parameters={"rope_theta": None, "rope_type": "default"},
            linear_value_head_dim=5,
        ),
        1e-5,
    ),
    "molmo2": (_molmo, 1e-5),
    "molmo2-olmo": (lambda: _molmo(qk_norm_type="olmo", norm_after=True), 1e-5),
}

NAMES: dict[str, Saved] = {
    "Olmoe": ({**ROUTED_BODY, "num_experts": 4}, DECODER_CLASSES[:2]),
}

MORE_NAMES: dict[str, Saved] = {
    "Olmo2": (KNOWN_CAUSAL_WITHOUT_HEAD, CLASSIFYING_LANGUAGE_MODELS),
    "Olmo3": (KNOWN_CAUSAL_WITHOUT_HEAD, LANGUAGE_MODELS),
    "Olmo": (HEADS, CLASSIFYING_LANGUAGE_MODELS),
    "FlexOlmo": ({**HEADS, "num_experts": 4}, LANGUAGE_MODELS),
    "OlmoHybrid": (OLMO, LANGUAGE_MODELS),
    "Molmo2": (MOLMO, COMPOSED_MODELS),
}

STREAMS: dict[str, Streams] = {
    "olmoe": "O",
    **dict.fromkeys(["olmo2", "olmo3", "flex_olmo", "olmo_hybrid", "olmo_hybrid-unturned"], "SignedPerm"),
    **{key: {"res": "OFixingOnes"} for key in ["olmo", "olmo-clipped"]},
    "molmo2": {"res": "O", "vres": "OFixingOnes", "mid": "O"},
    "molmo2-olmo": {"res": "SignedPerm", "vres": "OFixingOnes", "mid": "O"},
}

WITHOUT_GAINS = {"olmo", "olmo-clipped"}

IDLE = {
    ("olmo2", "vb"),
    ("olmo3", "vb"),
    ("olmoe", "vb"),
}

INPUTS: dict[str, Drawn] = {
    "molmo2": _in_crops,
}

CONVERTED = {"flex_olmo", "olmo_hybrid", "olmo_hybrid-unturned", "molmo2", "molmo2-olmo", "olmoe"}

MUTANTS = [
    mutant(
        "olmoe",
        "heads without their gains",
        "kv",
        "(kv g c pair t) => rows",
        "(kv c pair t') => rows",
        "space t as qk: Scale[l, kv, pair] => ",
    ),
    mutant("olmoe", "gains not dual", "t", "(kv c pair t') => (kv c pair t)"),
    mutant("olmoe", "a sign per coordinate", "sg", "Sign[l, kv, pair] => Sign[l, kv, c, pair]"),
    mutant("olmo_hybrid", "the gain of one value for all heads", "ds", "(dh dg dv' ds') => (dh dg dv')"),
    mutant(
        "olmo2",
        "rotated behind the branches' norms",
        "res",
        "residual res: SignedPerm => residual res: O",
        "diag(res) => res",
        "diag(res nf) => (res nf)",
    ),
    mutant(
        "olmo2",
        "heads without their gains",
        "kv",
        "(kv g c pair t) if => rows if",
        "(kv c pair t') if => rows if",
        "space t as qk: Scale[l, kv, pair] if not shared => ",
    ),
    mutant("olmo3", "a sign per coordinate", "sg", "Sign[l, kv, pair] => Sign[l, kv, c, pair]"),
    mutant(
        "flex_olmo",
        "router forgotten",
        "e",
        "mlp.gate.weight e res' => mlp.gate.weight rows res'",
    ),
    mutant(
        "flex_olmo",
        "heads without their gains",
        "kv",
        "(kv g c pair t) if => rows if",
        "(kv c pair t') if => rows if",
        "space t as qk: Scale[l, kv, pair] if not shared => ",
    ),
    mutant("olmo", "all rotations under LayerNorm", "res", "residual res: OFixingOnes => residual res: O"),
    mutant(
        "olmo", "interleaved pairs", "c", "(kv g c pair sg) => (kv g pair c)", "(kv c' pair sg') => (kv pair c')"
    ),
    mutant(
        "olmo-clipped",
        "any matrix on clipped values",
        "ov",
        "space ov: GL[l, kv] if clip_qkv == None\n => ",
        "space ov: Perm[l, kv] if clip_qkv != None => space ov: GL[l, kv]",
    ),
    mutant(
        "olmo-clipped",
        "clipped pairs turned",
        "c",
        "Complex[l, kv, pair] if clip_qkv == None => Complex[l, kv, pair]",
        "size c = 2\n => ",
    ),
    mutant(
        "olmo_hybrid",
        "the norm before is that behind",
        "n2",
        "{l!full}.mlp.gate_proj.weight ff (res n2)' => {l!full}.mlp.gate_proj.weight ff res'",
    ),
    mutant(
        "olmo_hybrid",
        "a sign per coordinate under rotations",
        "sg",
        "size turned = 0 if rope_parameters and => size turned = 0 if vocab_size or rope_parameters and",
    ),
    mutant("olmo_hybrid-unturned", "gains not dual", "t", "(kv c pair t') => (kv c pair t)"),
    mutant(
        "olmo_hybrid",
        "the delta rule past the gain",
        "n1",
        "a_proj.weight (dh dg) (res n1)' => a_proj.weight (dh dg) res'",
    ),
    mutant("molmo2", "gates before ups", "u", "[ff u | ff] => [ff | ff u]"),
    mutant(
        "molmo2",
        "the layers that are read, fast",
        "vres",
        "(pkv pg pqk) (reads vres)' => (pkv pg pqk) (vres reads)'",
    ),
    mutant(
        "molmo2",
        "words added later forgotten",
        "res",
        "transformer.wte.new_embedding more res => transformer.wte.new_embedding more other",
    ),
    mutant(
        "molmo2",
        "what is pooled in other coordinates",
        "mid",
        "w3.weight (pff pu) mid' => w3.weight (pff pu) other",
    ),
    mutant(
        "molmo2",
        "the query's bias dropped",
        "pqb",
        "shift pkb: => shift pqb: vision_backbone.image_pooling_2d.wq.bias\nshift pkb:",
    ),
    mutant(
        "molmo2-olmo",
        "a gain that heads share",
        "t",
        "q_norm.weight (kv g c pair t) if not shared => q_norm.weight (kv g c pair) if not shared",
    ),
    mutant(
        "molmo2-olmo",
        "rotated behind the branches' norms",
        "res",
        "residual res: SignedPerm if behind => residual res: O if behind",
        "diag(res) => res",
        "diag(res nf) => (res nf)",
    ),
]

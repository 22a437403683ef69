"""The smallest models of many architectures, and what they say of every token, position and pixel, in float64."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from safetensors.torch import load_file
from torch import Tensor

from isomerge.evidence.outputs import differences, returned
from isomerge.models.transformers_classes import class_of
from isomerge.models.transformers_reading import configuration
from isomerge.observe.live.modules import eager_experts
from isomerge.progress import silent

Weights = dict[str, Tensor]
Config = dict[str, Any]

# Sizes that tell axes apart: heads, coordinates of a head, neurons, width and vocabulary all differ.
TEXT = {"vocab_size": 23, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BODY = {**TEXT, "intermediate_size": 10, "max_position_embeddings": 16, **ENDS}
CAUSAL = {**BODY, "num_key_value_heads": 3, "head_dim": 4, "tie_word_embeddings": False}
GROUPED = {**CAUSAL, "num_attention_heads": 4, "num_key_value_heads": 2}
HEADS = {**BODY, "num_key_value_heads": 3, "tie_word_embeddings": False}
EXPERTS = {**GROUPED, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 6}
GPT = {
    "vocab_size": 23, "n_embd": 12, "n_layer": 1, "n_head": 3, "n_positions": 16, "n_inner": 10,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
PATCHES = {
    "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 10, "image_size": 8,
    "patch_size": 4, "num_labels": 5,
}  # fmt: skip
PAIRED = {
    "vocab_size": 23, "d_model": 12, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 3,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 10, "decoder_ffn_dim": 8, "max_position_embeddings": 16,
    **ENDS, "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
T5 = {
    "vocab_size": 23, "d_model": 12, "d_kv": 4, "d_ff": 10, "num_layers": 1, "num_decoder_layers": 1,
    "num_heads": 3, "relative_attention_num_buckets": 8, "decoder_start_token_id": 0,
}  # fmt: skip
OPT = {**TEXT, "ffn_dim": 10, "max_position_embeddings": 16, "word_embed_proj_dim": 12}
FALCON = {**TEXT, "ffn_hidden_size": 10, "bos_token_id": 1, "eos_token_id": 1}
DEBERTA = {
    **BODY, "relative_attention": True, "norm_rel_ebd": "layer_norm", "position_buckets": 4,
    "position_biased_input": False, "type_vocab_size": 0, "max_relative_positions": 8,
    "pos_att_type": ["c2p", "p2c"], "share_att_key": False,
}  # fmt: skip
MAMBA = {
    "vocab_size": 23, "hidden_size": 12, "num_hidden_layers": 1, "state_size": 3, "conv_kernel": 3, "expand": 2,
    "time_step_rank": 2, "pad_token_id": 0,
}  # fmt: skip
MODERN = {
    **BODY, "num_hidden_layers": 2, "cls_token_id": 1, "sep_token_id": 2,
    "layer_types": ["sliding_attention", "full_attention"], "local_attention": 4,
}  # fmt: skip
GEMMA = {
    **GROUPED, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 4, "query_pre_attn_scalar": 4,
}  # fmt: skip

MODELS: dict[str, tuple[str, Config]] = {
    "llama": ("LlamaForCausalLM", CAUSAL),
    "llama-biased": ("LlamaForCausalLM", {**GROUPED, "attention_bias": True, "mlp_bias": True}),
    "llama-classifier": ("LlamaForSequenceClassification", {**CAUSAL, "num_labels": 3}),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": 4}), "qwen2": ("Qwen2ForCausalLM", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", GROUPED),
    "granite": (
        "GraniteForCausalLM",
        {**GROUPED, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    ),
    "smollm3": ("SmolLM3ForCausalLM", GROUPED), "arcee": ("ArceeForCausalLM", GROUPED),
    "olmo": ("OlmoForCausalLM", HEADS), "olmo2": ("Olmo2ForCausalLM", GROUPED),
    "nemotron": ("NemotronForCausalLM", GROUPED), "glm": ("GlmForCausalLM", GROUPED),
    "gemma": ("GemmaForCausalLM", {**GROUPED, "tie_word_embeddings": True}),
    "gemma2": ("Gemma2ForCausalLM", {**GEMMA, "tie_word_embeddings": True}),
    "gemma3": ("Gemma3ForCausalLM", GEMMA),
    "cohere": ("CohereForCausalLM", {**GROUPED, "tie_word_embeddings": True, "use_qk_norm": True}),
    "phi": ("PhiForCausalLM", HEADS), "phi3": ("Phi3ForCausalLM", GROUPED),
    "stablelm": ("StableLmForCausalLM", {**HEADS, "use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "starcoder2": ("Starcoder2ForCausalLM", GROUPED), "gpt2": ("GPT2LMHeadModel", GPT),
    "gpt2-untied": ("GPT2LMHeadModel", {**GPT, "tie_word_embeddings": False}),
    "gptj": ("GPTJForCausalLM", {**GPT, "rotary_dim": 4, "tie_word_embeddings": False}),
    "gpt_neox": ("GPTNeoXForCausalLM", {**BODY, "rotary_pct": 0.5, "tie_word_embeddings": False}),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", GPT), "opt": ("OPTForCausalLM", OPT),
    "bloom": ("BloomForCausalLM", {"vocab_size": 23, "hidden_size": 12, "n_layer": 1, "n_head": 3}),
    "falcon": ("FalconForCausalLM", FALCON),
    "falcon-rw": (
        "FalconForCausalLM",
        {**FALCON, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "mpt": ("MptForCausalLM", {"vocab_size": 23, "d_model": 12, "n_layers": 1, "n_heads": 3, "max_seq_len": 16}),
    "mixtral": ("MixtralForCausalLM", {**GROUPED, "num_local_experts": 3, "num_experts_per_tok": 2}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {**EXPERTS, "shared_expert_intermediate_size": 8}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", EXPERTS),
    "olmoe": ("OlmoeForCausalLM", {**HEADS, "num_experts": 3, "num_experts_per_tok": 2}),
    "mamba": ("MambaForCausalLM", MAMBA), "bert": ("BertForMaskedLM", BODY),
    "bert-classifier": ("BertForSequenceClassification", {**BODY, "hidden_act": "relu", "num_labels": 3}),
    "roberta": (
        "RobertaForMaskedLM", {**BODY, "max_position_embeddings": 18, "pad_token_id": 1, "bos_token_id": 0},
    ),
    "distilbert": (
        "DistilBertForMaskedLM",
        {
            "vocab_size": 23, "dim": 12, "n_layers": 1, "n_heads": 3, "hidden_dim": 10,
            "max_position_embeddings": 16,
        },
    ),
    "electra": ("ElectraForPreTraining", {**BODY, "embedding_size": 6}),
    "albert": ("AlbertForMaskedLM", {**BODY, "embedding_size": 6}),
    "deberta-v2": ("DebertaV2ForMaskedLM", DEBERTA),
    "mpnet": ("MPNetForMaskedLM", {**BODY, "max_position_embeddings": 18, "pad_token_id": 1, "bos_token_id": 0}),
    "modernbert": ("ModernBertForMaskedLM", MODERN), "vit": ("ViTForImageClassification", PATCHES),
    "vit-plain": ("ViTForImageClassification", {**PATCHES, "qkv_bias": False, "hidden_act": "relu"}),
    "deit": ("DeiTForImageClassification", PATCHES),
    "dinov2": (
        "Dinov2ForImageClassification",
        {**{k: v for k, v in PATCHES.items() if k != "intermediate_size"}, "mlp_ratio": 1},
    ),
    "beit": ("BeitForImageClassification", {**PATCHES, "use_relative_position_bias": True}),
    "bart": ("BartForConditionalGeneration", PAIRED),
    "mbart": ("MBartForConditionalGeneration", {**PAIRED, "activation_function": "relu"}),
    "marian": ("MarianMTModel", {**PAIRED, "activation_function": "swish"}),
    "t5": ("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu"}),
    "t5-relu": ("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "relu", "tie_word_embeddings": False}),
}  # fmt: skip


def stored(name: str, folder: Path) -> tuple[Weights, Config]:
    """The tensors of a model, all random, in float64, as transformers stores them in a folder; and its config."""
    kind, settings = MODELS[name]
    model = getattr(tf, kind)(getattr(tf, kind).config_class(**settings)).double().eval()
    rng = torch.Generator().manual_seed(0)
    for key, p in model.named_parameters():
        gain = p.ndim == 1 and "bias" not in key and "norm" in key.lower()
        p.data = torch.randn(p.shape, generator=rng, dtype=torch.float64) * (0.3 if p.ndim == 1 else 0.4) + float(
            gain
        )
    model.tie_weights()
    with silent():
        model.save_pretrained(folder)
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


@contextlib.contextmanager
def in_double() -> Iterator[None]:
    """What transformers computes in float32 whatever its weights are (norms, softmax, routers) is computed in
    float64."""
    names: dict[Any, tuple[str, ...]] = {torch: ("float32", "float"), torch.Tensor: ("float",)}
    wide: dict[Any, Any] = {torch: torch.float64, torch.Tensor: torch.Tensor.double}
    old = [(place, name, getattr(place, name)) for place, every in names.items() for name in every]
    for place, name, _ in old:
        setattr(place, name, wide[place])
    try:
        yield
    finally:
        for place, name, value in old:
            setattr(place, name, value)


def inputs(config: Any) -> dict[str, Tensor]:
    """Three texts of sixteen tokens with every token at some place, types of both kinds; or pictures."""
    rng = torch.Generator().manual_seed(7)
    if getattr(config, "image_size", None):
        size = config.image_size
        return {"pixel_values": torch.randn(3, config.num_channels, size, size, generator=rng, dtype=torch.float64)}
    every = torch.arange(3 * 16) % 20 + 3  # none that pads or ends a text
    ids = every[torch.randperm(3 * 16, generator=rng)].view(3, 16)
    ids[0, :3] = torch.arange(3)
    given = {"input_ids": ids, "token_type_ids": torch.randint(0, 2, ids.shape, generator=rng)}
    if getattr(config, "type_vocab_size", 2) < 2:
        given.pop("token_type_ids")
    return {**given, "decoder_input_ids": ids.flip(1), "attention_mask": torch.ones_like(ids)}


def said(weights: Weights, config: Config) -> dict[str, Tensor]:
    """All that the model returns which transformers makes of these tensors and this config, in float64.

    Raises:
        Exception: whatever transformers raises where it cannot load or run them.
    """
    kind: Callable[..., Any] = class_of(config, tuple(weights), "")
    made = configuration(kind, dict(config))
    with torch.random.fork_rng(), silent(), torch.no_grad():
        torch.manual_seed(1)
        model: Any = kind.from_pretrained(
            None, config=made, state_dict=dict(weights), dtype=torch.float64, **eager_experts(config)
        )
        model = model.double().eval()
        model.config.return_dict = True
        taken = inspect.signature(model.forward).parameters
        given = {key: value for key, value in inputs(model.config).items() if key in taken}
        with in_double():
            return {name: x for name, x in returned(model(**given)).items() if x.is_floating_point()}


def apart(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    """The largest difference of what two models return, tensor by tensor, as a share of the largest number of the
    first one's."""
    return max(differences(one, two).values())

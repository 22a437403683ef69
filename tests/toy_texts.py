"""Constructors of tiny models of texts that are kin of no other, old and new (see `toys.TOYS`), and their
inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers as tf

from toy_languages import HEADS, KNOWN, TWO
from toy_models import LAYERS
from toy_seeing import IMAGE

PLAIN: dict[str, Any] = {k: v for k, v in HEADS.items() if k != "num_key_value_heads"}
GPT: dict[str, Any] = {
    "vocab_size": 67,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 6,
    "n_positions": 32,
    "n_inner": 40,
    **KNOWN,
}
DBRX: dict[str, Any] = {
    "vocab_size": 67, "d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": 32, **KNOWN, "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 0.5},
    "ffn_config": {"hidden_size": 48, "ffn_hidden_size": 20, "moe_num_experts": 4, "moe_top_k": 2},
}  # fmt: skip
GRIFFIN: dict[str, Any] = {
    **HEADS, "intermediate_size": 80, "lru_width": 60, "attention_window_size": 4, "block_types": ["recurrent", "attention"], "attention_bias": True,
}  # fmt: skip
SUBTRACTED: dict[str, Any] = {
    **HEADS,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "attention_bias": True,
}
XGLM: dict[str, Any] = {
    "vocab_size": 67, "d_model": 48, "ffn_dim": 40, "num_layers": 2, "attention_heads": 6, "max_position_embeddings": 32, **KNOWN,
}  # fmt: skip
ZAMBA: dict[str, Any] = {
    **HEADS, "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "mamba_d_state": 5,
    "mamba_d_conv": 3, "mamba_dt_rank": 4, "use_mamba_kernels": False, "mamba_proj_bias": True,
}  # fmt: skip
LEARNT: dict[str, Any] = {k: v for k, v in PLAIN.items() if k != "tie_word_embeddings"}
MARKED: dict[str, Any] = {
    **LEARNT, "xpath_unit_hidden_size": 7, "max_depth": 3, "max_xpath_tag_unit_embeddings": 11, "max_xpath_subs_unit_embeddings": 13, "tag_pad_id": 10,
    "subs_pad_id": 12,
}  # fmt: skip
NYSTROM: dict[str, Any] = {
    **LEARNT,
    "num_landmarks": 3,
    "segment_means_seq_len": 12,
    "conv_kernel_size": 3,
    "type_vocab_size": 2,
}
LILT: dict[str, Any] = {
    **LEARNT, "channel_shrink_ratio": 2, "max_2d_position_embeddings": 24, "max_position_embeddings": 32,
}  # fmt: skip
PAGE: dict[str, Any] = {
    **LEARNT, "max_2d_position_embeddings": 1024, "coordinate_size": 9, "shape_size": 6, "input_size": 8, "patch_size": 4, "rel_pos_bins": 8,
    "max_rel_pos": 16, "rel_2d_pos_bins": 8, "max_rel_2d_pos": 512,
}  # fmt: skip
XLM: dict[str, Any] = {
    "vocab_size": 67, "emb_dim": 48, "n_layers": 2, "n_heads": 6, "max_position_embeddings": 32, "pad_token_id": 0, "n_langs": 2,
}  # fmt: skip
XLNET: dict[str, Any] = {"vocab_size": 67, "d_model": 48, "n_layer": 2, "n_head": 6, "d_inner": 40, **KNOWN}
MOBILE: dict[str, Any] = {
    **LEARNT, "embedding_size": 20, "intra_bottleneck_size": 30, "num_feedforward_networks": 3, "hidden_act": "relu",
}  # fmt: skip
CONVOLVED: dict[str, Any] = {**LEARNT, "embedding_size": 20, "head_ratio": 2, "conv_kernel_size": 3}
EXPERT_NLLB: dict[str, Any] = {
    "vocab_size": 67, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 6, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40, "decoder_ffn_dim": 36, "max_position_embeddings": 32, "num_experts": 4, "encoder_sparse_step": 2,
    "decoder_sparse_step": 2, "router_bias": True, "expert_capacity": 64, **KNOWN,
}  # fmt: skip
TWO_STACKS: dict[str, Any] = {
    "vocab_size": 67, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 6, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40, "decoder_ffn_dim": 36, **KNOWN,
}  # fmt: skip
LED: dict[str, Any] = {
    **TWO_STACKS, "max_encoder_position_embeddings": 32, "max_decoder_position_embeddings": 32, "attention_window": 4,
}  # fmt: skip
BLOCKS: dict[str, Any] = {
    **TWO_STACKS,
    "max_position_embeddings": 32,
    "num_global_tokens": 3,
    "block_size": 4,
}
FAIRSEQ: dict[str, Any] = {
    **{k: v for k, v in TWO_STACKS.items() if k != "vocab_size"}, "src_vocab_size": 67, "tgt_vocab_size": 71, "langs": ["en", "de"],
    "max_position_embeddings": 32,
}  # fmt: skip
PROTEIN: dict[str, Any] = {**PLAIN, "attention_bias": True, "mlp_bias": True}
ANT: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "num_attention_heads": 6, "dim_head": 7, "dim_ff": 40, "num_hidden_layers": 2, "prompt_types": 3,
    "prompt_length": 4, "segment_types": 3, "position_bias_num_buckets": 8, "position_bias_max_distance": 16,
}  # fmt: skip
GROUPED: dict[str, Any] = {
    **LEARNT, "embedding_size": 48, "num_attention_heads": 8, **dict.fromkeys(["q_groups", "k_groups", "v_groups", "intermediate_groups", "output_groups"], 2),
}  # fmt: skip
FOURIER: dict[str, Any] = {k: v for k, v in LEARNT.items() if k != "num_attention_heads"}
PROPHET: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 48, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 6,
    "num_decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 36, "num_buckets": 6, "relative_max_distance": 16,
    "max_position_embeddings": 32, **KNOWN,
}  # fmt: skip
GEMMA: dict[str, Any] = {
    **TWO, "layer_types": LAYERS, "sliding_window": 4, "query_pre_attn_scalar": 9, "attention_bias": True,
}  # fmt: skip
SEEN: dict[str, Any] = {
    "hidden_size": 60, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 44, "image_size": 8, "patch_size": 2,
    "vision_use_head": False, "model_type": "siglip_vision_model",
}  # fmt: skip
T5GEMMA2: dict[str, Any] = {
    "encoder": {
        "text_config": {**GEMMA, "num_key_value_heads": 3, "intermediate_size": 36, "head_dim": 10, "dropout_rate": 0.0}, "vision_config": SEEN,
        "mm_tokens_per_image": 4, "image_token_index": IMAGE, "boi_token_index": 64, "eoi_token_index": 65,
    },
    "decoder": {**GEMMA, "final_logit_softcapping": 3.0}, "image_token_index": IMAGE, "eoi_token_index": 65,
}  # fmt: skip


def _causal(kind: str, settings: dict[str, Any], **changes: Any) -> Any:
    return getattr(tf, f"{kind}ForCausalLM")(getattr(tf, f"{kind}Config")(**{**settings, **changes}))


def _two_berts() -> Any:
    """A reader and a writer of other heads and neurons."""
    writer = tf.BertConfig(
        **{**LEARNT, "num_attention_heads": 4, "intermediate_size": 36}, is_decoder=True, add_cross_attention=True
    )
    config = tf.EncoderDecoderConfig.from_encoder_decoder_configs(tf.RobertaConfig(**LEARNT), writer)
    return tf.EncoderDecoderModel(config)


# name -> (constructor, largest relative change of outputs that rounding explains). RMSNorm is computed in float32.
TEXTS: dict[str, tuple[Callable[[], Any], float]] = {
    "dbrx": (lambda: _causal("Dbrx", DBRX), 1e-9),
    "recurrent_gemma": (lambda: _causal("RecurrentGemma", GRIFFIN), 1e-5),
    "recurrent_gemma-tied": (lambda: _causal("RecurrentGemma", GRIFFIN, tie_word_embeddings=True), 1e-5),
    "bitnet": (lambda: _causal("BitNet", HEADS, attention_bias=True, hidden_act="relu2"), 1e-5),
    "diffllama": (lambda: _causal("DiffLlama", SUBTRACTED), 1e-5),
    "doge": (lambda: _causal("Doge", HEADS, attention_bias=True, mlp_bias=True), 1e-5),
    "doge-routed": (lambda: _causal("Doge", HEADS, attention_bias=True, is_moe=True, num_experts=16, num_experts_per_tok=3, keep_window_size=4), 1e-5),
    "xglm": (lambda: _causal("XGLM", XGLM), 1e-9),
    "xglm-relu": (lambda: _causal("XGLM", XGLM, activation_function="relu", tie_word_embeddings=False), 1e-9),
    "imagegpt": (lambda: tf.ImageGPTForCausalImageModeling(tf.ImageGPTConfig(**GPT)), 1e-9),
    "zamba": (lambda: _causal("Zamba", ZAMBA), 1e-5),
    "t5gemma2": (lambda: tf.T5Gemma2ForConditionalGeneration(tf.T5Gemma2Config(**T5GEMMA2, tie_word_embeddings=False)), 1e-9),
    "t5gemma2-tied": (lambda: tf.T5Gemma2ForConditionalGeneration(tf.T5Gemma2Config(**T5GEMMA2)), 1e-9),
    "t5gemma2_encoder": (lambda: tf.T5Gemma2Encoder(tf.T5Gemma2EncoderConfig(**T5GEMMA2["encoder"])), 1e-9),
    "markuplm": (lambda: tf.MarkupLMForTokenClassification(tf.MarkupLMConfig(**MARKED, num_labels=5)), 1e-6),
    "nystromformer": (lambda: tf.NystromformerForMaskedLM(tf.NystromformerConfig(**NYSTROM)), 1e-9),
    "dpr": (lambda: tf.DPRQuestionEncoder(tf.DPRConfig(**LEARNT, projection_dim=11)), 1e-9),
    "dpr-plain": (lambda: tf.DPRContextEncoder(tf.DPRConfig(**LEARNT)), 1e-9),
    "dpr-reader": (lambda: tf.DPRReader(tf.DPRConfig(**LEARNT)), 1e-9),
    "lilt": (lambda: tf.LiltForTokenClassification(tf.LiltConfig(**LILT, num_labels=5)), 1e-9),
    "layoutlmv3": (lambda: tf.LayoutLMv3ForQuestionAnswering(tf.LayoutLMv3Config(**PAGE)), 1e-9),
    "layoutlmv3-words": (lambda: tf.LayoutLMv3ForTokenClassification(tf.LayoutLMv3Config(**PAGE, visual_embed=False, has_spatial_attention_bias=False, has_relative_attention_bias=False, num_labels=5)), 1e-9),
    "xlm": (lambda: tf.XLMWithLMHeadModel(tf.XLMConfig(**XLM)), 1e-6),
    "xlm-relu": (lambda: tf.XLMForQuestionAnsweringSimple(tf.XLMConfig(**XLM, gelu_activation=False)), 1e-6),
    "flaubert": (lambda: tf.FlaubertWithLMHeadModel(tf.FlaubertConfig(**XLM)), 1e-6),
    "flaubert-before": (lambda: tf.FlaubertWithLMHeadModel(tf.FlaubertConfig(**XLM, pre_norm=True)), 1e-6),
    "xlnet": (lambda: tf.XLNetLMHeadModel(tf.XLNetConfig(**XLNET)), 1e-5),
    "xlnet-relu": (lambda: tf.XLNetForSequenceClassification(tf.XLNetConfig(**XLNET, ff_activation="relu", attn_type="uni")), 1e-5),
    "ctrl": (lambda: tf.CTRLLMHeadModel(tf.CTRLConfig(vocab_size=67, n_positions=32, n_embd=48, dff=40, n_layer=2, n_head=6)), 1e-9),
    "mobilebert": (lambda: tf.MobileBertForMaskedLM(tf.MobileBertConfig(**MOBILE)), 1e-9),
    "mobilebert-normed": (lambda: tf.MobileBertForSequenceClassification(tf.MobileBertConfig(**{**MOBILE, "hidden_act": "gelu"}, normalization_type="layer_norm")), 1e-9),
    "convbert": (lambda: tf.ConvBertForMaskedLM(tf.ConvBertConfig(**CONVOLVED)), 1e-9),
    "convbert-wide": (lambda: tf.ConvBertForSequenceClassification(tf.ConvBertConfig(**{**CONVOLVED, "embedding_size": 48}, hidden_act="relu")), 1e-9),
    "nllb-moe": (lambda: tf.NllbMoeForConditionalGeneration(tf.NllbMoeConfig(**EXPERT_NLLB)), 1e-6),
    "led": (lambda: tf.LEDForConditionalGeneration(tf.LEDConfig(**LED)), 1e-6),
    "led-relu": (lambda: tf.LEDForQuestionAnswering(tf.LEDConfig(**LED, activation_function="relu")), 1e-6),
    "pegasus_x": (lambda: tf.PegasusXForConditionalGeneration(tf.PegasusXConfig(**BLOCKS)), 1e-9),
    "pegasus_x-relu": (lambda: tf.PegasusXForConditionalGeneration(tf.PegasusXConfig(**BLOCKS, activation_function="relu", tie_word_embeddings=False)), 1e-9),
    "fsmt": (lambda: tf.FSMTForConditionalGeneration(tf.FSMTConfig(**FAIRSEQ)), 1e-9),
    "fsmt-gelu": (lambda: tf.FSMTForConditionalGeneration(tf.FSMTConfig(**FAIRSEQ, activation_function="gelu")), 1e-9),
    "esmc": (lambda: tf.EsmcForMaskedLM(tf.EsmcConfig(**PROTEIN)), 1e-9),
    "cpmant": (lambda: tf.CpmAntForCausalLM(tf.CpmAntConfig(**ANT)), 1e-5),
    "squeezebert": (lambda: tf.SqueezeBertForMaskedLM(tf.SqueezeBertConfig(**GROUPED)), 1e-9),
    "squeezebert-relu": (lambda: tf.SqueezeBertForTokenClassification(tf.SqueezeBertConfig(**GROUPED, hidden_act="relu", num_labels=5)), 1e-9),
    "fnet": (lambda: tf.FNetForMaskedLM(tf.FNetConfig(**FOURIER, hidden_act="relu")), 1e-9),
    "prophetnet": (lambda: tf.ProphetNetForConditionalGeneration(tf.ProphetNetConfig(**PROPHET)), 1e-6),
    "prophetnet-relu": (lambda: tf.ProphetNetForConditionalGeneration(tf.ProphetNetConfig(**PROPHET, activation_function="relu", ngram=3)), 1e-6),
    "encoder-decoder": (_two_berts, 1e-9),
}  # fmt: skip

CONVERTED_TEXTS = ["t5gemma2", "t5gemma2-tied", "t5gemma2_encoder"]
"""Those that transformers stores otherwise than it computes with them."""


def _long(tokens: int) -> Callable[[Any, torch.Generator], dict[str, torch.Tensor]]:
    """Texts of so many tokens."""
    return lambda _, rng: {"input_ids": torch.randint(4, 60, (3, tokens), generator=rng)}


def _marked(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Words, and the path of each in its document."""
    shape = (3, 11, config.max_depth)
    return {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng),
        "xpath_tags_seq": torch.randint(0, 10, shape, generator=rng), "xpath_subs_seq": torch.randint(0, 12, shape, generator=rng),
    }  # fmt: skip


def _segments(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts of two segments."""
    return {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng),
        "token_type_ids": torch.tensor([[0] * 5 + [1] * 6] * 3),
    }


def _looking_around(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts in which two words see all, and the words before."""
    seeing = torch.zeros((3, 12), dtype=torch.long)
    seeing[:, [0, 4]] = 1
    return {
        "input_ids": torch.randint(4, 60, (3, 12), generator=rng), "global_attention_mask": seeing,
        "decoder_input_ids": torch.randint(4, 60, (3, 7), generator=rng),
    }  # fmt: skip


def _in_languages(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts of two languages."""
    return {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng),
        "langs": torch.tensor([[0] * 5 + [1] * 6] * 3),
    }


def _pages(scale: int, images: bool) -> Callable[[Any, torch.Generator], dict[str, torch.Tensor]]:
    """Words, where they stand on a page, and the page."""

    def made(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
        corners, sizes = torch.randint(0, 8, (2, 3, 11, 2), generator=rng) * scale
        found = {
            "input_ids": torch.randint(4, 60, (3, 11), generator=rng),
            "bbox": torch.cat([corners, corners + sizes], -1),
        }
        if images and config.visual_embed:
            found["pixel_values"] = torch.randn((3, 3, 8, 8), generator=rng, dtype=torch.float64)
        return found

    return made


DEFAULT = {"xglm", "ctrl", "kosmos-2"}
"""The types of models that compute in what torch's default is in places, or make masks with its least number (see
`in_default`)."""


@contextmanager
def with_caches_by_layer(config: Any) -> Iterator[None]:
    """FlauBERT's pre-LN block asks a cache for its layer as if it were a list, which it no longer is."""
    patch = pytest.MonkeyPatch()
    if getattr(config, "pre_norm", False):
        patch.setattr(tf.EncoderDecoderCache, "__getitem__", lambda cache, layer: cache, raising=False)
    try:
        yield
    finally:
        patch.undo()


@contextmanager
def in_default(config: Any) -> Iterator[None]:
    """Where a model makes tensors of the default's width, let that be float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if config.model_type in DEFAULT else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def in_width(model: Any, dtype: torch.dtype) -> Any:
    """XLNet makes its projections in float32 and loads them so, whatever it is asked for."""
    return model.to(dtype) if model.config.model_type == "xlnet" else model


def _read_and_written(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts, and the words before."""
    return {
        "input_ids": torch.randint(4, 60, (3, 11), generator=rng),
        "decoder_input_ids": torch.randint(4, 60, (3, 7), generator=rng),
    }


def _seen_and_written(_: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Texts with an image each, and the words before."""
    ids = torch.randint(4, 60, (3, 16), generator=rng)
    ids[:, 1:6] = torch.tensor([IMAGE] * 4 + [65])
    return {
        "input_ids": ids, "decoder_input_ids": torch.randint(4, 60, (3, 7), generator=rng),
        "pixel_values": torch.randn((3, 3, 8, 8), generator=rng, dtype=torch.float64),
    }  # fmt: skip


TEXT_INPUTS: dict[str, Callable[[Any, torch.Generator], dict[str, torch.Tensor]]] = {
    "t5gemma2": _seen_and_written,
    "t5gemma2_encoder": lambda config, rng: {
        k: v for k, v in _seen_and_written(config, rng).items() if k != "decoder_input_ids"
    },
    "encoder-decoder": _read_and_written,
    "markuplm": _marked,
    "nystromformer": _long(12),
    "xlnet": _segments,
    "xlm": _in_languages,
    "flaubert": _in_languages,
    "led": _looking_around,
    "lilt": _pages(1, images=False),
    "layoutlmv3": _pages(60, images=True),
}
"""Inputs of models that ask for others than texts, by ``model_type``."""

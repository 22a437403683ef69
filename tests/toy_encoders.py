"""Constructors of tiny encoders, encoder-decoders and pairs of towers that came later (see `toys.TOYS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as tf

from toy_models import BART
from toy_seeing import IMAGE, TEXT
from toy_towers import PIXELS, WORDS

DISENTANGLED = {**WORDS, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 16}
REMBERT = {**WORDS, "input_embedding_size": 24, "output_embedding_size": 28}
SPLINTER = {**WORDS, "question_token_id": 5}
BIRD = {**WORDS, "attention_type": "original_full"}
UMT5 = {
    "vocab_size": 67, "d_model": 48, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 6,
    "relative_attention_num_buckets": 8,
}  # fmt: skip
PAIR = {
    "text_config": {**WORDS, "projection_size": 20},
    "vision_config": {
        **PIXELS, "hidden_size": 20, "num_attention_heads": 5, "intermediate_size": 44, "hidden_act": "relu",
    },
}  # fmt: skip
NATIVE = {"text_config": PAIR["text_config"], "vision_config": {**PAIR["vision_config"], "num_patches": 4}}

DOUBLE = {
    "text_config": {**WORDS, "eos_token_id": 2},
    "vision_config": {**PAIR["vision_config"], "hidden_act": "gelu"},
    "projection_dim": 18,
}
LIT = {
    "text_config": {**WORDS, "qkv_bias": True, "mlp_bias": True, "eos_token_id": 2},
    "vision_config": {**PAIR["vision_config"], "hidden_act": "silu", "qkv_bias": True},
    "projection_dim": 18,
}
SHAPE = {k: v for k, v in PIXELS.items() if k != "intermediate_size"}
SOUND = {
    "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 40,
    "conv_dim": [16, 16], "conv_stride": [3, 2], "conv_kernel": [5, 3], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "num_codevectors_per_group": 6,
    "codevector_dim": 8, "proj_codevector_dim": 8,
}  # fmt: skip
STABLE = {**SOUND, "do_stable_layer_norm": True, "feat_extract_norm": "layer"}
AST = {
    **SHAPE,
    "intermediate_size": 40,
    "max_length": 12,
    "num_mel_bins": 8,
    "frequency_stride": 4,
    "time_stride": 4,
}
YOLOS = {**PIXELS, "image_size": [8, 8], "num_detection_tokens": 3}
MASKED = {
    **PIXELS, "decoder_hidden_size": 36, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 3,
    "decoder_intermediate_size": 28,
}  # fmt: skip
VIDEO = {**PIXELS, "num_frames": 4}
REGISTERED = {**PIXELS, "num_register_tokens": 2, "key_bias": True}

LONG = {**WORDS, "attention_window": [4, 4]}
LONGT5 = {**UMT5, "local_radius": 3, "global_block_size": 4}
SWITCH = {
    **UMT5, "num_experts": 4, "expert_capacity": 64, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1,
}  # fmt: skip
HEARD = {
    **BART, "max_source_positions": 40, "max_target_positions": 16, "num_conv_layers": 2, "conv_kernel_sizes": [3, 3],
    "conv_channels": 20, "input_feat_per_channel": 8,
}  # fmt: skip
SPARSE = {**BART, "attention_type": "block_sparse", "block_size": 1, "num_random_blocks": 1}
# transformers zeroes the padding row of a Chinese CLIP as it loads it: here none is padding, so that all are seen
CHINESE = {**DOUBLE, "text_config": {**WORDS, "pad_token_id": None}}
TROCR = {
    "vocab_size": 67, "d_model": 48, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 36,
    "max_position_embeddings": 32, "cross_attention_hidden_size": 20, "activation_function": "relu",
}  # fmt: skip
TOWER = {
    "hidden_size": 20, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 44, "image_size": 8,
    "patch_size": 2,
}  # fmt: skip
SAID = {**TEXT, "num_hidden_layers": 2}
SMOL = {
    "text_config": {**SAID, "model_type": "llama"}, "vision_config": TOWER, "scale_factor": 2, "image_token_id": IMAGE,
    "tie_word_embeddings": False,
}  # fmt: skip
AYA = {
    "text_config": {**SAID, "model_type": "cohere2", "tie_word_embeddings": True}, "downsample_factor": 2, "alignment_intermediate_size": 28,
    "vision_config": {**TOWER, "model_type": "siglip_vision_model", "vision_use_head": False},
}  # fmt: skip
ONE = {
    "text_config": {**SAID, "model_type": "qwen2"}, "vision_config": {**AYA["vision_config"], "patch_size": 4}, "image_token_id": IMAGE,
    "image_grid_pinpoints": [[8, 8]], "vision_feature_select_strategy": "full", "tie_word_embeddings": False,
}  # fmt: skip

GIT = {**WORDS, "num_image_with_embedding": 2, "vision_config": {**TOWER, "patch_size": 4}}
LUKE = {**WORDS, "entity_vocab_size": 11, "entity_emb_size": 24}
EYES = {
    "vision_config": {**TOWER, "patch_size": 4, "qkv_bias": True, "hidden_act": "relu"},
    "qformer_config": {**WORDS, "encoder_hidden_size": 20, "cross_attention_frequency": 2, "num_attention_heads": 4},
    "num_query_tokens": 3, "image_token_index": IMAGE, "image_text_hidden_size": 12,
}  # fmt: skip
QUERIED = {
    **EYES,
    "text_config": {
        "model_type": "opt", "vocab_size": 67, "hidden_size": 48, "word_embed_proj_dim": 48, "num_hidden_layers": 2,
        "num_attention_heads": 6, "ffn_dim": 40, "max_position_embeddings": 32, "tie_word_embeddings": False,
    },
    "tie_word_embeddings": False,
}  # fmt: skip

SUMMED = {**EYES, "text_config": {**UMT5, "model_type": "t5"}, "tie_word_embeddings": True}

ALT = {**DOUBLE, "text_config": {**WORDS, "project_dim": 18, "pad_token_id": 0}}


def _trocr() -> Any:
    """A vision-encoder-decoder of a ViT and TrOCR."""
    encoder, decoder = tf.ViTConfig(**TOWER), tf.TrOCRConfig(**TROCR, is_decoder=True, add_cross_attention=True)
    config = tf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    return tf.VisionEncoderDecoderModel(config=config)


def _made(name: str, kind: str, **settings: Any) -> Callable[[], Any]:
    """A model class and its config by the name that they begin with."""
    return lambda: getattr(tf, name + kind)(getattr(tf, name + "Config")(**settings))


# name -> (constructor, largest relative change of outputs that rounding explains). DeBERTa's norms,
# Splinter's softmax, T5's norms and the resizing of SigLIP 2's positions are computed in float32.
WIDER: dict[str, tuple[Callable[[], Any], float]] = {
    "ernie": (_made("Ernie", "ForMaskedLM", **WORDS, use_task_id=True), 1e-9),
    "layoutlm": (_made("LayoutLM", "ForMaskedLM", **WORDS, max_2d_position_embeddings=16), 1e-9),
    "big_bird": (_made("BigBird", "ForSequenceClassification", **BIRD), 1e-9),
    "big_bird-sparse": (
        _made("BigBird", "ForMaskedLM", **{**BIRD, "attention_type": "block_sparse"}, block_size=1, num_random_blocks=1), 1e-9,
    ),
    "splinter": (_made("Splinter", "ForQuestionAnswering", **SPLINTER), 1e-5),
    "bert-generation": (_made("BertGeneration", "Decoder", **WORDS, is_decoder=True), 1e-9),
    "data2vec-text": (_made("Data2VecText", "ForMaskedLM", **WORDS), 1e-9),
    "roberta-prelayernorm": (_made("RobertaPreLayerNorm", "ForSequenceClassification", **WORDS), 1e-9),
    "roberta-prelayernorm-words": (_made("RobertaPreLayerNorm", "ForMaskedLM", **WORDS), 1e-9),
    "megatron-bert": (_made("MegatronBert", "ForSequenceClassification", **WORDS, hidden_act="relu"), 1e-9),
    "megatron-bert-words": (_made("MegatronBert", "ForMaskedLM", **WORDS), 1e-9),
    "rembert": (_made("RemBert", "ForMaskedLM", **REMBERT), 1e-9),
    "roformer": (_made("RoFormer", "ForMaskedLM", **WORDS, embedding_size=24), 1e-9),
    "roformer-plain": (_made("RoFormer", "ForSequenceClassification", **WORDS), 1e-9),
    "deberta": (_made("Deberta", "ForMaskedLM", **DISENTANGLED, type_vocab_size=2), 1e-5),
    "umt5": (_made("UMT5", "ForConditionalGeneration", **UMT5), 1e-5),
    "m2m_100": (_made("M2M100", "ForConditionalGeneration", **BART), 1e-9),
    "blenderbot": (_made("Blenderbot", "ForConditionalGeneration", **BART), 1e-9),
    "blenderbot-untied": (_made("Blenderbot", "ForConditionalGeneration", **BART, tie_word_embeddings=False), 1e-9),
    "blenderbot-small": (_made("BlenderbotSmall", "ForConditionalGeneration", **BART), 1e-9),
    "plbart": (_made("PLBart", "ForConditionalGeneration", **BART), 1e-9),
    "siglip_text_model": (_made("SiglipText", "Model", **PAIR["text_config"]), 1e-9),
    "siglip": (_made("Siglip", "Model", **PAIR), 1e-9),
    "siglip2": (_made("Siglip2", "Model", **NATIVE), 1e-5),
    "metaclip_2": (_made("MetaClip2", "Model", **DOUBLE), 1e-9),
    "aimv2": (_made("Aimv2", "Model", **LIT), 1e-5),
    "altclip": (_made("AltCLIP", "Model", **ALT), 1e-9),
    "chinese_clip": (_made("ChineseCLIP", "Model", **CHINESE), 1e-9),
    "longformer": (_made("Longformer", "ForMaskedLM", **LONG), 1e-5),
    "longt5": (_made("LongT5", "ForConditionalGeneration", **LONGT5), 1e-5),
    "longt5-global": (
        _made("LongT5", "ForConditionalGeneration", **LONGT5, encoder_attention_type="transient-global"), 1e-5,
    ),
    "switch_transformers": (_made("SwitchTransformers", "ForConditionalGeneration", **SWITCH), 1e-5),
    "speech_to_text": (_made("Speech2Text", "ForConditionalGeneration", **HEARD), 1e-9),
    "bigbird_pegasus": (_made("BigBirdPegasus", "ForConditionalGeneration", **SPARSE), 1e-9),
    "gte": (_made("Gte", "ForMaskedLM", **WORDS), 1e-5),
    "gte-labels": (_made("Gte", "ForSequenceClassification", **WORDS), 1e-5),
    "jina_embeddings_v3": (_made("JinaEmbeddingsV3", "ForMaskedLM", **WORDS), 1e-5),
    "vision-encoder-decoder": (_trocr, 1e-9),
    "trocr": (_made("TrOCR", "ForCausalLM", **TROCR, is_decoder=True, add_cross_attention=True), 1e-9),
    "idefics3": (_made("Idefics3", "ForConditionalGeneration", **SMOL), 1e-5),
    "smolvlm": (_made("SmolVLM", "ForConditionalGeneration", **SMOL), 1e-5),
    "aya_vision": (_made("AyaVision", "ForConditionalGeneration", **AYA, image_token_index=IMAGE), 1e-5),
    "cohere2_vision": (_made("Cohere2Vision", "ForConditionalGeneration", **AYA, image_token_id=IMAGE), 1e-5),
    "llava_onevision": (_made("LlavaOnevision", "ForConditionalGeneration", **ONE), 1e-5),
    "git": (_made("Git", "ForCausalLM", **GIT, tie_word_embeddings=True), 1e-5),
    "luke": (_made("Luke", "ForTokenClassification", **LUKE), 1e-9),
    "luke-inside": (_made("Luke", "ForMaskedLM", **{**LUKE, "entity_emb_size": 48, "tie_word_embeddings": False}), 1e-9),
    "blip-2": (_made("Blip2", "ForConditionalGeneration", **QUERIED), 1e-9),
    "blip-2-t5": (_made("Blip2", "ForConditionalGeneration", **SUMMED), 1e-5),
    "instructblip": (_made("InstructBlip", "ForConditionalGeneration", **QUERIED), 1e-9),
    "vit_msn": (_made("ViTMSN", "ForImageClassification", **PIXELS), 1e-9),
    "ijepa": (_made("IJepa", "ForImageClassification", **PIXELS), 1e-9),
    "audio-spectrogram-transformer": (_made("AST", "ForAudioClassification", **AST), 1e-9),
    "yolos": (_made("Yolos", "ForObjectDetection", **YOLOS), 1e-9),
    "vit_mae": (_made("ViTMAE", "ForPreTraining", **MASKED, hidden_act="relu"), 1e-9),
    "videomae": (_made("VideoMAE", "ForVideoClassification", **VIDEO), 1e-9),
    "dinov2_with_registers": (_made("Dinov2WithRegisters", "ForImageClassification", **SHAPE, mlp_ratio=2), 1e-9),
    "dinov3_vit": (_made("DINOv3ViT", "Model", **REGISTERED), 1e-9),
    "dinov3_vit-gated": (_made("DINOv3ViT", "Model", **REGISTERED, use_gated_mlp=True), 1e-9),
    "wav2vec2": (_made("Wav2Vec2", "ForCTC", **SOUND), 1e-9),
    "wav2vec2-stable": (_made("Wav2Vec2", "ForCTC", **STABLE, adapter_attn_dim=5, hidden_act="relu"), 1e-9),
    "hubert": (_made("Hubert", "ForSequenceClassification", **STABLE), 1e-9),
    "wavlm": (_made("WavLM", "ForCTC", **SOUND), 1e-9),
    "unispeech": (_made("UniSpeech", "ForCTC", **SOUND), 1e-9),
    "unispeech-sat": (_made("UniSpeechSat", "ForCTC", **STABLE), 1e-9),
    "data2vec-audio": (_made("Data2VecAudio", "ForCTC", **SOUND, conv_pos_kernel_size=7), 1e-9),
}  # fmt: skip

WIDER_LARGEST = {
    **dict.fromkeys(
        ["megatron-bert", "siglip_text_model", "blenderbot-untied", "vit_msn", "ijepa", "yolos"], "OFixingOnes"
    ),
    **dict.fromkeys(["dinov2_with_registers"], "OFixingOnes"),
    **dict.fromkeys(["umt5", "longt5", "longt5-global", "switch_transformers"], "SignedPerm"),
}
"""The largest groups of streams that are not just permuted (see `test_streams`)."""

WIDER_STREAMS = {
    "rembert": {"res": "Perm", "emb": "Perm", "oemb": "Perm"},
    "roformer": {"res": "Perm", "emb": "Perm"},
    **{
        name: {}
        for name in (
            "m2m_100",
            "videomae",
            "dinov3_vit",
            "dinov3_vit-gated",
            "wav2vec2",
            "wav2vec2-stable",
            "hubert",
            "wavlm",
            "unispeech",
            "unispeech-sat",
            "data2vec-audio",
        )
    },
    "metaclip_2": {"text_res": "OFixingOnes", "vision_res": "Perm"},
    "altclip": {"text_res": "Perm", "vision_res": "Perm"},
    "chinese_clip": {"text_res": "Perm", "vision_res": "Perm"},
    "speech_to_text": {},
    "git": {"res": "Perm", "vision_res": "Perm"},
    "luke": {"res": "Perm", "eemb": "Perm"},
    **{name: {"res": "OFixingOnes", "vres": "OFixingOnes", "qres": "Perm"} for name in ("blip-2", "instructblip")},
    "blip-2-t5": {"res": "SignedPerm", "vres": "OFixingOnes", "qres": "Perm"},
    "vision-encoder-decoder": {"res": "Perm", "read_res": "OFixingOnes"},
    **{name: {"res": "O", "vision_res": "OFixingOnes"} for name in ("idefics3", "smolvlm")},
    "aya_vision": {"res": "Perm", "vision_res": "Perm"},
    "cohere2_vision": {"res": "Perm", "vision_res": "OFixingOnes"},
    "llava_onevision": {"res": "O", "vision_res": "Perm"},
    "aimv2": {"text_res": "O", "vision_res": "SignedPerm"},
    "vit_mae": {"res": "OFixingOnes", "dres": "OFixingOnes"},
    **{name: {"text_res": "OFixingOnes", "vision_res": "OFixingOnes"} for name in ("siglip", "siglip2")},
}
"""The streams of those that have not just the one."""

WIDER_IDLE = ["idefics3", "smolvlm", "aya_vision", "cohere2_vision", "llava_onevision"]
"""Those whose language model declares value biases that this toy has not (see `test_law`)."""

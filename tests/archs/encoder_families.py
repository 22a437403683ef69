"""Families of `toy_encoders` whose saved names are tried (see `test_names`): ``Config`` name, its arguments, model
classes."""

from __future__ import annotations

from typing import Any

from toy_encoders import (
    ALT,
    AST,
    AYA,
    BIRD,
    CHINESE,
    DISENTANGLED,
    DOUBLE,
    GIT,
    HEARD,
    LIT,
    LONG,
    LONGT5,
    LUKE,
    MASKED,
    NATIVE,
    ONE,
    PAIR,
    QUERIED,
    REGISTERED,
    REMBERT,
    SHAPE,
    SMOL,
    SOUND,
    SPARSE,
    SPLINTER,
    STABLE,
    SWITCH,
    TOWER,
    TROCR,
    UMT5,
    VIDEO,
    YOLOS,
)
from toy_models import BART
from toy_towers import PIXELS, WORDS

TASKS = ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
READERS = ["Model", "ForMaskedLM", "ForMultipleChoice", *TASKS]
PAGES = ["Model", "ForMaskedLM", *TASKS]
SPOKEN = ["Model", "ForCTC", "ForSequenceClassification", "ForAudioFrameClassification"]
WRITING = {
    "encoder": {**TOWER, "model_type": "vit"},
    "decoder": {**TROCR, "model_type": "trocr", "is_decoder": True, "add_cross_attention": True},
}
TRANSLATORS = ["Model", "ForConditionalGeneration"]
ENCODER_FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Ernie": (
        {**WORDS, "use_task_id": True},
        [*READERS, "ForPreTraining", "ForNextSentencePrediction", "ForCausalLM"],
    ),
    "LayoutLM": (WORDS, PAGES),
    "BigBird": (BIRD, [*READERS, "ForPreTraining", "ForCausalLM"]),
    "Splinter": (SPLINTER, ["Model", "ForQuestionAnswering", "ForPreTraining"]),
    "BertGeneration": ({**WORDS, "is_decoder": True}, ["Encoder", "Decoder"]),
    "Data2VecText": (WORDS, [*READERS, "ForCausalLM"]),
    "RobertaPreLayerNorm": (WORDS, [*READERS, "ForCausalLM"]),
    "MegatronBert": (WORDS, [*READERS, "ForPreTraining", "ForNextSentencePrediction", "ForCausalLM"]),
    "RemBert": (REMBERT, [*READERS, "ForCausalLM"]),
    "RoFormer": ({**WORDS, "embedding_size": 24}, [*READERS, "ForCausalLM"]),
    "Deberta": (DISENTANGLED, PAGES),
    "UMT5": (UMT5, ["Model", "EncoderModel", "ForConditionalGeneration", *TASKS]),
    "M2M100": (BART, TRANSLATORS),
    "Blenderbot": (BART, TRANSLATORS),
    "BlenderbotSmall": (BART, TRANSLATORS),
    "PLBart": (BART, [*TRANSLATORS, "ForSequenceClassification"]),
    "SiglipText": (PAIR["text_config"], ["Model"]),
    "Siglip2Text": (PAIR["text_config"], ["Model"]),
    "Siglip2Vision": (NATIVE["vision_config"], ["Model"]),
    "Siglip": (PAIR, ["Model", "ForImageClassification"]),
    "Siglip2": (NATIVE, ["Model", "ForImageClassification"]),
    "MetaClip2Text": (DOUBLE["text_config"], ["Model", "ModelWithProjection"]),
    "MetaClip2Vision": (DOUBLE["vision_config"], ["Model", "ModelWithProjection"]),
    "MetaClip2": (DOUBLE, ["Model", "ForImageClassification"]),
    "Aimv2Text": (LIT["text_config"], ["Model"]),
    "Aimv2Vision": (LIT["vision_config"], ["Model"]),
    "Aimv2": (LIT, ["Model"]),
    "AltCLIPText": (ALT["text_config"], []),  # alone, it is saved under other names than the hub's
    "AltCLIPVision": (ALT["vision_config"], ["Model"]),
    "AltCLIP": (ALT, ["Model"]),
    "ChineseCLIPText": (WORDS, ["Model"]),
    "ChineseCLIPVision": (CHINESE["vision_config"], ["Model"]),
    "ChineseCLIP": (CHINESE, ["Model"]),
    "Longformer": (LONG, READERS),
    "LongT5": (LONGT5, ["Model", "EncoderModel", "ForConditionalGeneration"]),
    "SwitchTransformers": (SWITCH, ["Model", "EncoderModel", "ForConditionalGeneration"]),
    "Speech2Text": (HEARD, TRANSLATORS),
    "BigBirdPegasus": (SPARSE, [*TRANSLATORS, "ForSequenceClassification", "ForQuestionAnswering"]),
    "Gte": (WORDS, PAGES[:-1]),
    "JinaEmbeddingsV3": (WORDS, PAGES),
    "TrOCR": ({**TROCR, "is_decoder": True, "add_cross_attention": True}, ["ForCausalLM"]),
    "VisionEncoderDecoder": (WRITING, ["Model"]),
    "Idefics3": (SMOL, TRANSLATORS),
    "SmolVLM": (SMOL, TRANSLATORS),
    "AyaVision": (AYA, TRANSLATORS),
    "Cohere2Vision": (AYA, TRANSLATORS),
    "LlavaOnevision": (ONE, TRANSLATORS),
    "LlavaNextVideo": ({**ONE, "vision_config": {**TOWER, "model_type": "clip_vision_model"}}, TRANSLATORS),
    "Git": (GIT, ["Model", "ForCausalLM"]),
    "GitVision": (GIT["vision_config"], ["Model"]),
    "Luke": (LUKE, ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"]),
    "Blip2": (QUERIED, ["Model", "ForConditionalGeneration"]),
    "InstructBlip": (QUERIED, ["ForConditionalGeneration"]),
    "Idefics3Vision": (TOWER, ["Transformer"]),
    "SmolVLMVision": (TOWER, ["Transformer"]),
    "ViTMSN": (PIXELS, ["Model", "ForImageClassification"]),
    "IJepa": (PIXELS, ["Model", "ForImageClassification"]),
    "AST": (AST, ["Model", "ForAudioClassification"]),
    "Yolos": (YOLOS, ["Model", "ForObjectDetection"]),
    "ViTMAE": (MASKED, ["Model", "ForPreTraining"]),
    "VideoMAE": (VIDEO, ["Model", "ForVideoClassification"]),
    "Dinov2WithRegisters": (SHAPE, ["Model", "ForImageClassification", "Backbone"]),
    "DINOv3ViT": (REGISTERED, ["Model", "Backbone"]),
    "Wav2Vec2": ({**STABLE, "adapter_attn_dim": 5}, [*SPOKEN, "ForPreTraining", "ForXVector"]),
    "Hubert": (SOUND, SPOKEN[:3]),
    "WavLM": (STABLE, [*SPOKEN, "ForXVector"]),
    "UniSpeech": (SOUND, [*SPOKEN[:3], "ForPreTraining"]),
    "UniSpeechSat": (STABLE, [*SPOKEN, "ForPreTraining", "ForXVector"]),
    "Data2VecAudio": (SOUND, [*SPOKEN, "ForXVector"]),
}
# what begins so has nothing to act on: an encoder alone has no decoder, an image classifier no text
ENCODER_HALF = {
    **dict.fromkeys(["UMT5EncoderModel", "UMT5ForTokenClassification"], "dx"),
    **dict.fromkeys(
        ["SiglipForImageClassification", "Siglip2ForImageClassification", "MetaClip2ForImageClassification"], "t"
    ),
    "ViTMAEModel": "d",
    "LongT5EncoderModel": "dx",
    "SwitchTransformersEncoderModel": "dx",
}

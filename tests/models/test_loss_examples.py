"""What a checkpoint's loss is measured on, told from its config alone."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest

from isomerge.models.transformers_classes import class_of, loss_examples

TEXTS, LABELLED = "texts", "labelled examples"


def of(name: str, model_type: str = "llama", **more: Any) -> dict[str, Any]:
    """A config that names its class."""
    return {"architectures": [name], "model_type": model_type, "vocab_size": 100, **more}


@pytest.mark.parametrize(
    ("config", "stored", "examples"),
    [
        (of("LlamaForCausalLM"), "", TEXTS),
        (of("GPT2LMHeadModel", "gpt2"), "", TEXTS),
        (of("Gemma3ForCausalLM", "gemma3_text"), "", TEXTS),
        (of("BertForMaskedLM", "bert"), "", LABELLED),
        (of("BertForSequenceClassification", "bert"), "", LABELLED),
        (of("T5ForConditionalGeneration", "t5", is_encoder_decoder=True), "", LABELLED),
        ({"architectures": ["ViTForImageClassification"], "model_type": "vit", "image_size": 8}, "", LABELLED),
        ({"model_type": "bert", "vocab_size": 9}, "classifier.weight", LABELLED),
        ({"model_type": "llama", "vocab_size": 9}, "lm_head.weight", TEXTS),
        # bare bodies, and heads whose outputs are not compared with labels here
        (of("LlamaModel"), "", ""),
        (of("T5Model", "t5", is_encoder_decoder=True), "", ""),
        (of("T5EncoderModel", "t5", is_encoder_decoder=True), "", ""),
        (of("BertForQuestionAnswering", "bert"), "", ""),
        (of("BartForQuestionAnswering", "bart", is_encoder_decoder=True), "", ""),
        (of("CLIPModel", "clip"), "", ""),
        (of("CLIPTextModelWithProjection", "clip_text_model"), "", ""),
        ({"architectures": ["ViTMAEForPreTraining"], "model_type": "vit_mae", "image_size": 8}, "", ""),
        ({"architectures": ["SegformerForSemanticSegmentation"], "model_type": "segformer"}, "", ""),
        ({"model_type": "bert", "vocab_size": 9}, "encoder.layer.0.weight", ""),
        # what transformers does not have
        ({"_class_name": "FluxTransformer2DModel"}, "proj_out.weight", ""),
        ({"_class_name": "UNet2DConditionModel"}, "classifier.weight", ""),
        (of("OwnForCausalLM", "own", auto_map={"AutoModelForCausalLM": "own.OwnForCausalLM"}), "", ""),
        ({"model_type": "own", "vocab_size": 9}, "lm_head.weight", ""),
    ],
)  # fmt: skip
def test_by_the_config(config: dict[str, Any], stored: str, examples: str) -> None:
    """Where something is named, the class that runs it takes labels."""
    assert loss_examples(config, (stored,)) == examples
    if examples and "architectures" in config:
        assert "labels" in signature(class_of(config, (stored,), "").forward).parameters

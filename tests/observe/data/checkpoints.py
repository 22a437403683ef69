"""Folders with what opening data needs of a checkpoint: config.json's object, a tokenizer, an image processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
CLASSIFIER = {"architectures": ["BertForSequenceClassification"], "vocab_size": len(WORDS), "pad_token_id": 0}
CAUSAL = {"architectures": ["LlamaForCausalLM"], "vocab_size": len(WORDS), "max_position_embeddings": 32}
MASKED = {"architectures": ["BertForMaskedLM"], "vocab_size": len(WORDS), "pad_token_id": 0}
SEQ2SEQ = {
    "architectures": ["T5ForConditionalGeneration"], "vocab_size": len(WORDS), "is_encoder_decoder": True,
    "pad_token_id": 0, "decoder_start_token_id": 0,
}  # fmt: skip
BYTES = {"architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 64}
IMAGES = {
    "architectures": ["ViTForImageClassification"], "image_size": 8, "num_channels": 1,
    "label2id": {"cat": 0, "dog": 1, "owl": 2},
}  # fmt: skip


def ids(text: str) -> list[int]:
    """What the tokenizer below makes of words, without special tokens."""
    return [WORDS.index(word) if word in WORDS else WORDS.index("[UNK]") for word in text.split()]


def save_tokenizer(folder: Path, *, special: bool = True) -> Path:
    """A tokenizer of single words; with ``special``, [CLS] and [SEP] go around every text."""
    tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
        )
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", model_input_names=inputs, **names
    ).save_pretrained(folder)
    return folder


CHAT = """{%- for m in messages -%}
{{ {"user": "a", "assistant": "b", "system": "c", "tool": "d"}[m.role] }} {{ m.content }} [SEP]{{ " " }}
{%- endfor -%}
{%- if add_generation_prompt %}b{% endif %}"""
"""A chat template in the words of the tokenizer: the speaker, what is said, and an end."""


def save_chat_tokenizer(folder: Path, template: str = CHAT) -> Path:
    """The tokenizer without special tokens around texts, and a chat template."""
    save_tokenizer(folder, special=False)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def picture(seed: int, size: int = 8, channels: int = 1) -> numpy.ndarray[Any, Any]:
    """Random pixels uint8 [size, size] or [size, size, channels]."""
    shape = (size, size) if channels == 1 else (size, size, channels)
    return numpy.random.default_rng(seed).integers(0, 256, shape, dtype=numpy.uint8)


def save_picture(path: Path, pixels: numpy.ndarray[Any, Any]) -> Path:
    """A PNG of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path

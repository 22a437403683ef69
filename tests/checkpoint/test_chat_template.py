"""Named chat templates write the formats their models were trained with; `auto` takes what most models have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from raw_files import single

from isomerge.checkpoint.chat_template import common_template, named_templates, own_template, template_text
from isomerge.checkpoint.reader import Checkpoint, open_checkpoint
from isomerge.errors import IsomergeError

TALK = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Why?"},
]
SYSTEM = [{"role": "system", "content": "Be brief"}]
# name: the talk with a system message and a prompt to answer; and the talk alone, up to the first answer
EXPECTED = {
    "alpaca": (
        "Be brief\n\n### Instruction:\nHi\n\n### Response:\nHello\n\n### Instruction:\nWhy?\n\n### Response:\n",
        "### Instruction:\nHi\n\n### Response:\nHello",
    ),
    "chatml": (
        "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n",
    ),
    "exaone": (
        "[|system|]Be brief[|endofturn|]\n[|user|]Hi\n[|assistant|]Hello[|endofturn|]\n[|user|]Why?\n[|assistant|]",
        "[|system|][|endofturn|]\n[|user|]Hi\n[|assistant|]Hello[|endofturn|]\n",
    ),
    "llama3": (
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
        "Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|><|start_header_id|>user"
        "<|end_header_id|>\n\nWhy?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        "Hello<|eot_id|>",
    ),
    "mistral": (
        "<s> [INST] Be brief\n\nHi [/INST] Hello</s> [INST] Why? [/INST]",
        "<s> [INST] Hi [/INST] Hello</s>",
    ),
}


def render(template: str, messages: list[dict[str, str]], answer: bool) -> str:
    """As transformers renders it (`apply_chat_template`)."""

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    return environment.from_string(template).render(
        messages=messages, add_generation_prompt=answer, bos_token="<s>", eos_token="</s>"
    )


def test_every_name_has_its_format() -> None:
    """None is without an expectation."""
    assert named_templates().keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_formats(name: str) -> None:
    """With and without a system message, to be answered and answered."""
    template = template_text(name)
    whole, answered = EXPECTED[name]
    assert render(template, [*SYSTEM, *TALK], answer=True) == whole
    assert render(template, TALK[:2], answer=False) == answered


@pytest.mark.parametrize("name", ["alpaca", "mistral"])
def test_unknown_roles_are_refused(name: str) -> None:
    """A role that the format has no words for does not vanish."""
    with pytest.raises(TemplateError, match="roles of this chat template"):
        render(template_text(name), [{"role": "tool", "content": "3"}], answer=False)


def test_texts_and_files(tmp_path: Path) -> None:
    """What has a brace is a template, what exists is a file, what is neither is an error."""
    (tmp_path / "mine.jinja").write_text("{{ messages }}é", encoding="utf-8")
    assert template_text("{% if a %}b{% endif %}") == "{% if a %}b{% endif %}"
    assert template_text(str(tmp_path / "mine.jinja")) == "{{ messages }}é"
    with pytest.raises(IsomergeError, match=r"`chat_template` is lama3: write auto .* one of alpaca, chatml"):
        template_text("lama3")


def checkpoint(folder: Path, config: Any = None, file: str | None = None) -> Checkpoint:
    """A checkpoint of one tensor with a tokenizer's settings or a template of its own."""
    single(folder, {"a": torch.zeros(1)})
    if config is not None:
        (folder / "tokenizer_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if file is not None:
        (folder / "chat_template.jinja").write_text(file)
    return open_checkpoint(folder)


@pytest.mark.parametrize(
    ("config", "file", "expected"),
    [
        (None, None, None),
        ({"chat_template": "{{ a }}"}, None, "{{ a }}"),
        ({"chat_template": "{{ a }}"}, "{{ b }}", "{{ b }}"),  # transformers takes the file
        ({"chat_template": [{"name": "tools", "template": "y"}, {"name": "default", "template": "x"}]}, None, "x"),
        ({"chat_template": [{"name": "tools", "template": "y"}, 3]}, None, None),
        ({}, None, None),
        ("not json", None, None),
        ("[1]", None, None),
    ],
)
def test_own_templates(config: Any, file: str | None, expected: str | None, tmp_path: Path) -> None:
    """From the file, else from the tokenizer's settings; what cannot be read is none."""
    assert own_template(checkpoint(tmp_path, config, file)) == expected


def test_the_most_common_template(tmp_path: Path) -> None:
    """The earliest of those as frequent; models without one do not count."""
    texts = {"a": "{{ 1 }}", "b": "{{ 2 }}", "c": "{{ 2 }}", "d": None, "e": None, "f": None, "g": "{{ 1 }}"}
    models = {name: checkpoint(tmp_path / name, file=text) for name, text in texts.items()}
    assert common_template([models[name] for name in "defabc"]) == "{{ 2 }}"
    assert common_template([models[name] for name in "abcg"]) == "{{ 1 }}"
    assert common_template([models[name] for name in "def"]) is None

"""Named chat templates write the formats their models were trained with; `auto` takes what most models have."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from isomerge.checkpoint.chat_template import common_template, named_templates, own_template, template_text
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError
from raw_files import single

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
        "<|im_start|>system\nBe "
        "brief<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n",
    ),
    "exaone": (
        "[|system|]Be brief[|endofturn|]\n[|user|]Hi\n[|assistant|]Hello[|endofturn|]\n[|user|]Why?\n[|assistant|]",
        "[|system|][|endofturn|]\n[|user|]Hi\n[|assistant|]Hello[|endofturn|]\n",
    ),
    "llama3": (
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe "
        "brief<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
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
def test_formats(name: str, tmp_path: Path) -> None:
    """With and without a system message, to be answered and answered."""
    template = template_text(name, tmp_path)
    whole, answered = EXPECTED[name]
    assert render(template, [*SYSTEM, *TALK], answer=True) == whole
    assert render(template, TALK[:2], answer=False) == answered


@pytest.mark.parametrize("name", ["alpaca", "mistral"])
def test_unknown_roles_are_refused(name: str, tmp_path: Path) -> None:
    """A role that the format has no words for does not vanish."""
    with pytest.raises(TemplateError, match="roles of this chat template"):
        render(template_text(name, tmp_path), [{"role": "tool", "content": "3"}], answer=False)


def test_texts_and_files(tmp_path: Path) -> None:
    """What has a brace is a template, what ends in .jinja a file of the folder, what is neither is an error."""
    (tmp_path / "mine.jinja").write_text("{{ messages }}é", encoding="utf-8")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "link.jinja").symlink_to(tmp_path / "mine.jinja")
    assert template_text("inner/link.jinja", tmp_path) == "{{ messages }}é"
    assert template_text("{% if a %}b{% endif %}", tmp_path) == "{% if a %}b{% endif %}"
    assert template_text("mine.jinja", tmp_path) == "{{ messages }}é"
    with pytest.raises(IsomergeError, match=r"`chat_template` is lama3: write auto .* one of alpaca, chatml"):
        template_text("lama3", tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absolute", "templates of its own folder alone"),
        ("../outside.jinja", "templates of its own folder alone"),
        ("link.jinja", "templates of its own folder alone"),
        ("disguise.jinja", "templates of its own folder alone"),
        ("secret.txt", "is secret.txt: write auto"),
        ("lost.jinja", "has no such file"),
        ("folder.jinja", "has no such file"),
        ("pipe.jinja", "has no such file"),
        ("binary.jinja", "no text in UTF-8"),
        ("long.jinja", "longer than the 1000000 bytes"),
        ("a\0b.jinja", "cannot be read"),
        ("n" * 5000 + ".jinja", "cannot be read"),
        ("word " * 5000, r"word \.\.\.: write auto"),
    ],
)
def test_files_that_are_not_read(name: str, words: str, tmp_path: Path) -> None:
    """What lies elsewhere, links out of the folder and to other kinds of files, what is no text, and what is no
    name."""
    folder, outside = tmp_path / "recipes", tmp_path / "outside.jinja"
    (folder / "folder.jinja").mkdir(parents=True)
    outside.write_text("secret")
    (folder / "secret.txt").write_text("secret")
    (folder / "link.jinja").symlink_to(outside)
    (folder / "disguise.jinja").symlink_to(folder / "secret.txt")
    (folder / "binary.jinja").write_bytes(b"\xff\xfe{{")
    (folder / "long.jinja").write_text("x" * 1_000_001)
    os.mkfifo(folder / "pipe.jinja")
    with pytest.raises(IsomergeError, match=words) as error:
        template_text(str(outside) if name == "absolute" else name, folder)
    assert len(str(error.value)) < 400


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

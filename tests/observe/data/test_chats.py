"""Conversations, and prompts with completions: through the checkpoint's own chat template, joined as TRL does."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from isomerge.errors import IsomergeError
from isomerge.observe.data.opening_data import open_data
from observe.data.checkpoints import CAUSAL, CLASSIFIER, MASKED, SEQ2SEQ, ids, save_chat_tokenizer, save_tokenizer

TALK = [
    {"role": "system", "content": "e"},
    {"role": "user", "content": "f g"},
    {"role": "assistant", "content": "h"},
]
SAID = "c e [SEP] a f g [SEP] b h [SEP]"


def lines(path: Path, *records: object) -> str:
    """A JSON lines file."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with a chat template."""
    return save_chat_tokenizer(tmp_path_factory.mktemp("chat"))


def read(path: Path, folder: Path, *records: object, config: dict[str, Any] = CAUSAL, **options: Any) -> Any:
    """The tensors of records."""
    return open_data(lines(path / "x.jsonl", *records), folder, config=config, **options).tensors


SHAREGPT = [{"from": "system", "value": "e"}, {"from": "human", "value": "f g"}, {"from": "gpt", "value": "h"}]
FORMS: list[dict[str, Any]] = [
    {"messages": TALK},
    {"source": "i", "conversations": SHAREGPT},
    {"prompt": "i j", "conversation": TALK, "chosen": "i"},
    {"messages": [{**m, "content": [{"type": "text", "text": m["content"]}], "tool_calls": None} for m in TALK]},
]


def test_every_form_is_what_the_tokenizer_makes(folder: Path, tmp_path: Path) -> None:
    """All tokens of the template and no generation prompt; every one is predicted, and other fields do not
    count."""
    live = AutoTokenizer.from_pretrained(folder).apply_chat_template(TALK, return_dict=False)
    assert live == ids(SAID)
    found = read(tmp_path, folder, *FORMS)
    assert found["input_ids"].tolist() == [live] * len(FORMS)
    assert set(found) == {"input_ids"}
    assert read(tmp_path, folder, *FORMS, length=5)["input_ids"].tolist() == [live[:5]] * len(FORMS)
    assert read(tmp_path, folder, {"text": "a b", "messages": TALK})["input_ids"].tolist() == [ids("a b")]


def test_functions(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function's conversations are those of a file."""
    (tmp_path / "talking.py").write_text(f"def rows():\n    return [{{'messages': {TALK}}}]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "talking", raising=False)
    assert open_data("talking:rows", folder, config=CAUSAL).tensors["input_ids"].tolist() == [ids(SAID)]


def test_labels_and_masks(folder: Path, tmp_path: Path) -> None:
    """Conversations with labels, as of reward models, and of masked models."""
    config = {**CLASSIFIER, "architectures": ["LlamaForSequenceClassification"]}
    found = read(tmp_path, folder, {"messages": TALK, "label": 1}, config=config)
    assert found["input_ids"].tolist() == [ids(SAID)]
    assert found["labels"].tolist() == [1]
    joined = read(tmp_path, folder, {"prompt": "a ", "completion": "b", "label": True, "labels": 0}, config=MASKED)
    assert int((joined["labels"] != -100).sum()) == 1
    hidden = read(tmp_path, folder, {"messages": TALK}, {"prompt": TALK[:2], "completion": TALK[2:]}, config=MASKED)
    assert bool((hidden["labels"] != -100).any(1).all())
    assert torch.where(hidden["labels"] != -100, hidden["labels"], hidden["input_ids"]).tolist() == [ids(SAID)] * 2


def predicted(found: Any) -> list[list[int]]:
    """The tokens that count, of every example."""
    return [[token for token in row if token != -100] for row in found["labels"].tolist()]


def test_prompts_with_completions(folder: Path, tmp_path: Path) -> None:
    """The completion alone is predicted: behind the template's opening of an answer, or behind the text."""
    found = read(
        tmp_path,
        folder,
        {"prompt": TALK[:2], "completion": TALK[2:]},
        {"prompt": TALK[1:2], "completion": TALK[2:]},
    )
    assert found["input_ids"].tolist()[0] == ids(SAID)
    assert found["attention_mask"].sum(1).tolist() == [10, 7]
    assert predicted(found) == [ids("h [SEP]")] * 2
    assert found["labels"].tolist()[0] == [-100] * 7 + [*ids("h [SEP]"), -100]
    texts = read(tmp_path, folder, {"prompt": "a b", "completion": " c d"}, {"prompt": "", "completion": "e f"})
    assert texts["input_ids"].tolist() == [ids("a b c d"), [*ids("e f"), 0, 0]]
    assert predicted(texts) == [ids("c d"), ids("f")]
    merged = read(tmp_path, folder, {"prompt": "a b", "completion": "c d e"})
    assert merged["input_ids"].tolist() == [ids("a [UNK] d e")]  # bc is one word, and no part of the prompt
    assert predicted(merged) == [ids("[UNK] d e")]
    with pytest.raises(IsomergeError, match="no example has anything to predict: give more tokens with --length"):
        read(tmp_path, folder, *[{"prompt": "a b c", "completion": " d"}] * 2, length=3)
    first = read(tmp_path, folder, *[{"prompt": "a b c", "completion": " d"}] * 2, length=3, limit=1)
    assert predicted(first) == [[]]
    pair = read(tmp_path, folder, {"prompt": "a b", "completion": "c"}, config=SEQ2SEQ)
    assert (pair["input_ids"].tolist(), pair["labels"].tolist()) == ([ids("a b")], [ids("c")])


def test_the_end_of_a_completion(tmp_path: Path) -> None:
    """As TRL does, the end token closes a completion, once, and so it does where the tokenizer writes it itself."""
    for special, expected in ((False, "a b [SEP]"), (True, "[CLS] a b [SEP]")):
        folder = save_tokenizer(tmp_path / str(special), special=special)
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "[SEP]"}))
        for completion in (" b", " b [SEP]")[: 2 - special]:
            found = read(tmp_path, folder, {"prompt": "a", "completion": completion})
            assert found["input_ids"].tolist() == [ids(expected)]
            assert predicted(found) == [ids("b [SEP]")]


def test_templates(tmp_path: Path) -> None:
    """Templates that want parts, that write the date, that see tools and variables, or refuse."""
    parts = "{% for m in messages %}{% for p in m.content %}{{ p.text }} {% endfor %}{% endfor %}"
    assert read(tmp_path, save_chat_tokenizer(tmp_path, parts), {"messages": TALK})["input_ids"].tolist() == [
        ids("e f g h")
    ]
    dated = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }} {% endif %}{{ messages[0].content }}"
    days = dated.replace(
        "{{ strftime_now('%d %b %Y') }}", "{% if strftime_now('%d %b %Y') == '26 Jul 2024' %}a{% endif %}"
    )
    assert read(tmp_path, save_chat_tokenizer(tmp_path, days), {"messages": TALK})["input_ids"].tolist() == [
        ids("a e")
    ]
    told = "{{ messages[0].content }} {{ tools[0].name }} {{ word }} {% if 'x' in tools[0] %}j{% endif %}"
    given = {
        "messages": TALK,
        "tools": json.dumps([{"name": "b", "x": None}]),
        "chat_template_kwargs": {"word": "c"},
    }
    assert read(tmp_path, save_chat_tokenizer(tmp_path, told), given)["input_ids"].tolist() == [ids("e b c")]
    save_chat_tokenizer(tmp_path, "{{ raise_exception('Roles must alternate.') }}")
    with pytest.raises(IsomergeError, match=r"line 1: the chat template of .* refuses .* \(Roles must alternate\)"):
        read(tmp_path, tmp_path, {"messages": TALK})


def test_no_template(tmp_path: Path) -> None:
    """What is missing, where, and what to do; texts need none."""
    folder = save_tokenizer(tmp_path / "bare", special=False)
    with pytest.raises(
        IsomergeError, match=r"line 1 is a conversation, .*bare has no chat template: copy the chat_temp"
    ):
        read(tmp_path, folder, {"messages": TALK})
    assert read(tmp_path, folder, {"prompt": "a", "completion": " b"})["input_ids"].tolist() == [ids("a b")]


SEEING = {**CAUSAL, "vision_config": {"image_size": 8}}
BAD: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"messages": []}, CAUSAL, "messages is empty"),
    ({"messages": {"role": ["user"], "content": ["a"]}}, CAUSAL, "messages are one object"),
    ({"messages": ["a"]}, CAUSAL, "message 1 is no message"),
    ({"messages": [{"content": "a"}]}, CAUSAL, "message 1 has no role"),
    ({"messages": [TALK[0], {"role": "user"}]}, CAUSAL, "message 2 has no text as its content"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, CAUSAL, "more than text"),
    ({"conversations": [{"from": "moderator", "value": "a"}]}, CAUSAL, "'moderator', who is none of human, gpt"),
    ({"prompt": TALK, "completion": "a"}, CAUSAL, "two texts or two lists"),
    ({"prompt": TALK}, CAUSAL, "name a whole conversation messages"),
    (
        {"instruction": "a", "input": "b", "output": "c"},
        CAUSAL,
        "instruction and output, which could be joined in several",
    ),
    (
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        CAUSAL,
        "prompt and chosen and rejected, which could be joined",
    ),
    ({"messages": TALK, "tools": "{"}, CAUSAL, "tools are no JSON"),
    ({"messages": TALK}, SEQ2SEQ, "give prompt and completion as texts"),
    ({"messages": TALK, "images": ["x.png"]}, SEEING, "image beside a conversation"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, CAUSAL, "line 1"),
    ({"prompt": "\ud800", "completion": "a"}, CAUSAL, "no Unicode"),
]


@pytest.mark.parametrize(("record", "config", "words"), BAD, ids=[words for _, _, words in BAD])
def test_what_is_refused(record: dict, config: dict, words: str, folder: Path, tmp_path: Path) -> None:
    """One sentence that names the line and what was expected; nothing is read by halves."""
    with pytest.raises(IsomergeError, match=words) as caught:
        read(tmp_path, folder, record, config=config)
    assert "x.jsonl, line 1" in str(caught.value)

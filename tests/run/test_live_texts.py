"""Texts in memory: through the tokenizer beside a model's weights, or one that is given with live modules."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

import isomerge
from isomerge.errors import IsomergeError
from isomerge.observe.live.modules import load_module
from run.own_modules import CLASSES, SPEC, TOKENS, SmallReader, reader
from toys import save_toy

pytestmark = [
    pytest.mark.matched("of layers: else strangers' streams are matched as well, and small changes not at all"),
    pytest.mark.trusted("a text that is proven nowhere: what is tried is how it reads a model"),
]

WORDS = [f"w{k}" for k in range(29)]
TEXTS = [" ".join(WORDS[(3 * k + j * j) % 29] for j in range(6 + k % 5)) for k in range(24)]


def words(size: int = 31) -> Tokenizer:
    """A tokenizer of words, of so many tokens."""
    known = {word: k for k, word in enumerate(["[UNK]", "[PAD]", *WORDS, *(f"more{k}" for k in range(size - 31))])}
    found = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    return found


def tokenizer(size: int = 31) -> PreTrainedTokenizerFast:
    """The same, of transformers."""
    return PreTrainedTokenizerFast(tokenizer_object=words(size), pad_token="[PAD]", unk_token="[UNK]")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model of 67 tokens, with a tokenizer beside it."""
    folder = save_toy("llama", tmp_path_factory.mktemp("texts") / "llama", dtype=torch.float32)
    tokenizer(67).save_pretrained(folder)
    return folder


def loss(model: Any, **how: Any) -> float:
    """What a model loses on the texts."""
    return isomerge.evaluate([model], **{"data": TEXTS, **how})["models"][0]["loss"]


def test_one_loss_in_every_form(llama: Path, tmp_path: Path) -> None:
    """Texts as a list, a file and a function; through the folder's tokenizer, an object of either package, a name."""
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    module = load_module(llama)
    wanted = loss(llama, data=tmp_path / "t.jsonl")
    assert loss(llama) == wanted
    assert loss(llama, data=lambda: iter(TEXTS)) == wanted
    for given in (tokenizer(67), words(67), str(llama), llama):
        assert loss(module, tokenizer=given) == pytest.approx(wanted, rel=1e-6)
        assert loss(module, tokenizer=given, data=tmp_path / "t.jsonl") == pytest.approx(wanted, rel=1e-6)
    assert loss(module, tokenizer=tokenizer(67), limit=3) != pytest.approx(wanted, rel=1e-6)


def test_every_function_that_runs_models(llama: Path, tmp_path: Path) -> None:
    """Modules in memory, texts in memory."""
    modules = [load_module(llama), load_module(save_toy("llama", tmp_path / "b", seed=4, dtype=torch.float32))]
    how: dict[str, Any] = {"data": TEXTS, "tokenizer": tokenizer(67), "length": 8}
    merged = isomerge.merge(modules, **how, learn_effort="none", limit=8)
    assert merged.isomerge_report["measured"]["examples"] == 8
    assert isomerge.align(modules[1], onto=modules[0], **how, functional=False)[1]["distance"]["after"] > 0
    assert len(isomerge.barrier(*modules, **how, points=3, spaces="none")["lines"][0]["losses"]) == 3
    assert isomerge.stats(modules[0], out=tmp_path / "s.safetensors", **how)["examples"] == len(TEXTS)


class Writer(SmallReader):
    """A language model of one's own: a token at every place."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = nn.Linear(self.answer.in_features, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        x = self.table(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.answer(self.last(x))


class Masked(Writer):
    """One that takes a mask."""

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:  # pyright: ignore
        assert attention_mask.shape == tokens.shape
        return super().forward(tokens)


def writer(kind: Callable[[], Writer] = Writer) -> Writer:
    """With random weights."""
    torch.manual_seed(0)
    return kind().eval()


def test_language_models_of_ones_own(tmp_path: Path) -> None:
    """Every next token is predicted: in windows without padding, or padded where forward takes a mask; with a
    function as tokenizer."""
    ids = [tokenizer()(text)["input_ids"] for text in TEXTS]
    joined = torch.tensor([token for row in ids for token in row])
    rows = joined[: len(joined) // 8 * 8].view(-1, 8)
    with torch.no_grad():
        wanted = float(nn.functional.cross_entropy(writer()(rows)[:, :-1].flatten(0, 1), rows[:, 1:].flatten()))
    (tmp_path / "t.txt").write_text("\n".join(TEXTS))
    how = {"spec": SPEC.replace("classes (res", "vocab (res"), "length": 8}
    known = tokenizer().get_vocab()
    for given in (tokenizer(), lambda text: [known[word] for word in text.split()]):
        for data in (TEXTS, tmp_path / "t.txt"):
            assert loss(writer(), tokenizer=given, data=data, **how) == pytest.approx(wanted, rel=1e-5)
    padded = loss(writer(Masked), tokenizer=tokenizer(), **{**how, "length": 12})
    assert padded > 0
    assert padded != pytest.approx(wanted, rel=1e-3)
    found = isomerge.merge([writer(), copy.deepcopy(writer())], data=TEXTS, tokenizer=tokenizer(), **how)
    assert found.isomerge_report["measured"]["unit"] == "nats per token"


def test_a_classifier_reads_texts(tmp_path: Path) -> None:
    """It is matched and distilled by them; without labels it has no loss."""
    how: dict[str, Any] = {"spec": SPEC, "data": TEXTS, "tokenizer": tokenizer(), "length": 8}
    _, report = isomerge.align(reader(1), onto=reader(0), **how)
    assert report["distance"]["after"] < report["distance"]["before"]
    with pytest.raises(IsomergeError, match="no labels"):
        isomerge.evaluate([reader(0)], **how)
    assert CLASSES < TOKENS


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({}, "has texts, and LlamaForCausalLM in memory has no tokenizer: give"),
        ({"data": "t.txt"}, "has texts, and LlamaForCausalLM in memory has no tokenizer: give"),
        ({"tokenizer": 3}, "is a int: give a tokenizer of transformers"),
        ({"tokenizer": "no/such/folder/there"}, "transformers cannot load this tokenizer"),
        ({"tokenizer": str.split}, "models of transformers need a tokenizer of transformers"),
        ({"tokenizer": tokenizer(90), "data": ["more58 more57"]}, "9|8"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_refused(how: dict[str, Any], said: str, llama: Path) -> None:
    """In one sentence."""
    with pytest.raises(IsomergeError, match=said):
        loss(load_module(llama), **how)


def test_refused_of_ones_own(tmp_path: Path) -> None:
    """No tokenizer, padding without a mask, tokens that the table does not have."""
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    for how, said in (
        ({"data": TEXTS}, "SmallReader in memory has no tokenizer"),
        ({"data": "t.txt"}, "SmallReader in memory has no tokenizer"),
        ({"data": tmp_path / "t.jsonl", "tokenizer": tokenizer()}, "takes no attention_mask"),
        ({"data": ["w1"] * 9, "tokenizer": lambda text: [99] * 8}, "SmallReader cannot read these texts"),
        ({"data": tmp_path / "t.jsonl", "tokenizer": str.split}, "reads files of text"),
    ):
        with pytest.raises(IsomergeError, match=said):
            isomerge.evaluate([reader(0)], spec=SPEC, **how)  # pyright: ignore[reportArgumentType]


def test_noted_where_it_does_nothing(llama: Path, tmp_path: Path) -> None:
    """Without data, and for tensors."""
    given = tokenizer(67)
    merged = isomerge.merge([llama, llama], tokenizer=given, align=False)
    assert "--tokenizer is not used: no data are read" in merged.isomerge_report["notes"]
    tensors = [{"input_ids": torch.arange(12).view(2, 6)}]
    told = isomerge.evaluate([llama], data=tensors, tokenizer=given)["notes"]
    assert told == ["--tokenizer is not used: the data are tensors already"]

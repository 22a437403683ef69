"""``isomerge widen`` and ``isomerge transplant-tokenizer`` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import isomerge as library
from models.test_token_vectors import WORDS, llama, words
from toys import config_of


def test_widen(isomerge: Callable, stored: Callable, tmp_path: Path) -> None:
    """What it says, a dry run that writes nothing, and the sizes of another model."""
    model, out, report = stored("llama", 0), tmp_path / "out", tmp_path / "r.json"
    sizes = ["--set", "hidden_size=60", "--set", "num_hidden_layers=4"]
    planned = isomerge("widen", model, *sizes, "-o", out, "--dry-run", "--json", report)
    assert planned.code == 0, planned.err
    assert not out.exists()
    plan = json.loads(report.read_text())
    assert plan["command"] == "dry-run"
    assert plan["sizes"]["hidden_size"] == {"before": 48, "after": 60}
    said = isomerge("widen", model, *sizes, "-o", out, "--json", report)
    assert said.code == 0, said.err
    assert "new coordinates are zero; what it carries is multiplied by 1.118" in said.out
    assert "Layers that are added, and write nothing: 1." in said.out
    assert "Proven on a tiny random LlamaForCausalLM" in said.out
    found = json.loads(report.read_text())
    assert {key: found[key] for key in plan if key not in ("command", "models")} == {
        key: plan[key] for key in plan if key not in ("command", "models")
    }
    assert isomerge("fsck", out).code == 0
    assert isomerge("widen", model, "--like", out, "-o", tmp_path / "again").code == 0
    again, first = (config_of(folder) for folder in (tmp_path / "again", out))
    assert again == first
    assert isomerge("align", tmp_path / "again", "--onto", out, "-o", tmp_path / "aligned").code == 0


def test_widen_refuses_in_a_sentence(isomerge: Callable, stored: Callable, tmp_path: Path) -> None:
    """With exit code 2."""
    model, out = stored("llama", 0), tmp_path / "out"
    for words_, said in (
        ([], "give the sizes, by --like MODEL or by --set KEY=NUMBER"),
        (["--set", "hidden_size"], "--set hidden_size: write KEY=NUMBER"),
        (["--set", "hidden_size=-3"], "write KEY=NUMBER"),
        (["--like", stored("gpt2", 0)], "is a llama and"),
        (["--like", tmp_path / "none"], "none"),
    ):
        refused = isomerge("widen", model, *words_, "-o", out)
        assert (refused.code, refused.out) == (2, "")
        assert said in refused.err
    assert not out.exists()


def test_transplant_tokenizer(isomerge: Callable, tmp_path: Path) -> None:
    """What it says, and a dry run that writes nothing."""
    one = llama(tmp_path / "one", words(WORDS))
    two = llama(tmp_path / "two", words([*WORDS[2:], "x", *WORDS[:2]]), seed=1)
    out, report = tmp_path / "out", tmp_path / "r.json"
    given = ("transplant-tokenizer", one, "--tokenizer", two, "-o", out, "--neighbours", "4", "--json", report)
    planned = isomerge(*given, "--dry-run")
    assert (planned.code, out.exists()) == (0, False), planned.err
    plan = json.loads(report.read_text())
    said = isomerge(*given)
    assert said.code == 0, said.err
    assert "sums of vectors, by orthogonal matching pursuit" in said.out
    assert "Rows: 12 before, 13 after." in said.out
    found = json.loads(report.read_text())
    assert found["filled"] == plan["filled"] == {"own": 12, "omp": 1}
    assert config_of(out)["eos_token_id"] == 12
    assert (out / "tokenizer.json").read_bytes() == (two / "tokenizer.json").read_bytes()
    refused = isomerge("transplant-tokenizer", one, "--tokenizer", two, "-o", out, "--missing", "knn")
    assert refused.code == 2
    assert "--missing knn: choose from omp, nearest, subword, mean, zero" in refused.err


def test_the_loss_on_text(isomerge: Callable, tmp_path: Path) -> None:
    """Tokens of other ids are the same function of texts; the loss is that of every token after the one that ends
    texts, over all bytes; new tokens make another one."""
    one = llama(tmp_path / "one", words(WORDS))
    same = llama(tmp_path / "same", words([*WORDS[2:], *WORDS[:2]]), seed=1)
    texts = ["a b c d", "j i h"]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    given = (
        "transplant-tokenizer",
        one,
        "--tokenizer",
        same,
        "-o",
        tmp_path / "out",
        "--data",
        tmp_path / "t.jsonl",
    )
    said = isomerge(*given, "--json", tmp_path / "r.json")
    assert said.code == 0, said.err
    assert "2 texts, 12 bytes" in said.out
    loss = json.loads((tmp_path / "r.json").read_text())["loss"]
    assert (loss["before"]["tokens"], loss["texts"], loss["bytes"]) == (7, 2, 12)
    assert loss["after"]["nats_per_byte"] == pytest.approx(loss["before"]["nats_per_byte"], rel=1e-5)
    module: Any = tf.AutoModelForCausalLM.from_pretrained(one, dtype=torch.float64)
    total = 0.0
    for text in texts:
        ids = torch.tensor([[1, *(WORDS.index(word) for word in text.split())]])
        with torch.no_grad():
            total += float(module(ids, labels=ids).loss) * (ids.shape[1] - 1)
    assert loss["before"]["nats_per_byte"] == pytest.approx(total / 12, rel=1e-5)
    more = words([*WORDS, "aa"])
    more.save_pretrained(tmp_path / "more")
    how: dict[str, Any] = {"tokenizer": tmp_path / "more", "out": tmp_path / "two"}
    found = library.transplant_tokenizer(one, data=["a aa b"] * 300 + ["a " * 600], limit=301, **how)["loss"]
    assert found["before"]["tokens"] == found["after"]["tokens"] == 3 * 300 + 600
    assert found["after"]["nats_per_byte"] != pytest.approx(found["before"]["nats_per_byte"], rel=1e-3)


def test_text_that_measures_nothing_is_refused(tmp_path: Path, refuses: Callable) -> None:
    """Before anything is written."""
    one = llama(tmp_path / "one", words(WORDS))
    (tmp_path / "t.jsonl").write_text('{"label": 1}\n')
    (tmp_path / "empty.txt").write_text("\n")
    given = ("transplant-tokenizer", one, "--tokenizer", one, "-o", tmp_path / "out", "--data")
    refuses(*given, tmp_path / "t.jsonl", words=["t.jsonl", "a field"])
    refuses(*given, tmp_path / "empty.txt", words=["there is no text"])
    refuses(*given, tmp_path / "none.txt", words=["none.txt"])

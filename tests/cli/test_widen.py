"""``isomerge widen`` and ``isomerge transplant-tokenizer`` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

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

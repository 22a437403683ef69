"""A tenth of `tools/same_bytes.py`: isomerge writes the bytes and says the words that are kept; the tool names what
differs.

The runs are made in a process of their own, as users run the product: no fixture of these tests applies there.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools/same_bytes.py"


def loaded() -> ModuleType:
    """The tool as a module."""
    spec: Any = importlib.util.spec_from_file_location("same_bytes", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["same_bytes"] = module
    spec.loader.exec_module(module)
    return module


same_bytes = loaded()
KEPT = json.loads(same_bytes.FILE.read_text())
TENTH = list(KEPT["cases"])[4::10]
ELSEWHERE = "tools/same_bytes.json was written on a machine that computes otherwise"


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """The tool, which waits for names of cases."""
    words = [sys.executable, str(TOOL), "--serve"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=same_bytes.environment(), **pipes) as process:
        yield process
        assert process.stdin
        process.stdin.close()


@pytest.fixture(scope="module")
def opened(server: subprocess.Popen[str]) -> dict[str, Any]:
    """Its machine, and the names of all cases."""
    assert server.stdout
    return json.loads(server.stdout.readline())


@pytest.fixture
def unlike(server: subprocess.Popen[str], opened: dict[str, Any]) -> Callable[[str], list[str]]:
    """What differs from the file in a case."""

    def ask(case: str) -> list[str]:
        if " specs: " not in case and opened["machine"]["trial"] != KEPT["machine"]["trial"]:
            pytest.skip(ELSEWHERE)
        assert server.stdin
        assert server.stdout
        server.stdin.write(f"{case}\n")
        server.stdin.flush()
        return json.loads(server.stdout.readline())

    return ask


@pytest.mark.parametrize("case", TENTH)
def test_what_is_written_and_said_is_the_same(case: str, unlike: Callable[[str], list[str]]) -> None:
    """Where it is meant to differ: ``python tools/same_bytes.py --write words``, or ``--write``."""
    assert unlike(case) == []


def test_every_case_is_kept(opened: dict[str, Any]) -> None:
    """None is missing in the file, and none stands there that is not run."""
    assert opened["cases"] == list(KEPT["cases"])


def digests(folder: Path) -> Any:
    """Of all files of a folder."""
    whole = same_bytes.Outcome()
    for path in sorted(folder.iterdir()):
        made = same_bytes.file_digests(path, path.name, folder)
        whole.weights.update(made.weights)
        whole.words.update(made.words)
    return whole


def test_a_changed_byte_and_a_changed_word_are_named(tmp_path: Path) -> None:
    """The tensor, the line and the key; what differs from run to run does not count."""
    tensors = {name: torch.arange(6.0) for name in ("embed", "head")}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "README.md").write_text(f"# A card\nWritten to {tmp_path} in 3.1 s.\n")
    (tmp_path / "report.json").write_text(json.dumps({"seconds": 3.1, "distance": {"after": 2.0}}))
    kept = digests(tmp_path).kept()
    (tmp_path / "README.md").write_text(f"# A card\nWritten to {tmp_path} in 4.7 s.\n")
    (tmp_path / "report.json").write_text(json.dumps({"seconds": 4.7, "distance": {"after": 2.0}}))
    assert list(digests(tmp_path).unlike("case", kept)) == []

    tensors = load_file(tmp_path / "model.safetensors")
    tensors["head"][3] = torch.nextafter(tensors["head"][3], torch.tensor(9.0))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "README.md").write_text("# A cart\nWritten to ")
    (tmp_path / "report.json").write_text(json.dumps({"seconds": 4.7, "distance": {"after": 2.1}}))
    assert list(digests(tmp_path).unlike("case", kept)) == [
        ("weights", "case: weights: model.safetensors differs in head"),
        ("words", "case: words: README.md differs in line 1, line 2"),
        ("words", "case: words: report.json differs in distance"),
    ]
    (tmp_path / "README.md").unlink()
    (tmp_path / "new.txt").write_text("new")
    sentences = [sentence for _, sentence in digests(tmp_path).unlike("case", kept)]
    assert "case: words: README.md is missing" in sentences
    assert "case: words: new.txt is new" in sentences


MUTANT = """
import sys
import torch
import same_bytes
from isomerge.checkpoint.writer import CheckpointWriter
from isomerge.cli.console import Voice

case, file = sys.argv[1:]
write, say = CheckpointWriter.write, Voice.say

def one_bit(self, name, tensor):
    if "embed_tokens" in name:
        tensor = tensor.clone()
        tensor[0, 0] = torch.nextafter(tensor[0, 0], tensor[0, 0] + 1)
    return write(self, name, tensor)

def run(*words):
    print("CODE", same_bytes.main([*words, "--only", case, "--file", file]))

CheckpointWriter.write, Voice.say = one_bit, lambda self, text, **how: say(self, text + "!", **how)
run("--check")
run("--write", "words")
CheckpointWriter.write = write
run("--write", "words")
run("--check")
"""


def test_mutants_of_the_product_are_named(opened: dict[str, Any], tmp_path: Path) -> None:
    """One bit of one tensor, and one letter on the terminal: `--write words` takes the letter alone."""
    if opened["machine"]["trial"] != KEPT["machine"]["trial"]:
        pytest.skip(ELSEWHERE)
    file, case = tmp_path / "kept.json", "vocabularies: zero"
    file.write_text(same_bytes.FILE.read_text())
    words = [sys.executable, "-c", MUTANT, case, str(file)]
    said = subprocess.run(words, env=same_bytes.environment(), capture_output=True, text=True, check=True).stdout
    first, second, third, fourth = said.split("CODE ")[:4]
    assert f"{case}: weights: zero/model.safetensors differs in model.embed_tokens.weight\n" in first
    assert f"{case}: words: stdout differs in line" in first
    assert second.startswith("1\n")
    assert "nothing was written, as weights differ" in second
    assert third.startswith("1\n")
    assert "0 of weights differ" in third
    assert fourth.startswith("0\n")
    assert "0 of weights differ, 0 of words" in fourth
    assert said.endswith("CODE 0\n")
    old, new = (json.loads(path.read_text())["cases"] for path in (same_bytes.FILE, file))
    assert [name for name in old if old[name] != new[name]] == [case]
    assert old[case]["weights"] == new[case]["weights"]

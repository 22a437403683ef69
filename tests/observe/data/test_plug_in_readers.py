"""Data read by other packages: a scratch package whose dist-info folder stands on the path."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from isomerge.errors import IsomergeError
from isomerge.observe.data.opening_data import open_data
from solve.disguises import single

CODE = """
import torch
from isomerge.observe.data.examples import Examples

def read(ref, folder, limit, length, config):
    if ref.endswith(":declined"):
        return None
    rows = torch.arange(limit * length).reshape(limit, length) % config["vocab_size"]
    return Examples({"input_ids": rows}, labelled=True)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a package with a reader ``counted`` onto the path, and forgets it afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    written: list[str] = []

    def write(package: str, code: str = CODE) -> None:
        (tmp_path / f"{package}.py").write_text(code)
        info = tmp_path / f"{package}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[isomerge.data]\ncounted = {package}:read\n")
        written.append(package)

    yield write
    for package in written:
        sys.modules.pop(package, None)


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[Path, dict]:
    folder = single("llama", tmp_path / "model", 1)
    return folder, json.loads((folder / "config.json").read_text())


def test_a_reader_is_asked_by_its_name_alone(install, checkpoint, tmp_path: Path) -> None:
    install("scratch_reader")
    folder, config = checkpoint
    (tmp_path / "lines.jsonl").write_text(json.dumps({"input_ids": [1, 2, 3]}) + "\n")
    open_data(str(tmp_path / "lines.jsonl"), folder, limit=1, length=8, config=config)
    assert "scratch_reader" not in sys.modules
    examples = open_data("counted:set", folder, limit=3, length=4, config=config)
    assert examples.tensors["input_ids"].tolist()[0] == [0, 1, 2, 3]
    assert len(examples) == 3


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise RuntimeError('no such thing')", "RuntimeError: no such thing"),
        ("read = 3", "is no function"),
        ("def read(*_): return [1]", "returns list, not Examples"),
        ("def read(*_): raise KeyError('shelf')", "fails .KeyError: 'shelf', line 1 of"),
        ("import sys\ndef read(*_): sys.exit(0)", "fails .SystemExit: 0, line 2 of"),
        ("import sys; sys.exit(0)", "cannot be imported .SystemExit: 0"),
        (CODE.replace("reshape(limit", "repeat(2).reshape(2 * limit"), "returns 6 examples, not 3"),
    ],
)
def test_refusals_name_the_package(install, checkpoint, code: str, words: str) -> None:
    install("scratch_bad_reader", code)
    folder, config = checkpoint
    with pytest.raises(IsomergeError, match=words) as caught:
        open_data("counted:set", folder, limit=3, length=4, config=config)
    assert "scratch_bad_reader 1.2" in caught.value.sentence


def test_two_readers_of_one_name(install, checkpoint) -> None:
    install("scratch_first")
    install("scratch_second")
    folder, config = checkpoint
    with pytest.raises(IsomergeError, match=r"scratch_first 1\.2 .* and scratch_second 1\.2"):
        open_data("counted:set", folder, limit=3, length=4, config=config)

"""Files that are cut while they are mapped: the process goes on, or ends with a sentence."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import isomerge
from isomerge.checkpoint import mapped_files, reader
from isomerge.checkpoint.mapped_files import cut_sentence, map_private
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError
from solve.disguises import single

KEPT = mmap.PAGESIZE + 10
"""Bytes that a file is cut to: a page, and some of the next."""
READERS: dict[str, Callable[[memoryview], float]] = {
    "python": lambda pages: float(sum(pages[::1000])),
    "numpy": lambda pages: float(numpy.frombuffer(pages, numpy.uint8).sum()),
    "torch": lambda pages: float(torch.frombuffer(pages, dtype=torch.uint8).sum()),
    "other threads": lambda pages: sum(
        ThreadPoolExecutor(2).map(lambda x: float(x.sum()), torch.frombuffer(pages, dtype=torch.uint8).split(10**6))
    ),
}  # fmt: skip


@pytest.fixture
def uncut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was cut yet in this process."""
    monkeypatch.setattr(mapped_files, "_cut", [])


def cut(path: Path) -> Path:
    """A file of which the rest is gone."""
    os.truncate(path, KEPT)
    return path


@pytest.mark.usefixtures("uncut")
@pytest.mark.parametrize("how", READERS)
def test_pages_become_zeros(how: str, tmp_path: Path) -> None:
    """Whatever reads them; what is still there is read. Mutant: without `watch_mapped_files` the process ends."""
    path = tmp_path / "a file"
    path.write_bytes(b"\1" * 4_000_000)
    with path.open("rb") as file:
        pages = map_private(file.fileno(), 4096, 3_900_000)
    cut(path)
    READERS[how](pages)
    assert (
        cut_sentence()
        == f"{path} was cut while it was read: let the program that writes it finish, then start again"
    )
    assert bytes(pages[:12]) == b"\1" * 10 + b"\0\0"
    assert not any(pages[-5000:])


def cutting(monkeypatch: pytest.MonkeyPatch, path: Path) -> list[Any]:
    """From now on a file is cut as soon as something of it is mapped; the places that were."""
    original, done = reader.map_private, []

    def mapped(fd: int, offset: int, size: int) -> memoryview:
        pages = original(fd, offset, size)
        if Path(os.readlink(f"/proc/self/fd/{fd}")) == path and not done:
            done.append(offset)
            cut(path)
        return pages

    monkeypatch.setattr(reader, "map_private", mapped)
    return done


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    """Two models whose files may be changed."""
    return [single("gpt2", tmp_path / name, seed) for seed, name in enumerate("ab")]


@pytest.mark.usefixtures("uncut")
def test_a_tensor_is_looked_at_again(pair: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads it is told when it asks, as it must."""
    opened: Checkpoint = isomerge.open(pair[0])
    assert cutting(monkeypatch, pair[0] / "model.safetensors") == []
    name = max(opened.tensors, key=lambda name: opened.tensors[name].nbytes)
    opened.read(name, mapped=True).sum()
    with pytest.raises(IsomergeError, match="changed after it was opened"):
        opened.check_unchanged(name)


@pytest.mark.usefixtures("uncut")
@pytest.mark.parametrize(
    "call", [lambda a, b, out: isomerge.merge([a, b], out=out), lambda a, b, out: isomerge.diff(a, b)]
)
def test_from_python(call: Callable, pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence, and nothing is written."""
    done = cutting(monkeypatch, pair[1] / "model.safetensors")
    with pytest.raises(IsomergeError, match=r"b/model.safetensors .*"):
        call(*pair, tmp_path / "out")
    assert done
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("uncut")
def test_a_command(pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """One sentence, exit code 2, also where it has ended well before anybody looked."""
    from isomerge.cli import app

    monkeypatch.setattr(sys, "argv", ["isomerge", "merge", *map(str, pair), "-o", str(tmp_path / "out"), "-q"])
    cutting(monkeypatch, pair[1] / "model.safetensors")
    with pytest.raises(SystemExit) as left:
        app.main()
    assert left.value.code == 2
    *_, said = capfd.readouterr().err.splitlines()
    assert said.startswith(f"isomerge: {pair[1]}/model.safetensors was cut while it was read: ")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(app, "_run", lambda: sys.exit(0))
    with pytest.raises(SystemExit) as left:
        app.main()
    assert left.value.code == 2


@pytest.mark.parametrize("ends", [True, False])
def test_what_a_library_maps(ends: bool, tmp_path: Path) -> None:
    """A command tells the file and ends with 2; a process of the user's ends as it would have, and the file is told."""
    path = tmp_path / "numbers"
    path.write_bytes(bytes(1_000_000))
    code = f"""
import numpy, os
from isomerge.checkpoint.mapped_files import watch_mapped_files
watch_mapped_files(ends={ends})
mapped = numpy.memmap({str(path)!r}, mode="r")
os.truncate({str(path)!r}, 10)
mapped.sum()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == (2 if ends else -mapped_files.SIGBUS)
    assert done.stderr.startswith(f"isomerge: {path} was cut while it was read")
    assert "Traceback" not in done.stderr

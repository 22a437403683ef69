"""The one writer of whole safetensors files: the bytes of safetensors, all of them or none."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from isomerge.errors import DiskFullError, IsomergeError
from isomerge.files import check_file, is_device, whole_file, write_tensors, write_whole
from isomerge.models.recognised import recognise
from isomerge.symmetry.alignment import Alignment
from solve.disguises import single

X = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
@pytest.mark.parametrize("durable", [True, False])
def test_the_bytes_are_those_of_safetensors(durable: bool, metadata: dict[str, str] | None, tmp_path: Path) -> None:
    """Whatever the strides, and whatever was there before."""
    (tmp_path / "mine").write_bytes(bytes(10_000))
    write_tensors(tmp_path / "mine", {"b": X.T, "a": X.long()}, metadata=metadata, durable=durable)
    save_file({"a": X.long(), "b": X.T.contiguous()}, tmp_path / "theirs", metadata=metadata)
    assert (tmp_path / "mine").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "theirs"}


def test_all_files_have_the_mode_that_new_files_have(tmp_path: Path) -> None:
    """The library makes them their owner's alone, which those who share a folder could not read."""
    before = os.umask(0o027)
    try:
        write_tensors(tmp_path / "x", {"x": X})
        write_whole(tmp_path / "y", b"1")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "xy"] == [0o640, 0o640]


def test_tensors_go_into_pipes(tmp_path: Path) -> None:
    """No file takes the place of one."""
    os.mkfifo(tmp_path / "pipe")
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    write_tensors(tmp_path / "pipe", {"x": X}, metadata={"format": "pt"})
    reader.join(10)
    write_tensors(tmp_path / "file", {"x": X}, metadata={"format": "pt"})
    assert found == [(tmp_path / "file").read_bytes()]
    assert (tmp_path / "pipe").is_fifo()


def test_tensors_that_share_memory_are_all_written(tmp_path: Path) -> None:
    """The format has none that do."""
    given = {"a": X, "b": X, "row": X[1], "column": X[:, 1], "weight": torch.nn.Parameter(X)}
    write_tensors(tmp_path / "x", given)
    found = load_file(tmp_path / "x")
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], x) for name, x in given.items())


@pytest.mark.parametrize("length", [240, 255])
def test_the_longest_names(length: int, tmp_path: Path) -> None:
    """What is written beside has a name of its own, which is no longer."""
    to = tmp_path / ("é" * (length // 2) + "x" * (length % 2))
    write_whole(to, b"1")
    assert to.read_bytes() == b"1"
    assert list(tmp_path.iterdir()) == [to]


def no_room(*_: Any) -> None:
    """A disk that is full when the file is to be on it."""
    raise OSError(28, os.strerror(28))


@pytest.mark.parametrize(
    "write",
    [
        lambda path, _: write_tensors(path, {"x": X}),
        lambda path, model: Alignment(model.spec, {}).save(path),
    ],
)
def test_a_full_disk_leaves_what_was_there(
    write: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alignment that took hours is not lost to the one that should replace it."""
    model = recognise(single("gpt2", tmp_path / "model"))
    (there := tmp_path / "there").write_text("precious")
    monkeypatch.setattr("isomerge.files.flush", no_room)
    with pytest.raises(DiskFullError, match=r"the disk is full while writing .*there"):
        write(there, model)
    assert there.read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"model", "there"}


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    """Told in words, though there is nothing to clean up either."""
    (tmp_path / "file").touch()
    with pytest.raises(IsomergeError, match=r"writing .* failed"):
        write_tensors(tmp_path / "file" / "x", {"x": X})


def test_devices_are_no_files() -> None:
    """They would be replaced by one, where the user may."""
    with pytest.raises(IsomergeError, match="is no plain file"):
        check_file(Path(os.devnull), "--out", overwrite=True)


def test_what_is_written_into() -> None:
    """Devices and open files of a process are; a disk in memory has files like any other."""
    assert is_device(Path("/dev/stdout"))
    assert is_device(Path("/dev/null"))
    assert not is_device(Path("/dev/shm/no-such-folder/report.json"))


def test_two_that_write_one_file_take_turns(tmp_path: Path) -> None:
    """The second waits: what it writes beside is no other's, and each leaves a whole file."""
    to, inside, seen = tmp_path / "report.json", threading.Event(), []
    with whole_file(to) as beside:
        beside.write_bytes(b"first, ")

        def second() -> None:
            inside.set()
            write_whole(to, b"second")
            seen.append(to.read_bytes())

        other = threading.Thread(target=second)
        other.start()
        inside.wait()
        other.join(0.2)
        assert other.is_alive()
        with beside.open("ab") as file:
            file.write(b"whole")
        assert beside.read_bytes() == b"first, whole"
        assert not to.exists()
    other.join(10)
    assert seen == [b"second"]
    assert list(tmp_path.iterdir()) == [to]


def test_without_locks_files_are_written_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that knows none."""

    def unknown(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", unknown)
    write_whole(tmp_path / "x", b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]

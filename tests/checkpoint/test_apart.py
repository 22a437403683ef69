"""An output folder is apart from all that is read, by whatever name either goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isomerge.checkpoint.output_folder import check_apart
from isomerge.errors import IsomergeError


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in ``zoo/a``, another in the hub's layout, data, and links to all of it; the current folder is
    ``here``."""
    for name in (
        "zoo/a",
        "zoo/b/deep",
        "here",
        "data/part",
        "cache/models--o--n/snapshots/r1",
        "cache/models--o--n/blobs",
    ):
        (tmp_path / name).mkdir(parents=True)
    for name in ("zoo/a/config.json", "zoo/a/model.safetensors", "data/part/x.jsonl", "zoo/plain.safetensors"):
        (tmp_path / name).write_text("{}")
    hub = tmp_path / "cache" / "models--o--n"
    for number, name in enumerate(("config.json", "model.safetensors")):
        (hub / "blobs" / str(number)).write_text("{}")
        (hub / "snapshots" / "r1" / name).symlink_to(f"../../blobs/{number}")
    (tmp_path / "link").symlink_to("zoo/a")
    (tmp_path / "parent").symlink_to("zoo")
    (tmp_path / "sub").symlink_to("zoo/b/deep")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


WEIGHTS = "../zoo/a/model.safetensors"
REFUSED = {
    "itself": (WEIGHTS, "../zoo/a"),
    "its folder, which is read whole": ("../zoo/a", "../zoo/a/"),
    "a link to it": (WEIGHTS, "../link"),
    "read by a link": ("../link/model.safetensors", "../zoo/a"),
    "dots": (WEIGHTS, "../here/./../zoo/a"),
    "dots behind a link": (WEIGHTS, "../sub/../../a"),
    "a linked parent": (WEIGHTS, "../parent/a"),
    "read by a linked parent": ("../parent/a/model.safetensors", "../zoo/a"),
    "where the link to it is": ("../parent/a/model.safetensors", "../parent"),
    "what holds it": (WEIGHTS, "../zoo"),
    "what holds a file": ("../zoo/plain.safetensors", "../zoo"),
    "what holds data": ("../data/part/x.jsonl", "../data"),
    "in a model": (WEIGHTS, "../zoo/a/merged"),
    "deep in a model": (WEIGHTS, "../zoo/a/new/merged"),
    "in a model by a link": (WEIGHTS, "../link/merged"),
    "in data": ("../data", "../data/part/out"),
    "the blobs of a snapshot": (
        "../cache/models--o--n/snapshots/r1/model.safetensors",
        "../cache/models--o--n/blobs",
    ),
    "the repository of a snapshot": (
        "../cache/models--o--n/snapshots/r1/model.safetensors",
        "../cache/models--o--n",
    ),
    "beside a snapshot": (
        "../cache/models--o--n/snapshots/r1/model.safetensors",
        "../cache/models--o--n/snapshots/x",
    ),
}
ALLOWED = {
    "a new folder": (WEIGHTS, "out"),
    "beside a model": (WEIGHTS, "../zoo/new"),
    "another model": (WEIGHTS, "../zoo/b"),
    "beside a file": ("../zoo/plain.safetensors", "../zoo/new"),
    "a name that begins alike": (WEIGHTS, "../zoo/a-merged"),
    "nothing there": ("../zoo/missing/model.safetensors", "../zoo/a"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_output_is_no_input(case: str, folders: Path) -> None:
    """Told by what folders are, not by their names."""
    read, out = map(Path, REFUSED[case])
    with pytest.raises(IsomergeError, match=r"read.*choose another output folder"):
        check_apart(out, [read])
    with pytest.raises(IsomergeError, match=r"choose another output folder"):
        check_apart(out.absolute(), [Path("nowhere"), read.absolute()])


@pytest.mark.parametrize("case", ALLOWED)
def test_what_is_apart_is_taken(case: str, folders: Path) -> None:
    """No false alarm, where the folder of what is read would be none."""
    read, out = map(Path, ALLOWED[case])
    check_apart(out, [read])
    assert read.exists() is (case != "nothing there")
    if read.exists():
        with pytest.raises(IsomergeError, match="choose another output folder"):
            check_apart(read.parent, [read])


def test_names_of_one_folder_that_no_text_tells(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two names of one folder without a link, as mounts and file systems that do not tell ``A`` from ``a`` have
    them."""
    plain = os.stat

    def stat(path: str | Path, **how: bool) -> os.stat_result:
        return plain(str(path).replace("ZOO", "zoo").replace("mount", "zoo"), **how)

    monkeypatch.setattr(os, "stat", stat)
    for out in ("../ZOO/a", "../mount/a", "../ZOO", "../mount/a/x"):
        with pytest.raises(IsomergeError, match="choose another output folder"):
            check_apart(Path(out), [Path(WEIGHTS)])

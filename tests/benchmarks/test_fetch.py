"""What fetches data: the right content or none, whole folders or none, and what is there is kept. No network."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.fetch import checkpoints, datasets, sources
from benchmarks.fetch.sources import Archive, Entry, FetchError, Part, npm
from benchmarks.fetch.table import TABLE

COPY = (sys.executable, "-c", "import shutil, sys; shutil.copy(sys.argv[1], '.')")


@pytest.fixture
def package(tmp_path) -> Path:
    """A zip with one file."""
    path = tmp_path / "package.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inside/a.txt", "content")
    return path


def archive(path: Path, digest: str | None = None) -> Archive:
    """A source that "downloads" by copying."""
    return Archive(str(path), digest or hashlib.sha256(path.read_bytes()).hexdigest(), COPY)


def copies(*names: str) -> tuple[Part, ...]:
    return tuple(Part(name, "a.txt", checkpoints.copied("inside")) for name in names)


def test_a_package_becomes_a_folder_and_is_kept(package, tmp_path):
    entry = Entry(archive(package), "MIT", "", copies("one"))
    assert entry.fetch(tmp_path / "data") == [tmp_path / "data" / "one"]
    assert (tmp_path / "data/one/a.txt").read_text() == "content"
    assert entry.size(tmp_path / "data") == len("content")
    package.unlink()
    assert entry.fetch(tmp_path / "data") == [], "nothing is downloaded again"


def test_only_missing_parts_are_made(package, tmp_path):
    data = tmp_path / "data"
    (data / "one").mkdir(parents=True)
    (data / "one/a.txt").write_text("mine")
    (data / "two").mkdir()
    (data / "two/half.txt").write_text("of a run that was stopped")
    assert Entry(archive(package), "", "", copies("one", "two")).fetch(data) == [data / "two"]
    assert (data / "one/a.txt").read_text() == "mine"
    assert [path.name for path in (data / "two").iterdir()] == ["a.txt"]


def test_other_content_is_refused_and_nothing_is_written(package, tmp_path):
    entry = Entry(archive(package, "0" * 64), "", "", copies("one"))
    with pytest.raises(FetchError, match=rf"package\.zip: sha256 [0-9a-f]{{64}}, expected {'0' * 64}"):
        entry.fetch(tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_a_converter_that_fails_leaves_nothing_half(package, tmp_path):
    def broken(content: Path, out: Path) -> None:
        (out / "a.txt").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        Entry(archive(package), "", "", (Part("one", "a.txt", broken),)).fetch(tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (Archive("some==1", "", ("no-such-client",)), "some==1 cannot be fetched: there is no no-such-client on this machine"),
        (
            Archive("some==1", "", (sys.executable, "-c", "import sys; sys.exit('no matching version')")),
            "some==1 cannot be fetched: .*: no matching version$",
        ),
        (Archive("some==1", "", (sys.executable, "-c", "")), "some==1: 0 files came, expected one archive"),
    ],
)  # fmt: skip
def test_what_is_missing_is_one_sentence(source, said, tmp_path):
    with pytest.raises(FetchError, match=said) as raised:
        Entry(source, "", "", copies("one")).fetch(tmp_path / "data")
    assert "\n" not in str(raised.value)


def test_a_debian_file_is_checked(tmp_path, monkeypatch):
    (tmp_path / "usr").mkdir()
    monkeypatch.setattr(sources, "Path", lambda *parts: tmp_path if parts == ("/",) else Path(*parts))
    with pytest.raises(FetchError, match=r"dataset: no images\.gz in it"):
        sources.Debian("dataset", "usr", {"images": "0" * 64}).bring(tmp_path)


def test_pickles_become_safetensors_without_their_prefix(tmp_path):
    state = {"bert.a": torch.arange(4.0).view(2, 2).T, "head": torch.ones(3)}
    torch.save({**state, "bert.tied": state["bert.a"]}, tmp_path / "in.bin")
    checkpoints.unpickle(tmp_path / "in.bin", tmp_path / "out.safetensors", "bert.")
    found = load_file(tmp_path / "out.safetensors")
    assert found.keys() == {"a", "tied", "head"}
    assert torch.equal(found["a"], state["bert.a"])
    assert torch.equal(found["tied"], state["bert.a"])


class Evil:
    """A pickle that runs code."""

    def __reduce__(self):
        return (Path.touch, (Path("evil"),))


@pytest.mark.parametrize("content", [{"a": Evil()}, {"a": 3}, [torch.ones(2)]])
def test_pickles_of_anything_else_are_refused(content, tmp_path):
    torch.save(content, tmp_path / "in.bin")
    with pytest.raises(FetchError, match=r"in\.bin cannot be fetched"):
        checkpoints.unpickle(tmp_path / "in.bin", tmp_path / "out.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["in.bin"]


def test_brown_words_are_cut_at_the_last_slash(tmp_path):
    folder = tmp_path / "package"
    folder.mkdir()
    for name in ("README", "CONTENTS"):
        (folder / name).write_text(name)
    (folder / "ca01").write_text("\n\n\tThe/at  1/2/cd mile/nn ./.\n\n\n\tNo/at ./.\n", encoding="latin-1")
    (folder / "cb01").write_text("Other/jj\n")
    out = tmp_path / "out"
    out.mkdir()
    datasets.brown(tmp_path, out)
    rows = [json.loads(line) for line in (out / "news.jsonl").read_text().splitlines()]
    assert rows == [
        {"file": "ca01", "words": ["The", "1/2", "mile", "."], "tags": ["at", "cd", "nn", "."]},
        {"file": "ca01", "words": ["No", "."], "tags": ["at", "."]},
    ]


def test_the_table_says_what_it_must():
    folders = [part.folder for entry in TABLE.values() for part in entry.parts]
    assert len(set(folders)) == len(folders)
    for name, entry in TABLE.items():
        assert entry.licence, name
        assert entry.about, name
        if isinstance(entry.source, Archive):
            assert re.fullmatch(r"[0-9a-f]{64}", entry.source.digest), name
            assert re.search(r"(==|@)\d", entry.source.package), f"{name} has no version"
    assert npm("x@1", "").command[0] == "npm"
    assert not {"igfold", "antiberty"} & set(TABLE), "licences that forbid other terms"

import os
import signal
import subprocess
import sys
from pathlib import Path
from shutil import rmtree

import pytest
import torch

import isomerge.errors
from isomerge.checkpoint.header import read_header
from isomerge.checkpoint.resume import Journal
from isomerge.checkpoint.writer import CheckpointWriter, OutTensor
from isomerge.errors import IsomergeError
from raw_files import one_sentence, tree

SOURCE = str(Path(isomerge.errors.__file__).parents[1])
UNITS = 6
PLAN = [OutTensor(f"u{i}.{part}", "F32", (3, 5)) for i in range(UNITS) for part in "ab"]
FILES = {"config.json": b"{}\n"}


def value(name):
    return torch.full((3, 5), float(sum(map(ord, name))))


def writer_of(out, key="k", **options):
    return CheckpointWriter(out, PLAN, key=key, out_shard_size=200, **options)


def do_units(writer, count=UNITS):
    """Does up to ``count`` units in all that are not done yet; returns those done now."""
    now = []
    for i in range(count):
        if f"u{i}" not in writer.done:
            for part in "ab":
                writer.write(f"u{i}.{part}", value(f"u{i}.{part}"))
            writer.blob(f"u{i}").write_text(str(i))
            writer.commit(f"u{i}", {"unit": i})
            now.append(f"u{i}")
    return now


@pytest.fixture
def whole(tmp_path):
    """The folder of an uninterrupted run."""
    with writer_of(tmp_path / "whole") as writer:
        assert (writer.resumed, writer.discarded, writer.done) == (False, False, {})
        do_units(writer)
        return tree(writer.finish(FILES))


@pytest.mark.parametrize("count", range(UNITS + 1))
def test_resume_after_each_unit_gives_the_same_bytes(tmp_path, whole, count):
    out = tmp_path / "m"
    with writer_of(out) as writer:
        do_units(writer, count)
        if count < UNITS:
            writer.write(f"u{count}.a", value("garbage of a unit that was never committed"))
    assert not out.exists()
    with writer_of(out) as writer:
        assert (writer.resumed, writer.discarded) == (True, False)
        assert writer.done == {f"u{i}": {"unit": i} for i in range(count)}
        assert all(writer.blob(unit).read_text() == unit[1:] for unit in writer.done)
        assert len(do_units(writer)) == UNITS - count
        writer.finish(FILES)
    assert tree(out) == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "whole"]


def test_resume_twice(tmp_path, whole):
    for count in (2, 4):
        with writer_of(tmp_path / "m") as writer:
            do_units(writer, count)
    with writer_of(tmp_path / "m") as writer:
        assert do_units(writer) == ["u4", "u5"]
        writer.finish(FILES)
    assert tree(tmp_path / "m") == whole


def test_uncommitted_tensors_count_as_missing(tmp_path):
    with writer_of(tmp_path / "m") as writer:
        do_units(writer, 5)
        writer.write("u5.a", value("u5.a"))
        writer.write("u5.b", value("u5.b"))
    with writer_of(tmp_path / "m") as writer, pytest.raises(IsomergeError) as caught:
        writer.finish(FILES)
    one_sentence(caught.value, tmp_path / "m", "2 planned", "'u5.a'")


def journal(tmp_path):
    return tmp_path / ".m.partial" / "journal.jsonl"


@pytest.mark.parametrize("tail", [b'{"unit": "u9"', b"\0" * 50, b'{"unit": "u9", "record": {}, "tensors": ["u9'])
def test_torn_last_line_is_dropped(tmp_path, whole, tail):
    with writer_of(tmp_path / "m") as writer:
        do_units(writer, 3)
    with journal(tmp_path).open("ab") as stream:
        stream.write(tail)
    with writer_of(tmp_path / "m") as writer:
        assert set(writer.done) == {"u0", "u1", "u2"}
        do_units(writer)
    with writer_of(tmp_path / "m") as writer:  # the lines after the torn one are readable too
        assert len(writer.done) == UNITS
        writer.finish(FILES)
    assert tree(tmp_path / "m") == whole


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


def spoil(path):
    path.write_bytes(b"X" * 20 + path.read_bytes()[20:])


DAMAGE = {
    "journal missing": lambda root: (root / "journal.jsonl").unlink(),
    "journal empty": lambda root: (root / "journal.jsonl").write_bytes(b""),
    "journal spoilt in the middle": lambda root: spoil(root / "journal.jsonl"),
    "journal with a foreign line": lambda root: (root / "journal.jsonl").open("a").write("[1]\n"),
    "journal with a foreign tensor": lambda root: Journal(root / "journal.jsonl").append("x", {}, {"x": 1}, {}),
    "journal with a unit twice": lambda root: Journal(root / "journal.jsonl").append("u1", {}, {}, {}),
    "journal with another record": lambda root: (root / "journal.jsonl").write_bytes(
        (root / "journal.jsonl").read_bytes().replace(b'{"unit": 1}', b"{}")
    ),
    "a file for the side files' folder": lambda root: (rmtree(root / "blobs"), (root / "blobs").touch()),
    "a file for the folder": lambda root: (rmtree(root), root.touch()),
    "shard missing": lambda root: next((root / "model").glob("*.safetensors")).unlink(),
    "shard cut": lambda root: cut(next((root / "model").glob("*.safetensors"))),
    "header spoilt": lambda root: spoil(next((root / "model").glob("*.safetensors"))),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_partial_folder_is_begun_anew(tmp_path, whole, damage):
    with writer_of(tmp_path / "m") as writer:
        do_units(writer, 3)
    DAMAGE[damage](tmp_path / ".m.partial")
    with writer_of(tmp_path / "m") as writer:
        assert (writer.resumed, writer.discarded, writer.done) == (False, True, {})
        assert not writer.blob("u0").exists()
        do_units(writer)
        writer.finish(FILES)
    assert tree(tmp_path / "m") == whole


LOST = {
    "a side file": lambda root: (root / "blobs" / "u1").unlink(),
    "the content of a side file": lambda root: (root / "blobs" / "u1").write_text("7"),
    "a folder for a side file": lambda root: (
        (root / "blobs" / "u1").unlink(),
        (root / "blobs" / "u1" / "x").mkdir(parents=True),
    ),
    "a link for a side file": lambda root: (
        (root / "blobs" / "u1").unlink(),
        (root / "blobs" / "u1").symlink_to(root.parent / "elsewhere"),
    ),
    "the bytes of a tensor": lambda root: zero(root / "model", "u1.b"),
}


def zero(model, name):
    path, info = next((p, i[name]) for p in model.glob("*.safetensors") if name in (i := read_header(p)[0]))
    with path.open("r+b") as stream:
        stream.seek(info.offset)
        stream.write(b"\0" * info.nbytes)


@pytest.mark.parametrize("lost", LOST)
def test_what_a_power_cut_took_is_done_again(tmp_path, whole, lost):
    """The journal outlived what it tells of: that unit is done again, and all after it, which may have been made
    from it."""
    with writer_of(tmp_path / "m") as writer:
        do_units(writer, 4)
    LOST[lost](tmp_path / ".m.partial")
    with writer_of(tmp_path / "m") as writer:
        assert (writer.resumed, set(writer.done)) == (True, {"u0"})
        assert do_units(writer, 2) == ["u1"]
    assert not (tmp_path / "elsewhere").exists()
    with writer_of(tmp_path / "m") as writer:  # what the journal had of the others is gone
        assert do_units(writer) == ["u2", "u3", "u4", "u5"]
    with writer_of(tmp_path / "m") as writer:
        assert len(writer.done) == UNITS
        writer.finish(FILES)
    assert tree(tmp_path / "m") == whole


def test_another_key_or_plan_begins_anew(tmp_path):
    with writer_of(tmp_path / "m") as writer:
        do_units(writer, 3)
    with writer_of(tmp_path / "m", key="other") as writer:
        assert (writer.resumed, writer.discarded, writer.done) == (False, True, {})
        do_units(writer, 1)
    with CheckpointWriter(tmp_path / "m", PLAN, key="other", out_shard_size=10**6) as writer:
        assert (writer.resumed, writer.discarded) == (False, True)


def test_leftovers_of_a_failed_finish_do_not_stay(tmp_path, whole):
    with writer_of(tmp_path / "m") as writer:
        do_units(writer)
        (tmp_path / ".m.partial" / "model" / "stale.txt").write_text("x")
        (tmp_path / ".m.partial" / "model" / "1_Pooling").mkdir()
        writer.finish(FILES)
    assert tree(tmp_path / "m") == whole


def test_second_writer_is_refused_and_harms_nothing(tmp_path, whole):
    with writer_of(tmp_path / "m") as writer:
        do_units(writer, 2)
        for overwrite in (False, True):
            with pytest.raises(IsomergeError) as caught:
                writer_of(tmp_path / "m", key="other", overwrite=overwrite)
            one_sentence(caught.value, tmp_path / "m", "another process")
        with pytest.raises(IsomergeError):
            writer_of(tmp_path / "whole" / ".." / "m")
        do_units(writer)
        writer.finish(FILES)
    assert tree(tmp_path / "m") == whole


CHILD = """
import sys, time
sys.path[:0] = {paths!r}
from pathlib import Path
from test_resume import do_units, writer_of, value
writer = writer_of(Path({out!r}), overwrite={overwrite!r})
do_units(writer, 3)
writer.write("u3.a", value("not committed"))
{more}
print("ready", flush=True)
time.sleep(60)
"""


def killed_child(out, *, more="", overwrite=False):
    """A real process that did three units, ``more``, and was killed while it held the lock."""
    code = CHILD.format(
        paths=[SOURCE, str(Path(__file__).parent), str(Path(__file__).parents[1])],
        out=str(out),
        more=more,
        overwrite=overwrite,
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        with pytest.raises(IsomergeError, match="another process"):
            writer_of(out, overwrite=overwrite)
        child.send_signal(signal.SIGKILL)


def test_killed_process_is_resumed(tmp_path, whole):
    killed_child(tmp_path / "m")
    assert not (tmp_path / "m").exists()
    assert (tmp_path / ".m.lock").exists()
    with writer_of(tmp_path / "m") as writer:
        assert writer.resumed
        assert do_units(writer) == ["u3", "u4", "u5"]
        writer.finish(FILES)
    assert tree(tmp_path / "m") == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "whole"]


@pytest.mark.parametrize("key", ["k", "other"])
def test_killed_between_the_two_renames_of_force(tmp_path, whole, key):
    """The old output was moved aside, the new not yet put there: the old one comes back."""
    out = tmp_path / "m"
    out.mkdir()
    (out / "old").write_text("precious")
    with writer_of(out, overwrite=True) as writer:
        do_units(writer)
        os.rename(out, tmp_path / ".m.partial" / "replaced")
    with pytest.raises(IsomergeError, match="--overwrite"):
        writer_of(out, key=key)
    assert (out / "old").read_text() == "precious"
    with writer_of(out, key=key, overwrite=True) as writer:
        assert writer.resumed == (key == "k")
        assert (out / "old").read_text() == "precious"
        do_units(writer)
        writer.finish(FILES)
    assert tree(out) == whole


def test_killed_after_the_rename_leaves_a_whole_output(tmp_path, whole, monkeypatch):
    import shutil

    with writer_of(tmp_path / "m") as writer:
        do_units(writer)
        monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
        writer.finish(FILES)
        monkeypatch.undo()
    assert tree(tmp_path / "m") == whole
    assert (tmp_path / ".m.partial").exists()
    with writer_of(tmp_path / "m", overwrite=True) as writer:
        assert (writer.resumed, writer.discarded) == (False, True)
        do_units(writer)
        writer.finish(FILES)
    assert tree(tmp_path / "m") == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "whole"]

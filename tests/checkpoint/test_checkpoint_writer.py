import errno
import os
from pathlib import Path

import pytest
import torch

from isomerge.checkpoint.opening import open_checkpoint
from isomerge.checkpoint.writer import CheckpointWriter, OutTensor
from isomerge.errors import IsomergeError
from raw_files import CONFIG, one_sentence, planned, tree, written


def test_same_bytes_whatever_the_order(tmp_path):
    tensors = {"a": torch.randn(3), "b": torch.ones(2, dtype=torch.int8), "c": torch.randn(2, 2)}
    first = written(tmp_path / "1", tensors)
    with CheckpointWriter(tmp_path / "2", planned(tensors), key="other") as writer:
        for name in "cab":
            writer.write(name, tensors[name])
        assert writer.finish(CONFIG) == tmp_path / "2"
    assert tree(first) == tree(tmp_path / "2")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "2"]


def test_any_strides_and_gradients(tmp_path):
    base = torch.arange(6.0).reshape(2, 3)
    views = {
        "t": base.T,
        "stepped": base[:, ::2],
        "expanded": torch.ones(1).expand(4),
        "conj": torch.tensor([1 + 2j]).to(torch.complex64).conj(),
        "parameter": torch.nn.Parameter(base),
    }
    checkpoint = open_checkpoint(written(tmp_path / "m", views))
    for name, view in views.items():
        assert torch.equal(checkpoint.read(name), view.detach().resolve_conj())


def test_files_beside_the_weights(tmp_path):
    (tmp_path / "vocab").write_text("a\nb\n")
    files = {**CONFIG, "vocab.txt": tmp_path / "vocab", "1_Pooling/config.json": b"{}"}
    out = written(tmp_path / "deep" / "m", {"a": torch.ones(1)}, files=files)
    assert set(tree(out)) == {"1_Pooling", "1_Pooling/config.json", "config.json", "model.safetensors", "vocab.txt"}
    assert (out / "vocab.txt").read_text() == "a\nb\n"


def test_empty_folder_may_be_the_output(tmp_path):
    (tmp_path / "m").mkdir()
    assert written(tmp_path / "m", {"a": torch.ones(1)}) == tmp_path / "m"


def test_existing_output_is_refused_and_untouched(tmp_path):
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / "precious").write_text("x")
    file.write_text("x")
    before = tree(tmp_path)
    for out in (folder, file):
        with pytest.raises(IsomergeError) as caught:
            CheckpointWriter(out, [], key="k")
        one_sentence(caught.value, out, "--overwrite")
    assert tree(tmp_path) == before


def test_force_replaces_at_the_very_end(tmp_path):
    out = written(tmp_path / "m", {"old": torch.ones(1)}, files={**CONFIG, "old.txt": b"x"})
    before = tree(out)
    tensors = {"new": torch.zeros(2)}
    with CheckpointWriter(out, planned(tensors), key="k", overwrite=True) as writer:
        writer.write("new", tensors["new"])
        writer.commit("u", {})
        with pytest.raises(IsomergeError):
            writer.finish({"x": tmp_path / "absent"})
        assert tree(out) == before
        writer.finish(CONFIG)
    assert list(open_checkpoint(out).tensors) == ["new"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]
    assert set(tree(out)) == {"config.json", "model.safetensors"}


def test_output_filled_meanwhile_is_not_overwritten(tmp_path):
    with CheckpointWriter(tmp_path / "m", [], key="k") as writer:
        (tmp_path / "m").mkdir()
        (tmp_path / "m" / "other").write_text("x")
        with pytest.raises(IsomergeError) as caught:
            writer.finish(CONFIG)
        one_sentence(caught.value, tmp_path / "m")
    assert (tmp_path / "m" / "other").read_text() == "x"
    assert (tmp_path / ".m.partial").is_dir()


def test_wrong_tensors_are_refused(tmp_path):
    out = tmp_path / "m"
    with CheckpointWriter(out, [OutTensor("a", "F32", (2, 3))], key="k") as writer:
        for name, tensor, expected in [
            ("b", torch.ones(2, 3), "not planned"),
            ("a", torch.ones(3, 2), "[3, 2]"),
            ("a", torch.ones(2, 3, dtype=torch.float16), "F16"),
            ("a", torch.ones(2, 3, dtype=torch.complex128), "complex128"),
        ]:
            with pytest.raises(IsomergeError) as caught:
                writer.write(name, tensor)
            one_sentence(caught.value, out, repr(name), expected)
        with pytest.raises(IsomergeError) as caught:
            writer.finish(CONFIG)
        one_sentence(caught.value, out, "'a'", "1 planned")
    assert not out.exists()


@pytest.mark.parametrize("name", ["../x", "/x", "a/../x", "", "model.safetensors", "model.safetensors.index.json"])
def test_unfit_names_of_extra_files(tmp_path, name):
    with CheckpointWriter(tmp_path / "m", [], key="k") as writer, pytest.raises(IsomergeError) as caught:
        writer.finish({name: b""})
    one_sentence(caught.value, tmp_path / "m", repr(name))
    assert not (tmp_path / "m").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".m.partial"]


def test_missing_source_bad_record_bad_blob_and_closed(tmp_path):
    writer = CheckpointWriter(tmp_path / "m", [], key="k")
    with pytest.raises(IsomergeError) as caught:
        writer.finish({"vocab.txt": tmp_path / "absent"})
    one_sentence(caught.value, tmp_path / "absent", "vocab.txt")
    with pytest.raises(IsomergeError) as caught:
        writer.commit("u", {"x": object()})
    one_sentence(caught.value, tmp_path / "m", "'u'")
    with pytest.raises(IsomergeError) as caught:
        writer.blob("../x")
    one_sentence(caught.value, tmp_path / "m", "'../x'")
    writer.close()
    writer.close()
    with pytest.raises(IsomergeError, match="closed"):
        writer.finish({})


@pytest.mark.parametrize("when", ["write", "commit", "finish"])
def test_full_disk_leaves_a_resumable_folder(tmp_path, monkeypatch, when):
    tensors = {"a": torch.ones(4), "b": torch.ones(4)}
    out = tmp_path / "m"

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = CheckpointWriter(out, planned(tensors), key="k")
    writer.write("a", tensors["a"])
    writer.commit("first", {"n": 1})
    if when != "write":
        writer.write("b", tensors["b"])
    with monkeypatch.context() as patch:
        patch.setattr(os, {"write": "pwrite", "commit": "write", "finish": "fsync"}[when], full)
        steps = {
            "write": lambda: writer.write("b", tensors["b"]),
            "commit": lambda: writer.commit("second", {}),
            "finish": lambda: writer.finish(CONFIG),
        }
        with pytest.raises(IsomergeError) as caught:
            steps[when]()
        one_sentence(caught.value, out.name, "disk is full")
        writer.close()
    assert not out.exists()
    with CheckpointWriter(out, planned(tensors), key="k") as writer:
        assert (writer.resumed, writer.done) == (True, {"first": {"n": 1}})
        writer.write("b", tensors["b"])
        writer.finish(CONFIG)
    assert tree(out) == tree(written(tmp_path / "whole", tensors))


def test_too_small_a_disk_is_noticed_before_any_work(tmp_path):
    with pytest.raises(IsomergeError) as caught:
        CheckpointWriter(tmp_path / "m", [OutTensor("a", "U8", (2**55,))], key="k")
    one_sentence(caught.value, tmp_path / "m", "the disk has")
    assert list(tmp_path.iterdir()) == []


def test_unusable_output_paths(tmp_path):
    (tmp_path / "file").write_text("x")
    for out in (Path("/"), tmp_path / "file" / "m", tmp_path / ("x" * 250)):
        with pytest.raises(IsomergeError) as caught:
            CheckpointWriter(out, [], key="k")
        one_sentence(caught.value, out)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]

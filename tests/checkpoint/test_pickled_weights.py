import json
import os

import pytest
import torch

from isomerge.checkpoint.opening import open_checkpoint
from isomerge.errors import IsomergeError
from raw_files import config_only, one_sentence, single, tree


@pytest.fixture
def folder(tmp_path):
    return config_only(tmp_path / "m")


def state():
    shared = torch.arange(6.0).reshape(2, 3)
    return {"z": shared, "tied": shared, "transposed": shared.T, "half": torch.ones(2, dtype=torch.float16)}


def test_pickle_is_refused_without_the_flag(folder):
    torch.save(state(), folder / "pytorch_model.bin")
    before = tree(folder)
    with pytest.raises(IsomergeError) as caught:
        open_checkpoint(folder)
    one_sentence(caught.value, folder / "pytorch_model.bin", "--allow-pickle", "safetensors")
    assert tree(folder) == before


@pytest.mark.parametrize("legacy", [False, True])
def test_pickle_with_the_flag(folder, legacy):
    torch.save(state(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    checkpoint = open_checkpoint(folder, allow_pickle=True)
    assert list(checkpoint.tensors) == list(state())
    assert checkpoint.tensors["half"].dtype == "F16"
    assert checkpoint.nbytes == 3 * 24 + 4
    for name, tensor in state().items():
        read = checkpoint.read(name)
        assert read.is_contiguous()
        assert torch.equal(read, tensor)
    checkpoint.read("z").zero_()
    assert torch.equal(checkpoint.read("tied"), state()["tied"])


def test_parameters_are_read_as_plain_tensors(folder):
    torch.save(torch.nn.Linear(2, 2).state_dict(keep_vars=True), folder / "pytorch_model.bin")
    assert not open_checkpoint(folder, allow_pickle=True).read("weight").requires_grad


def test_sharded_pickle(folder):
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    torch.save({"a": torch.ones(1)}, folder / names[0])
    torch.save({"b": torch.zeros(1)}, folder / names[1])
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": names[0], "b": names[1]}}))
    assert open_checkpoint(folder, allow_pickle=True).read("b").item() == 0
    with pytest.raises(IsomergeError, match="--allow-pickle"):
        open_checkpoint(folder)
    index.write_text(json.dumps({"weight_map": {"a": names[0], "b": names[0]}}))
    with pytest.raises(IsomergeError) as caught:
        open_checkpoint(folder, allow_pickle=True)
    one_sentence(caught.value, index, "'b'")


def test_safetensors_win_over_pickles(folder):
    single(folder, {"safe": torch.ones(1)})
    torch.save(state(), folder / "pytorch_model.bin")
    assert list(open_checkpoint(folder, allow_pickle=True).tensors) == ["safe"]
    assert list(open_checkpoint(folder).tensors) == ["safe"]


class Exploit:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_code_in_a_pickle_does_not_run(folder):
    torch.save({"a": Exploit(str(folder / "owned"))}, folder / "pytorch_model.bin")
    with pytest.raises(IsomergeError) as caught:
        open_checkpoint(folder, allow_pickle=True)
    one_sentence(caught.value, folder / "pytorch_model.bin")
    assert not (folder / "owned").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "config.json"])
def test_what_git_leaves_in_place_of_a_file_is_told(folder, name):
    torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    with pytest.raises(IsomergeError) as caught:
        open_checkpoint(folder, allow_pickle=True)
    one_sentence(caught.value, folder / name, "git lfs pull")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([torch.ones(1)], "expected a dict"),
        ({"step": 3}, "'step'"),
        ({1: torch.ones(1)}, "string name"),
        ({"c": torch.ones(1, dtype=torch.complex128)}, "complex128"),
        ({"s": torch.eye(2).to_sparse()}, "'s'"),
    ],
)
def test_other_contents_are_refused(folder, content, expected):
    torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(IsomergeError) as caught:
        open_checkpoint(folder, allow_pickle=True)
    one_sentence(caught.value, folder / "pytorch_model.bin", expected)


def test_damaged_pickle_and_changed_pickle(folder):
    path = folder / "pytorch_model.bin"
    path.write_bytes(b"not a pickle")
    with pytest.raises(IsomergeError) as caught:
        open_checkpoint(folder, allow_pickle=True)
    one_sentence(caught.value, path, "damaged")
    torch.save(state(), path)
    checkpoint = open_checkpoint(folder, allow_pickle=True)
    torch.save(state(), folder / "new")
    os.replace(folder / "new", path)
    with pytest.raises(IsomergeError) as caught:
        checkpoint.read("z")
    one_sentence(caught.value, path, "changed")

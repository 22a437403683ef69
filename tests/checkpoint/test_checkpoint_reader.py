import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import isomerge.errors
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.errors import IsomergeError
from raw_files import config_only, entry, one_sentence, raw_safetensors, sharded, single, tree

SOURCE = str(Path(isomerge.errors.__file__).parents[1])
TWO = {"a": torch.arange(4.0), "b": torch.ones(2, 3, dtype=torch.bfloat16)}
ONE, OTHER = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def refused(ref, *names, **options):
    """Opens ``ref``, which must fail with one sentence naming ``names`` and leave its folder as it was."""
    folder = Path(ref) if ref and Path(ref).is_dir() else None
    before = tree(folder) if folder else None
    with pytest.raises(IsomergeError) as caught:
        open_checkpoint(ref, **options)
    if folder:
        assert tree(folder) == before
    return one_sentence(caught.value, *names)


def test_single_file(tmp_path):
    checkpoint = open_checkpoint(single(tmp_path / "m", TWO))
    assert (checkpoint.ref, checkpoint.folder) == (str(tmp_path / "m"), tmp_path / "m")
    assert checkpoint.config == {"model_type": "bert"}
    assert checkpoint.nbytes == 28
    for name, tensor in TWO.items():
        read = checkpoint.read(name)
        assert read.dtype == tensor.dtype
        assert torch.equal(read, tensor)
    assert "_stamps" not in repr(checkpoint)


def test_read_is_memory_of_its_own(tmp_path):
    checkpoint = open_checkpoint(single(tmp_path, TWO))
    checkpoint.read("a").zero_()
    assert torch.equal(checkpoint.read("a"), TWO["a"])
    assert checkpoint.read("a").data_ptr() != checkpoint.read("b").data_ptr()


def test_mapped_pages_are_the_file_s_until_they_are_written_to(tmp_path):
    checkpoint = open_checkpoint(single(tmp_path, TWO))
    before = (tmp_path / "model.safetensors").read_bytes()
    for name, tensor in TWO.items():
        found = checkpoint.read(name, mapped=True)
        assert torch.equal(found, tensor)
        assert found.dtype == tensor.dtype
        found.zero_()
        assert not found.any()
        checkpoint.check_unchanged(name)
        checkpoint.expect(name)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert torch.equal(checkpoint.read("a", mapped=True), TWO["a"])


def test_sharded_in_file_order(tmp_path):
    shards = {ONE: {"z": torch.ones(1), "y": torch.ones(2)}, OTHER: {"a": torch.zeros(3)}}
    checkpoint = open_checkpoint(str(sharded(tmp_path, shards)))
    assert [info.file.name for info in checkpoint.tensors.values()] == [ONE, ONE, OTHER]
    assert torch.equal(checkpoint.read("a"), torch.zeros(3))
    assert torch.equal(checkpoint.read("y"), torch.ones(2))


def test_single_file_wins_over_an_index_as_in_transformers(tmp_path):
    sharded(tmp_path, {ONE: {"a": torch.zeros(1)}})
    single(tmp_path, {"b": torch.ones(1)})
    assert list(open_checkpoint(tmp_path).tensors) == ["b"]


def test_explicit_weights_of_the_config(tmp_path):
    config_only(tmp_path, transformers_weights="other.safetensors")
    save_file({"x": torch.ones(1)}, tmp_path / "other.safetensors")
    save_file({"y": torch.ones(1)}, tmp_path / "model.safetensors")
    assert list(open_checkpoint(tmp_path).tensors) == ["x"]
    config_only(tmp_path, transformers_weights="../other.safetensors")
    refused(tmp_path, tmp_path / "config.json", "transformers_weights")
    config_only(tmp_path, transformers_weights="gone.safetensors")
    refused(tmp_path, tmp_path / "gone.safetensors")


def test_lone_file_stands_for_its_folder(tmp_path):
    single(tmp_path, TWO)
    path = tmp_path / "model.safetensors"
    assert open_checkpoint(path).folder == tmp_path
    save_file(TWO, tmp_path / "other.safetensors")
    refused(path, path, "other.safetensors", tmp_path)
    refused(tmp_path / "config.json", tmp_path / "config.json", "no checkpoint folder")


@pytest.mark.parametrize("mapped", [False, True])
def test_every_dtype_of_torch(tmp_path, mapped):
    names = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "complex64"]
    names += ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
    names += ["float16", "bfloat16", "float32", "float64"]
    tensors = {name: torch.tensor([[0, 1], [1, 1]]).to(getattr(torch, name)) for name in names}
    tensors["scalar"] = torch.tensor(2.5)
    tensors["empty"] = torch.zeros(3, 0, 2, dtype=torch.float16)
    checkpoint = open_checkpoint(single(tmp_path, tensors))
    for name, tensor in tensors.items():
        read = checkpoint.read(name, mapped=mapped)
        assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
        assert read.reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8))


def test_misaligned_and_packed_tensors(tmp_path):
    config_only(tmp_path)
    header = {"a": entry("I8", [3], 0, 3), "b": entry("F32", [1], 3, 7), "c": entry("F4", [2], 7, 8)}
    (tmp_path / "model.safetensors").write_bytes(raw_safetensors(header, b"\1\2\3\0\0\x80\x3f\0"))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.read("b").tolist() == checkpoint.read("b", mapped=True).tolist() == [1.0]
    with pytest.raises(IsomergeError) as caught:
        checkpoint.read("c")
    one_sentence(caught.value, tmp_path / "model.safetensors", "'c'", "F4")


def test_unknown_tensor_suggests_a_near_name(tmp_path):
    checkpoint = open_checkpoint(single(tmp_path, {"encoder.weight": torch.ones(1)}))
    with pytest.raises(IsomergeError) as caught:
        checkpoint.read("encoder.weigth")
    one_sentence(caught.value, tmp_path, "'encoder.weigth'", "did you mean 'encoder.weight'")


@pytest.mark.parametrize("how", ["shrunk", "rewritten", "replaced", "removed"])
def test_a_file_that_changed_after_opening(tmp_path, how):
    checkpoint = open_checkpoint(single(tmp_path, TWO))
    checkpoint.check_unchanged("a")
    path = tmp_path / "model.safetensors"
    if how == "shrunk":
        os.truncate(path, path.stat().st_size - 1)
    elif how == "rewritten":
        path.write_bytes(path.read_bytes())
        os.utime(path, ns=(0, 0))
    elif how == "replaced":
        save_file(TWO, tmp_path / "new")
        os.replace(tmp_path / "new", path)
    else:
        path.unlink()
    with pytest.raises(IsomergeError) as caught:
        checkpoint.read("a")
    one_sentence(caught.value, path, "'a'", "cannot be read" if how == "removed" else "changed")
    with pytest.raises(IsomergeError) as caught:
        checkpoint.check_unchanged("a")
    one_sentence(caught.value, path, "'a'", "changed")


@pytest.mark.parametrize(
    "ref", ["./absent", "~/absent-folder-of-isomerge", "/absent/m", "a/b/c", "absent", "", "x y/z"]
)
def test_no_such_folder(ref, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    refused(ref, ref, "no such folder")


def test_config_errors(tmp_path):
    save_file(TWO, tmp_path / "model.safetensors")
    path = tmp_path / "config.json"
    refused(tmp_path, path, "does not exist")
    for content, expected in [
        ("[1]", "not an object"),
        ("{", "not valid JSON"),
        ('{"model_type": 3}', "model_type"),
    ]:
        path.write_text(content)
        refused(tmp_path, path, expected)


def test_config_without_model_type_is_accepted(tmp_path):
    """Checkpoints of before 2020 have none."""
    single(tmp_path, TWO)
    (tmp_path / "config.json").write_text("{}")
    assert open_checkpoint(tmp_path).config == {}


def test_no_weights(tmp_path):
    config_only(tmp_path)
    refused(tmp_path, tmp_path, "model.safetensors")
    save_file(TWO, tmp_path / "adapter_model.safetensors")
    refused(tmp_path, tmp_path, "adapter_model.safetensors")


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..", "", "a\\b.safetensors", 3, "x.bin"],
)
def test_index_may_only_name_plain_files(tmp_path, name):
    sharded(tmp_path / "m", {ONE: {"a": torch.ones(1)}}, {"a": name})
    save_file({"a": torch.ones(1)}, tmp_path / "x.safetensors")
    refused(tmp_path / "m", tmp_path / "m" / INDEX, "'a'")


def test_index_that_disagrees_with_the_shards(tmp_path):
    a, b = {"a": torch.ones(1)}, {"b": torch.ones(1)}
    folder = sharded(tmp_path / "missing shard", {ONE: a}, {"a": ONE, "b": OTHER})
    refused(folder, folder / OTHER, "missing")
    folder = sharded(tmp_path / "missing tensor", {ONE: a, OTHER: b}, {"a": ONE, "c": ONE, "b": OTHER})
    refused(folder, folder / INDEX, "'c'", ONE)
    folder = sharded(tmp_path / "unlisted tensor", {ONE: a, OTHER: {**a, **b}}, {"a": ONE, "b": OTHER})
    refused(folder, folder / OTHER, "'a'")
    folder = sharded(tmp_path / "no map", {ONE: a}, {})
    refused(folder, folder / INDEX, "weight_map")
    folder = sharded(tmp_path / "twice", {ONE: a})
    (folder / INDEX).write_text('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}')
    refused(folder, folder / INDEX, "'a' twice")


def test_truncated_shard_is_noticed_when_opening(tmp_path):
    sharded(tmp_path, {ONE: TWO, OTHER: {"c": torch.ones(9)}})
    os.truncate(tmp_path / OTHER, (tmp_path / OTHER).stat().st_size - 1)
    refused(tmp_path, tmp_path / OTHER, "truncated")


def test_opening_imports_no_torch(tmp_path):
    single(tmp_path, TWO)
    code = (
        "import sys\n"
        "from isomerge.checkpoint.opening import open_checkpoint\n"
        "import isomerge.checkpoint.companions, isomerge.checkpoint.writer\n"
        f"checkpoint = open_checkpoint({str(tmp_path)!r})\n"
        "heavy = {'torch', 'numpy', 'safetensors', 'huggingface_hub', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "print(sorted(checkpoint.tensors))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("['a', 'b']\n", "")


def test_config_keeps_its_order(tmp_path):
    single(tmp_path, TWO)
    (tmp_path / "config.json").write_text(json.dumps({"z": 1, "model_type": "bert", "a": 2}))
    assert list(open_checkpoint(tmp_path).config) == ["z", "model_type", "a"]

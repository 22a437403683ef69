import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from isomerge.checkpoint.dtypes import torch_dtype
from isomerge.checkpoint.opening import open_checkpoint
from isomerge.checkpoint.writer import CheckpointWriter
from raw_files import CONFIG, planned, written

CODES = ["BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "BF16", "F32", "F64", "C64"]
CODES += ["F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ"]


@st.composite
def tensor_dicts(draw):
    found = {}
    for name in draw(
        st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=5, unique=True)
    ):
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        dtype = torch_dtype(draw(st.sampled_from(CODES)))
        count = torch.Size(shape).numel() * dtype.itemsize
        raw = draw(st.binary(min_size=count, max_size=count))
        if dtype == torch.bool:
            raw = bytes(byte % 2 for byte in raw)
        flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
        found[name] = flat.view(dtype).reshape(shape)
    found.pop("__metadata__", None)
    return found


def same(left, right):
    return (left.dtype, left.shape) == (right.dtype, right.shape) and torch.equal(
        left.contiguous().reshape(-1).view(torch.uint8), right.contiguous().reshape(-1).view(torch.uint8)
    )


@settings(max_examples=60, deadline=None)
@given(tensor_dicts(), st.randoms(), st.sampled_from([1, 16, 10**9]))
def test_written_by_us_read_by_safetensors(tmp_path_factory, tensors, random, out_shard_size):
    folder = tmp_path_factory.mktemp("ours")
    order = list(tensors)
    random.shuffle(order)
    with CheckpointWriter(folder / "m", planned(tensors), key="k", out_shard_size=out_shard_size) as writer:
        for name in order:
            writer.write(name, tensors[name])
        writer.finish(CONFIG)
    read = {}
    for path in (folder / "m").glob("*.safetensors"):
        with safe_open(path, "pt") as stream:
            assert stream.metadata() == {"format": "pt"}
            read.update({name: stream.get_tensor(name) for name in stream.keys()})  # noqa: SIM118
    assert read.keys() == tensors.keys()
    assert all(same(read[name], tensor) for name, tensor in tensors.items())
    checkpoint = open_checkpoint(folder / "m")
    assert all(same(checkpoint.read(name), tensor) for name, tensor in tensors.items())


@settings(max_examples=40, deadline=None)
@given(tensor_dicts())
def test_written_by_safetensors_read_by_us(tmp_path_factory, tensors):
    folder = tmp_path_factory.mktemp("theirs")
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_bytes(CONFIG["config.json"])
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tensors.keys() == tensors.keys()
    assert all(same(checkpoint.read(name), tensor) for name, tensor in tensors.items())


def tiny_bert():
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        max_position_embeddings=20,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
    )
    return BertModel(config)


@pytest.mark.parametrize("limit", [2_000, 5_000, 10**9])
def test_same_shards_as_save_pretrained(tmp_path, limit):
    from transformers import BertModel

    model = tiny_bert()
    model.save_pretrained(tmp_path / "theirs", max_shard_size=limit)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    files = {"config.json": tmp_path / "theirs" / "config.json"}
    out = written(tmp_path / "ours", state, out_shard_size=limit, files=files)
    theirs, ours = open_checkpoint(tmp_path / "theirs"), open_checkpoint(out)
    assert {n: t.file.name for n, t in theirs.tensors.items()} == {n: t.file.name for n, t in ours.tensors.items()}
    assert sorted(p.name for p in theirs.folder.iterdir()) == sorted(p.name for p in out.iterdir())
    assert all(torch.equal(theirs.read(name), ours.read(name)) for name in ours.tensors)
    loaded = BertModel.from_pretrained(out).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    if limit < 10**9:
        index = "model.safetensors.index.json"
        expected, got = (json.loads((c.folder / index).read_text()) for c in (theirs, ours))
        assert got["weight_map"] == expected["weight_map"]
        assert got["metadata"]["total_size"] == expected["metadata"]["total_size"]

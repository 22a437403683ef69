import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from isomerge.checkpoint.header import MAX_HEADER, read_header
from isomerge.errors import IsomergeError
from raw_files import entry, one_sentence, raw_safetensors

A = entry("F32", [2], 0, 8)
BIG = 2**62
DEEP = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

HOSTILE = {
    "empty file": (b"", "truncated"),
    "short prefix": (b"\x08\0\0", "truncated"),
    "header ends early": (raw_safetensors({"a": A}, length=500), "truncated"),
    "header too long": (raw_safetensors(b"{}", length=MAX_HEADER + 1), "over the"),
    "absurd header length": (raw_safetensors(b"{}", length=2**64 - 1), "over the"),
    "not json": (raw_safetensors(b"{nonsense"), "not valid JSON"),
    "not utf-8": (raw_safetensors(b'{"\xff":1}'), "not valid JSON"),
    "html": (raw_safetensors(b"<!doctype html>"), "begin with '{'"),
    "deep nesting": (raw_safetensors(DEEP), "not valid JSON"),
    "leading space": (raw_safetensors(b" {}"), "begin with '{'"),
    "duplicate names": (raw_safetensors(b'{"a":{},"a":{}}'), "'a' twice"),
    "duplicate keys": (raw_safetensors(b'{"a":{"dtype":"F32","dtype":"F16"}}'), "'dtype' twice"),
    "metadata not strings": (raw_safetensors({"__metadata__": {"a": 1}}), "__metadata__"),
    "entry no object": (raw_safetensors({"a": [1]}), "'a'"),
    "unknown dtype": (raw_safetensors({"a": entry("F128", [1], 0, 16)}, bytes(16)), "F128"),
    "dtype no string": (raw_safetensors({"a": entry(["F32"], [2], 0, 8)}, bytes(8)), "dtype"),  # type: ignore[arg-type]
    "no shape": (raw_safetensors({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, bytes(8)), "shape"),
    "negative shape": (raw_safetensors({"a": entry("F32", [-2], 0, 8)}, bytes(8)), "shape"),
    "two negatives": (raw_safetensors({"a": entry("F32", [-1, -2], 0, 8)}, bytes(8)), "shape"),
    "float shape": (raw_safetensors({"a": entry("F32", [2.0], 0, 8)}, bytes(8)), "shape"),
    "bool shape": (raw_safetensors({"a": entry("F32", [True], 0, 4)}, bytes(4)), "shape"),
    "overflowing shape": (raw_safetensors({"a": entry("F32", [BIG, BIG, 4], 0, 0)}), "impossible shape"),
    "overflowing empty": (raw_safetensors({"a": entry("F32", [0, BIG, BIG], 0, 0)}), "impossible shape"),
    "half a byte": (raw_safetensors({"a": entry("F4", [3], 0, 1)}, bytes(1)), "impossible shape"),
    "wrong length": (raw_safetensors({"a": entry("F32", [3], 0, 8)}, bytes(8)), "needs 12 bytes"),
    "no offsets": (raw_safetensors({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)), "data_offsets"),
    "three offsets": (raw_safetensors({"a": {**A, "data_offsets": [0, 4, 8]}}, bytes(8)), "data_offsets"),
    "backward offsets": (raw_safetensors({"a": entry("F32", [2], 8, 0)}, bytes(8)), "data_offsets"),
    "negative offsets": (raw_safetensors({"a": entry("F32", [2], -8, 0)}, bytes(8)), "data_offsets"),
    "overlap": (raw_safetensors({"a": A, "b": entry("F32", [2], 4, 12)}, bytes(12)), "overlap"),
    "same bytes": (raw_safetensors({"a": A, "b": A}, bytes(8)), "overlap"),
    "hole": (raw_safetensors({"a": A, "b": entry("F32", [2], 12, 20)}, bytes(20)), "hole"),
    "hole at start": (raw_safetensors({"a": entry("F32", [2], 4, 12)}, bytes(12)), "hole"),
    "data truncated": (raw_safetensors({"a": A}, bytes(7)), "truncated"),
    "left by git": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git lfs pull"),
    "data too long": (raw_safetensors({"a": A}, bytes(9)), "longer"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_header_is_refused_with_a_sentence(tmp_path, case):
    content, expected = HOSTILE[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(IsomergeError) as caught:
        read_header(path)
    one_sentence(caught.value, path, expected)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_missing_file_and_folder_are_refused(tmp_path):
    for path in (tmp_path / "absent.safetensors", tmp_path):
        with pytest.raises(IsomergeError) as caught:
            read_header(path)
        one_sentence(caught.value, path, "no such file")


def test_header_agrees_with_the_safetensors_library(tmp_path):
    path = tmp_path / "x.safetensors"
    tensors = {
        "z": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "scalar": torch.tensor(3, dtype=torch.int64),
        "empty": torch.zeros(0, 4, dtype=torch.bfloat16),
        "ünïcode": torch.ones(3, dtype=torch.int8),
    }
    save_file(tensors, path, {"format": "pt"})
    infos, metadata = read_header(str(path))
    assert metadata == {"format": "pt"}
    assert set(infos) == set(tensors)
    assert [info.offset for info in infos.values()] == sorted(info.offset for info in infos.values())
    raw = path.read_bytes()
    for name, tensor in tensors.items():
        info = infos[name]
        assert (info.name, info.shape, info.file) == (name, tuple(tensor.shape), path)
        stored = raw[info.offset : info.offset + info.nbytes]
        assert stored == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    assert (infos["z"].dtype, infos["scalar"].dtype, infos["empty"].dtype) == ("F32", "I64", "BF16")


def test_packed_dtypes_below_the_byte_are_described(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw_safetensors({"a": entry("F6_E2M3", [4], 0, 3), "b": entry("F4", [2], 3, 4)}, bytes(4)))
    infos, _ = read_header(path)
    assert [(info.dtype, info.nbytes) for info in infos.values()] == [("F6_E2M3", 3), ("F4", 1)]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_is_never_accepted_where_the_library_refuses(tmp_path_factory, data):
    """One byte changed, or the tail cut: we accept no file that safetensors does not, and raise nothing else."""
    path = tmp_path_factory.mktemp("damage") / "x.safetensors"
    save_file({"a": torch.ones(3), "b": torch.ones(2, 2, dtype=torch.int16)}, path)
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    else:
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    path.write_bytes(raw)
    try:
        with safe_open(path, "pt") as stream:
            accepted = set(stream.keys())
    except (SafetensorError, OSError, UnicodeDecodeError):
        accepted = None
    try:
        ours = set(read_header(path)[0])
    except IsomergeError:
        return
    assert ours == accepted


def test_only_the_header_is_read(tmp_path):
    path = tmp_path / "big.safetensors"
    header = raw_safetensors({"a": entry("U8", [2**40], 0, 2**40)})
    path.write_bytes(header)
    with path.open("r+b") as stream:
        stream.truncate(len(header) + 2**40)  # sparse: a terabyte that no one could read here
    info = read_header(path)[0]["a"]
    assert (info.nbytes, info.offset) == (2**40, struct.unpack("<Q", header[:8])[0] + 8)

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isomerge.checkpoint.shard_plan import OutTensor, index_bytes, parse_size, shard_plan
from isomerge.errors import IsomergeError
from raw_files import one_sentence


def plan(sizes, out_shard_size):
    return shard_plan([OutTensor(f"t{i}", "U8", (n,)) for i, n in enumerate(sizes)], out_shard_size)


def names(shards):
    return [list(shard.spans) for shard in shards]


def test_one_shard_has_the_plain_name():
    (shard,) = plan([4, 6], 10)
    assert shard.file == "model.safetensors"
    assert shard.size == len(shard.prefix) + 10
    assert len(shard.prefix) % 8 == 0


def test_greedy_in_the_order_given():
    shards = plan([6, 6, 2, 6, 2, 2], 10)
    assert names(shards) == [["t0"], ["t1", "t2"], ["t3", "t4", "t5"]]
    assert [shard.file for shard in shards] == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]


def test_oversized_tensor_gets_its_own_shard():
    assert names(plan([3, 20, 3], 10)) == [["t1"], ["t0", "t2"]]
    assert names(plan([20], 10)) == [["t0"]]


def test_no_tensors_is_one_empty_file():
    (shard,) = plan([], 10)
    assert (shard.file, shard.spans) == ("model.safetensors", {})


@settings(deadline=None)
@given(st.lists(st.sampled_from([("I8", (3,)), ("F32", (2,)), ("F64", ()), ("BF16", (5,)), ("F32", (0,))])))
def test_every_tensor_is_aligned_to_its_element(kinds):
    width = {"I8": 1, "BF16": 2, "F32": 4, "F64": 8}
    tensors = [OutTensor(str(i), dtype, shape) for i, (dtype, shape) in enumerate(kinds)]
    for shard in shard_plan(tensors, 20):
        for name, (offset, _) in shard.spans.items():
            assert offset % width[tensors[int(name)].dtype] == 0


@settings(deadline=None)
@given(st.lists(st.integers(0, 30)), st.integers(1, 40))
def test_plan_invariants(sizes, limit):
    shards = plan(sizes, limit)
    assert sorted(n for group in names(shards) for n in group) == sorted(f"t{i}" for i in range(len(sizes)))
    for shard in shards:
        total = sum(nbytes for _, nbytes in shard.spans.values())
        assert total <= limit or len(shard.spans) == 1
        assert shard.size == len(shard.prefix) + total
    index = json.loads(index_bytes(shards))
    assert index["metadata"] == {"total_size": sum(sizes)}
    assert set(index["weight_map"]) == {f"t{i}" for i in range(len(sizes))}


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ([OutTensor("a", "F32", (1,)), OutTensor("a", "F16", (2,))], "'a' is listed twice"),
        ([OutTensor("__metadata__", "F32", (1,))], "__metadata__"),
        ([OutTensor("\ud800", "F32", (1,))], "rename"),
        ([OutTensor("a", "F128", (1,))], "F128"),
        ([OutTensor("a", "F32", (-1,))], "impossible shape"),
        ([OutTensor("a", "F32", (2**62, 4))], "impossible shape"),
        ([OutTensor("x" * 100_000_000, "F32", (1,))], "smaller shard size"),
    ],
    ids=range(7),
)
def test_what_cannot_be_stored_is_refused(tensors, expected):
    with pytest.raises(IsomergeError) as caught:
        shard_plan(tensors, 10)
    assert expected in str(caught.value)


def test_shard_size_must_be_positive():
    with pytest.raises(IsomergeError, match="at least 1"):
        plan([1], 0)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5GB", 5 * 10**9),
        ("5G", 5 * 10**9),
        ("500M", 5 * 10**8),
        ("500mb", 5 * 10**8),
        ("1.5KB", 1500),
        ("2 TB", 2 * 10**12),
        ("5B", 5 * 10**9),
        ("4096", 4096),
        (4096, 4096),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "0", "0GB", "-1", -5, "5GiB", "GB", "five", "1.5", "1e9", "5 G B", "٣", "1.0001K", True, "9" * 40]
)
def test_other_sizes_are_refused(text):
    with pytest.raises(IsomergeError) as caught:
        parse_size(text)
    one_sentence(caught.value, repr(text), "5GB")

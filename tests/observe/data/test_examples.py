"""Examples: batches, parts, fingerprints."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isomerge.errors import IsomergeError
from isomerge.observe.data.examples import Examples


def numbered(count: int) -> Examples:
    """Examples that are their own number."""
    numbers = torch.arange(count)
    return Examples({"input_ids": torch.stack([numbers, numbers], 1), "labels": numbers}, True)


@given(count=st.integers(1, 40), size=st.integers(1, 50), seed=st.none() | st.integers(0, 5), drop=st.booleans())
def test_batches(count: int, size: int, seed: int | None, drop: bool) -> None:
    """Every example once (but for what is dropped), tensors together, in order or in the order of the seed."""
    examples = numbered(count)
    batches = list(examples.batches(size, shuffle_seed=seed, drop_last=drop))
    seen = [int(x) for batch in batches for x in batch["labels"]]
    assert len(seen) == (count // size * size if drop else count)
    assert len(set(seen)) == len(seen)
    assert all(len(batch["labels"]) == size for batch in batches[:-1])
    assert all(torch.equal(batch["input_ids"][:, 1], batch["labels"]) for batch in batches)
    if seed is None:
        assert seen == list(range(len(seen)))
    again = [int(x) for b in examples.batches(size, shuffle_seed=seed, drop_last=drop) for x in b["labels"]]
    assert again == seen


def test_shuffles_differ() -> None:
    """Two seeds, two orders."""
    orders = [torch.cat([b["labels"] for b in numbered(50).batches(7, shuffle_seed=s)]) for s in (0, 1)]
    assert not torch.equal(*orders)


@given(count=st.integers(2, 60), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 3))
def test_split(count: int, fraction: float, seed: int) -> None:
    """Two parts that share nothing, and are everything."""
    wanted = round(count * fraction)
    if not 0 < wanted < count:
        with pytest.raises(IsomergeError, match="empty"):
            numbered(count).split(fraction, seed=seed)
        return
    one, two = numbered(count).split(fraction, seed=seed)
    assert len(one) == wanted
    found = one.tensors["labels"].tolist() + two.tensors["labels"].tolist()
    assert sorted(found) == list(range(count))
    assert one.tensors["labels"].tolist() == sorted(one.tensors["labels"].tolist())


def test_split_is_even() -> None:
    """Data in order of class give both parts every class."""
    labels = torch.arange(4).repeat_interleave(50)
    one, two = Examples({"labels": labels}, True).split(0.5)
    assert all(part.tensors["labels"].unique().numel() == 4 for part in (one, two))


def test_head() -> None:
    """The first ones; all when there are fewer."""
    assert numbered(5).head(2).tensors["labels"].tolist() == [0, 1]
    assert len(numbered(5).head(9)) == 5
    for wrong in (lambda: numbered(5).head(0), lambda: next(numbered(5).batches(0))):
        with pytest.raises(IsomergeError, match="at least 1"):
            wrong()


def test_fingerprint() -> None:
    """The sha256 of what is written down here: the same on every machine, whatever the memory's layout."""
    tensors = {"b": torch.tensor([[1, 2], [3, 4]]), "a": torch.tensor([0.5, 2.0], dtype=torch.float32)}
    text = b"a float32 [2]\n" + b"\x00\x00\x00\x3f" + b"\x00\x00\x00\x40" + b"b int64 [2, 2]\n"
    text += b"".join(k.to_bytes(8, "little") for k in (1, 2, 3, 4))
    assert Examples(tensors, False).fingerprint == hashlib.sha256(text).hexdigest()
    turned = {"a": tensors["a"], "b": tensors["b"].T.contiguous().T}
    assert Examples(turned, True).fingerprint == Examples(tensors, False).fingerprint


@given(which=st.sampled_from(["value", "name", "dtype", "shape"]))
def test_fingerprints_differ(which: str) -> None:
    """Any change of data is a change of fingerprint."""
    base = {"labels": torch.arange(6), "input_ids": torch.arange(6).reshape(6, 1)}
    change = {
        "value": {"labels": torch.tensor([0, 1, 2, 3, 4, 6])},
        "name": {"other": torch.arange(6)},
        "dtype": {"labels": torch.arange(6, dtype=torch.int32)},
        "shape": {"labels": torch.arange(6).reshape(6, 1)},
    }[which]
    assert Examples({**base, **change}, True).fingerprint != Examples(base, True).fingerprint


def test_numbers_are_finite() -> None:
    """What is not finite is told by tensor and example, where the examples are made: the weights are not to
    blame."""
    pixels, labels = torch.zeros(3, 1, 2, 2), torch.tensor([0.5, float("inf"), 0.1])
    pixels[2, 0, 1, 1] = float("nan")
    for tensors, words in (
        ({"pixel_values": pixels}, "pixel_values of example 3"),
        ({"pixel_values": pixels[:2], "labels": labels[:2]}, "labels of example 2"),
    ):
        with pytest.raises(IsomergeError, match=words):
            Examples(tensors, False)
    Examples({"pixel_values": pixels[:2]}, False)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"input_ids": [[1, 2]]}, "input_ids of examples is no tensor"),
        ({"input_ids": torch.tensor(3)}, "input_ids of examples is no tensor with one example per row"),
        (
            {"input_ids": torch.ones(3, 2), "labels": torch.ones(2)},
            r"unequal numbers of rows \(input_ids 3, labels 2\)",
        ),
    ],
)
def test_one_row_for_every_example(tensors: Any, words: str) -> None:
    """Batches of unequal tensors were other examples' numbers. Mutant: without the check."""
    with pytest.raises(IsomergeError, match=words):
        Examples(tensors, True)

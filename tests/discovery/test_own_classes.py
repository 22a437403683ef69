"""Classes of the user's own: registered with transformers they are discovered whole; of plain torch they are told
what helps."""

from __future__ import annotations

import pytest
import torch

import isomerge
from discovery.parallel_block import ParallelConfig, ParallelModel, register
from isomerge.errors import IsomergeError

SPACES = {
    "ov: Perm", "vs: Scale", "sg: Sign", "t: Scale", "kv: Perm", "g: Perm", "ff: Perm", "u: Scale", "res: SignedPerm",
}  # fmt: skip
"""Values behind gates keep permutations and factors, queries and keys under norms signs and factors of pairs."""


@pytest.fixture(autouse=True)
def known() -> None:
    """The class is registered in this process."""
    register()


@pytest.mark.parametrize("gated", [True, False])
def test_a_parallel_block_with_gates(gated: bool) -> None:
    """All of its attention is found, from a live module; without gates values take any matrix."""
    tiny = ParallelModel(ParallelConfig(vocab_size=32, hidden_size=64, num_hidden_layers=1, gated=gated))
    report = isomerge.discover(tiny)
    found = {f"{row['space']}: {row['group']}" for row in report["proven"]}
    assert found >= (SPACES if gated else SPACES - {"ov: Perm", "vs: Scale"} | {"ov: GL"})
    assert report["fixed"] == []
    assert max(report["checked"].values()) < 1e-9


@pytest.mark.parametrize("call", [isomerge.discover, isomerge.prove])
def test_plain_torch_is_told_what_helps(call: object) -> None:
    """The page, and the call that proves a text."""
    with pytest.raises(IsomergeError, match=r"Linear is a module of plain torch.*add-an-architecture.md.*inputs="):
        call(torch.nn.Linear(2, 2))  # pyright: ignore[reportCallIssue]

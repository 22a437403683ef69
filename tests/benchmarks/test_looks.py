"""A tenth of the labelled pairs of `python -m benchmarks.looks`, and what must not go unnoticed there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.looks.__main__ import judged
from benchmarks.looks.pairs import KINDS, Root, rounded, without_spec
from benchmarks.looks.roots import toy, untrained
from isomerge.matching import settled
from isomerge.quotient import kinship
from isomerge.solve import look, standing

CELLS = [
    ("gpt2", "float32"), ("llama-tied", "bfloat16"), ("qwen3", "bfloat16"), ("mixtral", "float16"), ("bert-relu", "float32"),
    ("deberta-shared", "float16"), ("t5-gated", "float32"), ("whisper", "bfloat16"), ("clip", "float32"), ("falcon_h1", "float32"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), CELLS)
def test_right_in_both_orders(name: str, dtype: str, tmp_path: Path) -> None:
    """Nothing wrong is said of any pair of a model, and the same in the other order."""
    assert_right(judged(rounded(toy(name, tmp_path), getattr(torch, dtype)), prints=False), 25)


def test_without_a_spec(tmp_path: Path) -> None:
    """Of tensors that no text describes."""
    assert_right(judged(without_spec(rounded(toy("vit", tmp_path), torch.bfloat16)), prints=False), 20)


def test_constants_say_nothing() -> None:
    """Of untrained models gains are one and biases zero in both: strangers have nothing in common all the same."""
    cell = judged(untrained("gpt2", 32), prints=False)
    assert_right(cell, 25)
    assert cell["said"]["strangers"] == {"unrelated": 1}


def assert_right(cell: dict[str, Any], least: int) -> None:
    assert cell["wrong"] == []
    assert cell["other_order"] == []
    assert cell["pairs"] >= least
    assert cell["said"]["tuned"].keys() <= {"aligned"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A model whose pairs mutants are tried on."""
    return toy("llama-tied", tmp_path_factory.mktemp("llama-tied"))


@pytest.mark.parametrize(
    ("mutant", "pairs"),
    [
        ({(look, "FAINT"): 1e9}, ("twin by its neurons",)),
        ({(standing, "settled"): lambda *unit: True}, ("twin inside of heads",)),
        ({(settled, "ALIKE"): 2.0}, ("noise 0.1",)),
        ({(kinship, "KIN"): -1.0}, ()),
        ({(kinship, "FOREIGN"): 2.0, (kinship, "KIN"): 2.0}, ("twin by all spaces",)),
    ],
)
def test_a_moved_threshold_is_noticed(
    mutant: dict[tuple[Any, str], Any], pairs: tuple[str, ...], root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of strangers, where no pairs are named."""
    kinds = [kind for kind in KINDS if kind.name in pairs]
    assert_right(judged(root, kinds, prints=False), 1)
    for (module, name), value in mutant.items():
        monkeypatch.setattr(module, name, value)
    changed = judged(root, kinds, prints=False)
    assert changed["wrong"] or changed["said"]["tuned"].keys() - {"aligned"}


@pytest.mark.parametrize(("module", "name", "value"), [(standing, "MOST", 2.0), (look, "FAINT", 1e9)])
def test_strangers_without_a_spec_are_noticed(
    module: Any, name: str, value: float, root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where rows alone decide."""
    plain = without_spec(root)
    assert_right(judged(plain, [], prints=False), 1)
    monkeypatch.setattr(module, name, value)
    assert judged(plain, [], prints=False)["wrong"]


@pytest.mark.parametrize(
    ("left_out", "pair"),
    [
        ("embed", "outside of layers random"), ("norm", "vectors with noise"), ("mlp", "MLPs random"),
        ("self_attn", "attention with noise"), ("layers.2", "the last layer random"),
    ],
)  # fmt: skip
def test_a_kind_of_tensor_that_is_left_out_is_noticed(
    left_out: str, pair: str, root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Embeddings, norms, MLPs, attention, the last layer."""
    kinds = [kind for kind in KINDS if kind.name == pair]
    assert_right(judged(root, kinds, prints=False), 1)
    looked_at = look._pairs

    def fewer(*models: Any) -> Any:
        pairs, only = looked_at(*models)
        return [each for each in pairs if left_out not in each[1]], only

    monkeypatch.setattr(look, "_pairs", fewer)
    assert judged(root, kinds, prints=False)["wrong"]

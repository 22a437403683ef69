"""Planted twins: a moved copy comes back through disk, verify tells twins from near-twins, diff names relations."""

from __future__ import annotations

from pathlib import Path

import pytest

import isomerge
from depth import more
from solve.disguises import disguise, keep_streams, perturb, single, turn
from toys import FEW, STREAMS_ALONE, TOYS, TRIED, outputs, relative, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

FAR = ["bert", "llama", "mixtral", *more("gpt2", "t5-relu", "vit")]
# What float32 weights change of outputs where scores are not divided by anything, behind towers: noise of 1e-7
# makes 6e-5.
ROUNDED = {"gemma4": 2e-4, "gemma4-clipped": 2e-4}
CASES = [*((name, 4.0) for name in FEW if name not in STREAMS_ALONE), *((name, 100.0) for name in FAR)]


@pytest.mark.parametrize(("name", "condition"), CASES)
def test_moved_copy_comes_back(name: str, condition: float, tmp_path: Path) -> None:
    """align undoes a random element; verify calls the pair the same; the function survives both."""
    a = single(name, tmp_path / "a")
    moved = disguise(name, a, tmp_path / "moved", 3, condition)
    alignment, report = isomerge.align(moved, onto=a, out=tmp_path / "back")
    distance = report["distance"]
    assert distance["before"] > 1
    assert distance["after"] <= 1e-4 * distance["before"]
    assert len(alignment) > 0
    reference = outputs(a)
    rounding = max(ROUNDED.get(name, 1e-5), TOYS[name][1])  # of float32 weights, or what the toy itself says
    assert relative(outputs(tmp_path / "back"), reference) <= rounding * (condition / 4)
    proof = isomerge.verify(a, moved)
    assert proof["same"]
    assert proof["residual"]["largest"] <= proof["residual"]["tolerance"] == 1e-4
    assert proof["only_in_one"] == []


NOISY = [
    ("bert", "encoder.layer.0.attention.self.value.weight"),
    ("bert", "embeddings.position_embeddings.weight"),
    ("bert", "encoder.layer.1.intermediate.dense.bias"),
    ("bert", "encoder.layer.2.output.LayerNorm.weight"),
    ("gpt2", "h.1.attn.c_attn.weight"),
    ("llama", "layers.2.mlp.gate_proj.weight"),
    ("llama", "lm_head.weight"),
    ("t5-gated", "decoder.block.1.layer.1.EncDecAttention.v.weight"),
    ("mixtral", "layers.1.block_sparse_moe.gate.weight"),
    ("deberta-shared", "encoder.rel_embeddings.weight"),
    *more(
        ("bert", "encoder.layer.1.attention.self.query.weight"),
        ("bert", "encoder.layer.2.attention.output.dense.weight"),
        ("gpt2", "h.0.mlp.c_proj.weight"),
        ("gpt2", "h.2.ln_1.weight"),
        ("llama", "layers.1.self_attn.k_proj.weight"),
        ("llama", "layers.0.mlp.up_proj.weight"),
    ),
]


@pytest.mark.parametrize(("name", "tensor"), NOISY)
def test_verify_sees_a_change_of_one_tensor(name: str, tensor: str, tmp_path: Path) -> None:
    """Relative noise of 1e-3 in one tensor of a disguised twin is another function, and verify names its place."""
    a = single(name, tmp_path / "a")
    moved = disguise(name, a, tmp_path / "moved", 3)
    changed = perturb(moved, tmp_path / "changed", 1e-3, only=tensor)
    proof = isomerge.verify(a, changed)
    assert not proof["same"]
    assert proof["residual"]["largest"] > 5e-4
    layer = next((part for part in tensor.split(".") if part.isdigit()), None)
    assert layer is None or f".{layer}." in proof["residual"]["tensor"]


def test_gains_inside_layers_of_a_model_without_a_head(tmp_path: Path) -> None:
    """The streams are its outputs and keep their bases; gains that only their own layer reads are free all the
    same."""
    a = single("clip", tmp_path / "a")
    twin = keep_streams("clip", a, tmp_path / "twin", 3)
    gain = "vision_model.encoder.layers.1.layer_norm1.weight"
    assert float((tensors(a)[gain] - tensors(twin)[gain]).abs().max()) > 0.1
    assert relative(outputs(twin), outputs(a)) < 1e-5
    assert isomerge.verify(a, twin)["same"]
    assert not isomerge.verify(a, perturb(twin, tmp_path / "changed", 1e-3, only=gain))["same"]


@pytest.mark.parametrize("name", ["llama", *more("bert", "gpt2")])
def test_verdicts(name: str, tmp_path: Path) -> None:
    """The words of diff for every relation that two models can have."""
    a, other = single(name, tmp_path / "a"), single(name, tmp_path / "other", 5)
    twin = disguise(name, a, tmp_path / "twin", 3)
    tuned = perturb(a, tmp_path / "tuned", 0.05)
    moved_tuned = disguise(name, tuned, tmp_path / "moved-tuned", 4)
    words = {
        a: ("same", "has the weights of"),
        twin: ("same", "is the same function as"),
        tuned: ("aligned", "are aligned already, as fine-tunes of one base are"),
        moved_tuned: ("related", "are related"),
    }
    for model, (code, said) in words.items():
        verdict = isomerge.diff(a, model)["verdict"]
        assert verdict["code"] == code
        assert said in verdict["sentence"]
    found = isomerge.diff(a, other)
    assert found["verdict"]["code"] == "unrelated"
    assert not found["same"]
    assert 1 < found["relative"]["after"] < found["relative"]["before"]


def test_fine_tune_stays_where_it_is(tmp_path: Path) -> None:
    """A fine-tune of the anchor is in its coordinates already: aligning hardly moves it, and never away."""
    a = single("bert", tmp_path / "a")
    tuned = perturb(a, tmp_path / "tuned", 0.05)
    _, report = isomerge.align(tuned, onto=a)
    distance = report["distance"]
    assert 0.5 * distance["before"] < distance["after"] <= distance["before"] * (1 + 1e-6)


@pytest.mark.parametrize("spaces", ["default", "paper", "paper-no-rescale", "attention", "ffn", "qk", "none"])
def test_aligning_never_moves_away(spaces: str, tmp_path: Path) -> None:
    """Unrelated models, whatever may move: the distance does not rise, in no space and no layer."""
    a, b = single("llama", tmp_path / "a"), single("llama", tmp_path / "b", 5)
    _, report = isomerge.align(b, onto=a, spaces=spaces)
    distance = report["distance"]
    for figures in (distance, *distance["layers"].values()):
        assert figures["after"] <= figures["before"] * (1 + 1e-6)


@pytest.mark.parametrize("name", [n for n in TRIED if n in STREAMS_ALONE])
def test_a_turned_stream_comes_back(name: str, tmp_path: Path) -> None:
    """Where all but the stream is left fixed, ``spaces="all"`` undoes what moved it; without it there is nothing to
    match."""
    a = single(name, tmp_path / "a")
    moved = turn(name, a, tmp_path / "moved", 3)
    _, report = isomerge.align(moved, onto=a, out=tmp_path / "back", spaces="all")
    assert report["distance"]["before"] > 1
    assert report["distance"]["after"] <= 1e-4 * report["distance"]["before"]
    assert relative(outputs(tmp_path / "back"), outputs(a)) <= 1e-5
    _, local = isomerge.align(moved, onto=a, out=tmp_path / "local")
    assert local["distance"]["after"] == local["distance"]["before"]
    assert isomerge.verify(a, moved)["same"]

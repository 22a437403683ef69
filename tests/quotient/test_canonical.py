"""The canonical form: one set of weights for all disguises of a model, another one for every other model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import isomerge
from depth import more
from isomerge.evidence.outputs import compare_outputs
from isomerge.models.free_streams import given_out
from isomerge.models.recognised import recognise
from isomerge.quotient.canonical import CLOSE, canonical
from solve.disguises import keep_streams, perturb, turn, write_like
from toys import FEW, outputs, relative, save_toy, tensors

# toys of which two coordinates happen to be of one size to a millionth (Qwen3-VL's merger has many neurons)
SEEDS = {
    "llava": 1, "llava-qwen2": 1, "sd3-later": 1, "unet-sized": 1, "qwen3_vl": 1, "qwen3_vl_moe": 2, "qwen3_vl_moe-published": 2, "openai-gpt": 1, "xclip": 1,
    "exaone4_5": 1, "exaone4_5-ahead": 1, "gemma4_unified": 1, "colmodernvbert": 1,
    "qwen4_exp_text": 1, "qwen3_omni_moe": 1, "qwen3_omni_moe_thinker": 2, "qwen2_5_omni": 2, "timesfm": 1, "timesfm-placed": 1, "cosmos3_omni": 1, "cohere_compass": 1, "glmasr": 1, "embedding_gemma2": 1,
    "mamba": 1, "falcon_mamba": 1, "qwen2_vl": 1,
}  # fmt: skip

OPEN = {"phi4_multimodal", "phi4_multimodal-sound", "swinv2", "swinv2-three"}
"""Toys with parts of which nothing decides the signs (a channel of sound has two, which meet in each of its
tensors) or the order (of 512 neurons some are of one size to a millionth, whatever is drawn), and the report says
so."""


def apart(one: Path, two: Path, floor: float = 1e-3) -> float:
    """The largest relative difference of any tensor of two checkpoints."""
    a, b = tensors(one), tensors(two)
    assert a.keys() == b.keys()
    return max(
        float((t.double() - b[n].double()).norm() / t.double().norm().clamp_min(floor)) for n, t in a.items()
    )


def canon(model: Path, out: Path, **options: Any) -> dict[str, Any]:
    """Write the canonical form; the report."""
    return isomerge.canon(model, out=out, **options)[1]


# PaliGemma: one stream begins as a map of another, whose signs must be chosen first; BitNet: a norm's signs meet
# those of neurons
@pytest.mark.parametrize("name", sorted({*FEW, "paligemma", "bitnet"}))
def test_twins_have_one_canonical_form(name: str, tmp_path: Path) -> None:
    """Random elements of every space, the streams' among them: the same weights come out, and the same function. Of
    base models, which give out their streams, random elements of all that leaves these alone."""
    a = save_toy(name, tmp_path / "a", seed=SEEDS.get(name, 0), dtype=torch.float64)
    moved = keep_streams if given_out(recognise(a)) else turn
    twin = moved(name, a, tmp_path / "twin", 3)
    report = canon(a, tmp_path / "one")
    assert report["degeneracy"]["unique"] != (name in OPEN)
    if name in OPEN:
        return
    canon(twin, tmp_path / "two")
    assert apart(a, twin) > 0.1
    assert apart(a, tmp_path / "one") > 0.1
    assert apart(tmp_path / "one", tmp_path / "two") < 1e-10
    # not every toy computes in float64
    assert relative(outputs(tmp_path / "one"), outputs(a)) < 1e-5
    canon(tmp_path / "two", tmp_path / "again")
    assert apart(tmp_path / "two", tmp_path / "again") < 1e-10


@pytest.mark.parametrize("name", ["bert", "mixtral", *more("gpt2", "llama", "t5-gated")])
def test_in_float32_rounding_is_divided_by_gaps(name: str, tmp_path: Path) -> None:
    """Twins are rounded when they are written: 1e-7 over the smallest gap, seen here as some 1e-6."""
    a = save_toy(name, tmp_path / "a", dtype=torch.float32)
    canon(a, tmp_path / "one")
    moved = keep_streams if given_out(recognise(a)) else turn
    canon(moved(name, a, tmp_path / "twin", 3), tmp_path / "two")
    # a bias that is folded away keeps the rounding of what was folded, some 1e-7
    assert 0 < apart(tmp_path / "one", tmp_path / "two", floor=1e-2) < 5e-5


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("gpt2", torch.float32),
        ("t5-gated", torch.float32),
        ("bert", torch.float64),
        ("mixtral", torch.float64),
        *more(*((name, torch.float32) for name in ("llama", "bert", "qwen3", "vit", "mixtral"))),
        *more(*((name, torch.float64) for name in ("gpt2", "llama", "qwen3", "vit", "t5-gated"))),
    ],
)
def test_a_canonical_form_stays_byte_by_byte(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """A second run finds nothing to move but the rounding of the first, and leaves that."""
    canon(save_toy(name, tmp_path / "a", dtype=dtype), tmp_path / "one")
    alignment = isomerge.canon(tmp_path / "one", out=tmp_path / "two")[0]
    assert not alignment.elements
    one, two = tensors(tmp_path / "one"), tensors(tmp_path / "two")
    assert all(torch.equal(one[n], two[n]) for n in one)
    assert isomerge.canon(perturb(tmp_path / "one", tmp_path / "near", 1e-3))[0].elements


@pytest.mark.parametrize("name", ["gpt2", *more("qwen3", "vit")])
def test_other_models_have_other_forms(name: str, tmp_path: Path) -> None:
    """A small change of one tensor shows, and so does another model."""
    a = save_toy(name, tmp_path / "a", dtype=torch.float64)
    b = save_toy(name, tmp_path / "b", seed=5, dtype=torch.float64)
    near = perturb(a, tmp_path / "near", 1e-3)
    for model in (a, b, near):
        canon(model, tmp_path / f"{model.name}-canonical")
    assert apart(tmp_path / "a-canonical", tmp_path / "b-canonical") > 0.1
    assert apart(tmp_path / "a-canonical", tmp_path / "near-canonical") > 1e-4


def test_the_element_is_covariant(tmp_path: Path) -> None:
    """What moves a twin to the form is what moves the model there, after the disguise is taken off."""
    a = save_toy("gpt2", tmp_path / "a", dtype=torch.float64)
    twin = turn("gpt2", a, tmp_path / "twin", 3)
    back, _ = isomerge.canon(a)
    isomerge.apply(back, a, out=tmp_path / "one")
    moved, _ = isomerge.canon(twin)
    isomerge.apply(moved.inverse(), tmp_path / "one", out=tmp_path / "as-twin")
    assert apart(tmp_path / "as-twin", twin) < 1e-10


def test_equal_neurons_are_told(tmp_path: Path) -> None:
    """Two neurons of one size can stand in either order: the report names the space, and by how much that moves
    weights."""
    a = save_toy("gpt2", tmp_path / "a", dtype=torch.float64)
    clear = canonical(recognise(a)).degeneracy.document()
    assert clear["unique"]
    assert min(gap["gap"] for gap in clear["gaps"]) > CLOSE

    def twins(found: dict[str, torch.Tensor]) -> None:
        for name, axis in (("c_fc.weight", 1), ("c_fc.bias", 0), ("c_proj.weight", 0)):
            tensor = found[f"transformer.h.1.mlp.{name}"]
            first = tensor.select(axis, 0)
            tensor.select(axis, 1).copy_(-first if axis == 0 and "proj" in name else first)

    report = canonical(recognise(write_like(a, tmp_path / "equal", twins))).degeneracy.document()
    (ambiguous,) = report["ambiguous"]
    assert (ambiguous["element"], ambiguous["kind"]) == ("ff[1]", "order")
    assert ambiguous["gap"] < 1e-12
    assert 0.001 < ambiguous["moves"] < 1
    assert not report["unique"]


def test_dead_heads_are_told(tmp_path: Path) -> None:
    """A head that writes nothing has no balanced point."""

    def silence(found: dict[str, torch.Tensor]) -> None:
        found["transformer.h.0.attn.c_proj.weight"][:4] = 0

    a = save_toy("gpt2", tmp_path / "a", dtype=torch.float64)
    dead = write_like(a, tmp_path / "dead", silence)
    report = canonical(recognise(dead)).degeneracy.document()
    assert report["dead"] == ["ov[0]"]
    assert not report["unique"]
    canon(dead, tmp_path / "out")
    assert relative(outputs(tmp_path / "out"), outputs(dead)) < 1e-10


def test_a_model_without_head_keeps_its_stream(tmp_path: Path) -> None:
    """What it gives out is the stream itself, which may not be turned; the note says so."""
    import transformers as tf

    from toys import randomise

    body = tf.GPT2Model(tf.GPT2Config(n_embd=16, n_head=2, n_layer=2, vocab_size=40, n_positions=16))
    randomise(body, 0)
    body.save_pretrained(tmp_path / "body")
    report = canon(tmp_path / "body", tmp_path / "out")
    assert any("no head" in note for note in report["notes"])
    assert "res" not in {gap["element"] for gap in report["degeneracy"]["gaps"]}
    before, after = (
        load_file(tmp_path / "body" / "model.safetensors"),
        load_file(tmp_path / "out" / "model.safetensors"),
    )
    # words and positions may trade a constant, and have anything along the ones; else their sums, the stream, stay
    streams = [w["wte.weight"][:, None].double() + w["wpe.weight"] for w in (before, after)]
    assert torch.allclose(*(stream - stream.mean(-1, keepdim=True) for stream in streams), rtol=0, atol=1e-6)
    assert not torch.equal(before["h.0.mlp.c_fc.weight"], after["h.0.mlp.c_fc.weight"])
    assert max(compare_outputs(tmp_path / "out", tmp_path / "body").values()) < 1e-5

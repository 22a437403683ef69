"""What isomerge claims about real pairs of models: outputs, the law's random elements, the demo's data."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

import isomerge
from isomerge.errors import IsomergeError
from isomerge.evidence.digits import example_models, held_out_digits, labelled_test_digits, training_digits
from isomerge.evidence.law import random_alignment
from isomerge.evidence.outputs import compare_outputs
from solve.disguises import disguise, single
from toys import load_toy


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5-gated", "vit", "llama"])
def test_compare_outputs(name: str, tmp_path: Path) -> None:
    """Zero for a model and itself, rounding for a twin, much for a stranger; the seed decides the inputs."""
    a, b = single(name, tmp_path / "a"), single(name, tmp_path / "b", 5)
    twin = disguise(name, a, tmp_path / "twin", 3)
    assert max(compare_outputs(a, a).values()) == 0
    assert 0 < max(compare_outputs(a, twin).values()) < 1e-5
    assert max(compare_outputs(a, b).values()) > 0.1
    assert compare_outputs(a, b, seed=0) == compare_outputs(a, b, seed=0) != compare_outputs(a, b, seed=1)


def test_outputs_of_different_heads(tmp_path: Path) -> None:
    """A model and its own body without the head: either what both have is compared, or the user is told."""
    import transformers as tf

    a = single("bert", tmp_path / "a")
    tf.BertForMaskedLM.from_pretrained(a).bert.save_pretrained(tmp_path / "body")
    with contextlib.suppress(IsomergeError):
        assert max(compare_outputs(a, tmp_path / "body").values()) < 1e-5


def test_outputs_of_a_broken_checkpoint(tmp_path: Path) -> None:
    """What transformers cannot load is one sentence."""
    a = single("gpt2", tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_bytes((a / "config.json").read_bytes())
    with pytest.raises(IsomergeError, match="transformers cannot load this checkpoint"):
        compare_outputs(a, tmp_path / "b")


@pytest.mark.parametrize("name", ["bert", "llama", "t5-gated"])
def test_random_alignment(name: str, tmp_path: Path) -> None:
    """Drawn anew for every layer, the same for the same seed, of the condition asked for, of the spaces asked
    for."""
    toy = load_toy(name, single(name, tmp_path / "a"))

    def draw(seed: int, spaces: list[str] | None = None, condition: float = 4.0) -> isomerge.Alignment:
        rng = torch.Generator().manual_seed(seed)
        return random_alignment(toy.spec, toy.blocks, rng, spaces, condition=condition)

    one, two, other = draw(1), draw(1), draw(2)
    assert one.keys() == two.keys() == other.keys()
    assert all(torch.equal(g, two[key]) for key, g in one.items())
    assert any(not torch.equal(g, other[key]) for key, g in one.items())
    space = next(n for n, s in toy.spec.spaces.items() if s.group_name == "GL")
    only = draw(1, [space], 50.0)
    assert {key.partition("[")[0] for key in only} == {space}
    for g in only.values():
        assert torch.linalg.cond(g) == pytest.approx(torch.full(g.shape[:-2], 50.0), rel=1e-6)
    first, second = list(only.values())[:2]
    assert not torch.equal(first, second)


def test_example_models() -> None:
    """The demo's models are there and isomerge knows them."""
    for folder in example_models():
        report = isomerge.inspect(folder)
        assert report["architecture"] == "vit"
        assert report["redundant_dimensions"] > 0


def test_labelled_digits_are_those_held_out() -> None:
    """What reports of the demo are measured on: the 450 images that no model was trained on."""
    (batch,), (images, labels) = labelled_test_digits(), held_out_digits()
    assert torch.equal(batch["pixel_values"], images)
    assert torch.equal(batch["labels"], labels)
    trained = {image.numpy().tobytes() for image in training_digits()[0]["pixel_values"]}
    assert len(images) == 450
    assert not any(image.numpy().tobytes() in trained for image in images)

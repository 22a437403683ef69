"""The group element of a whole model: action laws through nested spaces, and its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from isomerge.archs import spec_for
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_alignment, random_turn, with_streams
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.blocks import Block
from toys import Toy, config_of

NESTED = ["mixtral", "llama-biased", "qwen3-biased", "t5-gated", "bert-relu", "gpt2"]
ToyMaker = Callable[..., Toy]


def element(toy: Toy, seed: int, spaces: list[str] | None = None) -> Alignment:
    """A random element of all spaces and shifts, or of some."""
    return random_alignment(toy.spec, toy.blocks, torch.Generator().manual_seed(seed), spaces)


def moved(toy: Toy, *steps: Alignment) -> dict[Block, torch.Tensor]:
    """The toy after the steps, first one first."""
    blocks = toy.fresh()
    for step in steps:
        step.act(blocks)
    return blocks


def apart(one: dict[Block, torch.Tensor], two: dict[Block, torch.Tensor]) -> float:
    """The largest difference."""
    return max(float((x - two[block]).abs().max()) for block, x in one.items())


@pytest.mark.parametrize("name", NESTED)
def test_composition(name: str, toy: ToyMaker) -> None:
    """(g @ h) acts like h, then g; also where each has spaces that the other lacks."""
    model = toy(name)
    g, h = element(model, 1), element(model, 2)
    some = list(model.spec.spaces)[::2]
    for left, right in ((g, h), (element(model, 3, some), h), (g, element(model, 4, some))):
        assert apart(moved(model, left @ right), moved(model, right, left)) < 1e-9
    assert apart(moved(model, g @ h), moved(model, h @ g)) > 1e-3


class Counted(dict):
    """Elements that count how often all of them are listed."""

    listed = 0

    def items(self) -> Any:
        """All, once more."""
        self.listed += 1
        return super().items()


def test_elements_are_listed_once(toy: ToyMaker) -> None:
    """Asking for every element takes one look at the stages, not one for every element."""
    g = element(toy("llama"), 1)
    stages = [Counted(stage.elements) for stage in g.stages]
    for stage, elements in zip(g.stages, stages, strict=True):
        stage.elements = elements
    assert len(dict(g.items())) == len(list(g.values())) == len(g) > 4
    assert [elements.listed for elements in stages] == [1] * len(stages)


@pytest.mark.parametrize("name", NESTED)
def test_associativity(name: str, toy: ToyMaker) -> None:
    """(f g) h = f (g h), element by element."""
    f, g, h = (element(toy(name), seed) for seed in (1, 2, 3))
    left, right = (f @ g) @ h, f @ (g @ h)
    assert set(left) == set(right)
    assert all(torch.allclose(left[k].double(), right[k].double(), rtol=1e-8, atol=1e-9) for k in left)


@pytest.mark.parametrize("name", NESTED)
def test_inverse(name: str, toy: ToyMaker) -> None:
    """The inverse undoes, from both sides."""
    model = toy(name)
    g = element(model, 5)
    assert apart(moved(model, g), model.fresh()) > 1e-2
    for pair in ((g, g.inverse()), (g.inverse(), g), (g.inverse() @ g,), (g @ g.inverse(),)):
        assert apart(moved(model, *pair), model.fresh()) < 1e-9


@pytest.mark.parametrize("name", NESTED)
def test_file(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """What is saved comes back bit for bit and acts alike."""
    model = toy(name)
    g = element(model, 6)
    g.save(tmp_path / "g.safetensors", anchor="a")
    loaded = Alignment.load(tmp_path / "g.safetensors", model.spec)
    assert {k: t.dtype for k, t in loaded.items()} == {k: t.dtype for k, t in g.items()}
    assert all(torch.equal(loaded[k], g[k]) for k in g)
    # equal elements at other addresses may be multiplied in another order
    assert apart(moved(model, loaded), moved(model, g)) < 1e-13
    assert apart(moved(model, loaded.inverse()), moved(model, g.inverse())) < 1e-13


def test_file_is_deterministic(toy: ToyMaker, tmp_path: Path) -> None:
    """Equal elements make equal bytes."""
    g = element(toy("llama"), 6)
    for k in range(6):
        g.save(tmp_path / str(k), b=1, a=2)
    assert len({(tmp_path / str(k)).read_bytes() for k in range(6)}) == 1


def test_partial_file(toy: ToyMaker, tmp_path: Path) -> None:
    """A patch of some spaces is read by the full spec, and leaves the other spaces alone."""
    model = toy("llama")
    part = model.spec.restrict(["ov"])
    g = random_alignment(part, model.blocks, torch.Generator().manual_seed(1))
    g.save(tmp_path / "g")
    loaded = Alignment.load(tmp_path / "g", model.spec)
    assert list(loaded.spec.spaces) == ["ov"]
    assert apart(moved(model, loaded), moved(model, element(model, 1, ["ov"]))) < 1e-12


STAGED = ["llama", "vit", "dinov2", "gpt2-untied", "mixtral"]


def staged(toy: Toy, seed: int) -> Alignment:
    """Gains folded, the stream rotated with every local space, new gains taken on: two stages."""
    blocks, spec = toy.fresh(), with_streams(toy.spec)
    g = random_turn(spec, toy.blocks, blocks.__getitem__, torch.Generator().manual_seed(seed), gains=True)
    assert len(g.stages) == 2
    return g


@pytest.mark.parametrize("name", STAGED)
def test_stages_compose_and_invert(name: str, toy: ToyMaker) -> None:
    """g^-1 g and g g^-1 are the identity; g h acts like h, then g; undoing a step leaves as few stages as it
    can."""
    model = toy(name)
    g = staged(model, 1)
    there = moved(model, g)
    assert apart(there, model.fresh()) > 0.1
    g.inverse().act(there)
    assert apart(there, model.fresh()) < 1e-8
    assert apart(moved(model, g.inverse() @ g), model.fresh()) < 1e-8
    blocks = moved(model, g)
    after = random_turn(g.spec, model.blocks, blocks.__getitem__, torch.Generator().manual_seed(2), gains=True)
    assert apart(moved(model, after @ g), moved(model, g, after)) < 1e-8
    assert len((after @ g).stages) <= 3
    assert apart(moved(model, after @ g, (after @ g).inverse()), model.fresh()) < 1e-8


@pytest.mark.parametrize("name", STAGED)
def test_stages_on_file(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Two stages come back bit for bit, by the larger group, and act alike; another model type is told apart."""
    model = toy(name)
    g = staged(model, 3)
    g.save(tmp_path / "g")
    loaded = Alignment.load(tmp_path / "g", model.spec)
    assert (
        loaded.spec.spaces["res"].group_name
        == g.spec.spaces["res"].group_name
        != model.spec.spaces["res"].group_name
    )
    assert set(loaded) == set(g)
    assert any(key.startswith("2:") for key in loaded)
    assert all(torch.equal(loaded[k], g[k]) for k in g)
    assert apart(moved(model, loaded), moved(model, g)) < 1e-13
    assert loaded.digest() == g.digest()


def test_groups_that_do_not_mix(toy: ToyMaker) -> None:
    """A rotation of a stream and a signed permutation of it are elements of two specs: they are not composed."""
    model = toy("llama")
    with pytest.raises(IsomergeError, match=r"space res acts by .* cannot be composed"):
        _ = staged(model, 1) @ element(model, 1, ["res"])


def refusal(path: Path, toy: Toy, **config: object) -> str:
    """The message of a refused file, for the toy's config with changes."""
    with pytest.raises(IsomergeError) as caught:
        Alignment.load(path, spec_for({**config_of(toy.folder), **config}, shapes=toy.shapes))
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_refuses_what_is_no_patch(toy: ToyMaker, tmp_path: Path) -> None:
    """No file, no safetensors, a checkpoint."""
    model = toy("bert")
    assert "not a readable alignment file" in refusal(tmp_path / "nowhere", model)
    (tmp_path / "text").write_text("hello")
    assert "not a readable alignment file" in refusal(tmp_path / "text", model)
    assert "not an alignment of isomerge (format None" in refusal(model.folder / "model.safetensors", model)
    for header in (None, {"isomerge": "{"}, {"isomerge": "[1]"}, {"format": "pt"}):
        save_file({"x": torch.zeros(1)}, tmp_path / "bare", metadata=header)
        assert "not an alignment of isomerge (format None" in refusal(tmp_path / "bare", model)


def test_refuses_other_models(toy: ToyMaker, tmp_path: Path) -> None:
    """Another architecture, other sizes, a space that the spec does not have."""
    model = toy("bert-relu")
    g = element(model, 1)
    g.save(tmp_path / "g")
    assert "made for bert, but the model is gpt2" in refusal(tmp_path / "g", toy("gpt2"))
    assert "made for ff = 40, but the model has 44" in refusal(tmp_path / "g", model, intermediate_size=44)
    assert "made for h = 6, but the model has 3" in refusal(tmp_path / "g", model, num_attention_heads=3)
    assert "element u[0] is of no space of the spec for bert" in refusal(tmp_path / "g", model, hidden_act="gelu")


def test_refuses_unknown_shifts(toy: ToyMaker, tmp_path: Path) -> None:
    """A shift of a bias that is not free in this model."""
    g = element(toy("deberta-c2p"), 1, ["kb"])
    g.save(tmp_path / "g")
    assert "shift.kb[0]" in load_file(tmp_path / "g")
    says = refusal(tmp_path / "g", toy("deberta-shared"))
    assert "element shift.kb[0] is of no space of the spec for deberta-v2" in says

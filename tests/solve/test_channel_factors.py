"""Factors over the channels of a stream that are no norm's gains: a filter for each channel before a map that mixes
them (ConvBERT's separable convolutions). Twins come back through disk, in every way; what is nearly one is told.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import isomerge
from depth import more
from isomerge.archs import expanded_texts
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_turn, with_streams
from isomerge.matching.balance import canonical_gauge
from isomerge.models.recognised import recognise
from isomerge.symmetry.alignment import Alignment
from run.near_twins import assert_told
from run.twins import assert_known_everywhere
from toys import Toy, config_of, outputs, overwrite, relative, tensors, write_toy

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

ToyMaker = Callable[..., Toy]
NAMES = ["convbert", *more("convbert-wide")]
FILTERS = "depthwise.weight"


def factors(model: Toy, seed: int = 1) -> dict[str, torch.Tensor]:
    """Random factors of both signs for every channel of every layer, by element key [channels, 1]."""
    rng, space = torch.Generator().manual_seed(seed), model.spec.spaces["f"]
    layers = [dict(block.scope)["l"] for block in model.blocks if block.line.name.endswith(FILTERS)]
    assert len(layers) > 1
    assert not space.residual
    return {f"f[{n}]": space.group.sample((model.spec.sizes["res"],), 1, rng) for n in layers}


def scaled(model: Toy, out: Path, seed: int = 1) -> Path:
    """The toy with other factors alone."""
    blocks = model.fresh()
    Alignment(model.spec, factors(model, seed)).act(blocks)
    return write_toy(model, model.named(blocks), out)


def moved(model: Toy, out: Path, seed: int = 1, *, stream: bool = False) -> Path:
    """The toy with all spaces inside layers moved, and its stream permuted."""
    largest = with_streams(model.spec)
    spec, blocks = largest if stream else largest.without(largest.residual_names), model.fresh()
    assert "f" in spec.spaces
    rng = torch.Generator().manual_seed(seed)
    random_turn(spec, model.blocks, lambda block: blocks[block].double(), rng, condition=3.0).act(blocks)
    return write_toy(model, model.named(blocks), out)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("twin", [scaled, moved])
def test_a_twin_is_the_same_everywhere(twin: Callable[..., Path], name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """One function for the class, `verify`, the fingerprint and the canonical form; `align` brings it back, with the
    stream where it is, and a merge keeps the function."""
    model = toy(name)
    assert_known_everywhere(model, twin(model, tmp_path / "twin"), tmp_path, merged=1e3 * model.tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_with_the_stream_and_back(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Channels in another order, with other factors, come back with ``--spaces all``; the alignment that is written
    does it again, and undoes it; one canonical form and one fingerprint."""
    model = toy(name)
    twin = moved(model, tmp_path / "twin", 3, stream=True)
    assert relative(outputs(twin), model.reference) < model.tolerance
    assert isomerge.verify(model.folder, twin)["same"] is True
    assert isomerge.fingerprint(model.folder).hash == isomerge.fingerprint(twin).hash
    _, report = isomerge.align(twin, onto=model.folder, spaces="all", out=tmp_path / "back")
    assert report["distance"]["after"] < 1e-9 * report["distance"]["before"]
    element = tmp_path / "back" / "alignment.safetensors"
    isomerge.apply(element, twin, out=tmp_path / "again")
    isomerge.apply(element, tmp_path / "back", inverse=True, out=tmp_path / "there")
    for made, wanted in ((tmp_path / "again", tmp_path / "back"), (tmp_path / "there", twin)):
        wanted_tensors = tensors(wanted)
        assert all(torch.allclose(t, wanted_tensors[n], rtol=1e-8, atol=1e-9) for n, t in tensors(made).items())
    isomerge.merge([model.folder, twin], out=tmp_path / "merged", spaces="all")
    assert relative(outputs(tmp_path / "merged"), model.reference) < 1e3 * model.tolerance
    for source, out in ((model.folder, "one"), (twin, "two")):
        isomerge.canon(source, out=tmp_path / out)
    one, two = tensors(tmp_path / "one"), tensors(tmp_path / "two")
    assert all(torch.allclose(t, two[n], rtol=1e-6, atol=1e-8) for n, t in one.items())


@pytest.mark.parametrize("how", [{"anchor": "none"}, {"anchor": "none", "spaces": "all"}])
def test_many_twins_merge_into_themselves(how: dict[str, str], toy: ToyMaker, tmp_path: Path) -> None:
    """Three points of one orbit, whatever they are merged in the coordinates of."""
    model = toy("convbert")
    twins = [moved(model, tmp_path / str(seed), seed, stream="spaces" in how) for seed in (1, 2)]
    isomerge.merge([model.folder, *twins], out=tmp_path / "merged", **how)
    assert relative(outputs(tmp_path / "merged"), model.reference) < 1e3 * model.tolerance


def test_a_merge_is_a_function_of_orbits(toy: ToyMaker, tmp_path: Path) -> None:
    """Signs in which filters happen to be stored say nothing of which channels go together."""
    a, b = toy("convbert"), toy("convbert", 5)
    ga, hb = (moved(model, tmp_path / str(n), n, stream=True) for n, model in ((1, a), (2, b)))
    for tag, pair in (("stored", (a.folder, b.folder)), ("moved", (ga, hb))):
        isomerge.merge(pair, out=tmp_path / tag, spaces="all")
    assert relative(outputs(tmp_path / "moved"), outputs(tmp_path / "stored")) <= 1e-8


@pytest.mark.parametrize("wrong", ["the filters alone", "one tap of a filter", "a bias as well"])
def test_a_near_twin_is_told(wrong: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Factors that act on one side only, on a part of a filter, or on what the map behind adds: another function."""
    model, near = toy("convbert"), tmp_path / "near"
    weights, twin = tensors(model.folder), tensors(scaled(model, tmp_path / "twin"))
    filters = next(n for n in weights if n.endswith(FILTERS))
    map_behind, bias = filters.replace("depthwise", "pointwise"), filters.replace("depthwise.weight", "bias")
    changed = {filters: twin[filters], map_behind: twin[map_behind]}
    if wrong == "the filters alone":
        del changed[map_behind]
    elif wrong == "one tap of a filter":
        changed[filters] = torch.cat([twin[filters][..., :1], weights[filters][..., 1:]], -1)
    else:
        changed[bias] = weights[bias] * 1.5
    shutil.copytree(model.folder, near)
    overwrite(near, weights | changed)
    assert relative(outputs(near), model.reference) > 1e-3
    assert_told(model.folder, near)


def test_both_sides_are_balanced(toy: ToyMaker) -> None:
    """The gauge of a factor: a filter is as long as the column that reads it."""
    model = toy("convbert")
    blocks = {b: t for b, t in model.fresh().items() if b.scope == (("l", 1),)}
    canonical_gauge(model.spec.without(model.spec.residual_names), blocks)
    named = {b.line.name.rpartition("layer.")[2].split(".")[0] + b.line.name[-17:]: t for b, t in blocks.items()}
    filters, columns = (
        next(t for n, t in named.items() if n.endswith(end)) for end in (FILTERS, "pointwise.weight")
    )
    assert torch.allclose(filters.flatten(1).norm(dim=1), columns[..., 0].norm(dim=0), rtol=1e-5)


def test_a_fine_tune_keeps_its_bytes(toy: ToyMaker, tmp_path: Path) -> None:
    """Where factors are what they were, none is moved by more than noise makes of a best one, and never away."""
    model, tuned = toy("convbert"), tmp_path / "tuned"
    rng, stored = torch.Generator().manual_seed(3), tensors(model.folder)
    shutil.copytree(model.folder, tuned)
    noisy = {n: t + 0.02 * t.std() * torch.randn(t.shape, generator=rng, dtype=t.dtype) for n, t in stored.items()
             if t.is_floating_point() and t.numel() > 1}  # fmt: skip
    overwrite(tuned, stored | noisy)
    found, report = isomerge.align(tuned, onto=model.folder)
    assert report["distance"]["after"] <= report["distance"]["before"]
    here = [g for key, g in found.items() if key.startswith("f[")]
    assert all(float((g - 1).abs().max()) < 0.1 for g in here)


@pytest.mark.trusted("a type of models is invented, of which no tiny one can be made")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("depthwise.weight  (res f) 1 width", "depthwise.weight  res 1 width"),
        ("(h qk t' s) (res f)' 1", "(h qk t' s) (res' f) 1"),
    ],
)
def test_a_wrong_text_is_another_function(right: str, wrong: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Texts that forget a side, or the dual, make near-twins, which verify and fingerprints tell."""
    model, spec = toy("convbert"), tmp_path / "wrong.spec"
    text = dict(expanded_texts())[config_of(model.folder)["model_type"]][1]
    assert right in text
    spec.write_text(text.replace(right, wrong))
    elements = Alignment(recognise(model.folder, spec_file=spec).spec, factors(model))
    elements.save(tmp_path / "f.safetensors")
    isomerge.apply(tmp_path / "f.safetensors", model.folder, out=tmp_path / "near", spec=spec)
    assert relative(outputs(tmp_path / "near"), model.reference) > 1e-3
    assert_told(model.folder, tmp_path / "near")


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("space f as scale: Scale[l, res]", "size f = 1\nspace f: Sign[l, res]", "space f is Sign over res"),
        ("residual res: Perm", "residual res: Perm folded OFixingOnes", "space f lies over res, which turns"),
    ],
)
def test_texts_are_refused(right: str, wrong: str, said: str, toy: ToyMaker, tmp_path: Path) -> None:
    """In one sentence: what is no factor, and factors of channels that a turned stream does not have."""
    model, spec = toy("convbert"), tmp_path / "wrong.spec"
    text = dict(expanded_texts())["convbert"][1]
    assert right in text
    spec.write_text(text.replace(right, wrong))
    with pytest.raises(IsomergeError, match=said):
        recognise(model.folder, spec_file=spec)

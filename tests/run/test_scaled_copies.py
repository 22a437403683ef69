"""Maps of which what they write is scaled to one length afterwards (`length NAME: WEIGHT above LEAST`; the copies of
Gemma 3n's stream): one function for whatever lengths, which verify, canonical forms and fingerprints know, which come
back to an anchor's, and merge.
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
from isomerge.evidence.whole_group import whole_group
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.recognised import Model, recognise
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.layer_norms import norm_spec
from isomerge.symmetry.lengths import LENGTH, Lengths
from isomerge.symmetry.norm_stage import norm_stages
from run.near_twins import assert_told
from run.test_layer_norm_moves import inner_moves
from run.twins import assert_known_everywhere, assert_replayed_and_undone
from solve.disguises import turn
from toys import Toy, config_of, load_toy, outputs, overwrite, relative, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

ToyMaker = Callable[..., Toy]
NAMES = ["gemma3n_text", *more("gemma3n", "gemma3n-tied")]
LEAST = 1e-3
"""What the text says of Gemma 3n."""


def lengths(model: Model) -> list[Lengths]:
    """What is free so, map by map."""
    found = [one for one in free_under_layer_norm(model).reached if isinstance(one, Lengths)]
    assert len(found) == 2 * (3 - 1)  # each of two lists of maps has one for every copy but the first
    assert len({one.element_keys[0] for one in found}) == len(found)
    return found


def moves(model: Model, seed: int = 1) -> Alignment:
    """Random lengths."""
    rng, spec = torch.Generator().manual_seed(seed), norm_spec(model.declared)
    drawn = {key: torch.randn(1, generator=rng).double() for one in lengths(model) for key in one.element_keys}
    return Alignment.of(norm_stages(spec, drawn), spec)


def resized(first: Toy, out: Path, factor: float, name: str = "altup_projections.1.weight") -> Path:
    """The toy with one map that many times as long as in the form."""
    shutil.copytree(first.folder, out)
    stored = tensors(first.folder)
    (key,) = (n for n in stored if n.endswith(name))
    overwrite(out, {**stored, key: stored[key] * (factor * len(stored[key]) ** 0.5 / stored[key].norm())})
    return out


@pytest.mark.parametrize("name", NAMES)
def test_a_twin_is_the_same_everywhere(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Other lengths, under random elements of all spaces inside the layers: the same function, at distance zero once
    aligned; merged into itself; one canonical form and one fingerprint; verified."""
    first = toy(name)
    model, twin = recognise(first.folder), tmp_path / "twin"
    run_apply(inner_moves(model, 2) @ moves(model), model, Output(twin))
    assert_known_everywhere(first, twin, tmp_path, merged=1e-5)


def test_replayed_and_undone(toy: ToyMaker, tmp_path: Path) -> None:
    """The alignment that brings lengths back does it again, and undoes it."""
    first = toy("gemma3n_text")
    model, twin = recognise(first.folder), tmp_path / "twin"
    run_apply(moves(model), model, Output(twin))
    moved, _ = isomerge.align(twin, onto=first.folder, out=tmp_path / "aligned")
    assert {key.rpartition(":")[2] for key in moved} >= {key for one in lengths(model) for key in one.element_keys}
    moved.save(tmp_path / "moved.safetensors")
    assert_replayed_and_undone(tmp_path / "moved.safetensors", twin, tmp_path / "aligned", tmp_path, 1e-7)


def test_with_the_stream(toy: ToyMaker, tmp_path: Path) -> None:
    """A stream in another order, with other signs, gains and lengths."""
    first = toy("gemma3n_text")
    turned = turn("gemma3n_text", first.folder, tmp_path / "turned", 3)
    model, twin = recognise(load_toy("gemma3n_text", turned).folder), tmp_path / "twin"
    run_apply(moves(model), model, Output(twin))
    assert relative(outputs(twin), first.reference) < first.tolerance
    assert isomerge.verify(first.folder, twin)["same"] is True
    assert isomerge.fingerprint(first.folder).hash == isomerge.fingerprint(twin).hash
    _, report = isomerge.align(twin, onto=first.folder, spaces="all")
    assert report["distance"]["after"] < 1e-4 * report["distance"]["before"]
    for source, out in ((first.folder, "one"), (twin, "two")):
        isomerge.canon(source, out=tmp_path / out)
    one, two = tensors(tmp_path / "one"), tensors(tmp_path / "two")
    assert all(torch.allclose(t, two[n], rtol=1e-4, atol=1e-4) for n, t in one.items())


def test_the_form(toy: ToyMaker, tmp_path: Path) -> None:
    """What a map writes is in the mean as long as what it reads, whatever its length was; each counts once."""
    first = toy("gemma3n_text")
    isomerge.canon(first.folder, out=tmp_path / "form")
    found = {n: t.double() for n, t in tensors(tmp_path / "form").items() if "altup_" in n and "projections" in n}
    assert len(found) == 4
    assert all(abs(float(t.square().sum()) / len(t) - 1) < 1e-5 for t in found.values())
    assert whole_group(recognise(first.folder))["norms"] == 4


@pytest.mark.parametrize("wrong", ["one row alone", "of what the layers norm", "the other way round"])
def test_a_near_twin_is_told(wrong: str, toy: ToyMaker, tmp_path: Path) -> None:
    """A part of a map that is as long again, another map whose length counts, and a map that is negative."""
    first, near = toy("gemma3n_text"), tmp_path / "near"
    shutil.copytree(first.folder, near)
    stored = tensors(first.folder)
    end = "mlp.down_proj.weight" if wrong == "of what the layers norm" else "altup_projections.1.weight"
    key = next(n for n in stored if n.endswith(end))
    factor = torch.ones(len(stored[key]), 1, dtype=stored[key].dtype)
    if wrong == "one row alone":
        factor[1] = 2
    elif wrong == "the other way round":
        factor.neg_()
    else:
        key = next(n for n in stored if n.endswith("linear_right.weight"))
        factor = torch.ones(len(stored[key]), 1, dtype=stored[key].dtype)
        factor[::2] = 2
    overwrite(near, {**stored, key: stored[key] * factor})
    assert relative(outputs(near), first.reference) > 1e-3
    assert_told(first.folder, near)


def test_where_another_bound_picks_the_length(toy: ToyMaker, tmp_path: Path) -> None:
    """Maps that are so short that the class scales what they write by its bound are another function each."""
    first = toy("gemma3n_text")
    wide, short = (resized(first, tmp_path / str(f), f) for f in (2.0, 1e-4))
    assert relative(outputs(wide), first.reference) < first.tolerance
    assert isomerge.verify(first.folder, wide)["same"] is True
    assert relative(outputs(short), first.reference) > 1e-3
    assert_told(first.folder, short)
    assert isomerge.verify(short, resized(first, tmp_path / "again", 1e-4))["same"] is True


def test_a_fine_tune_keeps_its_bytes(toy: ToyMaker, tmp_path: Path) -> None:
    """Lengths that noise has changed stay."""
    first, tuned = toy("gemma3n_text"), tmp_path / "tuned"
    rng, stored = torch.Generator().manual_seed(3), tensors(first.folder)
    shutil.copytree(first.folder, tuned)
    overwrite(tuned, {n: (t + 0.02 * torch.randn(t.shape, generator=rng)).to(t.dtype) for n, t in stored.items()})
    still, _ = isomerge.align(tuned, onto=first.folder)
    assert not [key for key in still if key.rpartition(":")[2].startswith(LENGTH)]


def test_a_wrong_text_is_another_function(toy: ToyMaker, tmp_path: Path) -> None:
    """A map that nothing scales afterwards."""
    first, spec = toy("gemma3n_text"), tmp_path / "wrong.spec"
    text = dict(expanded_texts())[config_of(first.folder)["model_type"]][1]
    right = "length copies: altup_projections.{i}.weight above"
    assert right in text
    spec.write_text(text.replace(right, "length copies: layers.{l}.laurel.linear_left.weight above"))
    with pytest.raises(IsomergeError, match="which space lau stretches: take one of them out"):
        recognise(first.folder, spec_file=spec)
    spec.write_text(text.replace(right, "length copies: layers.{l}.altup.prediction_coefs.weight above"))
    model = recognise(first.folder, spec_file=spec)
    statement, drawn = norm_spec(model.declared), {f"{LENGTH}copies[0]": torch.ones(1).double()}
    run_apply(Alignment.of(norm_stages(statement, drawn), statement), model, Output(tmp_path / "near"))
    assert relative(outputs(tmp_path / "near"), first.reference) > 1e-3
    assert_told(first.folder, tmp_path / "near")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("length no: embed_tokens.weight", "is not understood: write NAME: WEIGHT by LENGTHS along AXIS, or"),
        ("length no: embed_tokens.weight above all", "is not understood: write NAME"),
        ("length no: embed.weight above 0.1", "no line of the spec"),
    ],
)
def test_statements_are_refused(statement: str, said: str, toy: ToyMaker, tmp_path: Path) -> None:
    """In one sentence: not understood, or of no line."""
    first, spec = toy("gemma3n_text"), tmp_path / "wrong.spec"
    spec.write_text(dict(expanded_texts())["gemma3n_text"][1] + f"\n{statement}\n")
    with pytest.raises(IsomergeError, match=said):
        recognise(first.folder, spec_file=spec)

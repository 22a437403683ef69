"""What norms over the coordinates of a head take away (`centred` in a text; Persimmon, Command R+): one function in many
weights, which verify, canonical forms and fingerprints know, which comes back to its anchor, and which merges into
itself.
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
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.recognised import Model, recognise
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.centred import CENTRED, Centred
from isomerge.symmetry.layer_norms import norm_spec
from isomerge.symmetry.norm_stage import norm_stages
from run.near_twins import assert_told
from run.test_layer_norm_moves import check_known, inner_moves
from run.twins import assert_replayed_and_undone
from toys import Toy, config_of, outputs, overwrite, relative, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

ToyMaker = Callable[..., Toy]
NAMES = ["persimmon", *more("phi-normed", "cohere-normed", "esmc", "stablelm-normed")]


def centred(model: Model) -> list[Centred]:
    """What norms take away, tensor by tensor."""
    return [one for one in free_under_layer_norm(model).reached if isinstance(one, Centred)]


def moves(model: Model) -> Alignment:
    """Random numbers along the ones of every head."""
    rng, spec = torch.Generator().manual_seed(1), norm_spec(model.declared)
    drawn = {one.key: torch.randn(one.shape(one.key), generator=rng).double() for one in centred(model)}
    assert len(drawn) >= 2 * model.config["num_hidden_layers"]
    return Alignment.of(norm_stages(spec, drawn), spec)


@pytest.mark.parametrize("name", NAMES)
def test_a_twin_comes_back(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """The same function: at distance zero once aligned; replayed, undone, merged into itself; one canonical form and
    one fingerprint; verified."""
    first = toy(name)
    model, twin = recognise(first.folder), tmp_path / "twin"
    run_apply(inner_moves(model, 2) @ moves(model), model, Output(twin))
    assert relative(outputs(twin), first.reference) < 1e-5
    moved, report = isomerge.align(twin, onto=first.folder, out=tmp_path / "aligned")
    assert report["distance"]["after"] < 1e-6 < report["distance"]["before"]
    assert {key.rpartition(":")[2] for key in moved} >= {one.key for one in centred(model)}
    moved.save(tmp_path / "moved.safetensors")
    assert_replayed_and_undone(tmp_path / "moved.safetensors", twin, tmp_path / "aligned", tmp_path, 1e-7)
    isomerge.merge([first.folder, twin], out=tmp_path / "merged")
    assert relative(outputs(tmp_path / "merged"), first.reference) < 1e-5
    check_known(first, twin, tmp_path)


def test_heads_are_centred_one_by_one(toy: ToyMaker) -> None:
    """Against rows that are put together by hand: queries' two parts together, and keys' apart from them."""
    model = recognise(toy("persimmon").folder)
    one = next(one for one in centred(model) if one.block.canonical[0].endswith("weight"))
    whole = model.assemble(one.block, torch.float64)
    heads = model.config["num_attention_heads"]
    rows = whole.reshape(heads, 3, -1, whole.shape[-1])[:, 0]
    assert torch.allclose(one.mean(whole).flatten(), rows.mean(1).flatten())
    formed = one.formed({one.block: whole})[one.block]
    there = formed.reshape(heads, 3, -1, whole.shape[-1])
    assert float(there[:, 0].mean(1).abs().max()) < 1e-12 < float(there[:, 1].mean(1).abs().max())
    assert torch.equal(there[:, 1:], whole.reshape(heads, 3, -1, whole.shape[-1])[:, 1:])
    assert one.dimension(slack=False) == heads * whole.shape[-1]
    assert one.dimension(slack=True) == heads * (whole.shape[-1] - 1)


NEAR = {
    "persimmon": ("persimmon", "#0,1, layers.{l}.self_attn.query_key_value.bias#0,1", "#0, layers.{l}.self_attn.query_key_value.bias#0"),
    **dict(more(("phi-normed", ("phi", "weight#0,1", "weight#0")))),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR)
def test_a_wrong_text_is_another_function(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Mutants that forget a part of a head make near-twins, which verify and fingerprints tell."""
    first = toy(name)
    kind, right, wrong = NEAR[name]
    text, spec = dict(expanded_texts())[kind][1], tmp_path / "wrong.spec"
    assert config_of(first.folder)["model_type"] == kind
    assert right in text
    spec.write_text(text.replace(right, wrong))
    model = recognise(first.folder, spec_file=spec)
    run_apply(moves(model), model, Output(tmp_path / "near"))
    assert relative(outputs(tmp_path / "near"), first.reference) > 1e-3
    assert_told(first.folder, tmp_path / "near")


def test_a_fine_tune_keeps_its_bytes(toy: ToyMaker, tmp_path: Path) -> None:
    """Random differences lie along the ones by chance alone."""
    first, tuned = toy("persimmon"), tmp_path / "tuned"
    rng, stored = torch.Generator().manual_seed(3), tensors(first.folder)
    shutil.copytree(first.folder, tuned)
    overwrite(tuned, {n: (t + 0.02 * torch.randn(t.shape, generator=rng)).to(t.dtype) for n, t in stored.items()})
    still, _ = isomerge.align(tuned, onto=first.folder, out=tmp_path / "still")
    assert not [key for key in still if key.rpartition(":")[2].startswith(CENTRED)]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("centred no: embed_tokens.weight", "is not understood: write NAME: LINE#PART,PART"),
        ("centred no: embed.weight over res", "no line of the spec"),
        ("centred no: embed_tokens.weight over pair", "is over pair, but embed_tokens.weight has other axes"),
        ("centred no: layers.{l}.self_attn.query_key_value.weight#0,4 over c ov", "has other axes"),
    ],
)
def test_statements_are_refused(statement: str, said: str, toy: ToyMaker, tmp_path: Path) -> None:
    """In one sentence: not understood, of no line, or of axes that do not fit."""
    first, spec = toy("persimmon"), tmp_path / "wrong.spec"
    spec.write_text(dict(expanded_texts())["persimmon"][1] + f"\n{statement}\n")
    with pytest.raises(IsomergeError, match=said):
        recognise(first.folder, spec_file=spec)

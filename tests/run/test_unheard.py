"""Constants of values of which no norm hears anything (`unheard` in a text): one function in many weights, which verify,
canonical forms and fingerprints know, which comes back to its anchor, and which merges into itself.
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
from isomerge.symmetry.norm_stage import norm_stages
from isomerge.symmetry.unheard import UNHEARD, Unheard
from run.near_twins import assert_told
from run.test_layer_norm_moves import check_known, inner_moves
from run.twins import assert_replayed_and_undone
from toys import Toy, outputs, overwrite, relative, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

ToyMaker = Callable[..., Toy]
NAMES = ["stablelm-heads", *more("stablelm-unbiased", "nemotron-heads", "nomic_bert", "xlnet")]
"""With biases of values; without; with more values than the stream is wide, each for two query heads; behind norms that
the order of lines names, the first layer of the last behind none."""


def unheard(model: Model) -> list[Unheard]:
    """What no norm hears, layer by layer."""
    return [one for one in free_under_layer_norm(model).reached if isinstance(one, Unheard)]


def moves(model: Model) -> Alignment:
    """Random constants that no norm hears."""
    rng, spec = torch.Generator().manual_seed(2), norm_spec(model.declared)
    drawn = {one.key: 10 * torch.randn(one.shape(one.key), generator=rng).double() for one in unheard(model)}
    assert len(drawn) == (1 if model.spec.model_type == "xlnet" else 2)
    return Alignment.of(norm_stages(spec, drawn), spec)


@pytest.mark.parametrize("name", NAMES)
def test_a_twin_comes_back(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """The same function: at distance zero once aligned; replayed, undone, merged into itself; one canonical form and
    one fingerprint; verified."""
    first = toy(name)
    model, twin = recognise(first.folder), tmp_path / "twin"
    run_apply(inner_moves(model, 2) @ moves(model), model, Output(twin))
    assert relative(outputs(twin), first.reference) < 1e-6
    moved, report = isomerge.align(twin, onto=first.folder, out=tmp_path / "aligned")
    assert report["distance"]["after"] < 1e-6 < report["distance"]["before"]
    assert {key.rpartition(":")[2] for key in moved} >= {one.key for one in unheard(model)}
    moved.save(tmp_path / "moved.safetensors")
    assert_replayed_and_undone(tmp_path / "moved.safetensors", twin, tmp_path / "aligned", tmp_path, 1e-7)
    isomerge.merge([first.folder, twin], out=tmp_path / "merged")
    assert relative(outputs(tmp_path / "merged"), first.reference) < 1e-6
    check_known(first, twin, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_else_is_unheard(name: str, toy: ToyMaker) -> None:
    """Against the null space of all that a norm hears, of a matrix that is put together head by head; counted so."""
    model = recognise(toy(name).folder)
    for one in unheard(model):
        here = {block: model.assemble(block, torch.float64) for block in one.blocks}
        heads, values = one.shape(one.key)
        weight = here[one.out.block]
        width = weight.shape[0]
        out = weight.reshape(width, heads, -1, values).sum(2).flatten(1)
        silent = torch.linalg.svd(out - out.mean(0)).Vh[width - 1 :]
        whole = torch.eye(heads * values, dtype=torch.float64)
        found = torch.stack([one.unheard(x.reshape(heads, values), here).flatten() for x in whole])
        assert (
            torch.linalg.matrix_rank(found, atol=1e-8) == len(silent) == one.entries == heads * values - width + 1
        )
        assert torch.allclose(found @ silent.mT @ silent, found, atol=1e-8)
        assert torch.allclose(silent @ found, silent, atol=1e-8)  # a projection onto it
        near = torch.stack([one.unheard(x.reshape(heads, values), here, nearest=True).flatten() for x in whole])
        assert torch.allclose(near, silent.mT @ silent, atol=1e-8)
    assert whole_group(model)["norms"] > sum(one.dimension(slack=False) for one in unheard(model)) > 0


@pytest.mark.parametrize("name", [name for name in NAMES if name != "xlnet"])
def test_a_near_twin_is_told(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """The constant of one layer added in another."""
    first = toy(name)
    model, near = recognise(first.folder), tmp_path / "near"
    run_apply(moves(model), model, Output(near))
    stored, (one, two) = tensors(near), (model.names[one.changed[0].canonical[0]] for one in unheard(model))
    overwrite(near, {**stored, two: first.stored[two] + stored[one] - first.stored[one]})
    assert relative(outputs(near), first.reference) > 1e-3
    assert_told(first.folder, near)


@pytest.mark.parametrize("name", ["stablelm-heads", *more("nomic_bert")])
def test_a_fine_tune_keeps_its_bytes(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Random differences are unheard by chance alone."""
    first, tuned = toy(name), tmp_path / "tuned"
    rng, stored = torch.Generator().manual_seed(3), tensors(first.folder)
    shutil.copytree(first.folder, tuned)
    overwrite(tuned, {n: (t + 0.02 * torch.randn(t.shape, generator=rng)).to(t.dtype) for n, t in stored.items()})
    still, _ = isomerge.align(tuned, onto=first.folder, out=tmp_path / "still")
    assert not [key for key in still if key.rpartition(":")[2].startswith(UNHEARD)]


def test_a_wrong_text_is_another_function(toy: ToyMaker, tmp_path: Path) -> None:
    """A mutant whose output adds up other query heads."""
    first = toy("nemotron-heads")
    right, wrong = "res (kv g ov')", "res (g kv ov')"
    text, spec = dict(expanded_texts())["nemotron"][1], tmp_path / "wrong.spec"
    assert right in text
    spec.write_text(text.replace(right, wrong))
    model = recognise(first.folder, spec_file=spec)
    run_apply(moves(model), model, Output(tmp_path / "out"))
    assert relative(outputs(tmp_path / "out"), first.reference) > 1e-3


def test_an_output_that_is_biased_or_narrow_has_none(toy: ToyMaker) -> None:
    """There its bias takes all constants, or nothing is unheard; nor where a class gives out what is written."""
    for name in ("nemotron", "stablelm"):
        assert not unheard(recognise(toy(name).folder))
    model = recognise(toy("stablelm-heads").folder)
    model.checkpoint.config["output_hidden_states"] = True
    assert not unheard(model)


VALUES = "layers.{l}.self_attn.v_proj"
OUT = "through layers.{l}.self_attn.o_proj.weight"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (f"unheard no: {VALUES}.weight {OUT}", "is not understood: write NAME: WEIGHT by BIAS"),
        (f"unheard no: {VALUES}.weight by {VALUES}.bias behind none.weight {OUT}", "no line of the spec"),
        (f"unheard no: {VALUES}.weight by {VALUES}.bias behind layers.{{l}}.post_attention_layernorm.weight {OUT}", "do not fit each other"),
        (f"unheard no: {VALUES}.weight by layers.{{l}}.self_attn.q_proj.bias behind layers.{{l}}.input_layernorm.weight {OUT}", "do not fit each other"),
    ],
)  # fmt: skip
def test_statements_are_refused(statement: str, said: str, toy: ToyMaker, tmp_path: Path) -> None:
    """In one sentence: not understood, of no line, or of axes that do not fit."""
    first, spec = toy("stablelm-heads"), tmp_path / "wrong.spec"
    spec.write_text(dict(expanded_texts())["stablelm"][1] + f"\n{statement}\n")
    with pytest.raises(IsomergeError, match=said):
        recognise(first.folder, spec_file=spec)

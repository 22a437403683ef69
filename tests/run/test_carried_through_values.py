"""A norm's bias that a stream carries on to where nothing has a bias (NomicBERT, XLNet): values take it up through
their output, and else what it has along the ones alone is free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import isomerge
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.recognised import Model, recognise
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.layer_norms import norm_spec
from isomerge.symmetry.moves import FOLD
from isomerge.symmetry.norm_stage import norm_stages
from isomerge.symmetry.norms import Norm
from symmetry.twins import apart, assert_told, free_moves
from toy_settings import BODY
from toys import Toy, outputs, overwrite, randomise, relative, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

ToyMaker = Callable[..., Toy]


def folding(model: Model) -> list[Norm]:
    """The norms that stand in layers, or before all, of which something of the bias is free."""
    return [norm for norm in free_under_layer_norm(model).norms if norm.folds and not norm.ends]


def folds(model: Model) -> Alignment:
    """Random vectors that norms' biases have more, of what is free of each."""
    rng, drawn = torch.Generator().manual_seed(1), {}
    for norm in folding(model):
        assert norm.bias is not None
        width = len(model.assemble(norm.bias, torch.float64))
        drawn[FOLD + norm.bias.key] = torch.randn(width, generator=rng).double()
    spec = norm_spec(model.declared)
    return Alignment.of(norm_stages(spec, drawn), spec)


def nomic_bert(folder: Path, changes: Mapping[str, Any]) -> Model:
    """One of other sizes."""
    model = tf.NomicBertForMaskedLM(tf.NomicBertConfig(**{**BODY, **changes})).double().eval()
    randomise(model, 0)
    model.save_pretrained(folder)
    return recognise(folder)


def test_what_is_free_of_each_norm(toy: ToyMaker) -> None:
    """Values take up all of the bias before them; of that before an MLP, what lies along the ones is free; and so in
    XLNet, whose MLP has biases, and whose first layer reads no norm."""
    model = recognise(toy("nomic_bert").folder)
    found = {norm.bias.key: (norm.through is not None, norm.level) for norm in folding(model) if norm.bias}
    assert found == {
        "emb_ln.bias": (True, False),
        "encoder.layers.0.norm1.bias": (False, True),
        "encoder.layers.0.norm2.bias": (True, False),
        "encoder.layers.1.norm1.bias": (False, True),
    }
    model = recognise(toy("xlnet").folder)
    assert [norm.bias.key for norm in folding(model) if norm.bias and norm.through] == [
        "layer.0.ff.layer_norm.bias"
    ]
    assert not any(norm.level for norm in folding(model))


@pytest.mark.parametrize("name", ["nomic_bert", "xlnet"])
def test_values_that_keep_what_they_made_are_told(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Near-twins: values that take up nothing, as of a norm whose bias no stream carries on, and twice as much."""
    first = toy(name)
    model, twin = recognise(first.folder), tmp_path / "twin"
    run_apply(folds(model), model, Output(twin))
    assert relative(outputs(twin), first.reference) < first.tolerance
    through = next(norm.through for norm in folding(model) if norm.through is not None)
    before, after = ({b: m.assemble(b, torch.float64) for b in through.blocks} for m in (model, recognise(twin)))
    assert through.shift is not None
    taken_up = through.taken_up(after[through.shift] - before[through.shift], after)
    stored = model.names[through.weight.block.canonical[0]]
    for times in (-1.0, 1.0):
        overwrite(twin, {**tensors(twin), stored: through.with_more(times * taken_up, after)[through.weight.block]})
        assert relative(outputs(twin), first.reference) > 1e-3
        assert_told(first.folder, twin)


def test_before_an_mlp_nothing_else_is_free(toy: ToyMaker, tmp_path: Path) -> None:
    """A bias that has more than what lies along the ones, taken back by all that read it, is another function."""
    first = toy("nomic_bert")
    model, near = recognise(first.folder), tmp_path / "near"
    spec = norm_spec(model.declared)
    key = next(FOLD + norm.bias.key for norm in folding(model) if norm.bias and norm.level)
    ramp = torch.linspace(-1, 1, BODY["hidden_size"], dtype=torch.float64)
    (stage,) = norm_stages(spec, {key: ramp})
    blocks = {block: model.assemble(block, torch.float64) for block in model.blocks}
    assert all(torch.allclose(t, blocks[b]) for b, t in stage.applied(blocks).items())  # its mean is zero
    run_apply(Alignment.of(norm_stages(spec, {key: ramp + 1}), spec), model, Output(near))
    assert relative(outputs(near), first.reference) < 1e-6
    stored = model.names[key.removeprefix(FOLD)]
    overwrite(near, {**tensors(near), stored: tensors(near)[stored] + ramp})
    assert relative(outputs(near), first.reference) > 1e-3
    assert_told(first.folder, near)


def test_an_output_without_an_inverse_takes_up_nothing(toy: ToyMaker, tmp_path: Path) -> None:
    """Where two values write the same, nothing is told of the norm before them; all else is."""
    first = toy("nomic_bert")
    stored = dict(first.stored)
    name = recognise(first.folder).names["encoder.layers.1.attn.out_proj.weight"]
    stored[name] = stored[name].clone()
    stored[name][:, 0] = stored[name][:, 1]
    tf.AutoModelForMaskedLM.from_pretrained(first.folder, dtype=torch.float64).save_pretrained(tmp_path / "one")
    overwrite(tmp_path / "one", stored)
    model = recognise(tmp_path / "one")
    free = free_under_layer_norm(model).identifiable(
        lambda some: {b: model.assemble(b, torch.float64) for b in some}
    )
    assert [norm.bias.key for norm in free.norms if norm.bias and norm.folds and norm.through] == ["emb_ln.bias"]
    assert isomerge.verify(tmp_path / "one", tmp_path / "one")["same"] is True


def test_narrow_heads_take_up_nothing(tmp_path: Path) -> None:
    """Heads that are narrower together than the stream: what lies along the ones is free of every norm, no more."""
    model = nomic_bert(tmp_path / "one", {"head_dim": 4})
    assert [norm.level for norm in folding(model)] == [True] * 4
    run_apply(free_moves(model), model, Output(tmp_path / "two"))
    assert apart(tmp_path / "one", tmp_path / "two") > 0.5
    assert relative(outputs(tmp_path / "two"), outputs(tmp_path / "one")) < 1e-6
    assert isomerge.verify(tmp_path / "one", tmp_path / "two")["same"] is True

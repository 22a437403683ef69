"""What single statements say beside the law of all (`test_statements`): what exactly is free, what form it has, and where
it is left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import isomerge
import toys
from depth import more
from isomerge.evidence.inspection import whole_group
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.onto_anchor import read_onto
from isomerge.models.recognised import Model, recognise
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from isomerge.symmetry.centred import Centred
from isomerge.symmetry.probed import DROP, TURN
from isomerge.symmetry.reached import REACHES
from isomerge.symmetry.unheard import Unheard
from symmetry.near_twins import PLACES
from symmetry.statements import HIDDEN, PADS, other_order
from symmetry.twins import apart, assert_told, changed, free_moves, left_behind, of_spaces, written
from toy_models import made
from toy_settings import BODY
from toys import Toy, outputs, overwrite, randomise, relative, save_toy, tensors

ToyMaker = Callable[..., Toy]
Outputs = Callable[[Path], torch.Tensor]


def test_vectors_of_permuted_streams_are_not_compared(toy: ToyMaker, tmp_path: Path) -> None:
    """`carry`: a twin with its stream permuted comes back, however large the constants that both models have."""
    first, twin = toy("openai-gpt"), tmp_path / "twin"
    name = next(n for n in first.stored if n.endswith("positions_embed.weight"))
    shift = torch.randn(
        first.stored[name].shape[1], generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )
    large = changed(lambda toy: {name: toy.stored[name] + 0.5 * shift})(first, tmp_path / "large")
    model = recognise(large)
    run_apply(of_spaces("res")(model), model, Output(twin))
    report = isomerge.align(twin, onto=large, out=tmp_path / "aligned", spaces="all")[1]
    assert report["distance"]["before"] > 1
    assert apart(large, tmp_path / "aligned") < 1e-6


def test_heads_are_centred_one_by_one(toy: ToyMaker) -> None:
    """`centred`: against rows that are put together by hand: queries' two parts together, and keys' apart from them."""
    model = recognise(toy("persimmon").folder)
    parts = [part for part in free_under_layer_norm(model).reached if isinstance(part, Centred)]
    queries = next(part for part in parts if part.block.canonical[0].endswith("weight"))
    whole = model.assemble(queries.block, torch.float64)
    heads = model.config["num_attention_heads"]
    fused = whole.reshape(heads, 3, -1, whole.shape[-1])
    assert torch.allclose(queries.mean(whole).flatten(), fused[:, 0].mean(1).flatten())
    form = queries.formed({queries.block: whole})[queries.block].reshape(fused.shape)
    assert float(form[:, 0].mean(1).abs().max()) < 1e-12 < float(form[:, 1].mean(1).abs().max())
    assert torch.equal(form[:, 1:], fused[:, 1:])
    assert queries.dimension(slack=False) == heads * whole.shape[-1]
    assert queries.dimension(slack=True) == heads * (whole.shape[-1] - 1)


@pytest.mark.parametrize("name", HIDDEN)
def test_heads_in_another_order_are_not_averaged_as_stored(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Hidden neurons of a head: the average of twins as they are stored is another function."""
    twin = changed(other_order())(toy(name), tmp_path / "twin")
    isomerge.merge([toy(name).folder, twin], out=tmp_path / "averaged", align=False)
    assert relative(outputs(tmp_path / "averaged"), toy(name).reference) > 1e-2


def test_a_base_model_keeps_its_pooler(tmp_path: Path) -> None:
    """What a classifier's head reads is an output of the base model: beside one, a pooler's neurons stay where they
    are, and both keep their functions."""
    folders = []
    for seed, kind in enumerate(("ForSequenceClassification", "Model")):
        model = made("Bert", kind, **BODY)().double().eval()
        randomise(model, seed)
        model.save_pretrained(tmp_path / kind)
        folders.append(tmp_path / kind)
    words = {"input_ids": torch.arange(12).reshape(2, 6)}

    def pooled(folder: Path) -> torch.Tensor:
        model = tf.BertModel.from_pretrained(folder, dtype=torch.float64).eval()
        with torch.no_grad():
            return model(**words).pooler_output

    for onto, source in (folders, folders[::-1]):
        isomerge.align(source, onto=onto, align=True, out=tmp_path / f"moved-{source.name}")
        assert relative(pooled(tmp_path / f"moved-{source.name}"), pooled(source)) < 1e-9


@pytest.fixture
def of_padded_texts(monkeypatch: pytest.MonkeyPatch) -> Outputs:
    """The outputs of a saved toy where the last three words of every text pad."""
    plain = toys.inputs

    def padded(config: Any) -> dict[str, torch.Tensor]:
        texts = plain(config)
        texts["input_ids"][:, -3:] = config.pad_token_id
        return texts

    monkeypatch.setattr(toys, "inputs", padded)
    return outputs


@pytest.mark.parametrize("name", PADS)
def test_texts_that_are_padded_stay(name: str, toy: ToyMaker, of_padded_texts: Outputs, tmp_path: Path) -> None:
    """Where words pad, the class gives what it gave; and something else where the place has not followed."""
    first, write = toy(name), written(of_spaces("pw"))
    before, twin = of_padded_texts(first.folder), write(first, tmp_path / "twin")
    assert (
        float(
            (tensors(twin)[recognise(twin).names[PLACES]] - tensors(first.folder)[recognise(twin).names[PLACES]])
            .std(0)
            .norm()
        )
        > 0.1
    )
    assert relative(of_padded_texts(twin), before) < first.tolerance
    near = left_behind(write, PLACES)(first, tmp_path / "near")
    assert relative(of_padded_texts(near), before) > 1e-3


@pytest.mark.parametrize("name", ["siglip_vision_model", "electra", *more("siglip2", "rembert", "roformer")])
def test_strangers_come_nearer(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """`probe` and `reached`: nothing is left of what is free of a stranger, and its function stays."""
    first = toy(name)
    other = save_toy(name, tmp_path / "other", seed=5)
    moved, _ = isomerge.align(other, onto=first.folder, out=tmp_path / "aligned")
    parts = free_under_layer_norm(recognise(first.folder)).reached
    keys = {key for part in parts for key in part.element_keys if not key.startswith(DROP)}
    assert {key.rpartition(":")[2] for key in moved} >= keys > set()
    assert all(key.startswith(REACHES) for key in keys)
    assert relative(outputs(tmp_path / "aligned"), outputs(other)) < 1e-6
    for part in parts:
        models = (recognise(first.folder), recognise(tmp_path / "aligned"))
        anchor, source = ({block: m.assemble(block, torch.float64) for block in part.blocks} for m in models)
        for key, g in part.onto(source, anchor).items():
            assert float((g - torch.eye(g.shape[-1]) if key.startswith(TURN) else g).norm()) < 1e-9


def test_layers_that_run_again_move_where_they_are_alike(toy: ToyMaker, tmp_path: Path) -> None:
    """`reached`: a fine-tune of a twin comes back; a stranger keeps its own factor."""
    first, twin = toy("albert"), tmp_path / "twin"
    model, other = recognise(first.folder), save_toy("albert", tmp_path / "other", seed=5)
    run_apply(free_moves(model, *REACHES), model, Output(twin))
    rng = torch.Generator().manual_seed(3)
    overwrite(twin, {n: t + 1e-3 * torch.randn(t.shape, generator=rng) for n, t in tensors(twin).items()})
    for source, moves in ((twin, True), (other, False)):
        moved, report = isomerge.align(source, onto=first.folder, out=tmp_path / "aligned", overwrite=True)
        assert any(key.rpartition(":")[2].startswith(TURN) for key in moved) is moves
        assert relative(outputs(tmp_path / "aligned"), outputs(source)) < 1e-6
        assert (report["distance"]["after"] < 0.3 * report["distance"]["before"]) is moves


def test_lengths_of_the_form(toy: ToyMaker, tmp_path: Path) -> None:
    """`length`: what a map writes is in the mean as long as what it reads, whatever its length was; each counts once."""
    isomerge.canon(toy("gemma3n_text").folder, out=tmp_path / "form")
    maps = [t.double() for n, t in tensors(tmp_path / "form").items() if "altup_" in n and "projections" in n]
    assert len(maps) == 4
    assert all(abs(float(t.square().sum()) / len(t) - 1) < 1e-5 for t in maps)
    assert whole_group(recognise(toy("gemma3n_text").folder))["norms"] == 4


def test_where_another_bound_picks_the_length(toy: ToyMaker, tmp_path: Path) -> None:
    """`length`: maps that are so short that the class scales what they write by its bound are another function each."""
    first = toy("gemma3n_text")

    def resized(name: str, factor: float) -> Path:
        """One map that many times as long as in the form."""
        (key,) = (n for n in first.stored if n.endswith("altup_projections.1.weight"))
        length = factor * len(first.stored[key]) ** 0.5
        return changed(lambda toy: {key: toy.stored[key] * (length / toy.stored[key].norm())})(
            first, tmp_path / name
        )

    wide, short = resized("wide", 2.0), resized("short", 1e-4)
    assert relative(outputs(wide), first.reference) < first.tolerance
    assert isomerge.verify(first.folder, wide)["same"] is True
    assert relative(outputs(short), first.reference) > 1e-3
    assert_told(first.folder, short)
    assert isomerge.verify(short, resized("again", 1e-4))["same"] is True


def test_strangers_keep_the_bases_of_their_tables(toy: ToyMaker, tmp_path: Path) -> None:
    """`basis`: nothing is turned where no basis makes up for what is between two tables."""
    source = recognise(save_toy("deberta-long", tmp_path / "other", seed=5))
    read_onto(recognise(toy("deberta-long").folder), source)
    assert not source.moves


def test_one_form_of_a_table(toy: ToyMaker) -> None:
    """`basis`: orthonormal, of the same span, the same for every basis, and nearest to the numbers that are always the
    same."""
    model = recognise(toy("deberta-long").folder)
    (basis,) = free_under_layer_norm(model).bases
    assert basis.table is not None
    table, eye = model.assemble(basis.table, torch.float64), torch.eye(basis.width, dtype=torch.float64)
    a = torch.randn(eye.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    form = table @ basis.formed(table)
    assert torch.allclose(form, (table @ a) @ basis.formed(table @ a), atol=1e-8)
    assert torch.allclose(form.mT @ form, eye, atol=1e-8)
    assert torch.linalg.matrix_rank(torch.cat([form, table], 1), atol=1e-8) == basis.width


def unheard(model: Model) -> list[Unheard]:
    """What no norm hears, layer by layer."""
    return [part for part in free_under_layer_norm(model).reached if isinstance(part, Unheard)]


@pytest.mark.parametrize(
    "name", ["stablelm-heads", *more("stablelm-unbiased", "nemotron-heads", "nomic_bert", "xlnet")]
)
def test_nothing_else_is_unheard(name: str, toy: ToyMaker) -> None:
    """Against the null space of all that a norm hears, of a matrix that is put together head by head."""
    model = recognise(toy(name).folder)
    assert len(unheard(model)) == (1 if name == "xlnet" else 2)
    for part in unheard(model):
        blocks = {block: model.assemble(block, torch.float64) for block in part.blocks}
        heads, values = part.shape(part.key)
        weight = blocks[part.out.block]
        width = weight.shape[0]
        out = weight.reshape(width, heads, -1, values).sum(2).flatten(1)
        silent = torch.linalg.svd(out - out.mean(0)).Vh[width - 1 :]
        units = torch.eye(heads * values, dtype=torch.float64).unflatten(1, (heads, values))
        rows = torch.stack([part.unheard(unit, blocks).flatten() for unit in units])
        entries = heads * values - width + 1
        assert torch.linalg.matrix_rank(rows, atol=1e-8) == len(silent) == part.entries == entries
        assert torch.allclose(rows @ silent.mT @ silent, rows, atol=1e-8)
        assert torch.allclose(silent @ rows, silent, atol=1e-8)  # a projection onto it
        nearest = torch.stack([part.unheard(unit, blocks, nearest=True).flatten() for unit in units])
        assert torch.allclose(nearest, silent.mT @ silent, atol=1e-8)


def test_an_output_that_is_biased_or_narrow_hears_all(toy: ToyMaker) -> None:
    """`unheard`: there its bias takes all constants, or nothing is unheard; nor where a class gives out what is
    written."""
    for name in ("nemotron", "stablelm"):
        assert not unheard(recognise(toy(name).folder))
    model = recognise(toy("stablelm-heads").folder)
    model.checkpoint.config["output_hidden_states"] = True
    assert not unheard(model)

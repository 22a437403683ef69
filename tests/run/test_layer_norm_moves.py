"""What LayerNorm leaves free beside the law of all statements (`symmetry.test_statements`): the parts that are nearest,
what is worth a move, the choice of spaces, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
import torch
import transformers as tf

import isomerge
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_alignment
from isomerge.matching.norm_parts import brought_onto, is_disguised, ones_elements
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.recognised import recognise
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.layer_norms import norm_spec
from isomerge.symmetry.moves import FOLD, GAIN, ONES, TIED
from isomerge.symmetry.norm_stage import norm_stages
from symmetry.twins import apart, free_moves, inner_moves
from toys import Toy, outputs, overwrite, relative, save_toy, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

ToyMaker = Callable[..., Toy]


@pytest.mark.parametrize(("name", "spaces"), [("bert", "default"), ("gpt2", "all")])
def test_twins_are_merged_without_an_anchor(name: str, spaces: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Three models that are one function up to these moves and the spaces inside the layers are merged into it."""
    first = toy(name)
    model = recognise(first.folder)
    twins = [tmp_path / "one", tmp_path / "two"]
    for seed, twin in enumerate(twins, 1):
        run_apply(inner_moves(model, seed) @ free_moves(model, seed=seed), model, Output(twin))
    folders = [first.folder, *twins]
    assert min(apart(a, b) for a, b in combinations(folders, 2)) > 1
    report = isomerge.merge(folders, out=tmp_path / "merged", anchor="none", spaces=spaces)
    assert relative(outputs(tmp_path / "merged"), first.reference) < 1e-6
    assert report["distance"]["after"] < 1e-6


def test_words_of_padding_trade_with_their_place_alone(toy: ToyMaker) -> None:
    """RoBERTa's table is the head as well: two constants are free, one of all words and one of padding's row."""
    model = recognise(toy("roberta").folder)
    free, spec = free_under_layer_norm(model), norm_spec(model.declared)
    (norm,) = (norm for norm in free.norms if norm.trades)
    table, places = (trade for trade in (norm.trades[0].table, norm.trades[1].partner))
    source = {block: model.assemble(block, torch.float64) for block in model.blocks}
    (stage,) = norm_stages(spec, {TIED + table.key: torch.tensor([0.5, -2.0], dtype=torch.float64)})
    moved = stage.applied(source)
    changed = (moved[places] != source[places]).any(1).nonzero().flatten().tolist()
    assert changed == [model.config["pad_token_id"]]
    assert norm.bias is not None
    paid = moved[norm.trades[0].bias] - source[norm.trades[0].bias]
    made = (moved[table] - source[table]) @ source[
        norm.bias
    ]  # what a head makes of a norm's bias it has in its own
    assert torch.allclose(paid, -made)
    assert len({round(float(x), 9) for x in paid}) == 2


def test_a_reader_of_one_row(toy: ToyMaker, tmp_path: Path) -> None:
    """TAPAS's head of cells is a vector: models apart are matched, and keep what they compute."""
    other = save_toy("tapas-cells", tmp_path / "other", seed=4)
    _, report = isomerge.align(other, onto=toy("tapas-cells").folder, out=tmp_path / "moved")
    assert report["distance"]["after"] < report["distance"]["before"]
    assert relative(outputs(tmp_path / "moved"), outputs(other)) < 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_the_parts_are_the_nearest(seed: int, toy: ToyMaker) -> None:
    """Of every writer and reader, against least squares over all that may be added; what is left is orthogonal."""
    model = recognise(toy("gpt2").folder)
    free = free_under_layer_norm(model)
    rng = torch.Generator().manual_seed(seed)
    source = {block: model.assemble(block, torch.float64) for block in model.blocks}
    anchor = {block: torch.randn(t.shape, generator=rng, dtype=torch.float64) for block, t in source.items()}
    elements = ones_elements(free, source, anchor)
    assert len(elements) == 19
    for norm in free.norms:
        assert norm.gain is not None
        for reader, axis in norm.slack.items():
            column = (1 / source[norm.gain])[:, None]
            gap = (anchor[reader] - source[reader]).movedim(axis, 0)
            best = torch.linalg.lstsq(column, gap).solution
            assert torch.allclose(elements[GAIN + reader.key].movedim(axis, 0), best)
    for writer, axis in free.writers.items():
        gap = (anchor[writer] - source[writer]).movedim(axis, 0)
        gap = gap.reshape(len(gap), -1)
        best = torch.linalg.lstsq(torch.ones(len(gap), 1, dtype=torch.float64), gap).solution
        assert torch.allclose(elements[ONES + writer.key].movedim(axis, 0).flatten(), best.flatten())


@pytest.mark.parametrize("size", [0.01, 1.0])
def test_the_distance_falls(size: float, toy: ToyMaker) -> None:
    """Of a disguised model, by all that is between them but noise; or nothing is moved, in narrow random ones."""
    model = recognise(toy("gpt2").folder)
    free, spec = free_under_layer_norm(model), norm_spec(model.declared)
    source = {block: model.assemble(block, torch.float64) for block in model.blocks}
    rng = torch.Generator().manual_seed(0)
    noise = {b: size * torch.randn(t.shape, generator=rng, dtype=t.dtype) for b, t in source.items()}
    anchor = {b: t + noise[b] for b, t in free_moves(model).applied(source).items()}
    moves = brought_onto(spec, free, anchor, source)
    before = sum(float((anchor[b] - t).square().sum()) for b, t in source.items())
    after = sum(float((anchor[b] - t).square().sum()) for b, t in moves.applied(source).items())
    assert moves.moved()["norms"][1] > 0
    assert after < before / 2
    assert is_disguised(free, anchor, source)
    near = {b: t + noise[b] for b, t in source.items()}
    assert not is_disguised(free, near, source)
    assert not brought_onto(spec, free, near, source)


def test_a_fine_tune_keeps_its_bytes(tmp_path: Path) -> None:
    """A random difference has one part in its width along the ones, which is worth no move."""
    torch.manual_seed(0)
    config = tf.GPT2Config(
        n_embd=96, n_layer=1, n_head=4, vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    model = tf.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path / "base")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1e-3 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "tuned")
    moved, _ = isomerge.align(tmp_path / "tuned", onto=tmp_path / "base", out=tmp_path / "out", spaces="default")
    assert "norms" not in moved.moved()


TRADING = """
like bert
model bert
shift pt: embeddings.position_embeddings.weight along pos -> embeddings.token_type_embeddings.weight along types
"""


def test_tables_of_a_fine_tune_keep_their_bytes(toy: ToyMaker, tmp_path: Path) -> None:
    """A constant that is small beside what else changed is not traded; one that is planted is traded back."""
    first, spec = toy("bert"), tmp_path / "trading.spec"
    spec.write_text(TRADING)
    tables = [f"bert.embeddings.{kind}_embeddings.weight" for kind in ("position", "token_type")]
    new = dict(first.stored)
    for name in tables:
        new[name] = new[name] + 1e-2 * torch.randn(new[name].shape, generator=torch.Generator().manual_seed(1))
    planted = torch.randn(new[tables[0]].shape[1], generator=torch.Generator().manual_seed(2)).double()
    for folder, size in (("tuned", 0.0), ("traded", 1.0)):
        model = tf.AutoModelForMaskedLM.from_pretrained(first.folder, dtype=torch.float64)
        model.save_pretrained(tmp_path / folder)
        overwrite(tmp_path / folder, new | {tables[0]: new[tables[0]] + size * planted})
        out = tmp_path / f"{folder}-aligned"
        isomerge.align(tmp_path / folder, onto=first.folder, out=out, spaces="pt", spec=spec)
        kept, moved = (tensors(tmp_path / f"{folder}{end}")[tables[0]] for end in ("", "-aligned"))
        assert torch.equal(kept, moved) is (size == 0)


@pytest.mark.parametrize(
    ("spaces", "moves"), [("norms", True), ("ff", False), ("paper", False), ("ff,norms", True)]
)
def test_the_choice_of_spaces(spaces: str, moves: bool, toy: ToyMaker, tmp_path: Path) -> None:
    """`norms` names them; presets of the paper, and other names, leave them."""
    first = toy("gpt2")
    twin = tmp_path / "twin"
    run_apply(free_moves(recognise(first.folder)), recognise(first.folder), Output(twin))
    moved, report = isomerge.align(twin, onto=first.folder, out=tmp_path / "out", spaces=spaces)
    assert ("norms" in moved.moved()) is moves
    assert (report["distance"]["after"] < 1e-6) is moves


def test_without_layer_norm_there_is_no_such_space(toy: ToyMaker, tmp_path: Path) -> None:
    """RMSNorm takes no mean away."""
    folder = toy("llama").folder
    with pytest.raises(IsomergeError, match="no such space"):
        isomerge.align(folder, onto=folder, out=tmp_path / "out", spaces="norms")


def test_a_damaged_alignment_is_refused(toy: ToyMaker, tmp_path: Path) -> None:
    """An element of another shape, one that is not finite, and one that moves a tensor that no norm knows."""
    model = recognise(toy("gpt2").folder)
    moves, file = free_moves(model), tmp_path / "moves.safetensors"
    key = f"{ONES}h.0.mlp.c_proj.weight"
    wrong = {
        "shape": (key, moves[key][:3], "no element of its group"),
        "finite": (key, moves[key] * float("nan"), "no element of its group"),
        "tensor": (f"{ONES}h.0.mlp.nothing", moves[key], "not described"),
        "reader": (f"{ONES}ln_f.bias", moves[f"{ONES}h.0.mlp.c_proj.bias"], "does not have"),
    }
    wrong["stage"] = (f"{FOLD}h.0.ln_1.bias", moves[f"2:{FOLD}h.0.ln_1.bias"], "two kinds")
    for name, c, text in wrong.values():
        Alignment(moves.spec, {**{k: v for k, v in moves.items() if k != key}, name: c.contiguous()}).save(file)
        with pytest.raises(IsomergeError, match=text):
            isomerge.apply(file, model.ref, out=tmp_path / "out")


def test_a_token_for_masked_patches_follows_their_bias(tmp_path: Path) -> None:
    """What patches' bias trades with their places the token that stands for masked ones has as well."""
    torch.manual_seed(0)
    config = tf.Dinov2Config(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
    model = tf.Dinov2Model(config).double().eval()
    model.save_pretrained(tmp_path / "one")
    first = recognise(tmp_path / "one")
    moves = random_alignment(first.spec.restrict(["pp"]), first.blocks, torch.Generator().manual_seed(1))
    run_apply(moves, first, Output(tmp_path / "two"))
    twin = tf.Dinov2Model.from_pretrained(tmp_path / "two", dtype=torch.float64)
    pixels, masked = torch.randn(2, 3, 8, 8).double(), torch.tensor([[True, False, True, False]] * 2)
    for where in (None, masked):
        with torch.no_grad():
            one, two = (m(pixels, bool_masked_pos=where).last_hidden_state for m in (model, twin))
        assert float((one - two).abs().max()) < 1e-9
    assert apart(tmp_path / "one", tmp_path / "two") > 1
    assert isomerge.verify(tmp_path / "one", tmp_path / "two")["same"] is True

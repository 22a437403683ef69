"""Tables that many layers read, in whatever basis (`basis` in a text; DeBERTa's relative positions): one function in
many weights, which verify, canonical forms and fingerprints know, which comes back to its anchor, and which merges into
itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import isomerge
from isomerge.archs import expanded_texts
from isomerge.errors import IsomergeError
from isomerge.evidence.whole_group import whole_group
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.recognised import Model, recognise
from isomerge.models.table_bases import read_onto
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.bases import BASIS
from isomerge.symmetry.layer_norms import norm_spec
from isomerge.symmetry.norm_stage import norm_stages
from run.near_twins import assert_told, near_twin
from run.test_carried_constants import constants
from run.test_layer_norm_moves import check_known, inner_moves
from run.twins import assert_replayed_and_undone
from toys import Toy, outputs, overwrite, relative, save_toy, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

ToyMaker = Callable[..., Toy]
NAME, KEY = "deberta-long", BASIS + "rb"


def turned(model: Model) -> Alignment:
    """The table in a random basis."""
    (one,) = free_under_layer_norm(model).bases
    rng, spec = torch.Generator().manual_seed(1), norm_spec(model.declared)
    a = torch.randn(one.width, one.width, generator=rng, dtype=torch.float64)
    return Alignment.of(norm_stages(spec, {one.key: a}), spec)


@pytest.mark.parametrize("carried", [False, True])
def test_a_twin_comes_back(carried: bool, toy: ToyMaker, tmp_path: Path) -> None:
    """The same function, alone and with another constant in the table: at distance zero once aligned; replayed, undone,
    merged into itself; one canonical form and one fingerprint; verified."""
    first = toy(NAME)
    model, twin = recognise(first.folder), tmp_path / "twin"
    moves = turned(model) @ constants(model) if carried else turned(model)
    run_apply(inner_moves(model, 2) @ moves, model, Output(twin))
    assert relative(outputs(twin), first.reference) < 1e-5
    moved, report = isomerge.align(twin, onto=first.folder, out=tmp_path / "aligned")
    assert report["distance"]["after"] < 1e-6 < report["distance"]["before"]
    assert KEY in {key.rpartition(":")[2] for key in moved}
    moved.save(tmp_path / "moved.safetensors")
    assert_replayed_and_undone(tmp_path / "moved.safetensors", twin, tmp_path / "aligned", tmp_path, 1e-7)
    isomerge.merge([first.folder, twin], out=tmp_path / "merged")
    assert relative(outputs(tmp_path / "merged"), first.reference) < 1e-5
    check_known(first, twin, tmp_path)


def test_strangers_and_fine_tunes_keep_theirs(toy: ToyMaker, tmp_path: Path) -> None:
    """Nothing is turned where no basis makes up for what is between two tables."""
    first, tuned = toy(NAME), tmp_path / "tuned"
    rng, stored = torch.Generator().manual_seed(3), tensors(first.folder)
    shutil.copytree(first.folder, tuned)
    overwrite(tuned, {n: (t + 0.02 * torch.randn(t.shape, generator=rng)).to(t.dtype) for n, t in stored.items()})
    for other in (tuned, save_toy(NAME, tmp_path / "other", seed=5)):
        source = recognise(other)
        read_onto(recognise(first.folder), source)
        assert source.carried is None
    run_apply(turned(recognise(tuned)), recognise(tuned), Output(tmp_path / "twin"))
    twin = recognise(tmp_path / "twin")
    read_onto(recognise(first.folder), twin)
    assert twin.carried is not None


def test_one_form(toy: ToyMaker) -> None:
    """Orthonormal, of the same span, the same for every basis, and nearest to the numbers that are always the same."""
    model = recognise(toy(NAME).folder)
    (one,) = free_under_layer_norm(model).bases
    assert one.table is not None
    table = model.assemble(one.table, torch.float64)
    a = torch.randn(one.width, one.width, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    form = table @ one.formed(table)
    assert torch.allclose(form, (table @ a) @ one.formed(table @ a), atol=1e-8)
    assert torch.allclose(form.mT @ form, torch.eye(one.width, dtype=torch.float64), atol=1e-8)
    assert torch.linalg.matrix_rank(torch.cat([form, table], 1), atol=1e-8) == one.width
    assert whole_group(model)["norms"] >= one.width**2


def test_near_twins_and_damage_are_told(toy: ToyMaker, tmp_path: Path) -> None:
    """One layer that has not followed; an element that has no inverse."""
    first = toy(NAME)
    near = near_twin(first, turned, "encoder.layer.1.attention.self.pos_q_proj.weight", tmp_path / "near")
    assert relative(outputs(near), first.reference) > 1e-3
    assert_told(first.folder, near)
    model = recognise(first.folder)
    for wrong in (torch.zeros(5), torch.zeros_like(turned(model)[KEY])):
        Alignment(norm_spec(model.declared), {KEY: wrong.double()}).save(tmp_path / "wrong.safetensors")
        with pytest.raises(IsomergeError, match="no element of its group"):
            isomerge.apply(tmp_path / "wrong.safetensors", first.folder, out=tmp_path / "no")


LAYER = "encoder.layer.{l}.attention.self"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("basis rb: encoder.rel_embeddings.weight", "basis 'rb: encoder.rel_embeddings.weight' is not understood"),
        (f"basis rb: encoder.rel_embeddings.weight along rb -> {LAYER}.pos_proj.weight", "pos_q_proj.weight stands as well"),
        (f"basis no: encoder.rel_embeddings.weight along res -> {LAYER}.pos_proj.weight", "not all its tensors are"),
        (f"basis no: encoder.rel.weight along rb -> {LAYER}.pos_proj.weight", "no line of the spec"),
    ],
)  # fmt: skip
def test_statements_are_refused(statement: str, said: str, toy: ToyMaker, tmp_path: Path) -> None:
    """In one sentence: not understood, a reader forgotten, another axis, no line."""
    first, spec = toy(NAME), tmp_path / "wrong.spec"
    text = dict(expanded_texts())["deberta"][1]
    own = next(line for line in text.splitlines() if line.startswith("basis "))
    spec.write_text(text.replace(own, statement))
    with pytest.raises(IsomergeError, match=said):
        recognise(first.folder, spec_file=spec)

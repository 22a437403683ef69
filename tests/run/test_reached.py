"""Readers that see a constant alone (`probe` in a text), or no more than a narrower map reaches (`reached`): one function
in many weights, which verify, canonical forms and fingerprints know, and which merges into itself.

Random moves are planted through disk, alone and under random elements of all spaces inside the layers; near-twins and
wrong texts are told.
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
from isomerge.evidence.law import random_alignment
from isomerge.evidence.whole_group import whole_group
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.recognised import Model, recognise
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.layer_norms import norm_spec
from isomerge.symmetry.norm_stage import norm_stages
from isomerge.symmetry.probed import DROP, TURN
from isomerge.symmetry.reached import REACHES
from run.near_twins import assert_told, near_twin
from toys import Toy, config_of, outputs, overwrite, relative, save_toy, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

ToyMaker = Callable[..., Toy]
FIXED = ["siglip_vision_model", "electra", *more("siglip2", "rembert", "roformer")]
"""Of which all that is free of a stranger's becomes the anchor's."""
NAMES = [*FIXED, "albert"]


def free_moves(model: Model, seed: int = 1) -> Alignment:
    """Random moves of all that such readers leave free."""
    rng, spec = torch.Generator().manual_seed(seed), norm_spec(model.declared)
    keys = [(key, one.shape(key)) for one in free_under_layer_norm(model).reached for key in one.element_keys]
    drawn = {key: torch.randn(shape, generator=rng, dtype=torch.float64) for key, shape in keys}
    return Alignment.of(norm_stages(spec, drawn), spec)


def inside(model: Model) -> Alignment:
    """Random elements of all spaces inside the layers, and of shifts."""
    names = {*model.spec.spaces, *(s.name for s in model.spec.shifts)} - model.spec.residual_names
    return random_alignment(model.spec.restrict(names), model.blocks, torch.Generator().manual_seed(2))


def apart(one: Path, two: Path) -> float:
    """The largest relative distance of two tensors of one name."""
    a, b = tensors(one), tensors(two)
    return max(float((t - b[n]).norm() / t.norm().clamp_min(1e-3)) for n, t in a.items() if t.is_floating_point())


def planted(first: Toy, folder: Path) -> Path:
    """A twin under random moves, and under random elements inside the layers."""
    model, twin = recognise(first.folder), folder / "twin"
    run_apply(inside(model) @ free_moves(model), model, Output(twin))
    assert apart(first.folder, twin) > 1
    return twin


@pytest.mark.parametrize("name", NAMES)
def test_a_twin_is_known(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """The same function: verified, of one canonical form and one fingerprint."""
    first = toy(name)
    twin = planted(first, tmp_path)
    assert relative(outputs(twin), first.reference) < 1e-6
    assert isomerge.verify(first.folder, twin)["same"] is True
    assert isomerge.fingerprint(first.folder).hash == isomerge.fingerprint(twin).hash
    for source, out in ((first.folder, "one"), (twin, "two")):
        isomerge.canon(source, out=tmp_path / out)
    assert apart(tmp_path / "one", tmp_path / "two") < 1e-7
    assert relative(outputs(tmp_path / "one"), first.reference) < 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_a_twin_comes_back(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Aligned, replayed from its file, and undone; merged into itself."""
    first = toy(name)
    twin = planted(first, tmp_path)
    moved, report = isomerge.align(twin, onto=first.folder, out=tmp_path / "aligned")
    assert apart(first.folder, tmp_path / "aligned") < 1e-7
    assert report["distance"]["after"] < 1e-6 < report["distance"]["before"]
    moved.save(tmp_path / "moved.safetensors")
    isomerge.apply(tmp_path / "moved.safetensors", twin, out=tmp_path / "replayed")
    assert apart(tmp_path / "aligned", tmp_path / "replayed") < 1e-9
    isomerge.apply(tmp_path / "moved.safetensors", tmp_path / "replayed", out=tmp_path / "undone", inverse=True)
    assert apart(twin, tmp_path / "undone") < 1e-7
    for anchor in ("first", "none"):
        isomerge.merge([first.folder, twin], out=tmp_path / anchor, anchor=anchor)
        assert relative(outputs(tmp_path / anchor), first.reference) < 1e-6


@pytest.mark.parametrize("name", FIXED)
def test_strangers_come_nearer_and_fine_tunes_stay(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """What is free becomes the anchor's, and the function stays; between fine-tunes nothing moves."""
    first = toy(name)
    other = save_toy(name, tmp_path / "other", seed=5)
    moved, _ = isomerge.align(other, onto=first.folder, out=tmp_path / "aligned")
    keys = {key.rpartition(":")[2] for key in moved}
    free = free_under_layer_norm(recognise(first.folder)).reached
    assert keys >= {key for one in free for key in one.element_keys if not key.startswith(DROP)}
    assert relative(outputs(tmp_path / "aligned"), outputs(other)) < 1e-6
    for one in free:  # nothing is left of what is free
        models = (recognise(first.folder), recognise(tmp_path / "aligned"))
        anchor, there = ({block: m.assemble(block, torch.float64) for block in one.blocks} for m in models)
        for key, g in one.onto(there, anchor).items():
            assert float((g - torch.eye(g.shape[-1]) if key.startswith(TURN) else g).norm()) < 1e-9
    rng, tuned = torch.Generator().manual_seed(3), tmp_path / "tuned"
    stored = tensors(first.folder)
    shutil.copytree(first.folder, tuned)
    overwrite(tuned, {n: (t + 0.02 * torch.randn(t.shape, generator=rng)).to(t.dtype) for n, t in stored.items()})
    still, _ = isomerge.align(tuned, onto=first.folder, out=tmp_path / "still")
    assert not [key for key in still if key.rpartition(":")[2].startswith(REACHES)]


@pytest.mark.parametrize("name", NAMES)
def test_moves_are_counted_and_damage_is_refused(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """The whole group counts every number that is free; an element of another shape is refused."""
    first = toy(name)
    model = recognise(first.folder)
    free = free_under_layer_norm(model).reached
    assert free
    assert whole_group(model)["norms"] > sum(one.dimension(slack=False) for one in free)
    moves = free_moves(model)
    for key, wrong in ((next(iter(moves)), torch.zeros(5)), (list(moves)[-1], torch.full((2, 2), torch.nan))):
        part = Alignment(moves.spec, {key.rpartition(":")[2]: wrong.double()})
        part.save(tmp_path / "wrong.safetensors")
        with pytest.raises(IsomergeError, match="no element of its group"):
            isomerge.apply(tmp_path / "wrong.safetensors", first.folder, out=tmp_path / "no")


def test_layers_that_run_again_move_where_they_are_alike(toy: ToyMaker, tmp_path: Path) -> None:
    """A fine-tune of a twin comes back; a stranger keeps its own factor."""
    first = toy("albert")
    model, twin, other = recognise(first.folder), tmp_path / "twin", save_toy("albert", tmp_path / "other", seed=5)
    run_apply(free_moves(model), model, Output(twin))
    rng = torch.Generator().manual_seed(3)
    overwrite(twin, {n: t + 1e-3 * torch.randn(t.shape, generator=rng) for n, t in tensors(twin).items()})
    for source, moves in ((twin, True), (other, False)):
        moved, report = isomerge.align(source, onto=first.folder, out=tmp_path / "aligned", overwrite=True)
        assert any(key.rpartition(":")[2].startswith(TURN) for key in moved) is moves
        assert relative(outputs(tmp_path / "aligned"), outputs(source)) < 1e-6
        assert (report["distance"]["after"] < 0.3 * report["distance"]["before"]) is moves


NEAR = {
    "siglip_vision_model": "head.attention.in_proj_bias",
    "electra": "encoder.layer.0.attention.self.value.bias",
    "albert": "encoder.embedding_hidden_mapping_in.weight",
    **dict(
        more(
            ("siglip2", "vision_model.head.probe"),
            ("rembert", "encoder.embedding_hidden_mapping_in.weight"),
            ("roformer", "encoder.layer.0.attention.self.query.weight"),
        )
    ),
}


@pytest.mark.parametrize("name", NEAR)
def test_a_near_twin_is_told(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """One tensor that has not followed the others: outputs, verify and fingerprint tell."""
    first = toy(name)
    near = near_twin(first, free_moves, NEAR[name], tmp_path / "near")
    assert relative(outputs(near), first.reference) > 1e-3
    assert_told(first.folder, near)


HEAD = "head.attention.in_proj_weight"
FIRST, SECOND = (f"encoder.layer.{{l:{layer}}}.attention.self" for layer in (0, 1))
RUN = "encoder.albert_layer_groups.{g}.albert_layers.{i}"
ASKED = f"through {HEAD}#0 by head.attention.in_proj_bias"
KEYS = "head.attention.in_proj_bias"
PROBE = f"probe no: head.probe through {HEAD}#0 by head.attention.in_proj_bias#0"
WRONG = [
    ("siglip_vision_model", "by head.attention.in_proj_bias#0", "by head.attention.in_proj_bias#1"),
    ("siglip_vision_model", f"{ASKED}#0 -> {HEAD}#1", f"{ASKED.replace('#0', '#1')}#1 -> {HEAD}#0"),
    ("electra", "behind embeddings.LayerNorm", "behind generator_predictions.LayerNorm"),
    ("electra", f", {FIRST}.value.weight by {FIRST}.value.bias if emb", " if emb"),
    ("electra", f"{FIRST}.query.weight by {FIRST}.query", f"{FIRST}.query.weight by {FIRST}.key"),
    ("albert", f"then {RUN}.full_layer_layer_norm.weight", f"then {RUN}.attention.LayerNorm.(weight|gamma)"),
    ("albert", f", {RUN}.attention.value.weight by {RUN}.attention.value.bias if", " if"),
    *more(
        ("electra", f"{FIRST}.query.weight by {FIRST}.query", f"{SECOND}.query.weight by {SECOND}.query"),
        ("roformer", " behind embeddings.LayerNorm.(weight|gamma)", " behind cls.predictions.transform.LayerNorm.weight"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new"), WRONG)
def test_a_wrong_text_is_another_function(name: str, old: str, new: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Mutants: another part, another bias, another map, a reader forgotten, a layer too late."""
    first = toy(name)
    texts = dict(expanded_texts())
    kind = config_of(first.folder)["model_type"]
    _, text = texts[kind]
    statement = next(line for line in text.splitlines() if line.startswith(("probe ", "reached ")))
    assert old in statement
    spec = tmp_path / "wrong.spec"
    spec.write_text(text.replace(statement, statement.replace(old, new)))
    model = recognise(first.folder, spec_file=spec)
    run_apply(free_moves(model), model, Output(tmp_path / "out"))
    assert relative(outputs(tmp_path / "out"), first.reference) > 1e-3


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("probe pq: head.probe", "probe 'pq: head.probe' is not understood"),
        ("reached nr: head.probe", "reached 'nr: head.probe' is not understood"),
        (
            f"probe no: head.none through {HEAD}#0 by {HEAD}#1 -> {HEAD}#1 by {KEYS}#1 along pqk",
            "no line of the spec",
        ),
        (f"probe no: head.probe through {HEAD}#3 by {HEAD}#1 -> {HEAD}#1 by {KEYS}#1 along pqk", "no part of it"),
        (f"{PROBE} -> {HEAD}#2 by {KEYS}#2 along pqk", "its tensors have other axes"),
        (f"{PROBE} -> {HEAD}#1 by {KEYS}#1 along ph", "declare it as a space of GL"),
        (
            f"reached no: head.mlp.fc2.bias over head.mlp.fc2.weight -> {HEAD}#0 by head.mlp.fc1.bias",
            "do not fit each other",
        ),
    ],
)
def test_statements_are_refused(statement: str, said: str, toy: ToyMaker, tmp_path: Path) -> None:
    """In one sentence: not understood, of no line, or over an axis that no general linear group moves."""
    first = toy("siglip_vision_model")
    spec = tmp_path / "wrong.spec"
    spec.write_text(dict(expanded_texts())["siglip_vision_model"][1] + f"\n{statement}\n")
    with pytest.raises(IsomergeError, match=said):
        recognise(first.folder, spec_file=spec)

"""Constants that may stand in one tensor or in others, of whatever layers (`carry` in a text): one function in many
weights, which verify, canonical forms and fingerprints know, and which merges into itself.

Random constants are planted through disk, alone and under random elements of all spaces inside the layers; near-twins
and wrong texts are told.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as tf

import isomerge
from depth import more
from isomerge.archs import expanded_texts
from isomerge.errors import IsomergeError
from isomerge.evidence.law import random_alignment
from isomerge.evidence.whole_group import whole_group
from isomerge.models.carried_constants import carry_onto
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.recognised import Model, recognise
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.language.spec_text import parse_spec
from isomerge.symmetry.layer_norms import norm_spec
from isomerge.symmetry.norm_stage import norm_stages
from run.near_twins import assert_told, near_twin
from toys import Toy, config_of, inputs, load_toy, outputs, overwrite, relative, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

ToyMaker = Callable[..., Toy]
NAMES = [
    "openai-gpt",
    *more(
        "deberta-shared",
        "deberta-unshared",
        "deberta-c2p",
        "layoutlm",
        "clip_vision_model",
        "albert",
        "yolos-deep",
        "layoutlmv3",
        "layoutlmv3-words",
    ),
]


def constants(model: Model, seed: int = 1) -> Alignment:
    """Random constants of all that a text carries."""
    rng, spec = torch.Generator().manual_seed(seed), norm_spec(model.declared)
    free = free_under_layer_norm(model).carried
    drawn = {one.key: torch.randn(one.shape, generator=rng, dtype=torch.float64) for one in free}
    return Alignment.of(norm_stages(spec, drawn), spec)


def inside(model: Model) -> Alignment:
    """Random elements of all spaces inside the layers, and of shifts."""
    names = {*model.spec.spaces, *(s.name for s in model.spec.shifts)} - model.spec.residual_names
    return random_alignment(model.spec.restrict(names), model.blocks, torch.Generator().manual_seed(2))


def seen(folder: Path) -> torch.Tensor:
    """What a model gives out: of CLIP's tower the stream itself, whose mean a norm takes from its embedding."""
    if config_of(folder)["model_type"] != "clip_vision_model":
        return outputs(folder)
    model = tf.CLIPVisionModelWithProjection.from_pretrained(folder, dtype=torch.float64)
    with torch.no_grad():
        return model(**inputs(model.config)).last_hidden_state


def apart(one: Path, two: Path) -> float:
    """The largest relative distance of two tensors of one name."""
    a, b = tensors(one), tensors(two)
    return max(float((t - b[n]).norm() / t.norm().clamp_min(1e-3)) for n, t in a.items() if t.is_floating_point())


@pytest.mark.parametrize("name", NAMES)
def test_fine_tunes_keep_their_constants(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Nothing is carried where tables differ by noise; where a constant is much of it, something is."""
    first = toy(name)
    rng, tuned = torch.Generator().manual_seed(3), tmp_path / "tuned"
    noise = {n: 0.02 * torch.randn(t.shape, generator=rng) for n, t in tensors(first.folder).items()}
    shutil.copytree(first.folder, tuned)
    overwrite(tuned, {n: (t + noise[n]).to(t.dtype) for n, t in tensors(first.folder).items()})
    source = recognise(tuned)
    carry_onto(recognise(first.folder), source)
    assert source.carried is None
    run_apply(constants(source), source, Output(tmp_path / "twin"))
    twin = recognise(tmp_path / "twin")
    carry_onto(recognise(first.folder), twin)
    assert twin.carried is not None


@pytest.mark.parametrize("name", NAMES)
def test_a_twin_is_known(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """The same function: verified, one canonical form and one fingerprint; aligned, and replayed; merged
    into itself."""
    first, twin = toy(name), tmp_path / "twin"
    model = recognise(first.folder)
    moves = constants(model)
    assert sum(v.numel() for v in moves.values()) > 0
    run_apply(inside(model) @ moves, model, Output(twin))
    assert apart(first.folder, twin) > 0.5
    assert relative(seen(twin), seen(first.folder)) < 1e-5
    assert isomerge.verify(first.folder, twin)["same"] is True
    assert isomerge.fingerprint(first.folder).hash == isomerge.fingerprint(twin).hash
    for source, out in ((first.folder, "one"), (twin, "two")):
        isomerge.canon(source, out=tmp_path / out)
    assert apart(tmp_path / "one", tmp_path / "two") < 1e-7
    assert relative(seen(tmp_path / "one"), seen(first.folder)) < 1e-5
    moved, report = isomerge.align(twin, onto=first.folder, out=tmp_path / "aligned")
    assert apart(first.folder, tmp_path / "aligned") < 1e-6
    assert report["distance"]["after"] < 1e-6
    a, b = tensors(first.folder), tensors(twin)
    before = sum(float((t.double() - b[n].double()).square().sum()) for n, t in a.items() if t.is_floating_point())
    assert report["distance"]["before"] == pytest.approx(before**0.5, rel=1e-5)
    moved.save(tmp_path / "moved.safetensors")
    isomerge.apply(tmp_path / "moved.safetensors", twin, out=tmp_path / "replayed")
    assert apart(tmp_path / "aligned", tmp_path / "replayed") < 1e-9
    for anchor in ("first", "none"):
        isomerge.merge([first.folder, twin], out=tmp_path / anchor, anchor=anchor)
        assert relative(seen(tmp_path / anchor), seen(first.folder)) < 1e-5


def test_vectors_of_permuted_streams_are_not_compared(toy: ToyMaker, tmp_path: Path) -> None:
    """A twin with its stream permuted is found again, however large the constants that both models have."""
    first, large, twin = toy("openai-gpt"), tmp_path / "large", tmp_path / "twin"
    stored = tensors(first.folder)
    name = next(n for n in stored if n.endswith("positions_embed.weight"))
    shutil.copytree(first.folder, large)
    shift = torch.randn(stored[name].shape[1], generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    overwrite(large, {**stored, name: stored[name] + 0.5 * shift})
    model = recognise(large)
    moves = random_alignment(model.spec.restrict({"res"}), model.blocks, torch.Generator().manual_seed(2))
    run_apply(moves, model, Output(twin))
    report = isomerge.align(twin, onto=large, out=tmp_path / "aligned", spaces="all")[1]
    assert report["distance"]["before"] > 1
    assert apart(large, tmp_path / "aligned") < 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_constants_are_replayed_and_undone(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """From a file; a damaged one is refused. The whole group counts every number."""
    first = toy(name)
    model = recognise(first.folder)
    moves = constants(model)
    moves.save(tmp_path / "moves.safetensors")
    isomerge.apply(tmp_path / "moves.safetensors", first.folder, out=tmp_path / "there")
    assert relative(seen(tmp_path / "there"), seen(first.folder)) < 1e-5
    assert apart(first.folder, tmp_path / "there") > 0.1
    run_apply(moves.inverse(), recognise(tmp_path / "there"), Output(tmp_path / "back"))
    assert apart(first.folder, tmp_path / "back") < 1e-12
    key = next(iter(moves))
    Alignment(moves.spec, {key: torch.zeros(5, dtype=torch.float64)}).save(tmp_path / "wrong.safetensors")
    with pytest.raises(IsomergeError, match="no element of its group"):
        isomerge.apply(tmp_path / "wrong.safetensors", first.folder, out=tmp_path / "no")
    carried = free_under_layer_norm(model).carried
    assert sum(one.entries for one in carried) == sum(v.numel() for v in moves.values())
    assert whole_group(model)["norms"] > sum(one.entries for one in carried)


NEAR = {
    "openai-gpt": "h.0.attn.c_proj.bias",
    **dict(
        more(
            ("deberta-shared", "encoder.layer.1.attention.self.key_proj.bias"),
            ("deberta-unshared", "encoder.layer.1.attention.self.pos_query_proj.bias"),
            ("layoutlm", "embeddings.token_type_embeddings.weight"),
            ("clip_vision_model", "pre_layrnorm.bias"),
            ("yolos-deep", "encoder.layer.1.output.dense.bias"),
            ("layoutlmv3", "LayerNorm.bias"),
            ("layoutlmv3-words", "encoder.layer.0.attention.self.value.bias"),
            ("albert", "encoder.albert_layer_groups.0.albert_layers.0.full_layer_layer_norm.bias"),
        )
    ),
}


@pytest.mark.parametrize("name", NEAR)
def test_a_near_twin_is_told(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """One tensor that has not lost what another has more: outputs, verify and fingerprint tell."""
    first = toy(name)
    near = near_twin(first, constants, NEAR[name], tmp_path / "near")
    assert relative(seen(near), seen(first.folder)) > 1e-3
    assert_told(first.folder, near)


WRONG = [
    ("openai-gpt", ", h.{l:0}.attn.c_proj.bias", ""),
    ("openai-gpt", "{l:0}", "{l}"),
    ("deberta-shared", "-1 embeddings.LayerNorm.(bias|beta), ", ""),
    *more(
        (
            "deberta-shared",
            ", encoder.layer.{l}.attention.output.dense.bias if aside and normed",
            " if aside and normed",
        ),
        ("deberta-shared", "{l!num_hidden_layers-1}", "{l}"),
        ("layoutlm", "2 embeddings.token_type", "embeddings.token_type"),
        ("clip_vision_model", ".bias along res -> (pre", ".bias along res -> -1 (pre"),
        ("albert", "-1 encoder", "encoder"),
        ("layoutlmv3", "-1 LayerNorm.bias along res, ", ""),
        ("layoutlmv3", "types over res[3*edge:4*edge]", "types over res[2*edge:3*edge]"),
        (
            "layoutlmv3",
            "carry eb: embeddings.LayerNorm.bias along res -> -1",
            "carry eb: embeddings.LayerNorm.bias along res ->",
        ),
        (
            "layoutlmv3-words",
            ", encoder.layer.{l:0}.attention.self.value.bias via encoder.layer.{l:0}.attention.self.value.weight",
            "",
        ),
        ("yolos-deep", ".bias -> encoder", ".bias -> 2 encoder"),
        ("yolos-deep", "{l:0..num_hidden_layers-1}", "{l:1..num_hidden_layers}"),
    ),
]


@pytest.mark.parametrize(("name", "old", "new"), WRONG)
def test_a_wrong_text_is_another_function(name: str, old: str, new: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Mutants: a tensor forgotten, one layer too many, once in place of twice."""
    first = toy(name)
    texts = dict(expanded_texts())
    kind = config_of(first.folder)["model_type"]
    origin, text = texts[kind]
    assert old in text
    texts[kind] = (origin, text.replace(old, new))
    shapes = {name: tuple(t.shape) for name, t in first.stored.items()}
    wrong = load_toy(name, first.folder, parse_spec(texts[kind][1], config_of(first.folder), origin, texts, shapes))
    spec = tmp_path / "wrong.spec"
    spec.write_text(texts[kind][1])
    model = recognise(first.folder, spec_file=spec)
    assert wrong.spec.carries == model.spec.carries
    run_apply(constants(model), model, Output(tmp_path / "out"))
    assert relative(seen(tmp_path / "out"), seen(first.folder)) > 1e-3

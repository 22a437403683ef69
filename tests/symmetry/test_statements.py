"""The law of statements: what a statement of a text leaves free makes one function in many weights, which `verify`,
canonical forms and fingerprints know, which comes back to its anchor, again and again and undone, and which merges into
itself; what is nearly so, and what a wrong text leaves free, is another function, which is told.

All through disk, by the real reader and writer; the cases stand in `symmetry.statements` and `symmetry.near_twins`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

import isomerge
from isomerge.archs import expanded_texts
from isomerge.errors import IsomergeError
from isomerge.evidence.inspection import whole_group
from isomerge.models.layer_norm_form import free_under_layer_norm
from isomerge.models.recognised import Model, recognise
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from isomerge.symmetry.alignment import Alignment
from isomerge.symmetry.bases import BASIS
from isomerge.symmetry.carried import CARRY
from isomerge.symmetry.probed import DROP
from symmetry.near_twins import NEAR_TWINS, NearTwin
from symmetry.statements import (
    CASES,
    FINE_TUNES,
    REFUSED,
    WRONG_TEXTS,
    Case,
    Refused,
    WrongText,
)
from symmetry.twins import apart, assert_told, fine_tuned, free_elements, free_moves
from toys import Toy, config_of, inputs, outputs, overwrite, relative, tensors

ToyMaker = Callable[..., Toy]
TwinOf = Callable[[Case], Path]
PARTS = [case for case in CASES if case.keys and case.statement != "fold"]
"""Cases whose dimension is known part by part."""


def seen(folder: Path) -> torch.Tensor:
    """What a model gives out: of CLIP's tower the stream itself, whose mean a norm takes from its embedding."""
    if config_of(folder).get("model_type") != "clip_vision_model":
        return outputs(folder)
    import transformers as tf

    model = tf.CLIPVisionModelWithProjection.from_pretrained(folder, dtype=torch.float64)
    with torch.no_grad():
        return model(**inputs(model.config)).last_hidden_state


def assert_same(folder: Path, first: Toy, case: Case) -> None:
    """A model gives out what the toy does."""
    reference = seen(first.folder) if case.toy == "clip_vision_model" else first.reference
    assert relative(seen(folder), reference) < case.keeps


def own_keys(model: Model, kinds: tuple[str, ...]) -> set[str]:
    """The keys of all moves of some kinds that a model has, but for what is dropped once and does not come back."""
    return {key for key in free_elements(model) if key.startswith(kinds) and not key.startswith(DROP)}


def moved_keys(alignment: Alignment) -> set[str]:
    """The keys of an alignment, without the numbers of its stages."""
    return {key.rpartition(":")[2] for key in alignment}


@pytest.fixture(scope="session")
def twin_of(toy: ToyMaker, tmp_path_factory: pytest.TempPathFactory) -> TwinOf:
    """The twin of a case, written once per session."""

    @cache
    def write(case: Case) -> Path:
        return case.write(toy(case.toy), tmp_path_factory.mktemp("twin") / "twin")

    return write


@pytest.fixture(scope="session")
def hash_of(toy: ToyMaker) -> Callable[[str], str]:
    """The hash of a toy's fingerprint, taken once per session."""
    return cache(lambda name: isomerge.fingerprint(toy(name).folder).hash)


@pytest.fixture(scope="session")
def form_of(toy: ToyMaker, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A toy's canonical form, made once per session."""

    @cache
    def make(name: str) -> Path:
        form = tmp_path_factory.mktemp("form") / "form"
        isomerge.canon(toy(name).folder, out=form)
        return form

    return make


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_twin_is_the_same_function(
    case: Case, toy: ToyMaker, twin_of: TwinOf, hash_of: Callable[[str], str]
) -> None:
    """For the class, for `verify`, and by its fingerprint, in other weights."""
    first, twin = toy(case.toy), twin_of(case)
    assert apart(first.folder, twin) > case.apart
    assert_same(twin, first, case)
    assert isomerge.verify(first.folder, twin)["same"] is True
    assert isomerge.fingerprint(twin).hash == hash_of(case.toy)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_twins_have_one_form(
    case: Case, toy: ToyMaker, twin_of: TwinOf, form_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """Which is the same function."""
    isomerge.canon(twin_of(case), out=tmp_path / "form")
    assert apart(form_of(case.toy), tmp_path / "form") < case.back
    assert_same(form_of(case.toy), toy(case.toy), case)


@pytest.mark.parametrize("case", [case for case in CASES if case.matched], ids=str)
def test_a_twin_comes_back(case: Case, toy: ToyMaker, twin_of: TwinOf, tmp_path: Path) -> None:
    """All the way once aligned; its alignment, from a file, does it again and undoes it."""
    first, twin, aligned = toy(case.toy), twin_of(case), tmp_path / "aligned"
    moved, report = isomerge.align(twin, onto=first.folder, out=aligned, spaces=case.spaces, align=case.align)
    assert apart(first.folder, aligned) < case.back
    assert report["distance"]["after"] < case.back * report["distance"]["before"]
    assert moved_keys(moved) >= own_keys(recognise(first.folder), case.keys or ("-",))
    moved.save(tmp_path / "moved.safetensors")
    isomerge.apply(tmp_path / "moved.safetensors", twin, out=tmp_path / "replayed")
    assert apart(aligned, tmp_path / "replayed") < 1e-9
    isomerge.apply(tmp_path / "moved.safetensors", aligned, out=tmp_path / "undone", inverse=True)
    assert apart(twin, tmp_path / "undone") < 1e-7


@pytest.mark.parametrize(
    ("case", "anchor"), [(case, anchor) for case in CASES if case.matched for anchor in case.anchors], ids=str
)
def test_twins_merge_into_themselves(
    case: Case, anchor: str, toy: ToyMaker, twin_of: TwinOf, tmp_path: Path
) -> None:
    """Which their average as stored does not."""
    first, merged = toy(case.toy), tmp_path / "merged"
    isomerge.merge([first.folder, twin_of(case)], out=merged, anchor=anchor, spaces=case.spaces, align=case.align)
    assert_same(merged, first, case)


@pytest.mark.parametrize("near", NEAR_TWINS, ids=str)
def test_a_near_twin_is_told(near: NearTwin, toy: ToyMaker, hash_of: Callable[[str], str], tmp_path: Path) -> None:
    """Another function for the class, for `verify`, and by its fingerprint."""
    first, folder = toy(near.toy), tmp_path / "near"
    near.write(first, folder)
    if near.left:
        assert relative(seen(folder), seen(first.folder)) < 1e-4
        stored = recognise(first.folder).names[near.wrong]
        overwrite(folder, {**tensors(folder), stored: first.stored[stored]})
    assert (relative(seen(folder), seen(first.folder)) > 1e-3) is near.heard
    assert near.fingerprinted is (isomerge.fingerprint(folder).hash != hash_of(near.toy))
    assert isomerge.verify(first.folder, folder)["same"] is False


def text_of(toy: Toy) -> str:
    """The text of a toy's type."""
    return dict(expanded_texts())[config_of(toy.folder)["model_type"]][1]


def changed_text(toy: Toy, pattern: str, new: str) -> str:
    """The text of a toy's type, each match of a pattern replaced."""
    text, matches = re.subn(pattern, new, text_of(toy), flags=re.MULTILINE)
    assert matches, pattern
    return text


@pytest.mark.parametrize("wrong", WRONG_TEXTS, ids=str)
def test_a_wrong_text_is_another_function(wrong: WrongText, toy: ToyMaker, tmp_path: Path) -> None:
    """Moves of all that the text leaves free keep the outputs, and of all that a wrong one does they do not."""
    first, spec = toy(wrong.toy), tmp_path / "a.spec"
    line = f"^({re.escape(wrong.within)}.*?)" if wrong.within else "()"
    edited = changed_text(first, line + re.escape(wrong.old), rf"\g<1>{wrong.new}")
    for text, right in ((text_of(first), True), (edited, False)):
        spec.write_text(text)
        model, out = recognise(first.folder, spec_file=spec), tmp_path / str(right)
        run_apply(wrong.moves(model), model, Output(out))
        change = relative(seen(out), seen(first.folder))
        assert change < 1e-4 if right else change > 1e-3
    if wrong.told:
        assert_told(first.folder, tmp_path / "False")


@pytest.mark.parametrize("refused", REFUSED, ids=str)
def test_statements_are_refused(refused: Refused, toy: ToyMaker, tmp_path: Path) -> None:
    """In one sentence: not understood, of no line, of axes that do not fit, or against what else the text says."""
    first, spec = toy(refused.toy), tmp_path / "refused.spec"
    text = text_of(first) + f"\n{refused.lines}\n"
    spec.write_text(changed_text(first, refused.replaced, refused.lines) if refused.replaced else text)
    with pytest.raises(IsomergeError, match=re.escape(refused.sentence)):
        recognise(first.folder, spec_file=spec)


@pytest.mark.parametrize("name", FINE_TUNES)
def test_fine_tunes_keep_their_bytes(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Random differences are moves by chance alone, and nothing is moved; of a twin of a fine-tune all is."""
    first, kinds = toy(name), FINE_TUNES[name]
    tuned = fine_tuned(first, tmp_path / "tuned")
    still, _ = isomerge.align(tuned, onto=first.folder, align=True)
    assert not [key for key in moved_keys(still) if key.startswith(kinds)]
    if kinds in ((CARRY,), (BASIS,)):
        model = recognise(tuned)
        run_apply(free_moves(model, *kinds), model, Output(tmp_path / "twin"))
        moved, _ = isomerge.align(tmp_path / "twin", onto=first.folder)
        assert moved_keys(moved) >= own_keys(model, kinds)


@pytest.mark.parametrize("case", PARTS, ids=str)
def test_moves_are_counted_and_damage_is_refused(case: Case, toy: ToyMaker, tmp_path: Path) -> None:
    """The whole group counts every number that is free; an element of another shape, or not finite, is refused."""
    first = toy(case.toy)
    model, file = recognise(first.folder), tmp_path / "damaged.safetensors"
    free, moves = free_under_layer_norm(model), free_moves(model, *case.keys)
    numbers = sum(
        part.dimension(slack=False) for part in free.reached if part.element_keys[0].startswith(case.keys)
    )
    numbers += sum(part.entries for part in free.carried if part.key.startswith(case.keys))
    numbers += sum(part.width**2 for part in free.bases if part.key.startswith(case.keys))
    assert whole_group(model)["norms"] >= numbers > 0
    for key, wrong in ((next(iter(moves)), torch.zeros(5)), (list(moves)[-1], torch.full((2, 2), torch.nan))):
        Alignment(moves.spec, {key.rpartition(":")[2]: wrong.double()}).save(file)
        with pytest.raises(IsomergeError, match="no element of its group"):
            isomerge.apply(file, first.folder, out=tmp_path / "no")

"""A word that pads stands at a place of its own, so that the two trade a vector beside what both whole tables trade
(RoBERTa's kin without a head that is tied to the words)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import toys
from depth import more
from isomerge.archs import expanded_texts
from isomerge.evidence.law import random_alignment
from isomerge.models.recognised import Model, recognise
from isomerge.run.alignment_runs import run_apply
from isomerge.run.writing_run import Output
from isomerge.symmetry.alignment import Alignment
from run.near_twins import assert_told, near_twin
from run.twins import assert_known_everywhere
from toys import Toy, outputs, relative, tensors

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

ToyMaker = Callable[..., Toy]
Outputs = Callable[[Path], torch.Tensor]
KINDS = ["markuplm", *more("lilt", "layoutlmv3", "xlm-roberta")]
PLACES = "embeddings.position_embeddings.weight"


@pytest.fixture
def of_padded_texts(monkeypatch: pytest.MonkeyPatch) -> Outputs:
    """The outputs of a saved toy where the last three words of every text pad."""
    plain = toys.inputs

    def padded(config: Any) -> dict[str, torch.Tensor]:
        made = plain(config)
        made["input_ids"][:, -3:] = config.pad_token_id
        return made

    monkeypatch.setattr(toys, "inputs", padded)
    return outputs


def traded(*names: str) -> Callable[[Model], Alignment]:
    """Random vectors that words, places and types trade."""

    def drawn(model: Model) -> Alignment:
        spec = model.spec.restrict(names)
        assert {shift.name for shift in spec.shifts} == {*names}
        return random_alignment(spec, model.blocks, torch.Generator().manual_seed(1))

    return drawn


@pytest.mark.parametrize("name", KINDS)
def test_a_twin_is_known_and_comes_back(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Beside whole tables that trade with the types: verified, of one fingerprint and one canonical form, aligned, and
    merged into itself."""
    first, twin = toy(name), tmp_path / "twin"
    model = recognise(first.folder)
    run_apply(traded("pw", "wt", "pt")(model), model, Output(twin))
    mine, theirs = (tensors(folder)[model.names[PLACES]] for folder in (first.folder, twin))
    assert float((mine - theirs).std(0).norm()) > 0.1  # its own row has another vector than all
    assert_known_everywhere(first, twin, tmp_path, merged=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_texts_that_are_padded_stay(name: str, toy: ToyMaker, of_padded_texts: Outputs, tmp_path: Path) -> None:
    """Where words pad, the class gives what it gave; and something else where the place has not followed."""
    first, twin = toy(name), tmp_path / "twin"
    model, before = recognise(first.folder), of_padded_texts(first.folder)
    run_apply(traded("pw")(model), model, Output(twin))
    assert relative(of_padded_texts(twin), before) < first.tolerance
    near = near_twin(first, traded("pw"), PLACES, tmp_path / "near")
    assert relative(of_padded_texts(near), before) > 1e-3


@pytest.mark.parametrize("name", KINDS)
def test_a_near_twin_is_told(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """The place has not followed."""
    first = toy(name)
    near = near_twin(first, traded("pw"), PLACES, tmp_path / "near")
    assert_told(first.folder, near)


def test_another_place_is_told(toy: ToyMaker, tmp_path: Path) -> None:
    """A mutant: the place of the first word behind the padding, which other words have as well."""
    first = toy("markuplm")
    text = dict(expanded_texts())["markuplm"][1]
    shift = next(line for line in text.splitlines() if line.startswith("shift pw"))
    spec = tmp_path / "wrong.spec"
    spec.write_text(
        text.replace(
            shift,
            shift.replace("along pos[pad_token_id:", "along pos[pad_token_id+1:").replace(
                ":pad_token_id+1] if", ":pad_token_id+2] if"
            ),
        )
    )
    model = recognise(first.folder, spec_file=spec)
    run_apply(traded("pw")(model), model, Output(tmp_path / "out"))
    assert relative(outputs(tmp_path / "out"), first.reference) > 1e-3

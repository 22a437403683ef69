"""What `align` writes is what it says: `verify` calls it the source, for every toy and every choice of spaces."""

from __future__ import annotations

from pathlib import Path

import pytest

import isomerge
from isomerge.evidence.outputs import predictions
from isomerge.matching.selection import PRESETS
from isomerge.models.free_streams import has_no_head
from isomerge.models.recognised import recognise
from toys import TRIED, save_toy

FEW_CHOICES = ("default", "all", "paper")
"""Of toys that go through few laws; the others take every preset."""
BY_EVERY_CHOICE = ("bert", "gpt2-untied", "t5-gated", "mixtral")


@pytest.mark.parametrize("name", dict.fromkeys([*TRIED, *BY_EVERY_CHOICE, "swin", "donut-swin"]))
def test_what_is_written_is_verified(name: str, tmp_path: Path) -> None:
    """Onto a stranger, so that everything moves. Streams that a class returns beside its predictions turn where they
    are named: both commands say so in the same words, and of no other stream. A search for a basis that begins
    with a stream of which a head or a table tells few directions ends too early (Swin's stages)."""
    save_toy(name, tmp_path / "a")
    source = save_toy(name, tmp_path / "b", seed=5)
    model, choices = recognise(source), PRESETS if name in BY_EVERY_CHOICE else FEW_CHOICES
    named = [] if not model.spec.streams or has_no_head(model) else ["default,residual"]
    for spaces in (*choices, *named):
        how = {"onto": tmp_path / "a", "out": tmp_path / "out", "align": True, "overwrite": True}
        _, report = isomerge.align(source, spaces=spaces, **how)
        proof = isomerge.verify(source, tmp_path / "out")
        assert proof["same"], (spaces, proof["residual"], proof["reason"])
        assert proof["turned"] == report["turned"], spaces


def test_run_names_the_output_that_differs(tmp_path: Path) -> None:
    """Of hidden states that were turned it is told, and not held against predictions."""
    save_toy("t5-gated", tmp_path / "a")
    source = save_toy("t5-gated", tmp_path / "b", seed=5)
    isomerge.align(source, onto=tmp_path / "a", out=tmp_path / "out", spaces="default,residual", align=True)
    proof = isomerge.verify(source, tmp_path / "out", run=True)
    apart = proof["outputs_by_name"]
    assert proof["same"]
    assert apart["encoder_last_hidden_state"] > 0.1 > 1e-4 > proof["outputs"] == apart["logits"]
    assert predictions(apart) == {"logits": apart["logits"]}
    other = isomerge.verify(source, tmp_path / "a", run=True)
    assert (other["same"], other["turned"]) == (False, [])
    assert other["output"] in apart

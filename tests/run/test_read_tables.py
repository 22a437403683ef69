"""Tables that a weight reads: any basis of what they hold, and constants that the weight's bias pays for (MarkupLM's tags,
LiLT's edges of boxes, read at both ends of a box)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from depth import more
from isomerge.archs import expanded_texts
from isomerge.errors import IsomergeError
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
TABLES = {
    "markuplm": (["unit", "tc", "sc"], "embeddings.xpath_embeddings.xpath_unitseq2_inner.bias"),
    **dict(
        more(
            (
                "lilt",
                (
                    ["bx", "by", "bh", "bw", "bxc", "byc", "bhc", "bwc", "bp"],
                    "layout_embeddings.box_linear_embeddings.bias",
                ),
            )
        )
    ),
}
"""By toy: the spaces and shifts of its tables, and the bias that pays."""


def moves(name: str) -> Callable[[Model], Alignment]:
    """Random elements of the tables' spaces and shifts."""

    def drawn(model: Model) -> Alignment:
        spec = model.spec.restrict(TABLES[name][0])
        return random_alignment(spec, model.blocks, torch.Generator().manual_seed(1))

    return drawn


@pytest.mark.parametrize("name", TABLES)
def test_a_twin_is_known_and_comes_back(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Verified, of one fingerprint and one canonical form, aligned, and merged into itself."""
    first, twin = toy(name), tmp_path / "twin"
    model = recognise(first.folder)
    run_apply(moves(name)(model), model, Output(twin))
    mine = tensors(first.folder)
    assert max(float((t - mine[n]).norm() / mine[n].norm().clamp_min(1e-3)) for n, t in tensors(twin).items()) > 0.5
    assert_known_everywhere(first, twin, tmp_path, merged=1e-5)


@pytest.mark.parametrize("name", TABLES)
def test_a_near_twin_is_told(name: str, toy: ToyMaker, tmp_path: Path) -> None:
    """The bias that pays has not followed."""
    first = toy(name)
    near = near_twin(first, moves(name), TABLES[name][1], tmp_path / "near")
    assert relative(outputs(near), first.reference) > 1e-3
    assert_told(first.folder, near)


SHIFTS = [
    ("markuplm", "unitseq2_inner.weight\n", "unitseq2_inner.weight#1\n", "name the parts"),
    *more(("lilt", "weight#0,2", "weight#0", ""), ("lilt", "weight#1,3", "weight#0,3", "name the parts")),
]


@pytest.mark.parametrize(("name", "old", "new", "said"), SHIFTS)
def test_a_wrong_text_is_told(name: str, old: str, new: str, said: str, toy: ToyMaker, tmp_path: Path) -> None:
    """Mutants: a part of the weight that reads another thing, or is not there, is refused; where one is forgotten the
    twin is another function."""
    first = toy(name)
    text = dict(expanded_texts())[name][1]
    shift = next(line + "\n" for line in text.splitlines() if line.startswith("shift") and old in line + "\n")
    spec = tmp_path / "wrong.spec"
    spec.write_text(text.replace(shift, shift.replace(old, new)))
    if said:
        with pytest.raises(IsomergeError, match=said):
            recognise(first.folder, spec_file=spec)
        return
    model = recognise(first.folder, spec_file=spec)
    run_apply(moves(name)(model), model, Output(tmp_path / "out"))
    assert relative(outputs(tmp_path / "out"), first.reference) > 1e-3

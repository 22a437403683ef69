"""Methods of plug-ins at the register's edge: what they raise and what they give back, by all decorators."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import isomerge
from imported import forgotten
from isomerge.errors import IsomergeError
from isomerge.fusion import registry
from isomerge.fusion.bounds import Inputs
from isomerge.fusion.method_options import limited
from isomerge.fusion.registry import describe
from isomerge.merging.fusing import bound_of
from solve.disguises import single


def leave() -> Any:
    """Ends the process with the exit code of a run that is complete."""
    sys.exit(0)


def ended() -> Any:
    """What a generator that is closed raises."""
    raise GeneratorExit


def odd() -> Any:
    """A fault of the code."""
    return 1 / 0


FAULTS: dict[str, tuple[Callable[..., Any], str]] = {
    "it leaves": (lambda x: leave(), "SystemExit: 0, line"),
    "it is closed": (lambda x: ended(), "GeneratorExit, line"),
    "it fails": (lambda x: odd(), "ZeroDivisionError: division by zero, line"),
    "nothing": (lambda x: None, "gives back None, not a tensor"),
    "a number": (lambda x: 0.5, "gives back a float"),
    "a list": (lambda x: [x], "gives back a list"),
    "numbers of numpy": (lambda x: x.numpy(), "gives back a ndarray"),
    "a generator": (lambda x: (y for y in x), "gives back a generator"),
    "a mean": (lambda x: x.mean(), r"of shape \[\] where the models' are \[4, 3\]"),
    "a row": (lambda x: x[:1], r"of shape \[1, 3\]"),
    "one axis more": (lambda x: x[None], r"of shape \[1, 4, 3\]"),
    "transposed": (lambda x: x.T, r"of shape \[3, 4\]"),
    "whole numbers": (lambda x: x.long(), "a tensor of int64"),
    "flags": (lambda x: x > 0, "a tensor of bool"),
    "complex": (lambda x: x.to(torch.complex64), "a tensor of complex64"),
    "sparse": (lambda x: x.to_sparse(), "a tensor of sparse_coo"),
    "no numbers": (lambda x: x.to("meta"), r"no numbers \(meta\)"),
    "changed in place": (lambda x: x.zero_(), "changes tensors that it is given"),
}
"""What a function makes of the first model's tensor, and what is said of it."""


def two() -> list[torch.Tensor]:
    """Tensors of two models."""
    return [torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]


@pytest.mark.parametrize("fault", FAULTS)
def test_of_tensors(fault: str) -> None:
    """In place of any of these the result was broadcast, rounded or cast into the checkpoint, or the process ended in
    a traceback, or with exit code 0 and no word. Mutant: `Method.fuse` returns what the function gives."""
    make, words = FAULTS[fault]

    def own(tensors: Any) -> Any:
        return make(tensors[0])

    with pytest.raises(IsomergeError, match=f"tensor w: the method own of .*{words}"):
        describe(own).fuse(two(), {}, name="w")


@pytest.mark.parametrize("fault", FAULTS)
def test_of_units(fault: str) -> None:
    """As a block of a unit."""
    make, words = FAULTS[fault]
    block = type("Block", (), {"key": "the_block"})()

    def own(spec: Any, units: Any) -> Any:
        return {block: make(units[0][block])}

    with pytest.raises(IsomergeError, match=words):
        describe(own, unit=True).fuse_unit(None, [{block: x} for x in two()], {})


@pytest.mark.parametrize(
    ("result", "words"),
    [(None, "None, not a dict"), ([], "a list, not a dict"), ({"x": torch.ones(2)}, "'x', which is no block")],
)
def test_a_unit_is_given_back_by_block(result: Any, words: str) -> None:
    """Mutant: `fuse_unit` returns what the function gives."""
    with pytest.raises(IsomergeError, match=words):
        describe(lambda spec, units: result, unit=True).fuse_unit(None, [{}, {}], {})


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "None, not .module, report."),
        (nn.Linear(3, 4), "a Linear, not"),
        ((nn.Linear(4, 3), {}), r"parameter weight has shape \[3, 4\], where that of the models has \[4, 3\]"),
        ((nn.Linear(3, 4, bias=False), {}), r"parameter bias has shape none, where that of the models has \[4\]"),
        ((nn.Linear(3, 4), {"x": torch.ones(1)}), "no JSON"),
        ((nn.Linear(3, 4), None), "no JSON"),
    ],
)
def test_of_models(result: Any, words: str) -> None:
    """A module without a weight left the first model's there. Mutant: `run_models` returns what the function gives."""
    run = type("Run", (), {"endpoints": [nn.Linear(3, 4)]})()
    with pytest.raises(IsomergeError, match=words):
        describe(lambda run: result, forward=True).run_models(run, {})


def test_what_selects_of_whole_tensors_is_a_plug_ins_code_too() -> None:
    """It is given the options by its keywords, and what it raises is a sentence. Mutant: `selection` calls it as it
    is."""

    def own(tensors: Any, *, share: float = 0.5, selection: Any = None) -> Any:
        return tensors[0] * selection

    method = replace(describe(own), elementwise=True, select=lambda tensors, *, share: share * len(tensors))
    assert method.selection(two(), {"share": 2.0}) == 4.0
    assert torch.equal(method.fuse(two(), {}, selection=4.0), two()[0] * 4)
    with pytest.raises(IsomergeError, match=r"the method own of .* fails.*ZeroDivisionError"):
        replace(method, select=lambda tensors, *, share: odd()).selection(two(), {})


def test_notes_bounds_and_defaults() -> None:
    """Notes are sentences, bounds sizes, defaults of an option's own kind."""

    def noting(tensors: Any, *, notes: Any) -> Any:
        notes.append(3)
        return tensors[0]

    with pytest.raises(IsomergeError, match="into `notes`"):
        describe(noting).fuse(two(), {}, notes=[])

    def bounded(tensors: Any) -> Any:
        return tensors[0]

    bounds: list[tuple[Any, str]] = [(lambda *_: 3.0, "gives no Size"), (lambda *_: odd(), "ZeroDivisionError")]
    for bound, words in bounds:
        limited(bound=bound)(bounded)
        with pytest.raises(IsomergeError, match=f"the bound of the method bounded .*{words}"):
            bound_of(describe(bounded), Inputs([[x] for x in two()]), {})

    def defaulting(tensors: Any, *, pull: float = "much") -> Any:  # pyright: ignore[reportArgumentType]
        return tensors[0]

    with pytest.raises(IsomergeError, match=r"`defaulting.*, pull.` is 'much': give a finite number"):
        describe(defaulting)


def test_what_is_right_stays() -> None:
    """A result of another floating dtype, or with a graph of gradients, is taken."""
    models = two()
    for make in (lambda x: x.double(), lambda x: x.clone().requires_grad_()):
        merged = describe(lambda tensors, make=make: make(tensors[0])).fuse(models, {})
        assert torch.equal(merged.float(), models[0])
        assert not merged.requires_grad


@pytest.mark.parametrize("kind", ["merge_method", "elementwise_method"])
def test_nothing_is_written(kind: str, tmp_path: Path) -> None:
    """A run of a method that gives back a row, which every row became, ends with the tensor's name."""
    (tmp_path / "scratch_row.py").write_text(
        f"from isomerge.fusion.registry import {kind}\n@{kind}\ndef row(tensors):\n    return tensors[0][:1]\n"
    )
    models = [single("gpt2", tmp_path / str(seed), seed) for seed in (1, 2)]
    imported = tmp_path / "scratch_row.py"
    with (
        forgotten(),
        pytest.raises(IsomergeError, match=r"tensor \S*wte.weight: the method row of .*scratch_row.py"),
    ):
        isomerge.merge(models, out=tmp_path / "out", method="row", imports=imported, align=False)
    assert not (tmp_path / "out").exists()
    assert "row" not in registry.methods()

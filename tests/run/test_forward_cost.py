"""What `stats`, `generate` and `barrier` take is told by a dry run, and refused before anything is computed or
written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import isomerge
from cli.conftest import isomerge as program
from isomerge.errors import IsomergeError
from isomerge.models.recognised import recognise
from isomerge.observe.data.examples import Examples
from isomerge.observe.live.generated import Generation
from isomerge.observe.stats.gathering import StatsOptions
from isomerge.run.barrier_options import BarrierOptions
from isomerge.run.forward_cost import barrier_cost, generate_cost, held_while_aligning, stats_cost
from solve.disguises import single

assert program  # a fixture: the program in-process
COMMANDS: dict[str, list[str]] = {
    "stats": ["stats", "A", "--data", "DATA", "-o", "OUT"],
    "generate": ["generate", "A", "A", "--limit", "2", "--length", "4", "-o", "OUT"],
    "barrier": ["barrier", "A", "A", "--data", "DATA", "--points", "3", "--png", "OUT"],
}


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Path]:
    """A model, data, and a file to write."""
    (tmp_path / "x.jsonl").write_text('{"input_ids": [1, 2, 3, 4]}\n' * 4)
    return {"A": single("llama", tmp_path / "a"), "DATA": tmp_path / "x.jsonl"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bound_is_kept_or_refused(
    command: str, given: dict[str, Path], program: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a dry run and by a run, in the same words and before a module is loaded; within the bound nothing
    changes."""
    out = tmp_path / ("x.png" if command == "barrier" else "x.safetensors")
    words = [str({**given, "OUT": out}.get(word, word)) for word in COMMANDS[command]]
    before = {path.name for path in tmp_path.iterdir()}

    def load(*_: object, **__: object) -> None:
        raise AssertionError("this was to be told before")

    with monkeypatch.context() as patch:
        patch.setattr(transformers.PreTrainedModel, "from_pretrained", load)
        little = [program(*words, "--max-memory", "0.4GB", *dry) for dry in ([], ["--dry-run"])]
        told = program(*words, "--dry-run", "--max-memory", "2GB", "--json", tmp_path / "dry.json")
    assert [said.code for said in little] == [2, 2]
    assert little[0].err == little[1].err
    assert "--max-memory 0.4GB is too little: running the models needs about 0.49 GB" in little[0].err
    assert (told.code, told.err) == (0, "")
    assert "Nothing was written.\n" in told.out
    dry = json.loads((tmp_path / "dry.json").read_text())
    assert 4.8e8 < dry["estimate"]["memory"] < 5e8
    assert dry["examples"] == (None if command == "generate" else 4)
    assert {path.name for path in tmp_path.iterdir()} == before | {"dry.json"}
    if command != "barrier":
        assert program(*words, "--max-memory", "2GB").code == 0
        bounded = out.read_bytes()
        assert program(*words, "--overwrite").code == 0
        assert out.read_bytes() == bounded


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("stats", {"data": "DATA", "out": "x.safetensors"}),
        ("generate", {"out": "x.safetensors"}),
        ("barrier", {"data": "DATA"}),
    ],
)
def test_python_knows_the_bound(command: str, how: dict[str, Any], given: dict[str, Path], tmp_path: Path) -> None:
    """Under its own name."""
    models: list[Any] = {"stats": [given["A"]], "generate": [[given["A"]]], "barrier": [given["A"]] * 2}[command]
    named = {name: {"DATA": given["DATA"]}.get(value, tmp_path / value) for name, value in how.items()}
    with pytest.raises(IsomergeError, match="is too little: running the models needs about"):
        getattr(isomerge, command)(*models, **named, max_memory="0.4GB")
    with pytest.raises(IsomergeError, match="is not a size"):
        getattr(isomerge, command)(*models, **named, max_memory="much")


def test_what_takes_more_is_told_to(given: dict[str, Path], tmp_path: Path) -> None:
    """Larger batches, more kinds and rows, longer texts, a third model."""
    model, out = recognise(given["A"]), tmp_path / "x.safetensors"
    gathered = StatsOptions(out, kinds=("activations",))
    kinds: list[tuple[str, ...]] = [("activations",), ("activations", "regmean"), ("regmean", "kfac", "fisher")]
    seen = Examples({"input_ids": torch.ones(5, 8, dtype=torch.long)}, True)
    found = [stats_cost(model, replace(gathered, kinds=k, rows=4), seen).memory for k in kinds]
    assert found == sorted(set(found))
    assert stats_cost(model, replace(gathered, rows=9), seen).memory > found[0]
    assert stats_cost(model, replace(gathered, rows=40), seen) == stats_cost(model, gathered, seen)
    assert stats_cost(model, replace(gathered, rows=4, batch_size=99), seen).memory > found[0]
    written = Generation(out, count=64, length=8)
    base = generate_cost([model, model], written).memory
    assert generate_cost([model, model], replace(written, length=16)).memory > base
    assert generate_cost([model, model], replace(written, batch_size=8)).memory < base
    line = BarrierOptions(spaces=["none"])
    base = barrier_cost([model] * 2, line, seen).memory
    assert barrier_cost([model] * 3, line, seen).memory > base
    assert barrier_cost([model] * 2, replace(line, batch_size=99), seen).memory > base


def test_an_alignment_has_what_the_anchor_leaves(given: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bound is that of the command less the module that is held, and it is told where that is too little."""
    model, seen = recognise(given["A"]), []
    from isomerge.run import connectivity

    align = connectivity.plan_align
    monkeypatch.setattr(
        connectivity,
        "plan_align",
        lambda a, b, out, **how: (seen.append(out.max_memory), align(a, b, out, **how))[1],
    )
    isomerge.barrier(given["A"], given["A"], data=given["DATA"], points=3, max_memory="1GB", spaces="default")
    assert seen == [int(1e9) - int(held_while_aligning(model))]
    monkeypatch.setattr("isomerge.run.forward_cost.memory_needed", lambda *_, **__: (9e9, unit_of(model)))
    with pytest.raises(IsomergeError, match=r"max_memory=1GB\) is too little: the unit of .* match fewer spaces"):
        isomerge.barrier(given["A"], given["A"], data=given["DATA"], points=3, max_memory="1GB", spaces="default")


def unit_of(model: Any) -> Any:
    """A unit of it."""
    from isomerge.models.unit_plan import make_plan

    return make_plan(model, [model]).units[0]

"""What is read from a run's folder: this version's reports, older ones, damaged ones."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from evidence.runs import distances, folder_of, run
from isomerge.errors import IsomergeError
from isomerge.evidence.distance import Gap, Spread
from isomerge.evidence.report.facts import facts_of, short_names
from isomerge.evidence.report.folder import Size, read_output, weights_size


def refusal(call: Any, *arguments: Any) -> str:
    """The one sentence of an error."""
    with pytest.raises(IsomergeError) as error:
        call(*arguments)
    words = str(error.value)
    assert "\n" not in words
    assert "Traceback" not in words
    return words


def test_what_huge_weights_hide() -> None:
    """A gain of 1e30: what no symmetry moves leaves nothing of a difference of squares, and one space hides
    another."""
    huge, plain = Gap(1e30, 1e30, 1e30), Gap(4.0, 3.0, 4.0)
    fixed = Spread(huge, {"fixed": huge, "ff": plain}, {}, {})
    assert fixed.movable == plain
    assert fixed.share_within(1e-4) == (1.0, 0.75)
    hidden = Spread(Gap(1e30, 5.0, 1e30), {"n1": Gap(1e30, 4.0, 1e30), "ff": plain}, {}, {})
    assert hidden.movable.share == pytest.approx((1.0, 5e-30))
    assert hidden.share_within(1e-4) == (1.0, 0.75)
    same = Spread(Gap(5.0, 1e-6, 5.0), {"n1": Gap(3.0, 1e-6, 3.0), "ff": Gap(4.0, 1e-7, 4.0)}, {}, {})
    assert same.share_within(1e-4) == same.movable.share


def test_facts_of_a_merge() -> None:
    """Distances with their cells; what moves is all but what is fixed."""
    learned = {"barrier": 0.1, "history": [{"step": 0, "barrier": 1.0}, {"step": 9, "barrier": 0.1}], "held_out": 5}
    facts = facts_of(run(streams=[{"groups": {"res": "O"}, "learned": learned, "functional": ["x"]}], spaces="all"))
    spread = facts.distance
    assert set(spread.cells) == {"0", "1", "outside"}
    assert spread.cells["0"]["ff"].share == pytest.approx((1.2, 0.3))
    assert spread.movable.share == pytest.approx((1.2, 0.3))
    assert spread.total.norm == pytest.approx(sqrt(4 * 4 + 1))
    assert facts.streams
    assert facts.looked_at == ("functional", "learned")
    assert (facts.taught[0].barriers, facts.taught[0].kept, facts.taught[0].held_out) == ((1.0, 0.1), 0.1, 5)
    assert facts.names == ["one", "two"]


def test_reports_of_older_versions() -> None:
    """No cells, no layers, no method, no versions: what is there is read."""
    old = run()
    for layer in old["distance"]["layers"].values():
        del layer["spaces"]
    facts = facts_of(old)
    assert facts.distance.cells == {}
    assert set(facts.distance.layers) == {"0", "1", "outside"}
    least = {"command": "align", "models": ["a", "b"], "distance": {"before": 2.0, "after": 1.0, "norm": 4.0}}
    facts = facts_of(least)
    assert facts.aligned
    assert facts.distance.movable.share == (0.5, 0.25)


def test_nothing_aligned() -> None:
    """With --no-align, and with no space to align in."""
    assert not facts_of(run(align=False)).aligned
    assert not facts_of({**run(), "command": "align", "spaces": "none"}).aligned


@pytest.mark.parametrize(
    "damage",
    [
        {"distance": None},
        {"distance": {"before": 1.0}},
        {"distance": {"before": "x", "after": 1, "norm": 1}},
        {"distance": {"before": float("nan"), "after": 1, "norm": 1}},
        {"distance": {"before": -1.0, "after": 1, "norm": 1}},
        {"distance": {"before": 1e10, "after": 1, "norm": 1e-300}},
        {"distance": {**distances(1, 1), "layers": {"0": 3}}},
        {"models": None},
        {"streams": [3]},
        {"weights": ["x"]},
        {"sources": [{"model": "a"}]},
        {"parameters": 3},
    ],
)
def test_damaged_reports(damage: dict[str, Any]) -> None:
    """One sentence that says what to do."""
    assert "run isomerge merge again" in refusal(facts_of, {**run(), **damage})


@pytest.mark.parametrize("report", [{}, {"command": "apply"}, {"command": ["merge"]}, [], None, 3])
def test_reports_of_something_else(report: Any) -> None:
    """Only merge and align leave what a page is made of."""
    assert "merge or align" in refusal(facts_of, report)


def test_folders(tmp_path: Path) -> None:
    """No folder, no report, no JSON, no object."""
    assert "no such folder" in refusal(read_output, tmp_path / "nothing")
    assert "has no isomerge.json" in refusal(read_output, tmp_path)
    for text in ("{", "[1]", '"x"', "\x00"):
        (tmp_path / "isomerge.json").write_text(text)
        assert "isomerge.json" in refusal(read_output, tmp_path)
    (tmp_path / "isomerge.json").write_bytes(b"\xff\xfe")
    assert "isomerge.json" in refusal(read_output, tmp_path)
    (tmp_path / "isomerge.json").write_text(json.dumps(run()))
    found = read_output(tmp_path)
    assert (found.size, found.recipe, found.earlier) == (None, "", None)


def test_size_of_weights(tmp_path: Path) -> None:
    """One file or shards by their index; alignments and other files do not count; a damaged file says nothing."""
    save_file({"a": torch.zeros(3, 5)}, tmp_path / "model.safetensors")
    save_file({"g": torch.zeros(9)}, tmp_path / "alignment.safetensors")
    size = (tmp_path / "model.safetensors").stat().st_size
    assert weights_size(tmp_path) == Size(15, size, ("F32",))
    (tmp_path / "model.safetensors").rename(tmp_path / "one.safetensors")
    save_file({"b": torch.zeros(2, dtype=torch.bfloat16)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = weights_size(tmp_path)
    assert found is not None
    assert (found.parameters, found.dtypes) == (17, ("BF16", "F32"))
    (tmp_path / "two.safetensors").write_bytes(b"x")
    assert weights_size(tmp_path) is None
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    assert weights_size(tmp_path) is None
    assert weights_size(tmp_path / "nothing") is None


def test_aligned_before(tmp_path: Path) -> None:
    """A merge of a model that isomerge aligned tells of that alignment, if its anchor is the merge's first
    model."""
    moved = folder_of(tmp_path / "moved", {**run(1.3, 0.8), "command": "align", "models": ["org/one", "org/raw"]})
    merge = run(0.8, 0.8, align=False, models=["org/one", str(moved)])
    found = read_output(folder_of(tmp_path / "merge", merge))
    assert found.earlier is not None
    assert found.matched.names == ["one", "raw"]
    assert found.matched.distance.movable.share == pytest.approx((1.3, 0.8))
    other = folder_of(tmp_path / "other", {**merge, "models": ["org/another", str(moved)]})
    assert read_output(other).earlier is None
    assert read_output(folder_of(tmp_path / "aligned", {**merge, "align": True})).earlier is None
    (moved / "isomerge.json").write_text("{")
    assert read_output(tmp_path / "merge").earlier is None


@pytest.mark.parametrize(
    ("refs", "names"),
    [
        (["a/x", "b/y"], ["x", "y"]),
        (["a/x", "b/x"], ["a/x", "b/x"]),
        (["/m/a/x", "/m/b/x", "/m/c/y", "x"], ["a/x", "b/x", "y", "x"]),
        (["x", "x"], ["x (1)", "x (2)"]),
        (["m/base", "m/base+ab/lora-a"], ["base", "base+lora-a"]),
        (["m/base+a/lora", "m/base+b/lora"], ["m/base+a/lora", "m/base+b/lora"]),
        (["/", "/a"], ["/", "a"]),
        ([""], [""]),
    ],
)
def test_short_names(refs: list[str], names: list[str]) -> None:
    """As short as tells them apart; a model with an adapter is no adapter alone."""
    assert short_names(refs) == names


def test_long_names_stay_apart() -> None:
    """Names that differ in the middle only are cut there, and numbered."""
    names = short_names([f"{'a' * 60}{k}{'b' * 60}" for k in range(3)])
    assert len(set(names)) == 3
    assert max(map(len, names)) < 60

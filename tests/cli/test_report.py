"""``isomerge report``, and what `isomerge merge` writes by default: the page, what is measured for it, and what it refuses."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge as api
from cli.test_bad_input import refuses
from isomerge.errors import IsomergeError


@pytest.fixture
def pair(stored: Callable) -> tuple[Path, Path]:
    """Two unrelated image classifiers of 3 x 8 x 8 pixels and 5 classes."""
    return stored("vit", 0), stored("vit", 5)


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    """Labelled examples for them."""
    rng = torch.Generator().manual_seed(0)
    data = {"pixel_values": torch.randn(12, 3, 8, 8, generator=rng), "labels": torch.arange(12) % 5}
    save_file(data, tmp_path / "seen.safetensors")
    return tmp_path / "seen.safetensors"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go; a test looks whether something is left."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def lines_of(report: dict[str, Any]) -> dict[str, list[float]]:
    """Losses by the name of the line."""
    return {line["name"]: line["losses"] for line in report["lines"]}


def test_page_of_a_merge(pair: tuple[Path, Path], isomerge: Callable, tmp_path: Path) -> None:
    """Beside the output, or where -o says; the verdict is printed, and JSON has it; quiet says nothing."""
    out = tmp_path / "out"
    said = isomerge("merge", *pair, "-o", out)
    lines = [line for line in said.out.replace("\n", "").split("Wrote ") if line.startswith(str(out))]
    assert f"Report: {out / 'report.html'}." in lines[-1]
    first = (out / "report.html").read_text()
    said = isomerge("report", out, "--json", tmp_path / "x.json")
    assert (said.code, said.err) == (0, "")
    assert (out / "report.html").read_text() == first
    report = json.loads((tmp_path / "x.json").read_text())
    assert report["command"] == "report"
    assert report["verdict"] in said.out
    assert report["verdict"] in first
    assert all(step["command"] in said.out for step in report["next"])
    assert report["measured"] == []
    quiet = isomerge("report", out, "-o", tmp_path / "y.html", "-q")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert (tmp_path / "y.html").read_text() == first


def test_no_page(pair: tuple[Path, Path], isomerge: Callable, tmp_path: Path) -> None:
    """Where none is wanted, it is said how to make one; and that command makes it."""
    out = tmp_path / "my out"
    said = isomerge("merge", *pair, "-o", out, "--no-report")
    assert f"isomerge report '{out}' writes a page on it." in said.out.replace("\n", "")
    assert not (out / "report.html").exists()
    assert isomerge("report", out).code == 0
    assert (out / "report.html").is_file()


def test_a_page_that_cannot_be_written_is_told(
    pair: tuple[Path, Path], isomerge: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merge itself is complete, and no error."""

    def refuse(*_: Any, **__: Any) -> None:
        raise IsomergeError("the disk is full")

    monkeypatch.setattr("isomerge.evidence.report.page.write_whole", refuse)
    said = isomerge("merge", *pair, "-o", tmp_path / "out")
    assert said.code == 0
    assert "warning: no report was written: the disk is full" in said.err
    assert "Report:" not in said.out
    assert api.fsck(tmp_path / "out")["sound"]


def test_no_page_of_a_plan(pair: tuple[Path, Path], isomerge: Callable, tmp_path: Path) -> None:
    """A dry run writes nothing."""
    assert isomerge("merge", *pair, "-o", tmp_path / "out", "--report", "--dry-run").code == 0
    assert not (tmp_path / "out").exists()


def test_measured(pair: tuple[Path, Path], seen: Path, isomerge: Callable, tmp_path: Path, scratch: Path) -> None:
    """The line after alignment is that of the same alignment solved anew, and its middle is the merge that was
    written."""
    a, b = pair
    out = tmp_path / "out"
    api.merge([a, b], out=out, spaces="h,ff")
    before = {path: path.read_bytes() for path in out.iterdir()}
    said = isomerge(
        "report", out, "--data", seen, "--points", 3, "-o", tmp_path / "x.html", "--json", tmp_path / "x.json"
    )
    assert (said.code, said.err) == (0, "")
    (found,) = json.loads((tmp_path / "x.json").read_text())["measured"]
    wanted = api.barrier(a, b, data=seen, points=3, spaces="h,ff")
    assert list(lines_of(found)) == ["as stored", "after alignment"]
    assert lines_of(found)["as stored"] == pytest.approx(lines_of(wanted)["as stored"], rel=1e-6)
    # float32 weights, moved once and read back
    assert lines_of(found)["after alignment"] == pytest.approx(lines_of(wanted)["aligned, h,ff"], rel=1e-4)
    assert found["merged"]["loss"] == pytest.approx(found["lines"][1]["midpoint"]["loss"], rel=1e-4)
    assert f"{found['merged']['loss']:.3f}" in (tmp_path / "x.html").read_text()
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(("spaces", "gauge"), [("default", 1e-4), ("all", 2e-2)])
def test_merged_is_the_middle(
    spaces: str, gauge: float, pair: tuple[Path, Path], seen: Path, tmp_path: Path
) -> None:
    """The middle of the line that is shown is the merge that was written: with streams but for the gains, since a
    merge chooses gains for all models, and the line ends at the anchor with its own (other pairs are up to 5 %
    apart)."""
    api.merge(pair, out=tmp_path / "out", spaces=spaces)
    (found,) = api.report(tmp_path / "out", data=seen, points=3).measured
    assert found["merged"]["loss"] == pytest.approx(found["lines"][1]["midpoint"]["loss"], rel=gauge)
    assert found["merged"]["loss"] != pytest.approx(found["lines"][0]["midpoint"]["loss"], rel=5 * gauge)


def _other_weights(out: Path) -> None:
    file = out / "model.safetensors"
    save_file({name: 2 * tensor for name, tensor in load_file(file).items()}, file, {"format": "pt"})


def _no_number(out: Path) -> None:
    file = out / "model.safetensors"
    tensors = load_file(file)
    next(iter(tensors.values())).view(-1)[0] = torch.nan
    save_file(tensors, file, {"format": "pt"})


def _edited(name: str, old: str, new: str) -> Callable[[Path], object]:
    return lambda out: (out / name).write_text((out / name).read_text().replace(old, new, 1))


NOT_WRITTEN: dict[str, tuple[str, Callable[[Path], object]]] = {
    "other weights": ("model.safetensors", _other_weights),
    "a number that is none": ("model.safetensors", _no_number),
    "lost weights": ("model.safetensors", lambda out: (out / "model.safetensors").unlink()),
    "another config": ("config.json", _edited("config.json", "{", '{"hidden_act": "relu",')),
    "a report in another layout": ("isomerge.json", _edited("isomerge.json", '"models": [', '"models":  [')),
    "a report without a digest": ("isomerge.json", _edited("isomerge.json", '  "digest": ', '  "was": ')),
    "weights beside them": (
        "model-00001.safetensors",
        lambda out: shutil.copy(out / "model.safetensors", out / "model-00001.safetensors"),
    ),
}


def test_what_is_not_what_was_written_is_no_good_news(
    pair: tuple[Path, Path], isomerge: Callable, tmp_path: Path
) -> None:
    """Whatever was changed, the terminal, the page and JSON say so first, and how to see what; a card that was edited
    is no news. (Without `changes_of` all of them read "Good".)"""
    a, _ = pair
    written, out = tmp_path / "written", tmp_path / "out"
    api.merge([a, a], out=written)
    for what, (file, change) in {"nothing": ("", _edited("README.md", "e", "E")), **NOT_WRITTEN}.items():
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(written, out)
        change(out)
        said = isomerge("report", out, "--json", tmp_path / "x.json")
        report, page = json.loads((tmp_path / "x.json").read_text()), (out / "report.html").read_text()
        assert (report["level"] == "good") is (not file), what
        assert ("is not what the run wrote" in report["text"]) is bool(file), what
        if file:
            assert f"({file}: " in report["text"], what
            assert report["verdict"] == "The output is not what was written"
            assert report["next"][0]["command"] == f"isomerge fsck {out}"
        assert report["verdict"] in said.out
        assert report["verdict"] in page
        assert " ".join(report["text"].split()[:4]) in said.out.replace("\n", " ")
        assert ("> Good</p>" in page) is (not file), what


def test_measured_later(pair: tuple[Path, Path], seen: Path, isomerge: Callable, tmp_path: Path) -> None:
    """A file of `isomerge barrier` gives the same page as measuring."""
    api.merge(pair, out=tmp_path / "out", align=False)
    page = api.report(tmp_path / "out", data=seen, points=3)
    assert [line["name"] for line in page.measured[0]["lines"]] == ["as stored", "aligned, default"]
    (tmp_path / "b.json").write_text(json.dumps(page.measured[0]))
    said = isomerge("report", tmp_path / "out", "--barrier", tmp_path / "b.json")
    assert said.code == 0
    assert (tmp_path / "out" / "report.html").read_text() == page.html
    assert api.report(tmp_path / "out", barrier=page.measured[0]).html == page.html


def test_measured_alignment(pair: tuple[Path, Path], seen: Path, tmp_path: Path) -> None:
    """An aligned checkpoint stands at the other end itself; a merge of it is told of its alignment, and measured by
    it."""
    a, b = pair
    moved, out = tmp_path / "moved", tmp_path / "out"
    api.align(b, onto=a, out=moved, spaces="ff")
    (one,) = api.report(moved, data=seen, points=3).measured
    wanted = api.barrier(a, b, data=seen, points=3, spaces="none", aligned=[moved])
    assert list(lines_of(one).values()) == [pytest.approx(x, rel=1e-6) for x in lines_of(wanted).values()]
    assert "merged" not in one
    api.merge([a, moved], out=out, align=False)
    page = api.report(out, data=seen, points=3)
    assert lines_of(page.measured[0]) == lines_of(one)
    assert "had been aligned before" in page.html


def test_measured_on_a_base(stored: Callable, seen: Path, tmp_path: Path) -> None:
    """Task vectors: the line is between the models that were merged, both as they were moved onto the base."""
    base, a, b = (stored("vit", seed) for seed in (0, 5, 8))
    out = tmp_path / "out"
    api.merge([a, b], base_model=base, out=out, method="task_arithmetic", spaces="ff")
    (found,) = api.report(out, data=seen, points=3).measured
    assert found["models"] == [str(a), str(b)]
    moved = [tmp_path / name for name in "ab"]
    for model, folder in zip((a, b), moved, strict=True):
        api.align(model, onto=base, out=folder, spaces="ff")
    (wanted,) = api.barrier(*moved, data=seen, points=3, spaces="none")["lines"]
    assert lines_of(found)["after alignment"] == pytest.approx(wanted["losses"], rel=1e-4)


def test_three_models(stored: Callable, seen: Path, tmp_path: Path) -> None:
    """A line from the first to each of the others; the merge is evaluated once."""
    models = [stored("vit", seed) for seed in (0, 5, 8)]
    api.merge(models, out=tmp_path / "out", spaces="ff")
    page = api.report(tmp_path / "out", data=seen, points=3)
    assert [found["models"] for found in page.measured] == [[str(models[0]), str(m)] for m in models[1:]]
    assert ["merged" in found for found in page.measured] == [True, False]
    assert "Model by model" in page.html


def test_what_the_api_returns_draws_itself(pair: tuple[Path, Path], seen: Path, tmp_path: Path) -> None:
    """Reports are dicts with a notebook form."""
    a, b = pair
    _, aligned = api.align(a, onto=b, out=tmp_path / "x", spaces="ff")
    found = [aligned, api.merge(pair, out=tmp_path / "out", spaces="ff"), api.diff(a, b), api.verify(a, a)]
    found += [api.barrier(a, b, data=seen, points=3, spaces="none"), api.inspect(a)]
    for report in found:
        assert isinstance(report, dict)
        assert json.loads(json.dumps(report)) == json.loads(json.dumps(dict(report)))
        shown = report._repr_html_()
        assert "<h" in shown or "<table" in shown


def test_refusals(pair: tuple[Path, Path], seen: Path, isomerge: Callable, tmp_path: Path) -> None:
    """One sentence each, and nothing is written."""
    a, b = tmp_path / "a", tmp_path / "b"
    for source, copy in zip(pair, (a, b), strict=True):
        shutil.copytree(source, copy)
    out = tmp_path / "out"
    api.merge([a, b], out=out, spaces="ff")
    (tmp_path / "x.json").write_text("{}")
    cases: list[tuple[list[object], list[str]]] = [
        ([tmp_path / "nothing"], ["no such folder"]),
        ([a], ["isomerge.json"]),
        ([out, "-o", tmp_path / "no" / "x.html"], ["--out", "no such folder"]),
        ([out, "-o", tmp_path], ["--out", "name a file"]),
        ([out, "--barrier", tmp_path / "x.json"], ["--barrier", "isomerge barrier"]),
        ([out, "--barrier", tmp_path / "y.json"], ["--barrier", "cannot be read"]),
        ([out, "--data", seen, "--points", 4], ["--points"]),
        ([out, "--data", tmp_path / "z.jsonl"], ["--data"]),
    ]
    for arguments, words in cases:
        refuses(isomerge, tmp_path, "report", *arguments, words=words)
    shutil.rmtree(b)
    refuses(isomerge, tmp_path, "report", out, "--data", seen, words=["--data", str(b), "--barrier FILE"])
    assert not (out / "report.html").exists()
    assert isomerge("report", out).code == 0, "without --data, the models are not needed"

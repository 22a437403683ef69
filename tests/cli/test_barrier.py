"""``isomerge barrier``: tables, reports, pictures, and what it refuses."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import isomerge as api
from cli.test_bad_input import refuses
from observe.data.checkpoints import picture, save_picture


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


def tells_unrelated(err: str, *pairs: tuple[str, str]) -> None:
    """A warning for every pair, then what to try, and nothing else on stderr."""
    warned, tried = err.splitlines()[: len(pairs)], err.splitlines()[len(pairs) :]
    assert len(warned) == len(pairs), err
    for line, (model, anchor) in zip(warned, pairs, strict=True):
        assert re.match(rf"warning: {model} and {anchor} are unrelated: (their matrices are )?1\.", line), err
    assert all(line.startswith("  ") for line in tried), err
    commands = [line.split()[1] for line in tried if line.startswith("    ")]
    assert commands in (["merge"], ["merge", "merge"], []), err  # this is a barrier already


def test_lines(
    pair: tuple[Path, Path], seen: Path, isomerge: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row per curve with the three barriers, the ends, the ensemble; the report says the same; nothing is left
    over."""
    a, b = pair
    moved = tmp_path / "moved"
    api.align(b, onto=a, out=moved, spaces="ff")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    options = ["--data", seen, "--points", 3, "--spaces", "paper", "--spaces", "ff", "--aligned", moved]
    files = ["--png", tmp_path / "x.png", "--json", tmp_path / "x.json"]
    said = isomerge("barrier", a, b, *options, *files, "-v")
    assert said.code == 0, said.err
    tells_unrelated(said.err, (b.name, a.name))
    report: dict[str, Any] = json.loads((tmp_path / "x.json").read_text())
    assert report["verdict"]["code"] == "unrelated"
    assert [line["name"] for line in report["lines"]] == ["as stored", "aligned, paper", "aligned, ff", str(moved)]
    nearest = min(report["lines"][1:3], key=lambda line: line["distances"][0]["after"])["name"]
    assert f"after alignment with --spaces {nearest.removeprefix('aligned, ')} (" in report["verdict"]["sentence"]
    for line in report["lines"]:
        row = next(r for r in said.out.splitlines() if r.startswith(line["name"]))
        figures = [*line["barrier"].values(), line["midpoint"]["loss"], line["highest"]["loss"]]
        assert all(f"{x:.4f}" in row for x in figures)
        assert f"{100 * line['midpoint']['accuracy']:.1f} %" in row
        assert line["points"] == [0, 0.5, 1]
    assert f"{report['ensemble']['loss']:.4f}" in said.out
    assert report["unit"] == "nats"
    by_flag, by_hand = (report["lines"][k]["losses"] for k in (2, 3))
    assert by_flag == pytest.approx(by_hand, rel=1e-4)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert list(scratch.iterdir()) == []


def test_published_matches(pair: tuple[Path, Path], seen: Path, tmp_path: Path) -> None:
    """A curve each, which is that of what `align` writes by that match."""
    a, b = pair
    moved = tmp_path / "moved"
    api.align(b, onto=a, out=moved, match="git-rebasin")
    report = api.barrier(
        a, b, data=seen, points=3, spaces="none", match=["otfusion", "git-rebasin", "isomerge"], aligned=[moved]
    )
    names = ["as stored", "aligned, otfusion", "aligned, git-rebasin", str(moved)]
    assert [line["name"] for line in report["lines"]] == names
    stored, other, named, by_hand = (line["losses"] for line in report["lines"])
    assert named == pytest.approx(by_hand, rel=1e-4)
    assert len({tuple(stored), tuple(other), tuple(named)}) == 3


def test_as_stored_alone(pair: tuple[Path, Path], seen: Path, isomerge: Callable) -> None:
    """``--spaces none`` aligns nothing; quiet says nothing but that the models are unrelated."""
    said = isomerge("barrier", *pair, "--data", seen, "--points", 3, "--spaces", "none")
    assert "as stored" in said.out
    assert "aligned" not in said.out
    quiet = isomerge("barrier", *pair, "--data", seen, "--points", 3, "--spaces", "none", "-q")
    assert (quiet.code, quiet.out) == (0, "")
    a, b = pair
    tells_unrelated(quiet.err, (b.name, a.name))
    assert len(quiet.err.splitlines()) == 1  # what to try is left out


def test_plane(pair: tuple[Path, Path], seen: Path, stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Three models: the contours as stored and aligned, with the corners where the distances put them."""
    models = [*pair, stored("vit", 8)]
    options = [
        "--data",
        seen,
        "--grid",
        3,
        "--spaces",
        "ff",
        "--json",
        tmp_path / "x.json",
        "--png",
        tmp_path / "x.png",
    ]
    said = isomerge("barrier", *models, *options)
    assert said.code == 0, said.err
    tells_unrelated(said.err, *((model.name, models[0].name) for model in models[1:]))
    report = json.loads((tmp_path / "x.json").read_text())
    assert [plane["name"] for plane in report["planes"]] == ["as stored", "aligned, ff"]
    plane = report["planes"][0]
    assert (len(plane["losses"]), len(plane["losses"][0])) == (3, 3)
    wanted = api.diff(*pair, spaces="none")["distance"]["before"]
    assert plane["corners"][1]["x"] == pytest.approx(wanted, rel=1e-5)
    lines = isomerge(
        "barrier", *pair, "--data", seen, "--points", 3, "--spaces", "none", "--json", tmp_path / "y.json"
    )
    assert lines.code == 0
    ends = json.loads((tmp_path / "y.json").read_text())["lines"][0]["ends"]
    assert [c["loss"] for c in plane["corners"][:2]] == pytest.approx([e["loss"] for e in ends], rel=1e-5)
    assert (tmp_path / "x.png").stat().st_size > 1000


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5-relu", "mixtral"])
def test_language_models(name: str, stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Losses per predicted token; experts that transformers fuses are interpolated as well."""
    row = {"input_ids": [7, 8, 9, 10, 11], "labels": [7, -100, 9, 10, 11]}
    (tmp_path / "x.jsonl").write_text(
        json.dumps(row) + "\n" + json.dumps(row | {"input_ids": [9, 9, 9, 9, 9]}) + "\n"
    )
    options = ["--data", tmp_path / "x.jsonl", "--points", 3, "--spaces", "none", "--json", tmp_path / "x.json"]
    said = isomerge("barrier", stored(name, 0), stored(name, 5), *options)
    assert said.code == 0, said.err
    tells_unrelated(said.err, (f"{name}-5", f"{name}-0"))
    report = json.loads((tmp_path / "x.json").read_text())
    assert report["unit"] == "nats per token"
    assert report["ensemble"]["perplexity"] > 1
    assert report["lines"][0]["midpoint"]["loss"] > 0


def no_data(root: Path) -> list[object]:
    """Nothing there."""
    return ["--data", root / "lost.safetensors"]


def empty(root: Path) -> list[object]:
    """A folder of nothing."""
    (root / "data").mkdir()
    return ["--data", root / "data"]


def strange_class(root: Path) -> list[object]:
    """A sub-folder that is no class."""
    save_picture(root / "data" / "horse" / "1.png", picture(0))
    return ["--data", root / "data"]


def channels(root: Path) -> list[object]:
    """Images of one channel for a model of three."""
    save_file({"pixel_values": torch.zeros(2, 1, 8, 8)}, root / "data.safetensors")
    return ["--data", root / "data.safetensors"]


def text(root: Path) -> list[object]:
    """Text for a model that sees."""
    (root / "data.txt").write_text("hello")
    return ["--data", root / "data.txt"]


def unlabelled(root: Path) -> list[object]:
    """Images without classes."""
    save_picture(root / "data" / "1.png", picture(0))
    return ["--data", root / "data"]


def no_function(root: Path) -> list[object]:
    """A module of Python's own, and a function that it does not have."""
    return ["--data", "json:examples"]


def even(root: Path) -> list[object]:
    """No midpoint."""
    return [*unlabelled(root), "--points", "4"]


def no_device(root: Path) -> list[object]:
    """A device that no machine has."""
    return [*unlabelled(root), "--device", "abacus"]


def no_picture_folder(root: Path) -> list[object]:
    """A picture into nowhere."""
    return [*unlabelled(root), "--png", root / "none" / "x.png"]


def strange_spaces(root: Path) -> list[object]:
    """Spaces that the architecture does not have."""
    return [*unlabelled(root), "--spaces", "default", "--spaces", "wings"]


def by_activations(root: Path) -> list[object]:
    """A match that looks at data, which are those that it would be judged on."""
    return [*unlabelled(root), "--match", "git-rebasin-acts"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (no_data, ["lost.safetensors", "no such file"]),
        (empty, ["/data", "empty folder"]),
        (strange_class, ["data/horse", "no class", "label2id"]),
        (channels, ["data.safetensors", "[1, 8, 8]", "[3, 8, 8]"]),
        (text, ["data.txt", "images"]),
        (unlabelled, ["--data", "no labels"]),
        (no_function, ["json:examples", "no function"]),
        (even, ["--points 4", "odd"]),
        (no_device, ["--device abacus", "cpu"]),
        (no_picture_folder, ["--png", "no such folder"]),
        (strange_spaces, ["wings"]),
        (by_activations, ["--match git-rebasin-acts", "--aligned"]),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_refusals(
    make: Callable, words: list[str], pair: tuple[Path, Path], isomerge: Callable, tmp_path: Path
) -> None:
    """Exit code 2, one sentence, nothing written."""
    options = make(tmp_path)
    refuses(isomerge, tmp_path, "barrier", *pair, *options, words=words)


def test_models_that_do_not_fit(stored: Callable, isomerge: Callable, seen: Path, tmp_path: Path) -> None:
    """Other architectures, text without a tokenizer, and --aligned beside three models."""
    vit = stored("vit", 0)
    refuses(
        isomerge, tmp_path, "barrier", vit, stored("gpt2", 0), "--data", seen, words=["different architectures"]
    )
    refuses(
        isomerge,
        tmp_path,
        "barrier",
        vit,
        vit,
        stored("vit", 5),
        "--data",
        seen,
        "--aligned",
        vit,
        words=["--aligned"],
    )
    (tmp_path / "x.txt").write_text("hello")
    options = ["--data", tmp_path / "x.txt"]
    words = ["gpt2", "no tokenizer", "copy"]
    refuses(isomerge, tmp_path, "barrier", stored("gpt2", 0), stored("gpt2", 5), *options, words=words)


def test_empty_data(pair: tuple[Path, Path], refuses: Callable) -> None:
    """No name of data is not the current folder."""
    refuses("barrier", *pair, "--data", "", "--points", 3, words=["--data is empty"])
    refuses("stats", pair[0], "--data", "", "-o", "x.safetensors", words=["--data is empty"])


@pytest.mark.parametrize("name", ["x.xyz", "x.txt", "folder.png"])
def test_no_picture(name: str, pair: tuple[Path, Path], seen: Path, refuses: Callable, tmp_path: Path) -> None:
    """Told before anything is measured."""
    (tmp_path / "folder.png").mkdir()
    files = ["--json", tmp_path / "x.json", "--png", tmp_path / name]
    refuses("barrier", *pair, "--data", seen, "--points", 3, *files, words=[f"--png {tmp_path / name}", "line.png"])

"""The verdict on the command line: on stderr, in the JSON of every command, and what a dry run says of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from solve.disguises import perturb, turn, with_layers_exchanged, write_like

pytestmark = pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here")


def test_merge(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Fine-tunes: one line, no warning. Strangers: a warning with commands, and exit code 0."""
    a, b = stored("llama", 0), stored("llama", 5)
    tuned = perturb(a, tmp_path / "tuned", 0.05)
    said = isomerge("merge", a, tuned, "-o", tmp_path / "near", "--json", tmp_path / "near.json")
    assert said.code == 0
    assert "warning" not in said.err
    (line,) = [line for line in said.out.splitlines() if "left as they are" in line]
    assert line.startswith("Verdict: ")
    assert json.loads((tmp_path / "near.json").read_text())["verdict"]["code"] == "aligned"
    forced = isomerge("merge", a, tuned, "--align", "-o", tmp_path / "forced")
    assert "left as" not in forced.out
    far = isomerge("merge", a, b, "-q", "-o", tmp_path / "far")
    assert far.code == 0
    assert "warning: " in far.err
    assert "most likely not work" in far.err
    loud = isomerge("merge", a, b, "-o", tmp_path / "loud")
    for word in ("--learn DATA", "--learn generate", "isomerge barrier"):
        assert word in loud.err


def test_dry_runs(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """What will come out is said before anything is done, with the next step, and stands in the JSON."""
    a, b = stored("llama", 0), stored("llama", 5)
    near, moved = perturb(a, tmp_path / "tuned", 0.05), turn("llama", a, tmp_path / "turned", 3)
    for other, code, word in (
        (b, "unrelated", "--learn"),
        (near, "aligned", "left as"),
        (moved, "related", "basis"),
    ):
        for command in (["merge", a, other, "-o"], ["align", other, "--onto", a, "-o"]):
            file = tmp_path / "r.json"
            said = isomerge(*command, tmp_path / "out", "--dry-run", "--json", file)
            assert said.code == 0
            assert word in said.err + said.out
            report = json.loads(file.read_text())
            assert report["verdict"]["code"] == code, (command[0], code)
            assert ("res" in report["streams"]) == (code != "aligned")
            assert not (tmp_path / "out").exists()


def test_diff_says_of_what_strangers_have_so_much(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Gains of about one make strangers alike, and a match brings them nearer: 1.41 stands beside matrices as they
    are stored, alone."""
    said = isomerge("diff", stored("llama", 0), stored("llama", 5), "--json", tmp_path / "x.json")
    out = " ".join(said.out.split())
    (as_stored,) = re.findall(
        r"Matrices among them: (\S+) apart as stored \(1\.41 is uncorrelated\), \S+ modulo", out
    )
    report = json.loads((tmp_path / "x.json").read_text())
    assert float(as_stored) == pytest.approx(report["matrices"]["before"], rel=0.01)
    assert float(as_stored) > 1.3 > report["relative"]["after"]
    assert all(re.search(r"as stored(,| \(|, where) ?$", part) for part in re.split(r"1\.41 is", out)[:-1])


def test_diff_does_not_contradict_its_fingerprints(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Layers that changed places have no counterpart where they stand: what fingerprints say of them is the verdict,
    and no match is advised. (The verdict was "unrelated" where fingerprints said one base, as it asked them of
    models in other bases alone.)"""
    a, swapped = stored("llama", 0), tmp_path / "swapped"
    write_like(a, swapped, lambda stored: stored.update(with_layers_exchanged(stored)))
    said = isomerge("diff", a, swapped, "--json", tmp_path / "x.json")
    report = json.loads((tmp_path / "x.json").read_text())
    assert report["fingerprints"]["verdict"] == "derived from one base"
    assert report["verdict"]["code"] == "far"
    assert "layers in another order (0, 1)" in report["verdict"]["sentence"]
    assert report["verdict"]["next"] == []
    assert "has a common base" in said.out + said.err


def test_align(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """The option is there as well."""
    a = stored("llama", 0)
    tuned = perturb(a, tmp_path / "tuned", 0.05)
    assert "left as they are" in isomerge("align", tuned, "--onto", a, "-o", tmp_path / "one").out
    assert "left as they are" not in isomerge("align", tuned, "--onto", a, "--align", "-o", tmp_path / "two").out

"""`isomerge task-mask` and `isomerge restore-task`: a merged model gives a task's model back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

import isomerge as library
from solve.disguises import perturb, single


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base, two fine-tunes and what they are merged to."""
    base = single("gpt2", tmp_path / "base")
    tuned = [perturb(base, tmp_path / f"tuned{k}", 0.1, seed=k) for k in (1, 2)]
    library.merge(tuned, out=tmp_path / "merged", method="emr", base_model=base, align=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_mask_and_the_model_back(here: Path, isomerge: Callable) -> None:
    """What the command line writes is what Python does; what is lost is told."""
    said = isomerge("task-mask", "merged", "base", "tuned1", "-o", "one.safetensors", "--json", "r.json")
    assert said.code == 0, said.err
    report = json.loads(Path("r.json").read_text())
    assert (report["command"], report["kind"], report["notes"]) == ("task-mask", "emr", [])
    assert f"{report['error']:.1%} of the task vector's length from tuned1" in said.out
    own = library.task_mask("merged", "base", "tuned1", out="own.safetensors")
    assert {**report, "out": 0} == {**json.loads(json.dumps(own)), "out": 0}
    assert Path("one.safetensors").read_bytes() == Path("own.safetensors").read_bytes()
    said = isomerge("restore-task", "merged", "base", "one.safetensors", "-o", "back", "--json", "b.json")
    assert said.code == 0, said.err
    assert "Wrote back: the task of one.safetensors" in said.out
    assert json.loads(Path("b.json").read_text())["factor"] == report["factor"]
    tensors = {name: load_file(f"{name}/model.safetensors") for name in ("back", "base", "tuned1")}
    gaps = {
        name: sum(float((x - tensors["tuned1"][n]).square().sum()) for n, x in tensors[name].items()) ** 0.5
        for name in ("back", "base")
    }
    assert gaps["back"] / gaps["base"] == pytest.approx(report["error"], rel=1e-3)
    assert report["error"] < 0.8


def test_kinds_and_doubts(here: Path, isomerge: Callable, refuses: Callable) -> None:
    """TALL masks have a threshold, others none; a mask of something else restores nothing, and files stay."""
    words = ("task-mask", "merged", "base", "tuned1", "-o")
    shares = []
    for number, bound in enumerate(("0.2", "1.5")):
        said = isomerge(
            *words, f"{number}.safetensors", "--kind", "tall", "--tall-lambda", bound, "--json", "r.json"
        )
        assert said.code == 0, said.err
        shares.append(json.loads(Path("r.json").read_text())["share"])
    assert shares[0] > shares[1]
    perturb(here / "base", here / "other", 0.1, seed=9)
    said = isomerge("task-mask", "other", "base", "tuned1", "-o", "other.safetensors", "--tall-lambda", 0.2)
    assert said.code == 0, said.err
    assert "--tall-lambda is not used: masks of EMR have no threshold" in said.err
    refuses(*words, "new.safetensors", "--kind", "ems", words=["--kind ems", "emr, tall"])
    refuses(*words, "0.safetensors", words=["0.safetensors", "exists"])
    refuses("restore-task", "tuned1", "base", "0.safetensors", "-o", "new", words=["made for other models"])
    assert isomerge(*words, "0.safetensors", "--overwrite", "-q").out == ""

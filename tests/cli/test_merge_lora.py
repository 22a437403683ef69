"""``isomerge merge-lora`` through the program: what it says, writes and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from cli.test_bad_input import refuses
from merging.peft_reference import HERE

PAIR = (HERE / "one", HERE / "wide")


def test_it_tells_what_it_wrote(isomerge: Callable, tmp_path: Path) -> None:
    """How far from the sum, and per module; what is not used is noted."""
    out, report = tmp_path / "out", tmp_path / "report.json"
    how = ["--method", "cat", "--weights", "0.7,-0.4", "--rank", "3", "-v", "--json", report]
    said = isomerge("merge-lora", *PAIR, "-o", out, *how)
    assert said.code == 0, said.err
    assert f"Wrote {out}: cat merge of {PAIR[0]}, {PAIR[1]}, 5 modules of rank 10 or less; 0.00%" in said.out
    assert "distance from it" in said.out
    assert "note: --rank is not used: the method cat cuts nothing to a rank" in said.err
    found = json.loads(report.read_text())
    assert (found["command"], found["rank"], found["weights"]) == ("merge-lora", 10, [0.7, -0.4])
    assert found["modules"]["down"]["adapters"] == [0]
    assert found["notes"] == ["--rank is not used: the method cat cuts nothing to a rank"]


def test_it_refuses_in_one_line(isomerge: Callable, tmp_path: Path) -> None:
    """Options beside a recipe, a model in the place of an adapter, an adapter as the output."""
    recipe = tmp_path / "r.yml"
    recipe.write_text(f"merge_method: svd\nmodels: [{{model: {PAIR[0]}}}, {{model: {PAIR[1]}}}]\n")
    out = tmp_path / "out"
    refuses(isomerge, tmp_path, "merge-lora", recipe, "-o", out, "--rank", 3, words=["leave out --rank"])
    refuses(isomerge, tmp_path, "merge-lora", recipe, PAIR[0], "-o", out, words=["a recipe names its adapters"])
    refuses(isomerge, tmp_path, "merge-lora", HERE, "-o", out, words=["adapter_config.json"])
    refuses(isomerge, tmp_path, "merge-lora", *PAIR, "-o", PAIR[0], words=["choose another output folder"])
    refuses(isomerge, tmp_path, "merge-lora", *PAIR, "-o", out, "--weights", "1,x", words=["one number per model"])
    assert isomerge("merge-lora", recipe, "-o", out, "-q").code == 0

"""What Python's functions return is told in one line, and in a small table in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import isomerge
from isomerge.checkpoint.in_memory import in_memory
from isomerge.evidence.report.notebook import Report
from isomerge.observe.data.examples import Examples
from run.own_modules import SPEC, batches, disguised, reader
from toys import save_toy

pytestmark = [
    pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here"),
    pytest.mark.matched("of layers: else strangers' streams are matched as well, and small changes not at all"),
]

LONGEST = 240


@pytest.fixture(scope="module")
def returned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of every function that needs no more than small modules."""
    folder = tmp_path_factory.mktemp("returned")
    a, twin, b, data = reader(0), disguised(reader(0), 3), reader(1), batches()
    how: dict[str, Any] = {"spec": SPEC}
    proof = isomerge.prove(a, spec=SPEC, inputs=data[0][0])
    alignment, aligned = isomerge.align(twin, onto=a, **how)
    return {
        "alignment": alignment,
        "align": aligned,
        "merge": isomerge.merge([a, twin], **how, data=data).isomerge_report,
        "diff": isomerge.diff(a, twin, **how),
        "verify": isomerge.verify(a, twin, **how),
        "similarity": isomerge.similarity(a, b, **how),
        "orbit_distance": isomerge.orbit_distance(a, b, **how),
        "fingerprint": isomerge.fingerprint(a, **how),
        "barrier": isomerge.barrier(a, b, data=data, points=3, spaces="none", **how),
        "evaluate": isomerge.evaluate([a, b], data=data, **how),
        "inspect": isomerge.inspect(a, **how),
        "canon": isomerge.canon(a, **how)[1],
        "stats": isomerge.stats(a, data=data, out=folder / "s.safetensors", **how),
        "prove": proof,
        "methods": isomerge.methods(),
        "open": isomerge.open(save_toy("gpt2", folder / "gpt2")),
        "in memory": in_memory(a.state_dict(), {}, ref="<mine>"),
        "examples": Examples({"input_ids": torch.ones(3, 7, dtype=torch.int64)}, True),
    }


NAMES = [
    "alignment", "align", "merge", "diff", "verify", "similarity", "orbit_distance", "fingerprint", "barrier", "evaluate",
    "inspect", "canon", "stats", "prove", "methods", "open", "in memory", "examples",
]  # fmt: skip
SAID = {
    "align": "isomerge align of ", "merge": "isomerge merge of ", "verify": "same: yes", "similarity": "independent",
    "evaluate": "1.825, 1.899", "inspect": "8301 parameters", "prove": ": proven; ", "diff": "same: yes",
    "examples": "<3 examples, labelled: input_ids [3, 7] int64>", "barrier": "barrier ", "stats": "48 examples",
    "open": "gpt2", "in memory": "<MemoryCheckpoint <mine>: ", "orbit_distance": "distance 31.85",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_in_one_line_and_a_table(name: str, returned: dict[str, Any]) -> None:
    """Short, with what matters, and nothing that HTML would take for its own."""
    line = repr(returned[name])
    assert "\n" not in line
    assert len(line) <= LONGEST
    assert line.startswith("<")
    assert SAID.get(name, "") in line
    shown = returned[name]._repr_html_()
    assert "<t" in shown or "<figure" in shown
    assert "<mine>" not in shown


def test_a_report_stays_a_dict(returned: dict[str, Any], tmp_path: Path) -> None:
    """Whatever is in it, and all of it is there."""
    report = returned["verify"]
    assert dict(report) == report
    assert "residual" in repr(dict(report))
    for odd in (
        {},
        {"command": "x"},
        {"models": []},
        {"distance": None, "verdict": {}},
        {"model": "a", "layers": True},
    ):
        assert repr(Report(odd)).startswith("<isomerge")

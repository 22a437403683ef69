"""``isomerge prove``: exit codes, what is said, modules of one's own, and the proof that the next command finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isomerge.api import proving
from isomerge.discovery.completeness import Completeness, InnerAxis
from isomerge.discovery.redundancy import Redundancy
from isomerge.discovery.trial import Law, Trial
from isomerge.evidence.report.notebook import line_of
from plain_models import TorchTransformer
from toys import randomise

TEXT = Path(__file__).parents[2] / "docs/examples/torch_transformer.spec"
TESTS = Path(__file__).parents[1]
OWN = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
import torch
from plain_models import TorchTransformer

def tiny():
    return TorchTransformer(), (torch.arange(1, 34).reshape(3, 11), torch.arange(21).reshape(3, 7) * 3 % 67)

def broken():
    return TorchTransformer(), torch.arange(3)

def nothing():
    return None
"""


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A model of plain torch and the file that makes a tiny one."""
    model = TorchTransformer().double()
    randomise(model, 0)
    model.save_pretrained(tmp_path / "a")
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def test_a_module_of_ones_own(plain: Path, isomerge: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused without a proof; proven by a function of the user's; then align takes the text."""
    monkeypatch.setenv("ISOMERGE_CACHE", str(plain / "cache"))
    a, own = plain / "a", plain / "own.py"
    align = ("align", a, "--onto", a, "--spec", TEXT, "-o", plain / "out")
    said = isomerge(*align)
    assert said.code == 2
    assert "is not proven" in said.err
    assert "--module FILE.py:FUNCTION" in said.err
    for function, words in (
        ("broken", "does not run on the inputs"),
        ("nothing", "gives no (module, inputs)"),
        ("absent", "has no function absent"),
    ):
        said = isomerge("prove", a, "--spec", TEXT, "--module", f"{own}:{function}")
        assert (said.code, "Traceback" in said.err) == (2, False)
        assert words in said.err
    said = isomerge("prove", a, "--spec", TEXT, "--module", f"{own}:tiny", "--json", plain / "proof.json")
    assert said.code == 0, said.err
    assert "Verdict: proven; what is not declared was not counted" in said.out
    assert json.loads((plain / "proof.json").read_text())["class"] == "TorchTransformer"
    assert isomerge(*align).code == 0


def test_refuted(plain: Path, isomerge: Callable[..., Any]) -> None:
    """Exit code 1, and the space is in the table."""
    wrong = plain / "wrong.spec"
    wrong.write_text(TEXT.read_text().replace("[h qk | h qk' | h ov]", "(h [qk | qk' | ov])"))
    said = isomerge("prove", plain / "a", "--spec", wrong, "--module", f"{plain / 'own.py'}:tiny")
    assert said.code == 1
    assert "refuted" in said.out
    assert "Verdict: refuted." in said.out


@pytest.mark.parametrize(
    ("declared", "inner", "gap", "words"),
    [
        (9, 0, 1e-16, "proven"),
        (8, 0, 1e-16, "proven; 1 dimension not declared"),
        (2, 1, 1e-16, "proven; 7 dimensions not declared; 1 inner axis not declared"),
        (9, 2, 1e-16, "proven; 2 inner axes not declared"),
        (9, 0, 1e-9, "proven; the count of what is not declared is not clear"),
        (None, 0, 0.0, "proven; what is not declared was not counted"),
    ],
)
def test_the_verdict_says_what_is_left_at_every_door(
    declared: int | None,
    inner: int,
    gap: float,
    words: str,
    plain: Path,
    isomerge: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A proof of what is declared is none of what is not: on the command line, in the JSON, and in the one line that
    the Python API's report is. A verdict made of the proof alone would be `proven` in all six."""
    count = None if declared is None else Redundancy(30, 9, declared, 0, (1e-8, gap), (), ())
    axes = tuple(InnerAxis("a", "b", 3, "Perm") for _ in range(inner))
    counted = Completeness(count, None if count else "too large", axes)
    monkeypatch.setattr(proving, "try_completeness", lambda *args, **more: counted)
    law = Law("ff", "ff", "Perm", (), 1e-15, 1e-9)
    monkeypatch.setattr(proving, "try_spec", lambda *args: Trial("own", "TorchTransformer", (law,), (), (), ()))
    monkeypatch.setenv("ISOMERGE_CACHE", str(plain / "cache"))
    said = isomerge(
        "prove", plain / "a", "--spec", TEXT, "--module", f"{plain / 'own.py'}:tiny", "--json", plain / "p"
    )
    assert said.code == 0, said.err
    assert f"Verdict: {words}." in said.out
    report = json.loads((plain / "p").read_text())
    assert report["verdict"] == words
    assert report["complete"] is (None if count is None else words == "proven" or gap == 1e-9)
    assert f": {words}; " in line_of(report)

"""``isomerge prove``: exit codes, what is said, modules of one's own, and the proof that the next command finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isomerge.cli.proving import verdict_of
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
    ("declared", "inner", "words"),
    [
        (9, [], "proven"),
        (8, [], "proven; 1 dimension not declared"),
        (2, [{}], "proven; 7 dimensions not declared; 1 inner axis not declared"),
        (None, [], "proven; what is not declared was not counted"),
    ],
)
def test_the_verdict_says_what_is_left(declared: int | None, inner: list[dict[str, Any]], words: str) -> None:
    """A proof of what is declared is none of what is not."""
    counted = None if declared is None else {"true": 9, "declared": declared}
    assert verdict_of({"proven": True, "redundancy": counted, "inner": inner}) == words
    assert verdict_of({"proven": False, "redundancy": None, "inner": []}) == "refuted"

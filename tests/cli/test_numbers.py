"""Lists of numbers on the command line, and ranks by energy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from isomerge.merging.adapter.extract_lora import extract_lora
from merging.test_extract_lora import tune

LISTS = {
    "weights apart": (["--weights", "0.5", "0.5"], ["0.5 is taken for a model", "--weights 0.5,0.5"]),
    "more weights apart": (["--weights", "1", "2", "3e-1"], ["2 is taken for a model", "joined by commas"]),
    "a parameter apart": (["--method", "linear", "-p", "weight=0.5", "0.3"], ["0.3 is taken for a model"]),
    "binary data": (["-p", "weight=!!binary aGk="], ["--parameter weight=!!binary aGk=", "kind binary"]),
    "no YAML": (["-p", "weight=[1"], ["--parameter weight=[1"]),
    "sixties": (["-p", "weight=1:30"], ["weight", "a finite number"]),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_numbers(name: str, stored: Callable, refuses: Callable[..., str], tmp_path: Path) -> None:
    """Written apart, they would be models; each sentence shows how they are written."""
    arguments, words = LISTS[name]
    refuses("merge", stored("gpt2"), stored("gpt2", 5), "-o", tmp_path / "out", *arguments, words=words)


def test_energy_alone_decides(stored: Callable, tmp_path: Path) -> None:
    """Beyond the usual rank of 16, unless a rank is given as well."""
    base = stored("gpt2")
    tuned = tune(base, tmp_path / "tuned", 24)
    free = extract_lora(tuned, base, tmp_path / "energy", energy=0.999999)
    assert free.rank > 16
    assert free.share < 1e-3
    assert extract_lora(tuned, base, tmp_path / "default").rank == 16
    both = extract_lora(tuned, base, tmp_path / "both", energy=0.999999, rank=5)
    assert both.rank == 5
    assert both.share > 0.1

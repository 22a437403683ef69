"""What the commands say of searches and of learning, beside distances."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from isomerge.cli.evidence import evidence_lines
from solve.disguises import perturb


def look(step: int, barrier: float) -> dict[str, float]:
    """An entry of a history."""
    return {"step": step, "barrier": barrier, "midpoint": barrier}


def learned(*history: dict[str, float]) -> dict:
    """What a learner reports."""
    return {"history": list(history), "steps": 300, "held_out": 120, "unit": "nats"}


def test_sentences() -> None:
    """The best look counts, not the last one; a run that gained nothing says so."""
    assert evidence_lines([{"objective": [1.0]}]) == []
    (said,) = evidence_lines([{"learned": learned(look(0, 1.5), look(270, 0.02), look(300, 0.03))}])
    assert "1.500 -> 0.020 nats on 120 examples held out, at step 270 of 300." in said
    (said,) = evidence_lines([{"learned": learned(look(0, 0.01), look(300, 0.03))}])
    assert "no step of 300 lowered the loss" in said
    search = {"divergence": {"held_out": [0.5, 0.4]}, "accepted": {"a": 2, "b": 1}, "moves": 9, "examples": [4, 5]}
    (said,) = evidence_lines([{"search": {**search, "unit": "nats"}}])
    assert said == (
        "Searched: the midpoint's divergence from the models' mean 0.500 -> 0.400 nats on 5 examples held out, "
        "3 of 9 "
        "moves kept."
    )
    together = {"learned": learned(look(0, 1.0), look(300, 0.1))}
    first, second, last = evidence_lines([together, together], together)
    assert (first[:16], second[:16]) == ("Learned source 1", "Learned source 2")
    assert last.startswith("Learned together: the highest point of the simplex")


def test_commands_tell(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """Both commands; what was learned is not called the closest point."""
    file = tmp_path / "ids.safetensors"
    save_file({"input_ids": torch.randint(1, 60, (6, 9), generator=torch.Generator().manual_seed(0))}, file)
    a, b = stored("llama", 0), stored("llama", 5)
    options = ["--learn", file, "--steps", 1, "--spaces", "ov", "--no-functional"]
    said = isomerge("align", b, "--onto", a, "-o", tmp_path / "one", *options)
    assert "Learned: " in said.out
    assert f"the function of {b}, matched to {a}." in said.out
    assert "Learned together: " in isomerge("merge", a, b, "-o", tmp_path / "two", "--anchor", "none", *options).out


def test_what_is_left_is_not_called_matched(stored: Callable, isomerge: Callable, tmp_path: Path) -> None:
    """A fine-tune is left as it is: the command says so, and its card."""
    a = stored("llama", 0)
    tuned = perturb(a, tmp_path / "tuned", 0.05)
    said = isomerge("align", tuned, "--onto", a, "-o", tmp_path / "out")
    assert f"Wrote {tmp_path / 'out'}: {tuned} as it is." in said.out
    assert "The second model below as it is" in (tmp_path / "out" / "README.md").read_text()

"""A sample of the benchmark of `verify`'s verdicts, what it calls wrong, and what the page says of its results."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import isomerge
from benchmarks.verdicts.__main__ import BENCHMARK, judged, sentence, total
from benchmarks.verdicts.models import MODELS, apart, in_double, said, stored
from benchmarks.verdicts.mutations import Mutant, mutant
from depth import more
from isomerge.evidence.outputs import compare_outputs


@pytest.mark.parametrize("name", ["llama-biased", "bert", *more(*MODELS)])
def test_a_sample_has_no_wrong_verdict(name: str, tmp_path: Path) -> None:
    """Both models of every pair run in float64."""
    weights, config = stored(name, tmp_path)
    base = said(weights, config)
    answers = [judged(weights, config, mutant(name, weights, config, n), base) for n in range(2000, 2008)]
    assert [wrong for _, wrong in answers if wrong is not None] == []
    assert len({told for told, _ in answers}) > 1


def test_a_wrong_verdict_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same of models whose outputs differ, or of which one does not run; not the same, and a refusal, of twins."""
    weights, config = stored("gpt2", tmp_path)
    base = said(weights, config)
    real = isomerge.verify(weights_and := (weights, config), weights_and)
    changed = {**weights, "transformer.wpe.weight": weights["transformer.wpe.weight"] * 1.1}

    def answers(same: bool | None, found: Mutant) -> bool:
        monkeypatch.setattr(isomerge, "verify", lambda *_: {**real, "same": same})
        return judged(weights, config, found, base)[1] is not None

    twin, other = Mutant("twin", "", weights, config, symmetric=True), Mutant("other", "", changed, config)
    broken = Mutant("broken", "", weights, {**config, "n_head": 5})
    assert [answers(same, twin) for same in (True, False, None)] == [False, True, False]
    assert [answers(same, other) for same in (True, False, None)] == [True, False, False]
    assert [answers(same, broken) for same in (True, False, None)] == [True, False, False]


def test_everything_is_in_double() -> None:
    """Norms and softmax that transformers computes in float32 are not rounded, and torch is as it was behind it."""
    x = torch.ones(1, dtype=torch.float64) / 3
    with in_double():
        assert torch.equal(x.to(torch.float32), x)
        assert torch.equal(x.float(), x)
    assert x.to(torch.float32).dtype == x.float().dtype == torch.float
    assert torch.float32 is torch.float is not torch.float64
    assert apart({"x": x}, {"x": x * torch.nan}) == apart({"x": x}, {"x": x[:0]}) == float("inf")


def test_mutations_are_drawn_from_their_number(tmp_path: Path) -> None:
    """The same again, and each number another one."""
    weights, config = stored("opt", tmp_path)
    one, two = (mutant("opt", weights, config, 5) for _ in range(2))
    assert (one.kind, one.what, one.config) == (two.kind, two.what, two.config)
    assert all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights)
    assert len({mutant("opt", weights, config, number).kind for number in range(25)}) > 8


def test_small_experts_run(tmp_path: Path) -> None:
    """Products in groups want strides of 16 bytes: experts are taken one by one."""
    stored("qwen3_moe", tmp_path)
    assert max(compare_outputs(tmp_path, tmp_path).values()) == 0


def test_the_page_has_the_numbers_of_the_results() -> None:
    """As `python -m benchmarks.verdicts` writes them; none is wrong."""
    (section,), cells = BENCHMARK.sections, BENCHMARK.results().cells
    page = section.path.read_text()
    assert page == section.within(page, cells)
    assert f"{total(cells)['mutations']:,} mutations" in sentence(cells)
    assert total(cells)["wrong"] == 0

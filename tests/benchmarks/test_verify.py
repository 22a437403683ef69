"""What the page says of `verify`'s benchmark is what its results say; and a pair on which it was wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import isomerge
from benchmarks.fingerprints.derive import disguised, read
from benchmarks.verify import BENCHMARK, sentence
from depth import thorough
from isomerge.models.recognised import recognise
from toys import save_toy


def test_the_page_has_the_numbers_of_the_results() -> None:
    """As `python -m benchmarks.verify` writes them."""
    (section,) = BENCHMARK.sections
    page = section.path.read_text()
    assert page == section.within(page, BENCHMARK.results().cells)


def test_the_sentence_counts_every_answer() -> None:
    """Twins that are not called the same, near-twins that are, and what nothing can tell."""
    counts = {
        "twin: same": 18,
        "twin: different": 2,
        "a sign turned: different": 15,
        "a sign turned: cannot tell": 1,
        "two rows exchanged: same, rightly": 4,
    }
    told = sentence({"model": {"pairs": 1040, "wrong": [{}, {}], "counts": counts}})
    assert "1,040 pairs](../../benchmarks/results/verify.json) over 1 test models, 18 of 20 twins" in told
    assert (
        "18 of 20 twins are called *same* and 15 of 20 near-twins *different*, 4 near-twins rightly *same*" in told
    )
    assert told.endswith("1 pairs *cannot tell*; 2 are wrong.")


@thorough
def test_a_tower_behind_convolutions_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream has no embedding to start from, but norms; where no basis is found, equal fingerprints leave the
    verdict open."""
    model = recognise(save_toy("gemma4-clipped", tmp_path / "a", dtype=torch.float32))
    weights, config = read(model), model.config
    pair = (weights, config), (read(disguised(weights, config, 18)), config)
    assert isomerge.verify(*pair)["same"] is True
    monkeypatch.setattr("isomerge.solve.pairs.stream_descent.streams_by_norms", lambda *_: {})
    found = isomerge.verify(*pair)
    assert found["same"] is None
    assert re.search(
        r"fingerprints, .*, agree to .*, but no basis .* was found in which audio_tower\.", found["reason"]
    )

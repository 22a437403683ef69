"""Orders of spaces that nothing matches are told in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

import isomerge
from isomerge.archs import spec_texts
from isomerge.errors import IsomergeError
from toys import save_toy


def test_a_fibre_over_spaces_that_meet_is_refused(tmp_path: Path) -> None:
    """A sign for every query coordinate lies over the query heads, which share output projections with the values."""
    text = spec_texts()["llama"][1]
    changes = {
        "space ov: GL": "space sq: Sign[l, kv, g, c, pair]\nsize sq = 1\nspace ov: GL",
        "(kv g c pair)": "(kv g c pair sq)",
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "mine.spec").write_text(text)
    a, b = (save_toy("llama", tmp_path / str(seed), seed=seed) for seed in (0, 1))
    with pytest.raises(IsomergeError, match=r"mine\.spec: space sq lies over one of .*leave sq out"):
        isomerge.distance(a, b, spec=tmp_path / "mine.spec")

"""docs/lab/equalities.md has every case that is held to peft and diffusers, each within its bound."""

from __future__ import annotations

from benchmarks.equalities import ABOUT, KINDS, PAGE
from image_loras import FORMS
from merging.peft_reference import MERGES, PARAMETERS


def test_every_case_is_within_its_bound() -> None:
    """A page that is older than the cases, or a case that is out of bounds, fails."""
    text = PAGE.read_text()
    assert text.startswith(ABOUT)
    tables = text.removeprefix(ABOUT).split("\n## ")[1:]
    assert [table.partition("\n")[0] for table in tables] == list(KINDS)
    for table, cases in zip(tables, (MERGES, PARAMETERS, FORMS), strict=True):
        rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
        assert len(rows) == len(cases) > 4
        assert all(float(largest) <= float(bound) < 1e-4 for _, largest, bound in rows)

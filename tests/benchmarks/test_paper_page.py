"""The sentences of the page: what numbers must make it say, and what must not be said of them."""

from __future__ import annotations

import json

import pytest

import benchmarks.paper.__main__ as driver
from benchmarks.paper import page, sentences
from benchmarks.paper.results import Results
from benchmarks.paper.vision import table2_section
from benchmarks.paper.vision.endpoints import PAIRS
from benchmarks.paper.vision.fusions import PAPER_ROWS


@pytest.mark.parametrize(
    ("new", "old", "word"),
    [
        ([3.0, 4.0, 5.0], [1.0, 2.1, 2.9], "higher"),
        ([1.0, 2.0, 3.0], [3.0, 4.1, 4.9], "lower"),
        ([9.0, 2.0, 1.0], [1.0, 2.0, 2.0], "not decided"),  # mean 2.3, spread 4.9
        ([9.0], [1.0], "not decided"),  # one pair has no spread
    ],
)
def test_differences_are_of_pairs(new, old, word):
    assert sentences.difference(new, old).word == word


def test_unpaired_values_are_refused():
    with pytest.raises(ValueError, match="2 values against 1"):
        sentences.difference([1.0, 2.0], [1.0])


def test_best_is_the_highest_or_the_lowest_mean_and_skips_what_was_not_measured():
    columns = {"a": [1.0, 3.0], "b": [2.5, 2.5], "c": []}
    assert sentences.best(columns) == "b"
    assert sentences.best(columns, low=True) == "a"


def test_time_is_added_up_wherever_it_is_told():
    cells = {"a": {"seconds": 2}, "b": [{"seconds": 3.5}, {"loss": 1}], "c": 7}
    assert sentences.spent(cells) == 5.5
    assert sentences.spent({**cells, "d": {"seconds": {"matching": 1, "merging": 0.5}}}) == 7
    assert [sentences.duration(s) for s in (40, 600, 7200)] == ["40 s", "10 min", "2.0 h"]


def test_every_step_is_listed_whatever_its_results_say():
    lines = driver.listing()
    assert [line[:28].rstrip() for line in lines[:-1]] == [step.name[:28] for step in driver.STEPS]
    assert not lines[-1].endswith(" 0 s")


def accuracies(path, columns):
    """Results of Table 2 where every row is the same; accuracies by column and pair."""
    found = Results(path, {})
    for row in PAPER_ROWS:
        for name, values in columns.items():
            for pair, accuracy in zip(PAIRS, values, strict=True):
                found.put(f"{row}/{name}/{pair}", {"accuracy": accuracy, "loss": 1.0})
    return found


def test_an_effect_within_the_spread_is_not_claimed(tmp_path):
    columns = {
        "none": (0.1, 0.2, 0.3),
        "paper-no-rescale": (0.3, 0.1, 0.3),
        "paper": (0.3, 0.1, 0.3),
        "all": (0.8, 0.8, 0.8),
    }
    text = " ".join(table2_section.said_of_table2(accuracies(tmp_path / "r.json", columns)))
    assert "| Simple | +2.59 | +3.33 ± 15.28 |" in text
    assert "effect does not show here** for Simple, Fisher" in text
    assert "ahead of the paper's by more than the spread in 6 of 6 rows" in text
    assert "Behind" not in text


def test_a_column_that_is_behind_is_named(tmp_path):
    columns = {
        "none": (0.1, 0.1, 0.1),
        "paper-no-rescale": (0.5, 0.5, 0.5),
        "paper": (0.5, 0.5, 0.5),
        "all": (0.4, 0.4, 0.4),
    }
    text = " ".join(table2_section.said_of_table2(accuracies(tmp_path / "r.json", columns)))
    assert "matching raises the accuracy of Simple, Fisher" in text
    assert "does not show" not in text
    assert "**Behind the paper's**: Simple (-10.00 ± 0.00)" in text


def test_a_page_becomes_a_section():
    assert page.nested("# A\n\ntext # no heading\n\n## B\n") == "## A\n\ntext # no heading\n\n### B\n"
    assert page.nested("### A\n#### B").splitlines() == ["## A", "### B"]
    assert page.nested("| a |\n").startswith("## Table 1: text\n")


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A driver whose results and data are elsewhere."""
    monkeypatch.setattr(driver, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(driver, "DATA", tmp_path / "data")
    monkeypatch.setattr(driver, "STARTED", tmp_path / "data" / "paper" / "started")
    (tmp_path / "results").mkdir()
    return tmp_path


def test_committed_results_are_set_aside_once(folders):
    cells = json.dumps({"cells": {"a": {"seconds": 4}}})
    committed, other = folders / "results" / "table2.json", folders / "results" / "steps.json"
    committed.write_text(cells)
    other.write_text("{}")
    driver.set_aside()
    assert not committed.exists()
    assert other.exists()
    assert (folders / "data" / "paper" / "before" / "table2.json").read_text() == cells
    committed.write_text("measured anew")
    driver.set_aside()  # a run that was stopped goes on with what it has
    assert committed.read_text() == "measured anew"


def test_steps_tell_how_long_they_took(folders):
    step = next(s for s in driver.STEPS if s.results == "table2.json")
    assert step.recorded() is None
    (folders / "results" / "table2.json").write_text(
        json.dumps({"cells": {"a": {"seconds": 4}, "b": {"seconds": 3}}})
    )
    assert step.recorded() == 7
    driver.note(step.name, 11.0)  # a whole run is the better witness
    assert step.recorded() == 11


def test_every_step_is_there():
    for step in driver.STEPS:
        name = step.command[1] if step.command[0] == "-m" else step.command[0].removesuffix(".py").replace("/", ".")
        path = driver.ROOT / (name.replace(".", "/"))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), name

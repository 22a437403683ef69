"""Cells of results: a run that was stopped goes on, and nothing of different settings is mixed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.paper.results import Results, mean_spread


def test_cells_are_there_when_the_file_is_opened_again(tmp_path):
    first = Results(tmp_path / "new" / "table.json", {"seeds": (0, 1)})
    assert not first.has("a")
    assert first.get("a") is None
    first.put("a", {"f1": (1.5, 2)})
    again = Results(tmp_path / "new" / "table.json", {"seeds": [0, 1]})
    assert again.has("a")
    assert again.get("a") == first.get("a") == {"f1": [1.5, 2]}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["table.json"], (
        "what was written beside is renamed"
    )
    stored = json.loads((tmp_path / "new" / "table.json").read_text())
    assert stored["settings"] == {"seeds": [0, 1]}
    assert "torch" in stored["versions"]


def test_two_writers_keep_each_others_cells(tmp_path):
    one, two = (Results(tmp_path / "table.json", {}) for _ in range(2))
    one.put("a", 1)
    two.put("b", 2)
    one.put("c", 3)
    assert Results(tmp_path / "table.json", {}).cells == {"a": 1, "b": 2, "c": 3}


def test_other_settings_are_refused_by_name(tmp_path):
    Results(tmp_path / "table.json", {"epochs": 2, "lr": 1e-4}).put("a", 1)
    with pytest.raises(SystemExit, match=r"table\.json: measured with another epochs, test;"):
        Results(tmp_path / "table.json", {"epochs": 3, "lr": 1e-4, "test": 1})


def test_a_value_that_json_lacks_leaves_the_file_as_it_was(tmp_path):
    results = Results(tmp_path / "table.json", {})
    results.put("a", 1)
    with pytest.raises(TypeError):
        results.put("b", {1, 2})
    assert not results.has("b")
    assert Results(tmp_path / "table.json", {}).cells == {"a": 1}


def test_mean_and_spread():
    values = [3.0, 5.0, 10.0]
    assert mean_spread(values) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert mean_spread([4]) == (4.0, 0.0)

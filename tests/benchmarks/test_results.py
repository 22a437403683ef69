"""Cells of results: a run that was stopped goes on, and nothing of different settings is mixed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from benchmarks.harness import Benchmark, Results, Section, chosen_of, main, mean_spread


def test_cells_are_there_when_the_file_is_opened_again(tmp_path):
    first = Results(tmp_path / "new" / "table.json", {"seeds": (0, 1)})
    assert first.cells == {}
    first.put("a", {"f1": (1.5, 2)})
    again = Results(tmp_path / "new" / "table.json", {"seeds": [0, 1]})
    assert again.cells == first.cells == {"a": {"f1": [1.5, 2]}}
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
    assert "b" not in results.cells
    assert Results(tmp_path / "table.json", {}).cells == {"a": 1}


def test_mean_and_spread():
    values = [3.0, 5.0, 10.0]
    assert mean_spread(values) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert mean_spread([4]) == (4.0, 0.0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Results go to a folder of the test."""
    monkeypatch.setattr("benchmarks.harness.RESULTS", tmp_path)


def benchmark(measured: list[int], **more: Any) -> Benchmark:
    """Squares of three numbers; what is measured is noted."""

    def measure(number: int) -> dict[str, float]:
        measured.append(number)
        return {"square": number**2}

    return Benchmark(
        "squares",
        lambda asked: {f"of {n}": {"number": n} for n in (1, 2, 3)},
        measure,
        inside="squares",
        about=lambda cells: {"sum": sum(cell["square"] for cell in cells.values())},
        **more,
    )


def test_what_is_measured_is_kept_and_what_is_named_is_measured_anew(tmp_path):
    measured: list[int] = []
    bench, file = benchmark(measured), tmp_path / "squares.json"
    bench.main(["--part", "0/2"])
    assert measured == [1, 3]
    bench.main([])
    assert measured == [1, 3, 2]
    whole = {"sum": 14, "squares": {"of 1": {"square": 1}, "of 3": {"square": 9}, "of 2": {"square": 4}}}
    assert json.loads(file.read_text()) == whole
    bench.main(["--only", "of 2"])
    assert measured == [1, 3, 2, 2]
    bench.main(["--results", str(tmp_path / "other"), "--only", "of 1"])
    bench.main(["--results", str(tmp_path / "other"), "--minutes", "-1"])
    assert measured == [1, 3, 2, 2, 1]
    assert json.loads((tmp_path / "other" / "squares.json").read_text())["sum"] == 1
    assert chosen_of(["of 1", "of 2", "at 3"], ["of *"]) == ["of 1", "of 2"]
    with pytest.raises(SystemExit, match="of 4: no cell"):
        bench.main(["--only", "of 4"])


def test_what_is_there_may_be_too_little(tmp_path):
    measured: list[int] = []
    bench = benchmark(measured, complete=lambda cell, settings: cell["square"] > 1)
    for _ in range(2):
        bench.main([])
    assert measured == [1, 2, 3, 1]


def test_a_worse_ratio_fails_and_writes_nothing(tmp_path):
    measured: list[int] = []
    bench, file = benchmark(measured, ratios=lambda cell: {"square": cell["square"]}), tmp_path / "squares.json"
    bench.main([])
    bench.main(["--check"])
    committed = file.read_text().replace('"square": 9', '"square": 7')
    file.write_text(committed)
    with pytest.raises(SystemExit, match="worse: of 3: square is 9, committed 7"):
        bench.main(["--check"])
    assert file.read_text() == committed


def test_a_section_is_what_stands_between_its_marks(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.harness.DOCS", tmp_path)
    section = Section("page.md", "squares", lambda cells: f"{len(cells)} numbers")
    section.path.write_text("before <!-- squares: begin -->\nold\n<!-- squares: end --> behind\n")
    benchmark([], sections=(section,)).main([])
    wanted = "before <!-- squares: begin -->\n3 numbers\n<!-- squares: end --> behind\n"
    assert section.path.read_text() == wanted
    with pytest.raises(ValueError, match="unpack"):
        section.within("a page without marks", {})


def test_a_long_cell_goes_on_with_what_was_kept(tmp_path):
    def measure(upto: int, kept: list[int] | None, keep: Any) -> list[int]:
        numbers = kept or []
        while len(numbers) < upto:
            numbers = [*numbers, len(numbers)]
            keep(numbers)
            if numbers == [0, 1]:
                raise KeyboardInterrupt
        return numbers

    long = Benchmark("long", lambda asked: {"all": {"upto": 4}}, measure, resumes=True, inside="")
    with pytest.raises(KeyboardInterrupt):
        long.main([])
    assert long.results().cells == {"all": [0, 1]}
    long.main(["--only", "all", "--minutes", "-1"])
    long = Benchmark(
        "long", long.cells, measure, resumes=True, inside="", complete=lambda cell, how: len(cell) == how["upto"]
    )
    main(long, benchmark([]), arguments=["--only", "long/*", "--list"])
    main(long, benchmark([]), arguments=[])
    assert long.results().cells == {"all": [0, 1, 2, 3]}
    assert set(benchmark([]).results().cells) == {"of 1", "of 2", "of 3"}

"""The paper's page: made of the committed results, what numbers must make it say, and what must not be said of them."""

from __future__ import annotations

import json
from argparse import Namespace
from itertools import product

import pytest

import benchmarks.paper.__main__ as driver
from benchmarks import harness
from benchmarks.paper import figures, page, sentences, table1, table1_page, text, vits


@pytest.mark.parametrize(
    ("new", "old", "word"),
    [
        ([3.0, 4.0, 5.0], [1.0, 2.1, 2.9], "higher"),
        ([1.0, 2.0, 3.0], [3.0, 4.1, 4.9], "lower"),
        ([9.0, 2.0, 1.0], [1.0, 2.0, 2.0], "not decided"),  # mean 2.3, spread 4.9
        ([3.0, 4.0, 5.0], [1.0, 3.0, 4.5], "not decided"),  # mean 1.2, spread 0.8, interval 1.9
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


def test_the_page_is_what_the_committed_results_say():
    assert page.page() == page.PAGE.read_text()


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A place for results; what was read of the committed ones is forgotten."""
    monkeypatch.setattr(figures, "PAPER", tmp_path)
    figures.cells.cache_clear()
    yield tmp_path
    figures.cells.cache_clear()


def test_a_heading_whose_cells_are_not_measured_is_left_out(elsewhere, capsys):
    text = page.page()
    assert "## Table 2" not in text
    assert "### More than two models" in text  # from the barrier benchmark
    assert "## Table 2: merging two ViTs is left out: 'table2' was not measured" in capsys.readouterr().out


def table2_of(folder, columns):
    """Results of Table 2 where every row is the same; accuracies by column and pair."""
    pairs = {name: dict(zip(vits.PAIRS, values, strict=True)) for name, values in columns.items()}
    cells = {
        f"{row}/{name}/{pair}": {"accuracy": pairs[name][pair], "loss": 1.0}
        for row, name, pair in product(vits.PAPER_ROWS, columns, vits.PAIRS)
    } | {f"endpoints/{pair}": [{"accuracy": 0.9}, {"accuracy": 0.9}] for pair in vits.PAIRS}
    (folder / "table2.json").write_text(json.dumps({"cells": cells}))


def test_an_effect_within_the_spread_is_not_claimed(elsewhere):
    paper, ours = (0.3, 0.1, 0.3), dict.fromkeys(page.OURS, (0.8, 0.8, 0.8))
    table2_of(elsewhere, {"none": (0.1, 0.2, 0.3), "paper-no-rescale": paper, "paper": paper, **ours})
    words = page.what_matching_adds()
    assert "| Simple | +2.59 | +3.33 ± 15.28 |" in words["gains"]
    assert "effect does not show here** for Simple, Fisher" in words["verdicts"]
    assert words["verdicts"].count("is ahead of the paper's in 6 of 6 rows.") == len(page.OURS)
    assert "behind" not in words["verdicts"]
    assert f"“{figures.LABELS['learned']}” -10.00 at best" in words["verdicts"], "against the models themselves"


def test_a_column_that_is_behind_is_named(elsewhere):
    paper, ours = (0.5, 0.5, 0.5), dict.fromkeys(page.OURS, (0.4, 0.4, 0.4))
    table2_of(elsewhere, {"none": (0.1, 0.1, 0.1), "paper-no-rescale": paper, "paper": paper, **ours})
    verdicts = page.what_matching_adds()["verdicts"]
    assert "matching raises the accuracy of Simple, Fisher" in verdicts
    assert "does not show" not in verdicts
    assert verdicts.count("is ahead of the paper's in 0 of 6 rows, and behind in 6.") == len(page.OURS)


def test_no_column_is_chosen_by_what_it_reaches(elsewhere):
    """One of ours that is best in a row says nothing for the others, and two pairs of three decide nothing."""
    ours = {name: (0.3, 0.3, 0.3 + 0.3 * (name == "learned")) for name in page.OURS}
    table2_of(elsewhere, {"none": (0.3, 0.3, 0.3), "paper-no-rescale": (0.3,) * 3, "paper": (0.3,) * 3, **ours})
    words = page.what_matching_adds()
    assert "+10.00 ± 17.32 (not decided)" in words["gains"]
    assert words["verdicts"].count("is ahead of the paper's in 0 of 6 rows.") == len(page.OURS)


def test_a_pair_that_is_refused_is_told_as_such(elsewhere):
    committed = json.loads((harness.RESULTS / "paper" / "families.json").read_text())
    for key in committed["cells"]:
        if key.endswith("rxnfp-pretrained+rxnfp-ft-10k"):
            committed["cells"][key] = {"refused": "they do not fit"}
    (elsewhere / "families.json").write_text(json.dumps(committed))
    words = page.real()
    assert "| rxnfp-pretrained + rxnfp-ft-10k | – | refused | refused | refused | – |" in words["distances"]
    assert "| rxnfp-pretrained + rxnfp-ft-10k | refused |" in words["masked"]
    assert words["refused"] == " Refused: they do not fit."
    assert words["tokens"] == 277


def table1_of(folder):
    """Cells of Brown for two seeds: the paper's matching adds a point to micro F1, and a hundredth with seed 1."""
    task, cells = text.TASKS["brown"], {}
    for seed in (0, 1):
        for domain in task.domains:
            f = {"macro": 10.0, "micro": 20.0 + (domain == "news")}
            cells[table1.key(task, seed, "end", domain)] = dict.fromkeys((*task.domains, *task.held_out), f)
        for group in text.groups(task):
            tested = (*group.inside, *group.outside)
            cells[table1.key(task, seed, "ensemble", group.name)] = {
                d: {"macro": 1.0, "micro": 2.0} for d in tested
            }
            for method, column in product(table1.METHODS, table1.COLUMNS):
                f = {"macro": 30.0, "micro": 40.0 + seed + (column == "paper") * (1 + seed / 100)}
                cells[table1.key(task, seed, group.name, method, column)] = {
                    "scores": dict.fromkeys(tested, f), "own_head": dict.fromkeys(group.inside, f),
                    "distances": [] if column == "none" else [[4.0, 3.0]],
                    "seconds": {"matching": 1, "statistics": 2, "merging": 3},
                }  # fmt: skip
    return cells


def test_table_1_says_what_its_cells_say(elsewhere):
    task, cells = text.TASKS["brown"], table1_of(elsewhere)
    preset = table1.Preset("two", 1, 1, 1, 1, 1.0, 1, 1, (0, 1), 1, 1)
    inside = table1_page.Section(cells, preset, task, "inside", "micro", "Inside").text()
    before, after = "30.00 ± 0.00 / 40.50 ± 0.71", "30.00 ± 0.00 / 41.50 ± 0.71"
    assert f"| Simple | {before} | {before} | {after} |" in inside, (
        "the paper's own column, then all of its matching"
    )
    assert "by matching, the classifier copied," in inside
    assert "Not measured" not in inside
    assert "the paper's matching: Simple +1.00 ± 0.01" in inside
    assert "(distance -25.00 %)" in inside
    assert "better: Simple with the paper's matching" in inside
    assert "with ours" not in inside.partition("better:")[2].partition("Our columns")[0]
    assert "| ensemble of the members | 1.00 ± 0.00 / 2.00 ± 0.00 |" in inside
    outside = table1_page.Section(cells, preset, task, "outside", "micro", "Outside").text()
    assert "| better member, by these very tests | 10.00 ± 0.00 / 21.00 ± 0.00 |" in outside
    assert "| members, on average | 10.00 ± 0.00 / 20.33 ± 0.00 |" in outside
    assert table1_page.OWN_HEAD in inside
    assert table1_page.OWN_HEAD not in outside
    one = table1_page.Section(
        cells, table1.Preset("one", 1, 1, 1, 1, 1.0, 1, 1, (0,), 1, 1), task, "inside", "micro", ""
    ).text()
    assert "One seed says nothing of chance." in one
    del cells[table1.key(task, 1, "news+learned+adventure", "fisher", "published")]
    without = table1_page.Section(cells, preset, task, "outside", "micro", "Outside").text()
    assert "**Not measured: the paper's, attention alone**" in without
    assert f"| Simple | {before} | {after} |" in without
    del cells[table1.key(task, 1, "news+learned+adventure", "fisher", "ours")]
    with pytest.raises(KeyError, match="fisher/ours"):
        table1_page.Section(cells, preset, task, "outside", "micro", "Outside").text()


def test_what_the_paper_prints_stands_beside_the_table_that_is_made_like_it_and_nowhere_else(elsewhere):
    """In domain by the members' own classifiers, out of domain by the merged one; no text of the paper is like
    sentiment out of domain."""
    task, cells = text.TASKS["brown"], table1_of(elsewhere)
    preset = table1.Preset("two", 1, 1, 1, 1, 1.0, 1, 1, (0, 1), 1, 1)
    inside = table1_page.Section(cells, preset, task, "inside", "micro", "Inside").text()
    merged, own = inside.split(table1_page.OWN_HEAD)
    assert "in the paper" not in merged
    assert "in the paper, NER: RoBERTa; DeBERTa |" in own
    assert "| 60.88 → 60.88; 27.54 → 31.31 |" in own
    outside = table1_page.Section(cells, preset, task, "outside", "micro", "Outside").text()
    assert "| 26.86 → 26.87; 10.80 → 14.06 |" in outside
    widths = {line.count("|") for line in outside.splitlines() if line.startswith("|")}
    assert widths == {8}, "every row of the table has the column"
    for _, rows in table1_page.PRINTED.values():
        assert [rows["regmean"][k][0] for k in (0, 1)] == [rows["simple"][k][0] for k in (0, 1)], (
            "the page says that the paper's RegMean without matching repeats its Simple"
        )
    assert page.PAGE.read_text().count("in the paper, ") == len(table1_page.PRINTED)


@pytest.fixture
def driven(tmp_path, monkeypatch):
    """A driver whose results and data are elsewhere."""
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(driver, "MADE", tmp_path / "data")
    monkeypatch.setattr(driver, "TIMES", tmp_path / "results" / "paper" / "steps.json")
    (tmp_path / "results" / "paper").mkdir(parents=True)
    return tmp_path


def test_committed_results_are_set_aside_once(driven):
    committed = driven / "results" / "paper" / "table2.json"
    committed.write_text("committed")
    driver.TIMES.write_text("{}")
    driver.set_aside()
    assert not committed.exists()
    assert driver.TIMES.exists()
    assert (driven / "data" / "before" / "table2.json").read_text() == "committed"
    committed.write_text("measured anew")
    driver.set_aside()  # a run that was stopped goes on with what it has
    assert committed.read_text() == "measured anew"


def test_steps_remember_what_they_took_unless_there_was_nothing_to_do(driven, monkeypatch):
    clock = iter([0.0, 60.0, 100.0, 110.0, 200.0, 240.0])
    monkeypatch.setattr(driver.time, "perf_counter", lambda: next(clock))
    monkeypatch.setitem(driver.STEPS, "page", ("-c", ""))
    took = []
    for _ in range(3):
        driver.run("page", 1)
        took.append(driver.times()["page"])
    assert took == [60.0, 60.0, 40.0]
    assert any(line.split() == ["page", "40", "s"] for line in driver.listing())


def test_a_step_that_fails_is_named(driven, monkeypatch):
    monkeypatch.setitem(driver.STEPS, "page", ("-c", "raise SystemExit(3)"))
    with pytest.raises(SystemExit, match="page failed"):
        driver.run("page", 1)
    assert driver.times() == {}


def test_every_step_is_a_command_that_is_there():
    for name, command in driver.STEPS.items():
        if command[:2] == ("-m", "benchmarks.paper"):
            assert command[2] == "--page" or command[2] == name in driver.COMMANDS
        elif command[0] == "-m":
            assert (harness.ROOT / command[1].replace(".", "/") / "__main__.py").is_file(), name
        else:
            assert (harness.ROOT / command[0]).is_file(), name


def test_committed_cells_are_those_that_a_whole_run_measures():
    """But for columns that came later, of which the page says that they are missing."""
    for name, benchmark in driver.BENCHMARKS.items():
        missing = set(benchmark.cells(Namespace())) ^ set(benchmark.results().cells)
        assert not missing or {cell.rpartition("/")[2] for cell in missing} <= set(table1_page.ADDED), name
        assert not missing or "**Not measured: " in page.PAGE.read_text(), name

"""The barrier benchmark's studies are those of the committed results, and its table is made from these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.barrier import baselines
from benchmarks.barrier.__main__ import BENCHMARKS, SECTION, check_same_models, measure
from benchmarks.barrier.studies import ALL_PAIRS, STUDIES, Study
from benchmarks.harness import RESULTS


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_studies_are_what_is_committed(study: Study) -> None:
    """Every pair in every way, and no more; the summary is that of the pairs."""
    document = json.loads((RESULTS / "barrier" / f"{study.name}.json").read_text())
    rows = {pair: set(entry["rows"]) for pair, entry in document["pairs"].items()}
    assert rows == {pair: set(study.rows_of(pair)) for pair in study.pairs}
    assert {len(entry["points"]) for entry in document["pairs"].values()} == {study.points}
    about = BENCHMARKS[study].about
    assert about is not None
    again = about(document["pairs"])
    assert again["family"] == document["family"]
    for row, figures in document["summary"].items():
        assert again["summary"][row] == pytest.approx(figures)


def test_the_table_is_made_from_the_results() -> None:
    """As `python -m benchmarks.barrier --page` writes it."""
    page = SECTION.path.read_text(encoding="utf-8")
    assert page == SECTION.within(page, {})


def test_baselines_are_what_is_committed() -> None:
    """Every way of three pairs, of models trained long and short, and both tables are made from these."""
    document = baselines.BENCHMARK.document()
    assert {pair: tuple(cell) for pair, cell in document["cells"].items()} == dict.fromkeys(
        (*ALL_PAIRS, *(f"880-steps/{pair}" for pair in ALL_PAIRS)), baselines.WAYS
    )
    for section in baselines.SECTIONS:
        page = section.path.read_text(encoding="utf-8")
        assert page == section.within(page, document["cells"])


def test_a_pair_goes_on_where_it_was_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rows that are there are not measured again, and the ends are measured with the models as they are stored."""
    module = "benchmarks.barrier.__main__"
    line = {
        **dict.fromkeys(("midpoint", "highest", "losses", "accuracies", "points")),
        "barrier": {"entezari": 1.0},
        "ends": [{"loss": 2.0}],
    }
    aligned: list[str] = []

    def align(study: Study, row: str, a: Path, b: Path) -> tuple[Path, dict[str, Any]]:
        aligned.append(row)
        (tmp_path / row).mkdir()
        return tmp_path / row, {"seconds": 1.0}

    monkeypatch.setattr("benchmarks.barrier.train.make", lambda run: None)
    monkeypatch.setattr(f"{module}.measured_line", lambda study, a, b: (line, {"ends": line["ends"]}))
    monkeypatch.setattr(f"{module}.aligned", align)
    kept: list[list[str]] = []
    study = Study("vit-digits", ("all", "stored", "paper"), ("0-1",))
    first = measure(study, "0-1", None, lambda entry: kept.append(list(entry["rows"])))
    assert kept == [["stored"], ["stored", "paper"], ["stored", "paper", "all"]]
    assert first["rows"]["all"]["seconds"] == 1.0
    del first["rows"]["paper"]
    measure(study, "0-1", first, lambda entry: None)
    assert aligned == ["paper", "all", "paper"]


def test_models_of_halves_are_trained_each_on_its_half() -> None:
    """Seed and half are one number."""
    halves = Study("vit-digits", ("all",), ("0-1",), width=256, half=True)
    assert halves.models == [("vit-digits", k, 256, k) for k in (0, 1)]
    assert halves.name == "vit-digits-width-256-halves"


def test_rows_of_other_models_are_not_mixed() -> None:
    """The anchor of the kept rows is told by its loss: a fifth digit is another training, a sixth another
    processor."""
    check_same_models(1.174319, 1.174317, "seed-0 and seed-1")
    with pytest.raises(SystemExit, match=r"seed-0 and seed-1.*other models"):
        check_same_models(1.17449, 1.17432, "seed-0 and seed-1")

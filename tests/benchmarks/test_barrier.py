"""The barrier benchmarks' list of commands is that of the committed results, and the page is made from these."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.barrier import measurements, reach, tables
from benchmarks.barrier.__main__ import training
from benchmarks.barrier.measurements import MEASUREMENTS, Measurement, lines
from benchmarks.barrier.run import check_same_models


def test_every_committed_file_has_its_commands() -> None:
    """And none is named twice, or is not there."""
    files = sorted(path.stem for path in measurements.RESULTS.glob("*.json"))
    assert sorted(m.name for m in MEASUREMENTS) == files


@pytest.mark.parametrize("measurement", MEASUREMENTS, ids=lambda m: m.name)
def test_commands_make_what_is_committed(measurement: Measurement) -> None:
    """Nothing less; of the lines and parts, which a command names one by one, nothing more either."""
    assert not measurement.missing()
    found = json.loads(measurement.file.read_text())
    if "family" in found:
        rows = {("pairs", p, "rows", row) for p, entry in found["pairs"].items() for row in entry["rows"]}
        fine = {len(entry["points"]) for entry in found["pairs"].values()}
        said = {int(c[c.index("--points") + 1]) if "--points" in c else 25 for c in measurement.commands}
        assert (rows, fine) == (set(measurement.keys), said)
    if measurement.name == "diagnosis":
        assert {(pair, part) for pair, parts in found.items() for part in parts} == set(measurement.keys)


def test_what_a_command_lacks_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file: all of it; one row: the others; hours are those of the rows, not of their parts and means."""
    monkeypatch.setattr(measurements, "RESULTS", tmp_path)
    wanted = lines("llama", (("0-1",), ("stored", "all")), width=512, points=11)
    assert wanted.missing() == list(wanted.keys)
    row = {"seconds": 2.0, "search": {"seconds": 1.0}}
    told = {"pairs": {"0-1": {"rows": {"all": row}}}, "summary": {"all": {"seconds": 2.0}}}
    wanted.file.write_text(json.dumps(told))
    assert wanted.missing() == [("pairs", "0-1", "rows", "stored")]
    assert wanted.seconds() == 2.0


def test_models_of_halves_are_trained_each_on_its_half() -> None:
    """Seed and half are one number, as `run.py` reads them."""
    models = lines("vit-digits", (("0-1",), ("all",)), width=256, half=True).models
    assert [training(model) for model in models] == [
        ("train.py", "vit-digits", "--seed", str(k), "--width", "256", "--half", str(k)) for k in (0, 1)
    ]


@pytest.mark.parametrize(
    ("figures", "strict", "short"),
    [([0.01, 0.03], False, "–"), ([0.02], False, "–"), ([0.02], True, "equal"), ([0.04, 0.06], True, "0.03 nats")],
)
def test_the_mean_meets_an_aim_and_the_worst_pair_is_shown(figures: list[float], strict: bool, short: str) -> None:
    """A mean that meets the aim hides no pair that does not."""
    mean = sum(figures) / len(figures)
    aim = reach.Aim("what", 0.02, " nats", figures, mean, strict=strict)
    assert aim.row("m") == f"| m | what | {len(figures)} | {mean:.3g} nats | {max(figures):.3g} nats | {short} |"


def test_the_page_is_made_from_the_results() -> None:
    """Its text is what `benchmarks/barrier/tables.py` writes."""
    assert tables.PAGE.read_text() == tables.page()


def test_rows_of_other_models_are_not_mixed() -> None:
    """The anchor of the kept rows is told by its loss: a fifth digit is another training, a sixth another processor."""
    check_same_models(1.174319, 1.174317, "seed-0 and seed-1")
    with pytest.raises(SystemExit, match=r"seed-0 and seed-1.*other models"):
        check_same_models(1.17449, 1.17432, "seed-0 and seed-1")

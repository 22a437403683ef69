"""The barrier benchmarks' list of commands is that of the committed results, and the page is made from these."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.barrier import cost_table, diagnose, measurements, reach, run, tables
from benchmarks.barrier.__main__ import training
from benchmarks.barrier.measurements import MEASUREMENTS, Measurement, lines
from benchmarks.barrier.run import check_same_models
from isomerge.matching.selection import select_spaces
from isomerge.models.recognised import recognise
from isomerge.observe.data.examples import Examples
from isomerge.observe.data.opening_data import open_data
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import evaluate
from isomerge.solve.pairs import solutions
from toys import config_of, save_toy


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
    ("figures", "strict", "met"),
    [([0.01, 0.03], False, True), ([0.02], False, True), ([0.02], True, False), ([0.04, 0.06], True, False)],
)
def test_the_mean_meets_an_aim_and_the_worst_pair_is_shown(figures: list[float], strict: bool, met: bool) -> None:
    """A mean that meets the aim hides no pair that does not."""
    mean = sum(figures) / len(figures)
    aim = reach.Aim("what", 0.02, " nats", figures, mean, strict)
    worst = f", worst {max(figures):.3g}" if len(figures) > 1 else ""
    assert (aim.met, aim.told("m")) == (met, f"m ({mean:.3g} nats{worst})")


@pytest.mark.parametrize(
    ("count", "counted", "rows"), [(7, None, [1, 3, 5]), (10, 3, [5, 6, 7]), (10, 5, [5, 6, 7, 8, 9])]
)
def test_diagnoses_are_judged_on_what_the_tables_do_not_count(
    count: int, counted: int | None, rows: list[int]
) -> None:
    """The first ones are the tables'; where all are, every second one."""
    examples = Examples({"pixel_values": torch.arange(count)}, False)
    assert diagnose.unseen_half(examples, counted).tensors["pixel_values"].tolist() == rows
    with pytest.raises(SystemExit, match="too few"):
        diagnose.unseen_half(examples, count)


def test_a_diagnosis_is_of_unseen_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ends are the models' own losses by label on every second test image."""
    rng = torch.Generator().manual_seed(0)
    (tmp_path / "digits").mkdir()
    for split, count in (("train", 24), ("test", 12)):
        images, labels = torch.randn(count, 3, 8, 8, generator=rng), torch.randint(0, 5, (count,), generator=rng)
        save_file({"pixel_values": images, "labels": labels}, tmp_path / "digits" / f"{split}.safetensors")
    a, b = (save_toy("vit", tmp_path / f"seed-{seed}", seed=seed, dtype=torch.float32) for seed in (0, 1))
    monkeypatch.setattr(run, "DATA", tmp_path)
    monkeypatch.setattr(diagnose, "DATA", tmp_path)
    for name in ("MatchedLine", "Learner"):
        monkeypatch.setattr(solutions, name, getattr(solutions, name))  # put back behind the test
    seen: dict[tuple[float, ...], float] = {}
    measured = diagnose.UnseenLearner.measured
    monkeypatch.setattr(
        diagnose.UnseenLearner, "measured", lambda self, point: seen.setdefault(tuple(point), measured(self, point))
    )
    found = diagnose.diagnose("vit-digits", (a, b), "mlp 1", 1)
    odd = open_data(run.test_data("vit-digits"), a, config=config_of(a))
    odd = Examples({name: x[1::2] for name, x in odd.tensors.items()}, True)
    for folder, end in ((a, (1.0, 0.0)), (b, (0.0, 1.0))):
        assert seen[end] == pytest.approx(evaluate(load_module(folder), odd).loss, rel=1e-4)
    assert found["unseen"] == 6
    assert found["before_learning"] == pytest.approx(
        seen[0.5, 0.5] - (seen[1.0, 0.0] + seen[0.0, 1.0]) / 2, rel=1e-6
    )
    assert diagnose.layers_of(a) == 3
    with pytest.raises(SystemExit, match=r"mlp 3.*`mlp 0` to `mlp 2`"):
        diagnose.check_part("mlp 3", 3)


@pytest.mark.parametrize("family", ["vit", "llama", "gpt2"])
def test_every_family_has_parts_in_its_layers(family: str, tmp_path: Path) -> None:
    """Attention and neurons of a layer are parts of it, apart from each other and from the layer behind it."""
    model = recognise(save_toy(family, tmp_path / "a"))
    spec = select_spaces(model.spec, "all").spec
    parts = {
        p: {b.key for b in model.blocks if diagnose.within(p, b, spec)}
        for p in ("attention 1", "mlp 1", "mlp 2", "mlp")
    }
    assert all(len(keys) >= 2 for keys in parts.values())
    assert not parts["attention 1"] & parts["mlp 1"]
    assert parts["mlp 1"] | parts["mlp 2"] < parts["mlp"]


def test_growth_is_fitted_beyond_the_start() -> None:
    """Planted powers come back along their axis alone; a figure that is missing, or no cost at all, has none."""
    rows = {}
    for width, depth, heads in [(128, 4, 8), (256, 4, 8), (512, 4, 8), (128, 8, 8), (128, 4, 4), (1024, 9, 9)]:
        seconds = {"none": 1.0, "paper": 1.0, "all": 1 + width**2.5 * depth}
        name = f"width {width} depth {depth} heads {heads}"
        rows[name] = {k: {"cpu_seconds": s} for k, s in seconds.items()}
        rows[name]["search"] = {"cpu_seconds": 9.0, "own_cpu_seconds": depth**3}
    for axis, wanted in {
        "width": {"all": 2.5, "search": 0.0},
        "depth": {"all": 1.0, "search": 3.0},
        "heads": {"all": 0.0},
    }.items():
        found = cost_table.exponents(rows, axis)
        for kind, power in wanted.items():
            assert found[kind] == pytest.approx(power, abs=1e-9)
        assert found["paper"] is found["learned"] is found["default"] is None
    assert cost_table.exponents(rows, "width")["sizes"] == [128, 256, 512]


def test_the_pages_are_made_from_the_results() -> None:
    """Their texts are what `benchmarks/barrier/tables.py` writes."""
    assert tables.PAGE.read_text() == tables.page()
    assert cost_table.PAGE.read_text() == cost_table.page()


def test_rows_of_other_models_are_not_mixed() -> None:
    """The anchor of the kept rows is told by its loss: a fifth digit is another training, a sixth another
    processor."""
    check_same_models(1.174319, 1.174317, "seed-0 and seed-1")
    with pytest.raises(SystemExit, match=r"seed-0 and seed-1.*other models"):
        check_same_models(1.17449, 1.17432, "seed-0 and seed-1")

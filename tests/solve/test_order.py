"""The order of models is nothing where no place in it means anything: without an anchor, and with one that is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge
from depth import EVERY, more
from isomerge.matching.selection import PRESETS
from isomerge.models.recognised import recognise
from isomerge.solve.many import mean_solver as many
from isomerge.solve.match_names import MATCHES, reads_activations
from isomerge.solve.match_options import OURS, Matching
from isomerge.solve.pairs import stream_descent as streams
from isomerge.solve.standing import own_order
from solve.disguises import disguise, perturb, single, turn
from toys import FEW

ORDERS = ((0, 1, 2), (2, 0, 1), (1, 2, 0))
WEIGHTS = (0.5, 0.2, 0.3)
SPACES = [name for name in PRESETS if name != "none"]
LOOKING = (
    {"spaces": "all", "data": "DATA"},
    {"spaces": "default", "data": "DATA"},
    {"spaces": "all", "learn": "DATA"},
)
OTHER_MATCHES = [{"match": match} for match in MATCHES if match != OURS]
PAPER_TRANSPORTED = {"match": "ot-wts", "spaces": "paper"}
ANCHORLESS = [{"anchor": "none", **how} for how in ({}, *({"spaces": name} for name in SPACES), *LOOKING)]
NAMED = [
    {"onto": 1, **how}
    for how in ({}, *({"spaces": n} for n in SPACES), *LOOKING, *OTHER_MATCHES, PAPER_TRANSPORTED)
]
"""Every combination that may be asked for: without an anchor other matches are refused (`tests/solve/test_many.py`)."""
TELLING = [
    *({"anchor": "none", "spaces": name} for name in ("default", "paper", "paper-no-rotation")),
    *({"spaces": "all", "learn": "DATA", **anchor} for anchor in ({"anchor": "none"}, {"onto": 1})),
    {"onto": 1, "match": "otfusion"},
]


@pytest.fixture(autouse=True)
def few_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here needs unrelated models to settle."""
    monkeypatch.setattr(streams, "SWEEPS", 1)
    monkeypatch.setattr(many, "TRIAL", 1)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled ones."""
    file, rng = tmp_path_factory.mktemp("images") / "images.safetensors", torch.Generator().manual_seed(0)
    save_file({"pixel_values": torch.randn(48, 3, 8, 8, generator=rng), "labels": torch.arange(48) % 5}, file)
    return file


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Image classifiers that have nothing to do with each other."""
    folder = tmp_path_factory.mktemp("strangers")
    return [single("vit", folder / f"m{seed}", seed) for seed in (0, 5, 8)]


def merged(
    models: Sequence[Path], order: Sequence[int], out: Path, *, onto: int | None = None, **how: Any
) -> dict[str, torch.Tensor]:
    """What the models give in some order, each with its weight."""
    if onto is not None:
        how["onto"] = str(models[onto])
    isomerge.merge([models[k] for k in order], out=out, weights=[WEIGHTS[k] for k in order], **how)
    return load_file(out / "model.safetensors")


def apart(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    """The largest difference of any tensor, in its largest number."""
    return max(float((x - two[n]).abs().max() / x.abs().max().clamp_min(1e-3)) for n, x in one.items())


@pytest.mark.parametrize(
    "how", [*TELLING, *more(*(how for how in (*ANCHORLESS, *NAMED) if how not in TELLING))], ids=str
)
def test_three_orders_write_one_model(
    how: dict[str, Any], strangers: list[Path], images: Path, tmp_path: Path
) -> None:
    """Strangers, by all spaces, matches and anchors: the same tensors. With `own_order` giving the order of the command
    all without an anchor fail; before there was one, nine of eleven without data gave other functions."""
    reads = reads_activations(Matching(match=how.get("match", OURS))) and how.get("match", OURS) != OURS
    how = {"data": images} | how if reads else dict(how)
    how |= {name: images for name in ("data", "learn") if how.get(name) == "DATA"}
    how |= {"steps": 4, "batch_size": 16} if "learn" in how else {}
    first, *others = (merged(strangers, order, tmp_path / f"{k}", **how) for k, order in enumerate(ORDERS))
    assert max(apart(first, other) for other in others) <= 1e-4


@pytest.mark.parametrize(
    ("name", "spaces"),
    [("t5-gated", "paper-no-rotation"), *more(*((n, s) for n in FEW for s in SPACES))],
)
def test_other_architectures(name: str, spaces: str, tmp_path: Path) -> None:
    """The same of heads of a whole stack, tables that trade constants, and shared heads."""
    models = [single(name, tmp_path / f"m{seed}", seed) for seed in range(3)]
    first, *others = (
        merged(models, order, tmp_path / f"{k}", anchor="none", spaces=spaces) for k, order in enumerate(ORDERS)
    )
    assert max(apart(first, other) for other in others) <= 1e-4


@pytest.mark.parametrize("name", ["gpt2", "llama", "vit", *(FEW if EVERY else ())])
def test_the_order_is_the_models_own(name: str, tmp_path: Path) -> None:
    """Wherever they were given, and in whatever coordinates; of fine-tunes with one table of embeddings as well."""
    models = [single(name, tmp_path / f"m{seed}", seed) for seed in range(2)]
    models.append(perturb(models[0], tmp_path / "tuned", 0.1, only="mlp" if name != "vit" else "intermediate"))
    moved = [disguise(name, models[0], tmp_path / "d", 3), turn(name, models[1], tmp_path / "t", 4), models[2]]
    expected = [models[k] for k in own_order([recognise(folder) for folder in models])]
    for order in ORDERS:
        given = [recognise(models[k]) for k in order]
        assert [models[order[k]] for k in own_order(given)] == expected
    strangers = own_order([recognise(folder) for folder in models[:2]])
    assert own_order([recognise(folder) for folder in moved[:2]]) == strangers
    assert own_order([recognise(folder) for folder in models], apart=True)[0] == 0

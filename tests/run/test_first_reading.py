"""Stored tensors are read once, beside their fusing, and what is told of them is what separate passes would
tell."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge
from isomerge.checkpoint.checksums import file_checksum
from isomerge.errors import IsomergeError
from isomerge.matching.distances import squared_distance_and_norm
from isomerge.models.recognised import Model, recognise
from isomerge.models.unit_plan import make_plan
from isomerge.run import first_reading, unit_work
from isomerge.run.first_reading import first_readings
from solve.disguises import perturb, single

pytestmark = pytest.mark.matched(
    "of layers: else strangers' streams are matched as well, and small changes not at all"
)

BASES = ("task_arithmetic", "ties")
"""Methods that need a base; one of them looks at whole tensors before."""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Model]:
    """Three related Llamas, of three dtypes, larger than a few pieces."""
    for module in ("pieces", "passes", "checkpoint.tensor_place"):
        monkeypatch.setattr(f"isomerge.{module}.PIECE", 100)
    first = single("llama", tmp_path / "0")
    for number, dtype in enumerate((torch.bfloat16, torch.float16), 1):
        perturb(first, tmp_path / str(number), 0.1, seed=number)
        cast(tmp_path / str(number), dtype)
    return [recognise(tmp_path / str(number)) for number in range(3)]


def cast(folder: Path, dtype: torch.dtype) -> None:
    """The weights of a folder in another dtype."""
    file = folder / "model.safetensors"
    save_file({name: t.to(dtype) for name, t in load_file(file).items()}, file, {"format": "pt"})


def test_it_tells_what_separate_passes_tell(models: list[Model]) -> None:
    """Squares to the last bit, checksums, and the pieces themselves; in any order of the tensors."""
    plan, seen = make_plan(models[0], models[1:], "none"), 0
    fresh = [recognise(model.checkpoint.folder) for model in models]
    for unit in plan.units:
        for block, first in first_readings(unit, models).items():
            shuffled = [first.tensors[k] for k in (2, 0, 1)]
            out, parts = torch.empty(first.tensors[0].shape), []
            reading = first.reading(shuffled, torch.float32)
            reading.run(lambda given, parts=parts: (parts.append(given[1].clone()), given[0])[1], out)
            first.took(reading)
            whole = [model.assemble(block, None) for model in fresh]
            assert torch.equal(out, whole[2].float())
            assert torch.equal(torch.cat(parts), whole[0].float().reshape(-1))
            assert first.squares == [squared_distance_and_norm(whole[0], x) for x in whole[1:]]
            assert 0 < first.squares[0][0] < first.squares[0][1]
            seen += 1
    assert seen == sum(len(unit.blocks) for unit in plan.units) > 10
    for model, other in zip(models, fresh, strict=True):
        file = model.checkpoint.folder / "model.safetensors"
        assert model.checkpoint._sums == other.checkpoint._sums
        assert model.checkpoint.checksums() == {file: file_checksum(file)}


def test_a_known_checksum_is_not_computed_again(models: list[Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tensor that a pass has read before; those of the other models still are."""
    plan, summed = make_plan(models[0], models[1:], "none"), []
    name = next(iter(models[1].checkpoint.tensors))
    models[1].checkpoint.read(name)
    monkeypatch.setattr(first_reading, "crc32", lambda content, crc: summed.append(len(content)) or crc)
    (first,) = (f for unit in plan.units for f in first_readings(unit, models).values() if name in f.names)
    first.read()
    sizes = [t.nbytes for t in (first.tensors[0], first.tensors[2])]
    assert sum(summed) == sum(sizes) > 0


@pytest.mark.parametrize("number", range(3))
def test_what_is_not_finite_is_refused_by_its_name(models: list[Model], number: int) -> None:
    """In any of the models, in any piece, before the piece is given."""
    folder = models[number].checkpoint.folder
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name].view(-1)[250] = float("inf" if number else "nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    damaged = [recognise(model.checkpoint.folder) for model in models]
    plan = make_plan(damaged[0], damaged[1:], "none")
    unit = next(u for u in plan.units if any(b.key.endswith("layers.1.mlp.up_proj.weight") for b in u.blocks))
    (first,) = (
        f for b, f in first_readings(unit, damaged).items() if b.key.endswith("layers.1.mlp.up_proj.weight")
    )
    given = first.reading(first.tensors, torch.float32).pieces()
    next(given), next(given)
    with pytest.raises(IsomergeError, match=rf"{folder.name}/model.safetensors: tensor {name} has NaN"):
        next(given)


@pytest.mark.parametrize("method", ["linear", *BASES])
def test_a_merge_reads_its_inputs_once(
    models: list[Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """No pass but that of the fusing, whatever the method looks at before; the same weights come
    out."""
    refs = [model.checkpoint.folder for model in models]
    how = {"method": method, "align": False, "dtype": "float32"}
    how |= (
        {"base_model": refs[0], "parameters": {"density": 0.5} if method == "ties" else {}}
        if method in BASES
        else {}
    )
    given = refs[1:] if method in BASES else refs
    with monkeypatch.context() as patched:  # as before: whole tensors, read and measured apart
        patched.setattr(unit_work, "first_readings", lambda unit, models: {})
        apart = isomerge.merge(given, out=tmp_path / "apart", **how)
    passes = []
    read = first_reading.FirstReading.read
    monkeypatch.setattr(
        first_reading.FirstReading, "read", lambda self: [passes.append(self._squares), read(self)][1]
    )
    monkeypatch.setattr(unit_work, "squared_distance_and_norm", lambda a, b: pytest.fail("measured apart"))
    report = isomerge.merge(given, out=tmp_path / "out", **how)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "apart"))
    assert one.keys() == two.keys()
    assert all(torch.equal(t, two[name]) for name, t in one.items())
    assert report["layers"] == apart["layers"]
    assert report["distance"] == apart["distance"]
    assert passes
    assert None not in passes

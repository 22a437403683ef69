"""Infinities that a spec says are meant, as where bounds clip nothing, are kept; everywhere else they are
damage."""

from __future__ import annotations

import json
from math import inf, nan
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import isomerge
from isomerge.errors import IsomergeError
from isomerge.run.fsck import fsck
from isomerge.symmetry.language.spec_text import parse_spec

pytestmark = pytest.mark.trusted("a type of models is invented, of which no tiny one can be made")

TEXT = "model toy\nsize ff = 4\nspace ff: Perm\nup.weight ff in\ndown.weight out ff'\nbound * infinite\n"


def stored(folder: Path, seed: int, bound: list[float]) -> str:
    """A model of two maps and bounds."""
    folder.mkdir()
    rng = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.randn(shape, generator=rng) for name, shape in (("up.weight", (4, 3)), ("down.weight", (2, 4)))
    }
    save_file({**weights, "bound": torch.tensor(bound)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "toy"}))
    return str(folder)


@pytest.fixture
def spec(tmp_path: Path) -> str:
    """The spec file of such models."""
    (tmp_path / "toy.spec").write_text(TEXT)
    return str(tmp_path / "toy.spec")


@pytest.mark.parametrize(("method", "dtype"), [("linear", None), ("linear", "bfloat16"), ("multislerp", None)])
def test_infinities_that_are_meant_are_kept(method: str, dtype: str | None, spec: str, tmp_path: Path) -> None:
    """Through matching, fusion, the report and the check of what was written; what is finite beside them is
    merged."""
    models = [stored(tmp_path / name, seed, [inf, -inf, 2.0 * seed]) for seed, name in enumerate("ab")]
    report = isomerge.merge(models, out=str(tmp_path / "out"), spec=spec, method=method, dtype=dtype)
    found = load_file(tmp_path / "out" / "model.safetensors")["bound"].double()
    assert found[:2].tolist() == [inf, -inf]
    assert 0 < float(found[2]) < 2
    json.loads(json.dumps(dict(report)["distance"], allow_nan=False))
    assert fsck(tmp_path / "out", spec=spec, observer=lambda *_: None).sound


@pytest.mark.parametrize("other", [[inf, 1.0, 0.0], [inf, inf, 0.0]])
def test_other_infinities_are_refused(other: list[float], spec: str, tmp_path: Path) -> None:
    """Nothing lies between a bound and none."""
    models = [stored(tmp_path / "a", 0, [inf, -inf, 0.0]), stored(tmp_path / "b", 1, other)]
    with pytest.raises(IsomergeError, match=r"tensor bound has other infinities in .*a than in .*b"):
        isomerge.merge(models, out=str(tmp_path / "out"), spec=spec)


def test_everything_else_is_damage(spec: str, tmp_path: Path) -> None:
    """NaN where infinities are meant, and infinities where they are not."""
    models = [stored(tmp_path / "a", 0, [inf, 0.0]), stored(tmp_path / "b", 1, [inf, nan])]
    with pytest.raises(IsomergeError, match=r"b/model\.safetensors: tensor bound has NaN or infinite values"):
        isomerge.merge(models, out=str(tmp_path / "out"), spec=spec)
    Path(spec).write_text(TEXT.replace(" infinite", ""))
    with pytest.raises(IsomergeError, match=r"a/model\.safetensors: tensor bound has NaN or infinite values"):
        isomerge.merge(models, out=str(tmp_path / "out"), spec=spec)


@pytest.mark.parametrize(("dtype", "code"), [(torch.int8, "I8"), (torch.complex64, "C64")])
def test_what_moves_is_floating_point(dtype: torch.dtype, code: str, spec: str, tmp_path: Path) -> None:
    """Else nothing can be computed with it; what nothing moves may be anything."""
    a, b = (stored(tmp_path / name, seed, [1.0]) for seed, name in enumerate("ab"))
    file = Path(b) / "model.safetensors"
    found = load_file(file)
    save_file({**found, "bound": found["bound"].long()}, file)
    isomerge.merge([b, b], out=tmp_path / "out", spec=spec)
    save_file({**found, "up.weight": found["up.weight"].to(dtype)}, file)
    with pytest.raises(
        IsomergeError, match=rf"b: tensor up.weight is stored as {code}, and weights are floating-point"
    ):
        isomerge.merge([a, b], out=tmp_path / "out2", spec=spec)


def test_what_moves_cannot_be_infinite() -> None:
    """A rotation of an infinity is none."""
    with pytest.raises(IsomergeError, match=r"line up\.weight may be infinite, but space ff moves it"):
        parse_spec(TEXT.replace("up.weight ff in", "up.weight ff in infinite"), {})

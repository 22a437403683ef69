"""Arguments as Python's users write them: numpy's numbers, torch's dtypes, paths, and what is none of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import isomerge
from engine.disguises import single
from isomerge.engine.merge_job import job_of_models
from isomerge.errors import IsomergeError
from toys import tensors


def test_numbers_of_numpy_and_torch() -> None:
    """One value, or one per model."""
    for given, own, common in (
        (numpy.array([0.5, 0.25]), ({"density": 0.5}, {"density": 0.25}), {}),
        (torch.tensor(0.5), ({}, {}), {"density": 0.5}),
        (numpy.float32(0.5), ({}, {}), {"density": 0.5}),
    ):
        job = job_of_models(["a", "b"], method="ties", base_model="c", parameters={"density": given})
        assert job.fusion.parameters.slices[0].sources == own
        assert job.fusion.parameters.common == common


def test_one_folder_under_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base that is listed is the base, however its folder is written."""
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / name).mkdir()
    for base in ("a/", "./a", str(tmp_path / "a"), Path("a"), os.path.join("b", "..", "a")):
        job = job_of_models(["a", "b"], method="slerp", base_model=base, parameters={"t": 0.5})
        assert len(job.models) == 2
        assert job.models[1] == "b"


def test_one_text_is_a_list_of_one() -> None:
    """Letters are no models."""
    assert job_of_models(["a", "b"], method="ties", base_model="c", source_bases="old").source_bases == (
        "old",
        "old",
    )
    with pytest.raises(IsomergeError, match="got 1"):
        job_of_models(["a", "b"], method="regmean", stats="file")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "spaces": ({"spaces": ["qk", "ov"]}, r"--spaces \['qk', 'ov'\]: give one text"),
    "layers": ({"layers": 3}, "--layers 3: give a text"),
    "method": ({"method": None}, "None: no such merge method"),
    "out": ({"out": None}, "merge needs a folder to write"),
    "seed": ({"seed": "3"}, "--seed 3: give a whole number"),
    "no seed": ({"seed": None}, "--seed None: give a whole number"),
    "half a seed": ({"seed": 1.5}, r"--seed 1\.5: give a whole number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_kinds(case: str, tmp_path: Path) -> None:
    """One sentence."""
    models = [single("gpt2", tmp_path / name, seed) for seed, name in enumerate("ab")]
    options, words = WRONG[case]
    with pytest.raises(IsomergeError, match=words):
        isomerge.merge(models, **{"out": tmp_path / "out", **options})


@pytest.mark.parametrize("dtype", [torch.float16, numpy.float16, numpy.dtype("float16")])
def test_dtypes_of_torch_and_numpy(dtype: Any, tmp_path: Path) -> None:
    """As their names."""
    models = [single("gpt2", tmp_path / name, seed) for seed, name in enumerate("ab")]
    isomerge.merge(models, out=tmp_path / "out", align=False, dtype=dtype)
    assert {t.dtype for t in tensors(tmp_path / "out").values()} == {torch.float16}


@pytest.mark.parametrize("place", [lambda folder: folder, lambda folder: folder / "no" / "file.safetensors"])
def test_alignments_that_cannot_be_saved(place: Callable[[Path], Path], tmp_path: Path) -> None:
    """A folder, or none."""
    models = [single("gpt2", tmp_path / name, seed) for seed, name in enumerate("ab")]
    alignment, _ = isomerge.align(models[0], onto=models[1], spaces="ff")
    with pytest.raises(IsomergeError, match="the alignment cannot be written there"):
        alignment.save(place(tmp_path))

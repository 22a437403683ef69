"""Live in, live out: modules are merged and moved without a folder; data are functions, loaders and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, TensorDataset

import isomerge
from isomerge.errors import IsomergeError
from isomerge.observe.live.modules import load_module
from solve.disguises import perturb, turn
from toys import inputs, save_toy

pytestmark = pytest.mark.in_few_sweeps("how far streams of strangers settle does not matter here")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of images, a fine-tune, a twin, a stranger."""
    root = tmp_path_factory.mktemp("vits")
    a = save_toy("vit", root / "a", dtype=torch.float32)
    return {
        "a": a,
        "tuned": perturb(a, root / "tuned", 0.002),
        "twin": turn("vit", a, root / "twin", 3),
        "stranger": save_toy("vit", root / "stranger", seed=5, dtype=torch.float32),
    }


def logits(module: Any) -> torch.Tensor:
    """What a module gives for fixed inputs."""
    given = {name: x.float() for name, x in inputs(module.config).items()}
    with torch.no_grad():
        return module.double()(**{name: x.double() for name, x in given.items()}).logits


def test_modules_in_and_out(folders: dict[str, Path], tmp_path: Path) -> None:
    """The module that comes back is what the folder holds; those that went in are as they were."""
    a, b = load_module(folders["a"]), load_module(folders["tuned"])
    before = {name: x.clone() for name, x in b.state_dict().items()}
    merged = isomerge.merge([a, b])
    assert type(merged) is type(a)
    assert all(torch.equal(x, before[name]) for name, x in b.state_dict().items())
    assert merged.isomerge_report["decided"]["what"] == "nothing is matched"
    isomerge.merge([folders["a"], folders["tuned"]], out=tmp_path / "out")
    assert torch.equal(logits(merged), logits(load_module(tmp_path / "out")))
    assert not torch.equal(logits(merged), logits(a))
    names = [f"{type(a).__name__} ({k})" for k in (1, 2)]
    assert merged.isomerge_report["models"] == names, "of one class, and told apart"
    assert all(name in merged.isomerge_report["verdict"]["sentence"] for name in names)
    assert isomerge.diff(a, a)["models"] == [type(a).__name__] * 2


def test_the_first_ones_dtype(folders: dict[str, Path]) -> None:
    """Half precision in, half precision out; of folders as they are stored."""
    halves = [load_module(folders[name], torch.bfloat16) for name in ("a", "tuned")]
    assert next(isomerge.merge(halves).parameters()).dtype == torch.bfloat16
    stored = isomerge.merge([folders["a"], folders["tuned"]], dtype="float16")
    assert next(stored.parameters()).dtype == torch.float16


def test_a_module_is_moved(folders: dict[str, Path]) -> None:
    """The twin comes back by its alignment, as a module."""
    twin = load_module(folders["twin"])
    alignment, report = isomerge.align(twin, onto=load_module(folders["a"]))
    moved = isomerge.apply(alignment, twin)
    assert report["distance"]["before"] > 1
    state = load_module(folders["a"]).state_dict()
    assert all(torch.allclose(x, state[name], atol=1e-4) for name, x in moved.state_dict().items())
    assert any(not torch.allclose(x, state[name], atol=1e-2) for name, x in twin.state_dict().items())


def test_data_in_every_form(folders: dict[str, Path], tmp_path: Path) -> None:
    """A file, a function, a loader, batches and pairs of one content give one result."""
    rng = torch.Generator().manual_seed(0)
    images, labels = torch.randn(24, 3, 8, 8, generator=rng), torch.arange(24) % 5
    save_file({"pixel_values": images, "labels": labels}, tmp_path / "seen.safetensors")
    batches = [{"pixel_values": images[k : k + 7], "labels": labels[k : k + 7]} for k in range(0, 24, 7)]
    forms: dict[str, Any] = {
        "file": tmp_path / "seen.safetensors",
        "batches": batches,
        "generator": iter(batches),
        "function": lambda: batches,
        "loader": DataLoader(TensorDataset(images, labels), batch_size=5),
    }
    models = [folders["a"], folders["stranger"]]
    found = {}
    for name, data in forms.items():
        report = isomerge.merge(models, out=tmp_path / name, data=data, steps=2, seed=1)
        assert report["streams"][0]["learned"]["steps"] == 2
        found[name] = load_file(tmp_path / name / "model.safetensors")
    for name in forms:
        assert all(torch.equal(x, found["file"][key]) for key, x in found[name].items()), name


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (7, "is a int: give a path"),
        ([], "has no batch"),
        (["a text"], "data=.*, text 1 has no image, which this checkpoint reads"),
        (["a text", 3], "batch 0 is a str: give mappings of tensors .* or pairs of images and labels; texts alone"),
        ([{"pixel_values": [1, 2]}], "pixel_values of batch 0 is no tensor"),
        (
            [{"input_ids": torch.ones(2, 3)}, {"input_ids": torch.ones(2, 4)}],
            r"\[3\] per example in batch 0 and \[4\]",
        ),
        ([{"x": torch.ones(2)}, {"y": torch.ones(2)}], "in batch 1"),
    ],
    ids=str,
)
def test_data_that_are_none(data: Any, words: str, folders: dict[str, Path]) -> None:
    """One sentence that names the argument."""
    with pytest.raises(IsomergeError, match=words):
        isomerge.merge([folders["a"], folders["tuned"]], data=data)

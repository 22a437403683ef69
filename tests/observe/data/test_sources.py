"""Tensor files, functions, and the package datasets."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from isomerge.errors import IsomergeError
from isomerge.observe.data.opening_data import open_data
from isomerge.observe.data.records import function_records
from observe.data.checkpoints import CAUSAL, CLASSIFIER, IMAGES, picture, save_tokenizer

PIXELS = torch.linspace(-1, 1, 4 * 64).reshape(4, 1, 8, 8)


def saved(path: Path, **tensors: torch.Tensor) -> str:
    """A safetensors file."""
    save_file(tensors, path)
    return str(path)


def test_tensors(tmp_path: Path) -> None:
    """As they are, in float32 and int64; the first ones only."""
    data = saved(tmp_path / "x.safetensors", pixel_values=PIXELS.double(), labels=torch.tensor([2, 1, 0, 2]).int())
    examples = open_data(data, tmp_path, config=IMAGES)
    assert torch.equal(examples.tensors["pixel_values"], PIXELS)
    assert examples.tensors["labels"].dtype == torch.int64
    assert open_data(data, tmp_path, config=IMAGES, limit=3).fingerprint == examples.head(3).fingerprint


BAD: list[tuple[dict[str, torch.Tensor], dict[str, Any], list[str]]] = [
    ({"pixel_values": PIXELS.expand(4, 3, 8, 8).contiguous()}, IMAGES, ["[3, 8, 8]", "[1, 8, 8]", "channels"]),
    ({"pixel_values": PIXELS[:, :, :4].contiguous()}, IMAGES, ["[1, 4, 8]", "height"]),
    ({"pixel_values": (PIXELS * 9).byte()}, IMAGES, ["uint8", "floating point"]),
    ({"pixel_values": PIXELS / 0}, IMAGES, ["NaN"]),
    ({"pixel_values": PIXELS, "labels": torch.arange(3)}, IMAGES, ["labels 3", "pixel_values 4"]),
    ({"pixel_values": PIXELS, "labels": torch.arange(4)}, IMAGES, ["'3'", "cat"]),
    ({"pixel_values": PIXELS, "labels": torch.zeros(4, 2).long()}, IMAGES, ["labels", "class id"]),
    ({"pixel_values": PIXELS, "labels": torch.zeros(4)}, IMAGES, ["labels", "whole numbers"]),
    ({"pixel_values": PIXELS, "images": PIXELS + 1}, IMAGES, ["'images'", "pixel_values"]),
    ({"labels": torch.arange(3)}, IMAGES, ["neither"]),
    ({"pixel_values": PIXELS[:0]}, IMAGES, ["positive"]),
    ({"input_ids": torch.ones(2, 3).long()}, IMAGES, ["images (pixel_values)"]),
    ({"pixel_values": PIXELS}, CAUSAL, ["text (input_ids)"]),
    ({"input_ids": torch.ones(3).long()}, CAUSAL, ["[examples, tokens]"]),
    ({"input_ids": torch.ones(2, 3).long(), "attention_mask": torch.ones(2, 2).long()}, CAUSAL, ["attention_mask"]),
    ({"input_ids": torch.tensor(3)}, CAUSAL, ["single number"]),
]


@pytest.mark.parametrize(("tensors", "config", "words"), BAD, ids=lambda x: " ".join(x)[:30] if x else "")
def test_bad_tensors(tensors: dict[str, torch.Tensor], config: dict, words: list[str], tmp_path: Path) -> None:
    """Names, numbers and shapes that the checkpoint does not read."""
    with pytest.raises(IsomergeError) as caught:
        open_data(saved(tmp_path / "x.safetensors", **tensors), tmp_path, config=config)
    assert [word for word in ["x.safetensors", *words] if word not in str(caught.value)] == []


def test_damaged_tensors(tmp_path: Path) -> None:
    """A file that a download left short."""
    path = Path(saved(tmp_path / "x.safetensors", pixel_values=PIXELS))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(IsomergeError, match="truncated"):
        open_data(str(path), tmp_path, config=IMAGES)


# --------------------------------------------------------------------------------------------------- functions

CODE = """
import torch
from PIL import Image

def images():
    for k in range(3):
        yield {"image": Image.new("L", (8, 8), 255 * (k % 2)), "label": "owl"}

def pixels():
    return ({"pixel_values": torch.full((2, 1, 8, 8), float(k)), "labels": torch.tensor([k, k])} for k in range(3))

def endless():
    while True:
        yield {"pixel_values": torch.zeros(1, 8, 8), "label": 0}

def fails():
    yield {"pixel_values": torch.zeros(1, 8, 8)}
    raise ValueError("no more")

def number():
    return 3

def numbers():
    return [1, 2]

def uneven():
    return [{"pixel_values": torch.zeros(2, 1, 8, 8), "labels": torch.zeros(3)}]

def nothing():
    return []

def words():
    return [{"text": "a"}]

value = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder."""
    (tmp_path / "my_examples.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_examples", raising=False)
    return "my_examples"


def test_functions(module: str, tmp_path: Path) -> None:
    """Images with labels, batches of tensors, and an endless source that a limit ends; sys.path stays as it was."""
    before = list(sys.path)
    images = open_data(f"{module}:images", tmp_path, config=IMAGES)
    assert images.tensors["pixel_values"].mean((1, 2, 3)).tolist() == [-1, 1, -1]
    assert images.tensors["labels"].tolist() == [2, 2, 2]
    assert open_data(f"{module}:pixels", tmp_path, config=IMAGES).tensors["labels"].tolist() == [0, 0, 1, 1, 2, 2]
    assert len(open_data(f"{module}:endless", tmp_path, config=IMAGES, limit=5)) == 5
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails", ["item 2", "ValueError", "no more"]),
        ("number", ["iterable"]),
        ("numbers", ["item 1", "int", "dicts"]),
        ("uneven", ["item 1", "equal"]),
        ("nothing", ["no examples"]),
        ("words", ["item 1", "no image"]),
        ("value", ["no function value"]),
        ("missing", ["no function missing"]),
    ],
)
def test_bad_functions(name: str, words: list[str], module: str, tmp_path: Path) -> None:
    """A function that is missing, fails, or gives something else."""
    with pytest.raises(IsomergeError) as caught:
        open_data(f"{module}:{name}", tmp_path, config=IMAGES)
    assert [word for word in [f"{module}:{name}", *words] if word not in str(caught.value)] == []


# ------------------------------------------------------------------------------------------ the package datasets


class Rows(list):
    """A stand-in for a data set of the package datasets: rows, and the features of their columns."""

    def __init__(self, rows: list[dict[str, Any]], **names: list[str]) -> None:
        super().__init__(rows)
        self.features = {key: SimpleNamespace(names=value) for key, value in names.items()}


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for the package datasets."""
    made = ModuleType("datasets")
    monkeypatch.setitem(sys.modules, "datasets", made)
    return made


def test_data_sets_on_disk(package: ModuleType, tmp_path: Path) -> None:
    """What save_to_disk wrote: images, and labels by the names that both sides know."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "state.json").write_text("{}")
    rows = [{"image": Image.fromarray(picture(k)), "label": k} for k in range(3)]
    seen = []
    package.load_from_disk = lambda path: seen.append(path) or Rows(rows, label=["owl", "cat", "dog"])
    examples = open_data(str(tmp_path / "set"), tmp_path, config=IMAGES)
    assert seen == [str(tmp_path / "set")]
    assert examples.tensors["labels"].tolist() == [2, 0, 1]
    with pytest.raises(IsomergeError, match="has no splits: leave :train out"):
        open_data(f"{tmp_path / 'set'}:train", tmp_path, config=IMAGES)
    package.load_from_disk = lambda path: {"train": Rows(rows[1:]), "test": Rows(rows, label=["x", "y", "z"])}
    assert open_data(str(tmp_path / "set"), tmp_path, config=IMAGES).tensors["labels"].tolist() == [0, 1, 2]
    assert open_data(f"{tmp_path / 'set'}:train", tmp_path, config=IMAGES).tensors["labels"].tolist() == [1, 2]
    with pytest.raises(IsomergeError, match=r"--repair .*set:dev has the splits train, test: name one"):
        open_data(f"{tmp_path / 'set'}:dev", tmp_path, config=IMAGES, option="--repair")


def test_errors_name_the_option(tmp_path: Path) -> None:
    """The option by which data were given, and no other; words that look like another stay as they are."""
    for ref in ("./lost --data ", "no_module:function", ""):
        with pytest.raises(IsomergeError, match="--learn") as caught:
            open_data(ref, tmp_path, config=CLASSIFIER, option="--learn")
        assert caught.value.sentence.startswith(f"--learn {ref}" if ref else "--learn is empty")


def test_data_sets_by_name(package: ModuleType, tmp_path: Path) -> None:
    """``name:split``, and the part that is for testing when none is named."""
    save_tokenizer(tmp_path)
    sets = {"test": Rows([{"sentence": "a b", "label": 1}]), "train": Rows([{"sentence": "c", "label": 0}])}
    package.load_dataset = lambda name, split: {"org/some": sets}[name] if split is None else sets[split]
    assert open_data("org/some", tmp_path, config=CLASSIFIER).tensors["labels"].tolist() == [1]
    assert open_data("org/some:train", tmp_path, config=CLASSIFIER).tensors["labels"].tolist() == [0]
    for ref, word in (("org/other", "cannot load it"), ("org/some:dev", "cannot load it")):
        with pytest.raises(IsomergeError, match=word):
            open_data(ref, tmp_path, config=CLASSIFIER)
    sets.pop("test")
    with pytest.raises(IsomergeError, match="name one"):
        open_data("org/some", tmp_path, config=CLASSIFIER)


@pytest.mark.parametrize("ref", ["org/some:small:train", "org/some:small:"])
def test_data_sets_of_several_configurations(ref: str, package: ModuleType, tmp_path: Path) -> None:
    """The one that is named; which there are is what the package says where none is."""
    save_tokenizer(tmp_path)
    parts = {"train": Rows([{"sentence": "c", "label": 0}]), "test": Rows([{"sentence": "a b", "label": 1}])}

    def load(name: str, configuration: str = "", *, split: str | None) -> Any:
        if configuration != "small":
            raise ValueError("Config name is missing. Please pick one among: ['small', 'large']")
        return parts if split is None else parts[split]

    package.load_dataset = load
    expected = [0] if ref.endswith("train") else [1]
    assert open_data(ref, tmp_path, config=CLASSIFIER).tensors["labels"].tolist() == expected
    with pytest.raises(IsomergeError, match=r"pick one among: \['small', 'large'\].*name:configuration:split"):
        open_data("org/some", tmp_path, config=CLASSIFIER)


def test_data_sets_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is no file either, a folder that it wrote, and paths that are plainly paths."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "state.json").write_text("{}")
    for ref, word in (
        ("imdb:test", r"imdb:test: no such file.*pip install"), (str(tmp_path / "set"), "set: .*pip install"),
        ("no_module:function", r"no_module:function: no such file"), ("./lost", "lost: no such file"),
        ("lost.jsonl", "lost.jsonl: no such file"),
    ):  # fmt: skip
        with pytest.raises(IsomergeError, match=word):
            open_data(ref, tmp_path, config=CLASSIFIER)


def test_real_data_sets(tmp_path: Path) -> None:
    """The package itself, and what it writes as parquet: the same examples."""
    import datasets as package

    pixels = [picture(k) for k in range(3)]
    features = package.Features(image=package.Image(), label=package.ClassLabel(names=["owl", "cat", "dog"]))
    columns = {"image": [Image.fromarray(p) for p in pixels], "label": [0, 1, 2]}
    made = package.Dataset.from_dict(columns, features=features)
    made.save_to_disk(tmp_path / "set")
    made.to_parquet(tmp_path / "set.parquet")
    examples = open_data(str(tmp_path / "set"), tmp_path, config=IMAGES)
    assert examples.tensors["labels"].tolist() == [2, 0, 1]
    expected = (numpy.stack(pixels).astype(numpy.float32) / 255 - 0.5) / 0.5
    assert torch.equal(examples.tensors["pixel_values"][:, 0], torch.from_numpy(expected))
    assert open_data(str(tmp_path / "set.parquet"), tmp_path, config=IMAGES).fingerprint == examples.fingerprint


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    yield {'input_ids': [1, 2]}\n    sys.exit(0)", "at item 2 .SystemExit: 0, line 5 of"),
        ("    yield {'input_ids': [1, 2]}\n    raise KeyError('x')", "at item 2 .KeyError: 'x', line 5 of"),
        ("    yield {'input_ids': [1, 2]}\n    yield None", "item 2 is a NoneType"),
        ("    sys.exit(0)", "at item 1 .SystemExit: 0, line 4 of"),
        ("    return 3", "must return an iterable"),
    ],
)
def test_a_function_that_ends_the_process(
    body: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fault is told, at whichever item, and the process goes on. Mutant: `own_code` takes `Exception` alone."""
    name = f"scratch_records_{abs(hash(body))}"
    (tmp_path / f"{name}.py").write_text(f"import sys\n\ndef rows():\n{body}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(IsomergeError, match=words):
        list(function_records(f"{name}:rows", "--data"))

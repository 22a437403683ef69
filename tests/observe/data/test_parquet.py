"""Parquet files, alone and in folders as the Hub has them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from isomerge.errors import IsomergeError
from isomerge.observe.data.opening_data import open_data
from observe.data.checkpoints import CAUSAL, CLASSIFIER, IMAGES, ids, picture, save_chat_tokenizer, save_picture


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with a chat template."""
    return save_chat_tokenizer(tmp_path_factory.mktemp("chat"))


def table(path: Path, columns: dict[str, list[Any]], classes: dict[str, list[str]] | None = None) -> str:
    """A parquet file, with the names of classes as the package datasets writes them."""
    import pyarrow.parquet

    made = pyarrow.table(columns)
    features = {key: {"names": names, "_type": "ClassLabel"} for key, names in (classes or {}).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(
        made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})}), path
    )
    return str(path)


def read(ref: str, folder: Path, **options: Any) -> list[list[int]]:
    """The tokens of a causal model."""
    return open_data(ref, folder, config=CAUSAL, **options).tensors["input_ids"].tolist()


def test_texts_and_conversations(folder: Path, tmp_path: Path) -> None:
    """Columns are fields; what a message lacks is None in a column, and nothing to a template."""
    data = table(tmp_path / "x.Parquet", {"text": ["a b", "c d", "e f"] * 50, "label": [0, 1, 0] * 50})
    assert read(data, folder, limit=2) == [ids("a b"), ids("c d")]
    assert len(read(data, folder)) == 150
    talk = [[{"role": "user", "content": "e", "name": None}, {"role": "assistant", "content": "f", "name": "g"}]]
    said = table(tmp_path / "y.parquet", {"id": ["j"], "messages": talk})
    assert read(said, folder) == [ids("a e [SEP] b f [SEP]")]


def test_classes_by_name(folder: Path, tmp_path: Path) -> None:
    """Names of classes count where the checkpoint knows them all, as in data sets of the package."""
    config = {**CLASSIFIER, "label2id": {"bad": 0, "good": 1}}
    for names, expected in ((["good", "bad"], [1, 0]), (["fine", "bad"], [0, 1]), (["good"], [1, 1])):
        data = table(tmp_path / "x.parquet", {"text": ["a", "b"], "label": [0, 1]}, {"label": names})
        assert open_data(data, folder, config=config).tensors["labels"].tolist() == expected


def test_images(tmp_path: Path) -> None:
    """A struct of bytes and path, as the package stores images: the pixels of the file; sideways ones are
    turned."""
    made = save_picture(tmp_path / "0.png", picture(0))
    turned, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 3  # orientation: upside down
    Image.fromarray(picture(0)).save(turned, "PNG", exif=exif)
    images = [
        {"bytes": made.read_bytes(), "path": "lost.png"},
        {"bytes": None, "path": "0.png"},
        {"bytes": turned.getvalue(), "path": None},
    ]
    data = table(tmp_path / "x.parquet", {"image": images, "label": [0, 1, 2]}, {"label": ["owl", "cat", "dog"]})
    found = open_data(data, tmp_path, config=IMAGES).tensors
    assert found["labels"].tolist() == [2, 0, 1]
    alone = open_data(str(made), tmp_path, config=IMAGES).tensors["pixel_values"][0]
    assert torch.equal(found["pixel_values"][0], alone)
    assert torch.equal(found["pixel_values"][1], alone)
    assert torch.equal(found["pixel_values"][2], alone.flip(1, 2))
    assert (
        open_data(str(tmp_path), tmp_path, config=IMAGES).fingerprint
        == open_data(data, tmp_path, config=IMAGES).fingerprint
    )


def test_folders(folder: Path, tmp_path: Path) -> None:
    """As the Hub lays them out: the split for testing, or the one that is named; README.md is no text beside
    them."""
    hub = tmp_path / "hub"
    for name, word in (
        ("data/train_sft-00000-of-00002", "a"), ("data/train_sft-00001-of-00002-ab12", "b"), ("data/test-00000-of-00001", "c"),
        (".cache/old", "d"),
    ):  # fmt: skip
        table(hub / f"{name}.parquet", {"text": [word]})
    (hub / "README.md").write_text("h i j")
    assert read(str(hub), folder) == [ids("c")]
    assert read(f"{hub}:train_sft", folder) == [ids("a"), ids("b")]
    with pytest.raises(
        IsomergeError, match=r"--learn .*hub:dev has the splits test, train_sft: name one, as in .*hub:split"
    ):
        read(f"{hub}:dev", folder, option="--learn")
    table(tmp_path / "converted/default/train/0000.parquet", {"text": ["d"]})
    table(tmp_path / "converted/default/val/0000.parquet", {"text": ["e"]})
    assert read(str(tmp_path / "converted"), folder) == [ids("e")]
    plain = tmp_path / "plain"
    table(plain / "one.parquet", {"text": ["f"]})
    assert read(str(plain), folder) == [ids("f")]
    with pytest.raises(IsomergeError, match="name no splits: leave :train out"):
        read(f"{plain}:train", folder)
    table(plain / "other/one.parquet", {"text": ["g"]})
    with pytest.raises(
        IsomergeError, match=r"holds several data sets \(.*plain, .*other\): give the folder of one"
    ):
        read(str(plain), folder)


def test_what_cannot_be_read(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged files, columns that are no text, and a machine without the package."""
    data = table(tmp_path / "x.parquet", {"number": [1]})
    with pytest.raises(IsomergeError, match=r"x\.parquet, row 1 has no text"):
        read(data, folder)
    Path(data).write_bytes(Path(data).read_bytes()[:-9])
    with pytest.raises(
        IsomergeError, match=r"x\.parquet cannot be read as parquet \(.*\): fetch or write it again"
    ):
        read(data, folder)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(IsomergeError, match=r"x\.parquet: parquet files need .*pip install 'isomerge\[data\]'"):
        read(data, folder)

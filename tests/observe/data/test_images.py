"""Images: folders, classes, processors."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import ViTImageProcessorPil

from isomerge.errors import IsomergeError
from isomerge.observe.data.opening_data import open_data
from observe.data.checkpoints import IMAGES, picture, save_picture


def plain(pixels: numpy.ndarray) -> torch.Tensor:
    """What is read without a processor: [1, h, w]."""
    return ((torch.tensor(pixels, dtype=torch.float32) / 255 - 0.5) / 0.5)[None]


def test_classes_of_folders(tmp_path: Path) -> None:
    """Sub-folders are classes by name; one example of each class in turn."""
    for k, name in enumerate(["owl/1", "owl/2", "owl/3", "cat/1", "dog/1", "dog/2"]):
        save_picture(tmp_path / "data" / f"{name}.png", picture(k))
    save_picture(tmp_path / "data" / ".hidden" / "1.png", picture(9))
    examples = open_data(str(tmp_path / "data"), tmp_path, config=IMAGES)
    assert examples.labelled
    assert examples.tensors["labels"].tolist() == [0, 1, 2, 1, 2, 2]
    expected = torch.stack([plain(picture(k)) for k in (3, 4, 0, 5, 1, 2)])
    assert torch.equal(examples.tensors["pixel_values"], expected)
    assert open_data(str(tmp_path / "data"), tmp_path, config=IMAGES, limit=3).tensors["labels"].tolist() == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize(
    ("names", "labels"), [(["2", "0", "1"], [0, 1, 2]), (["x", "a", "m"], [0, 1, 2]), (["10", "9", "8"], None)]
)
def test_other_names_of_classes(names: list[str], labels: list[int] | None, tmp_path: Path) -> None:
    """Ids, else the sorted order of as many names as there are classes; ids that are none are refused."""
    for k, name in enumerate(names):
        save_picture(tmp_path / "data" / name / "1.png", picture(k))
    if labels is None:
        with pytest.raises(IsomergeError, match="is no class of this checkpoint"):
            open_data(str(tmp_path / "data"), tmp_path, config=IMAGES)
        return
    examples = open_data(str(tmp_path / "data"), tmp_path, config=IMAGES)
    assert examples.tensors["labels"].tolist() == labels
    first = picture(names.index(sorted(names)[0]))
    assert torch.equal(examples.tensors["pixel_values"][0], plain(first))


def test_unlabelled_and_single(tmp_path: Path) -> None:
    """A flat folder has no classes; a file is one example."""
    save_picture(tmp_path / "data" / "b.png", picture(1))
    save_picture(tmp_path / "data" / "a.PNG", picture(0))
    examples = open_data(str(tmp_path / "data"), tmp_path, config=IMAGES)
    assert not examples.labelled
    assert set(examples.tensors) == {"pixel_values"}
    assert torch.equal(examples.tensors["pixel_values"][0], plain(picture(0)))
    assert len(open_data(str(tmp_path / "data" / "b.png"), tmp_path, config=IMAGES)) == 1


def test_resized_and_recoloured(tmp_path: Path) -> None:
    """Without a processor: any size, and grey or colour as the checkpoint reads."""
    colours = picture(3, size=20, channels=3)
    save_picture(tmp_path / "x.png", colours)
    save_picture(tmp_path / "y.png", picture(4, size=8))
    grey = open_data(str(tmp_path / "x.png"), tmp_path, config=IMAGES).tensors["pixel_values"][0]
    wanted = Image.fromarray(colours).convert("L").resize((8, 8), Image.Resampling.BILINEAR)
    assert torch.equal(grey, plain(numpy.asarray(wanted)))
    rgb = open_data(str(tmp_path / "y.png"), tmp_path, config={**IMAGES, "num_channels": 3}).tensors[
        "pixel_values"
    ][0]
    assert torch.equal(rgb, plain(picture(4)).expand(3, 8, 8))


def test_processor(tmp_path: Path) -> None:
    """The checkpoint's own scaling, and the fingerprint of the same data as tensors."""
    processor = ViTImageProcessorPil(
        do_resize=False,
        do_rescale=True,
        rescale_factor=1 / 16,
        do_normalize=True,
        image_mean=[0.5],
        image_std=[0.5],
    )
    processor.save_pretrained(tmp_path)
    pixels = [picture(k) % 17 for k in range(3)]
    for k, name in enumerate(["cat", "dog", "owl"]):
        save_picture(tmp_path / "data" / name / "1.png", pixels[k])
    values = torch.stack([((torch.tensor(p, dtype=torch.float32) / 16 - 0.5) / 0.5)[None] for p in pixels])
    save_file({"pixel_values": values, "labels": torch.arange(3)}, tmp_path / "data.safetensors")
    one = open_data(str(tmp_path / "data"), tmp_path, config=IMAGES)
    two = open_data(str(tmp_path / "data.safetensors"), tmp_path, config=IMAGES)
    assert torch.equal(one.tensors["pixel_values"], values)
    assert one.fingerprint == two.fingerprint


def broken(path: Path) -> None:
    """A file that only looks like a picture."""
    path.mkdir()
    (path / "x.png").write_bytes(b"not a picture")


def beside(path: Path) -> None:
    """A picture that belongs to no class."""
    save_picture(path / "x.png", picture(0))
    save_picture(path / "cat" / "x.png", picture(0))


def stranger(path: Path) -> None:
    """A class that the checkpoint does not have."""
    save_picture(path / "horse" / "x.png", picture(0))


def deep(path: Path) -> None:
    """Sixteen bits a channel."""
    save_picture(path / "x.png", picture(0).astype(numpy.uint16) * 257)


def textual(path: Path) -> None:
    """Text for a model that sees."""
    path.mkdir()
    (path / "x.txt").write_text("hello")


def test_arrays_of_numpy_are_refused_with_a_way_for_images(tmp_path: Path) -> None:
    """Nobody is told to write images as text."""
    numpy.savez(tmp_path / "x.npz", pixel_values=numpy.zeros((2, 1, 4, 4)))
    with pytest.raises(IsomergeError, match=r"x\.npz is not read: save its arrays as \.safetensors, by") as caught:
        open_data(str(tmp_path / "x.npz"), tmp_path, config=IMAGES)
    assert "text" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (broken, ["x.png", "cannot be read"]),
        (beside, ["x.png", "beside sub-folders", "move it"]),
        (stranger, ["horse", "no class", "label2id"]),
        (deep, ["x.png", "8 bits"]),
        (textual, ["images", "another folder"]),
        (Path.mkdir, ["empty folder"]),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_bad_folders(make, words: list[str], tmp_path: Path) -> None:
    """One sentence that names the file and the remedy."""
    make(tmp_path / "data")
    with pytest.raises(IsomergeError) as caught:
        open_data(str(tmp_path / "data"), tmp_path, config=IMAGES)
    assert [word for word in ["data", *words] if word not in str(caught.value)] == []


def test_processor_that_does_not_fit(tmp_path: Path) -> None:
    """A processor that leaves images as large as they are, one that cannot be read, and channels of no picture."""
    save_picture(tmp_path / "x.png", picture(0, size=9))
    ViTImageProcessorPil(do_resize=False).save_pretrained(tmp_path)
    for text, word in ((None, "refuses|becomes"), ("{", "cannot load this image processor")):
        if text:
            (tmp_path / "preprocessor_config.json").write_text(text)
        with pytest.raises(IsomergeError, match=word):
            open_data(str(tmp_path / "x.png"), tmp_path, config={**IMAGES, "num_channels": 3})
    with pytest.raises(IsomergeError, match="13 channels"):
        open_data(str(tmp_path / "x.png"), tmp_path / "none", config={**IMAGES, "num_channels": 13})

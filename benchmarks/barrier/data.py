"""The data the endpoints of the loss-barrier benchmark are trained and tested on, made from what `benchmarks.fetch`
brings.

    python benchmarks/barrier/data.py     # into benchmarks/data/barrier, about 240 MB; what is there is kept

Images, `{digits,fashion}/{train,test}.safetensors`: `pixel_values` float32 [n, c, h, w] as the models expect them
(paper -1, ink +1) and `labels` int64 [n]. Digits is scikit-learn's with the split of `examples/train_digits.py`;
Fashion-MNIST has its own split of 60000 and 10000.

Text, `corpus/*.txt`: addresses on the State of the Union, read as bytes (a token is a byte, 0..255). Every
sixteenth of the 233 speeches, in order of date, is in `heldout.txt` whole and nowhere else; the rest is
`train.txt`. `train-half-0.txt` and `train-half-1.txt` are the even and the odd speeches of `train.txt`.
`moby-dick.txt` is for whoever wants another kind of English; no model is trained on it. Speeches are joined by a
blank line.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.fetch import DATA, fetch
from examples.train_digits import load_split

BARRIER = DATA / "barrier"
HELD_OUT_EVERY, HELD_OUT_FIRST = 16, 8
SEPARATOR = b"\n\n"
WINDOW = 128  # bytes that a language model reads at once
HELD_OUT_WINDOWS = 1024


def write_images(name: str, split: str, images: Tensor, labels: Tensor) -> None:
    (BARRIER / name).mkdir(parents=True, exist_ok=True)
    tensors = {"pixel_values": images.contiguous(), "labels": labels.contiguous()}
    save_file(tensors, BARRIER / name / f"{split}.safetensors")


def prepare_digits() -> None:
    train_x, train_y, test_x, test_y = load_split()
    write_images("digits", "train", train_x, train_y)
    write_images("digits", "test", test_x, test_y)


def prepare_fashion() -> None:
    """Write Fashion-MNIST: a pixel p of 0..255 becomes (p / 255 - 0.5) / 0.5."""
    fetch("fashion-mnist")
    for split in ("train", "test"):
        stored = load_file(DATA / "fashion-mnist" / f"{split}.safetensors")
        images = (stored["images"][:, None].float() / 255 - 0.5) / 0.5
        write_images("fashion", split, images, stored["labels"])


def prepare_corpus() -> None:
    folder = BARRIER / "corpus"
    folder.mkdir(parents=True, exist_ok=True)
    fetch("sotu", "moby-dick")
    speeches = [path.read_bytes() for path in sorted((DATA / "sotu").glob("*.txt"))]
    novel = (DATA / "moby-dick" / "moby-dick.txt").read_bytes()
    held_out = speeches[HELD_OUT_FIRST::HELD_OUT_EVERY]
    train = [s for i, s in enumerate(speeches) if i % HELD_OUT_EVERY != HELD_OUT_FIRST]
    for name, texts in (
        ("moby-dick", [novel]),
        ("train-half-0", train[0::2]),
        ("train-half-1", train[1::2]),
        ("train", train),
        ("heldout", held_out),
    ):
        (folder / f"{name}.txt").write_bytes(SEPARATOR.join(texts))


def prepare(name: str) -> None:
    """Make one data set (`digits`, `fashion` or `corpus`); nothing is done when it is there."""
    last, make = {
        "digits": ("test.safetensors", prepare_digits),
        "fashion": ("test.safetensors", prepare_fashion),
        "corpus": ("heldout.txt", prepare_corpus),
    }[name]
    if not (BARRIER / name / last).is_file():
        make()
        print(f"{BARRIER / name}: written", flush=True)


def load_images(name: str, split: str, half: int | None = None) -> tuple[Tensor, Tensor]:
    """Return pixel values and labels; `half` keeps the even (0) or the odd (1) rows."""
    prepare(name)
    tensors = load_file(BARRIER / name / f"{split}.safetensors")
    rows = slice(None) if half is None else slice(half, None, 2)
    return tensors["pixel_values"][rows], tensors["labels"][rows]


def load_text(name: str) -> Tensor:
    """Return the bytes of one text file of the corpus, uint8 [n]."""
    prepare("corpus")
    return torch.frombuffer(bytearray((BARRIER / "corpus" / f"{name}.txt").read_bytes()), dtype=torch.uint8)


def windows(text: Tensor, starts: Tensor) -> Tensor:
    """Return the windows of a text that begin at `starts`, int64 [n, WINDOW]."""
    return text[starts[:, None] + torch.arange(WINDOW)].long()


def held_out_windows() -> Tensor:
    """Return the windows that every language model is tested on, spread evenly over the held-out speeches.

    They do not overlap. The loss is the mean over the 127 bytes of each window that follow its first.
    """
    text = load_text("heldout")
    starts = torch.arange(HELD_OUT_WINDOWS) * ((len(text) - WINDOW) // (HELD_OUT_WINDOWS - 1))
    return windows(text, starts)


if __name__ == "__main__":
    for data_set in ("digits", "fashion", "corpus"):
        prepare(data_set)

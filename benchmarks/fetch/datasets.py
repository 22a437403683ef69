"""Data sets as plain files: JSON lines of text where there is structure, txt where there is none; images as
`{train,test}.safetensors`: `images` uint8 [n, height, width] and `labels` int64 [n]."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

VADER_FILES = {
    "movie": "movieReviewSnippets_GroundTruth.txt",
    "amazon": "amazonReviewSnippets_GroundTruth.txt",
    "nyt": "nytEditorialSnippets_GroundTruth.txt",
    "tweets": "tweets_GroundTruth.txt",
}
BROWN_GENRES = {
    "a": "news", "b": "editorial", "c": "reviews", "d": "religion", "e": "hobbies", "f": "lore",
    "g": "belles_lettres", "h": "government", "j": "learned", "k": "fiction", "l": "mystery",
    "m": "science_fiction", "n": "adventure", "p": "romance", "r": "humor",
}  # fmt: skip
FASHION_FILES = {  # file -> sha256 of its content, unpacked
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
IMAGES_HEADER, LABELS_HEADER = 16, 8  # bytes of an idx file before the numbers


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def vader(content: Path, out: Path) -> None:
    """Write `<domain>.jsonl`: `id`, `score` (mean of human ratings, -4 to 4) and `text` of every snippet."""
    (packed,) = content.rglob("hutto_ICWSM_2014.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(content, filter="data")
    for domain, name in VADER_FILES.items():
        (path,) = content.rglob(name)
        rows = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        write_lines(out / f"{domain}.jsonl", ({"id": i, "score": float(s), "text": t.strip()} for i, s, t in rows))


def brown(content: Path, out: Path) -> None:
    """Write `<genre>.jsonl`: `file`, `words` and `tags` (the corpus' own) of every sentence."""
    for letter, genre in BROWN_GENRES.items():
        rows = []
        for path in sorted((content / "package").glob(f"c{letter}[0-9][0-9]")):
            for line in path.read_text(encoding="latin-1").split("\n"):
                if pairs := [token.rpartition("/") for token in line.split()]:
                    rows.append({"file": path.name, "words": [p[0] for p in pairs], "tags": [p[2] for p in pairs]})
        write_lines(out / f"{genre}.jsonl", rows)
    for name in ("README", "CONTENTS"):
        shutil.copyfile(content / "package" / name, out / name)


def speeches(content: Path, out: Path) -> None:
    """Copy the addresses on the State of the Union, one file each; names sort by date."""
    for path in sorted((content / "package" / "data").glob("*.txt")):
        shutil.copyfile(path, out / path.name)


def moby_dick(content: Path, out: Path) -> None:
    """Copy the novel; the package's chapter files repeat it."""
    shutil.copyfile(content / "package" / "data" / "data.txt", out / "moby-dick.txt")


def write_split(path: Path, images: Tensor, labels: Tensor) -> None:
    from safetensors.torch import save_file

    save_file({"images": images.contiguous(), "labels": labels.long().contiguous()}, path)


def fashion_mnist(content: Path, out: Path) -> None:
    """Write Fashion-MNIST with its own split of 60000 and 10000."""
    import torch

    for split, prefix in (("train", "train"), ("test", "t10k")):
        pixels, labels = (
            torch.frombuffer(
                bytearray((content / f"{prefix}-{kind}-ubyte").read_bytes()[header:]), dtype=torch.uint8
            )
            for kind, header in (("images-idx3", IMAGES_HEADER), ("labels-idx1", LABELS_HEADER))
        )
        write_split(out / f"{split}.safetensors", pixels.view(-1, 28, 28), labels)

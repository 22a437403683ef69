"""Text packages as plain files: JSON lines where there is structure, txt where there is none."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

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

"""The files of images that JSON lines and tables name: data that change without the file that names them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from isomerge.errors import IsomergeError
from isomerge.observe.data.records import LINES, PICTURED, TABLES, file_records


def pictures_named(path: Path, limit: int | None = None) -> Iterator[Path]:
    """The images that the records of a file, or of the files of a folder, name, whether they are there or not.

    Args:
        path: a file or a folder; of other forms than `LINES` and `TABLES` nothing comes.
        limit: how many records are looked at; None for all.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    records = (r for file in files if file.suffix.lower() in (*LINES, *TABLES) for r in file_records(file))
    with suppress(IsomergeError):  # told by whoever reads the data
        for record in islice(records, limit):
            for name in PICTURED:
                image = record.fields.get(name)
                if isinstance(image, str) and image and record.folder is not None:
                    yield record.folder / os.path.expanduser(image)

"""The files beside a checkpoint's weights in a folder, as transformers wants them to make tokenizers and
processors."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from isomerge.checkpoint.companions import config_bytes
from isomerge.checkpoint.opening import CONFIG
from isomerge.checkpoint.reader import Checkpoint
from isomerge.errors import IsomergeError


@contextlib.contextmanager
def companion_folder(checkpoint: Checkpoint) -> Iterator[Path]:
    """The checkpoint's own folder; of a view that brings other files (another vocabulary's), and of tensors in
    memory, a temporary one with these files and its config. Errors raised meanwhile name the checkpoint, not that
    folder.
    """
    if checkpoint.has_own_files:
        yield checkpoint.folder
        return
    with tempfile.TemporaryDirectory(prefix="isomerge-") as folder:
        write_companions(Path(folder), {**checkpoint.companions(), CONFIG: config_bytes(checkpoint.config)})
        try:
            yield Path(folder)
        except IsomergeError as error:
            raise IsomergeError(str(error).replace(folder, checkpoint.ref)) from error


def write_companions(folder: Path, files: Mapping[str, bytes | Path]) -> None:
    """Write files (name with "/" to content or path) to a folder that is there."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, path)
        else:
            path.write_bytes(content)

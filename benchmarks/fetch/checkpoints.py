"""Checkpoints as safetensors: copied where a package has them so, converted from pickles where not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path


def folder(inside: str) -> Callable[[Path, Path], None]:
    """A converter that copies a folder of the package as it is."""

    def convert(content: Path, out: Path) -> None:
        shutil.copytree(content / inside, out, dirs_exist_ok=True)

    return convert

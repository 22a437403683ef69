"""The option that says where to write: a folder, or one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder to write; must not exist or be empty.")]
OutFile = Annotated[Path, typer.Option("--out", "-o", help="The file to write, .safetensors.")]

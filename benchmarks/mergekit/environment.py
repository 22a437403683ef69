"""mergekit in a virtual environment of its own, made on first use (benchmarks/data/mergekit-env)."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

from benchmarks.harness import DATA

TORCH, MERGEKIT = "torch==2.13.0", "mergekit==0.1.5"
ROUNDING = 1e-6
"""Difference of float32 weights of size one that rounding explains."""


def mergekit_python() -> Path:
    """The python that has mergekit; made if need be. The CPU build of torch goes first, so that no CUDA is fetched."""
    folder = DATA / "mergekit-env"
    python = folder / "bin" / "python"
    if not (folder / "bin" / "mergekit-yaml").exists():
        if not python.exists():
            venv.create(folder, with_pip=True)
        for package in (TORCH, MERGEKIT):
            subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True)
    return python


def run_reference(folder: Path, kind: str = "recipes") -> None:
    """Every document of a folder through mergekit: ``recipes``, or ``experts`` through mergekit-moe."""
    script = Path(__file__).with_name("reference.py")
    subprocess.run([mergekit_python(), script, folder, kind], check=True)

"""Checkpoints as safetensors: copied where a package has them so, converted from pickles where not."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.fetch.sources import call

UNPICKLE = Path(__file__).with_name("unpickle.py")
ANARCII = {  # folder -> weights and sizes in the package; the numbers of a name are heads, layers, width, inner width
    "antibody": ("models/antibody/antibody_4_2_128_512.pt", "models/antibody/antibody_4_2_128_512.json"),
    "shark": ("models/shark/shark_4_2_128_512.pt", "models/shark/shark_4_2_128_512.json"),
    "tcr": ("models/tcr/tcr_4_2_128_512.pt", "models/tcr/tcr_4_2_128_512.json"),
    "antibody-1-layer": ("models/antibody/antibody_4_1_128_512.pt", "models/antibody/antibody_4_1_128_512.json"),
    "tcr-1-layer": ("models/tcr/tcr_4_1_128_512.pt", "models/tcr/tcr_4_1_128_512.json"),
    "classifier": ("classifii/classifii.pt", "classifii/params.json"),
}


def unpickle(source: Path, target: Path, prefix: str = "") -> None:
    """Convert one pickle in a process of its own.

    Raises:
        FetchError: it holds more than named tensors.
    """
    command = [sys.executable, str(UNPICKLE), str(source.resolve()), str(target.resolve()), prefix]
    call(command, target.parent, source.name)


def copied(inside: str) -> Callable[[Path, Path], None]:
    """A converter that copies a folder of the package as it is."""

    def convert(content: Path, out: Path) -> None:
        shutil.copytree(content / inside, out, dirs_exist_ok=True)

    return convert


def rxnfp(inside: str) -> Callable[[Path, Path], None]:
    """A converter for one model of rxnfp: weights without the prefix `bert.`, config and vocabulary.

    One of the three has no prefix in the package; without it, all have equal names.
    """

    def convert(content: Path, out: Path) -> None:
        folder = content / "rxnfp" / "models" / "transformers" / inside
        unpickle(folder / "pytorch_model.bin", out / "model.safetensors", "bert.")
        for name in ("config.json", "vocab.txt"):
            shutil.copyfile(folder / name, out / name)

    return convert


def rxnmapper(content: Path, out: Path) -> None:
    folder = content / "rxnmapper" / "models" / "transformers" / "albert_heads_8_uspto_all_1310k"
    unpickle(folder / "pytorch_model.bin", out / "model.safetensors")
    for name in ("config.json", "vocab.txt"):
        shutil.copyfile(folder / name, out / name)


def anarcii(content: Path, out: Path) -> None:
    """Write a folder per model of ANARCII, with the package's names of tensors (fused `in_proj`) and its sizes.

    The vocabularies are Python code in the package: it is copied as text, and not run.
    """
    package = content / "anarcii"
    for name, (weights, sizes) in ANARCII.items():
        (out / name).mkdir()
        unpickle(package / weights, out / name / "model.safetensors")
        config = json.loads((package / sizes).read_text())
        (out / name / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    shutil.copyfile(package / "input_data_processing" / "tokeniser.py", out / "tokeniser.py.txt")

"""Every method's recipes through both tools, on tiny models of several architectures.

Deterministic methods are compared number by number. Random ones draw other numbers: the share of changed weights,
and mean and variance of the change, are compared, in standard errors.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import venv
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

import isomerge
from benchmarks.harness import DATA, Benchmark, Cells
from benchmarks.mergekit.recipes import KINDS, RANDOM, RECIPES, as_yaml, write_models

TORCH, MERGEKIT = "torch==2.13.0", "mergekit==0.1.5"
ROUNDING = 1e-6
"""Difference of float32 weights of size one that rounding explains."""

ERRORS = 5
"""Standard errors within which two random masks count as drawn alike."""
NOTES = {
    "nuslerp-rows-float32": (
        "expected where it differs: two vectors may be nearly opposite when they are short (BERT's classifier has "
        "two rows). mergekit then divides by the sine of an angle that it knows to 3e-4 in float32; isomerge takes "
        "angles in float64. With dtype float64 both tools agree."
    ),
    "arcee_fusion-light-float32": (
        "expected: mergekit computes the divergence of softmaxes in the working dtype, isomerge in float64 always. "
        "In float32 the divergence of near rows is rounding noise, and so are mergekit's decisions; with dtype "
        "float64 (arcee_fusion-light-float64) both tools agree."
    ),
}


def mergekit_python() -> Path:
    """The python that has mergekit; made if need be. The CPU build of torch goes first: no CUDA is fetched."""
    folder = DATA / "mergekit-env"
    python = folder / "bin" / "python"
    if not (folder / "bin" / "mergekit-yaml").exists():
        if not python.exists():
            venv.create(folder, with_pip=True)
        for package in (TORCH, MERGEKIT):
            subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True)
    return python


def run_reference(
    folder: Path, write: Callable[[Path], None], documents: Mapping[str, Any], kind: str = "recipes"
) -> Path:
    """A folder anew, with models and documents, each of which went through mergekit: ``recipes``, or ``experts``
    through mergekit-moe.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write(folder)
    for name, content in documents.items():
        (folder / f"{name}.yml").write_text(yaml.safe_dump(content, sort_keys=False))
    script = Path(__file__).with_name("reference.py")
    subprocess.run([mergekit_python(), script, folder, kind], check=True)
    return folder


def stored(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {n: t.double() for file in sorted(folder.glob("*.safetensors")) for n, t in load_file(file).items()}


def difference(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """The largest difference and where it is, and the share of weights that differ by more than rounding."""
    gaps = {n: (theirs[n] - ours[n]).abs() for n in theirs}
    worst = max(gaps, key=lambda n: float(gaps[n].max()))
    beyond = sum(int((g > ROUNDING).sum()) for g in gaps.values()) / sum(g.numel() for g in gaps.values())
    largest = float(gaps[worst].max())
    return {"largest_difference": largest, "tensor": worst, "beyond_1e-6": beyond, "agrees": largest <= ROUNDING}


def statistics(theirs: dict[str, Any], ours: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Share of changed weights, mean and variance of the change, of both tools, and their gaps in standard
    errors."""
    import torch

    changes = [torch.cat([(m[n] - base[n]).flatten() for n in base]) for m in (theirs, ours)]
    kept = [(c.abs() > ROUNDING).double() for c in changes]
    squares = [(c - c.mean()).square() for c in changes]
    figures, gaps = {}, []
    for name, (a, b) in {"share": kept, "mean": changes, "variance": squares}.items():
        gap = float(((a.mean() - b.mean()) / ((a.var() + b.var()) / len(a)).sqrt()).abs())
        figures[name] = {"mergekit": float(a.mean()), "isomerge": float(b.mean()), "standard_errors": gap}
        gaps.append(gap)
    return {**figures, "agrees": max(gaps) < ERRORS}


@cache
def prepared(kind: str) -> Path:
    """A folder with the models and the recipes of one architecture, and what mergekit makes of them."""
    folder = DATA / "mergekit" / kind
    documents = {name: as_yaml(recipe, folder) for name, recipe in RECIPES.items()}
    return run_reference(folder, partial(write_models, kind), documents)


def compared(kind: str, recipe: str) -> dict[str, Any]:
    folder, method = prepared(kind), RECIPES[recipe].method
    row: dict[str, Any] = {"kind": kind, "recipe": recipe, "method": method}
    if (error := folder / f"{recipe}.error").exists():
        return {**row, "error": f"mergekit: {error.read_text()}", "agrees": False}
    try:
        isomerge.merge(folder / f"{recipe}.yml", out=folder / "ours" / recipe)
    except Exception as problem:  # whatever it is, it is part of the comparison
        return {**row, "error": f"isomerge: {type(problem).__name__}: {problem}", "agrees": False}
    theirs, ours = stored(folder / "theirs" / recipe), stored(folder / "ours" / recipe)
    if theirs.keys() != ours.keys():
        return {**row, "tensors_differ": sorted(theirs.keys() ^ ours.keys()), "agrees": False}
    if method in RANDOM:
        row |= statistics(theirs, ours, stored(folder / "base"))
    else:
        row |= difference(theirs, ours)
    return row if row["agrees"] or recipe not in NOTES else {**row, "note": NOTES[recipe]}


def cells(asked: argparse.Namespace) -> Cells:
    return {f"{kind}, {name}": {"kind": kind, "recipe": name} for kind in KINDS for name in RECIPES}


def about(cells: dict[str, Any]) -> dict[str, Any]:
    worst: dict[str, float] = {}
    for row in cells.values():
        if "largest_difference" in row:
            worst[row["recipe"]] = max(worst.get(row["recipe"], 0.0), row["largest_difference"])
    return {"mergekit": MERGEKIT, "torch": TORCH, "largest_difference": worst}


def said(row: dict[str, Any]) -> str:
    """The verdict, and the figure that it rests on."""
    figure = row.get("largest_difference", row.get("share", row.get("error", "")))
    return f"{'agrees' if row['agrees'] else 'DIFFERS'} {figure}"


BENCHMARK = Benchmark("mergekit", cells, compared, inside="rows", about=about, said=said)

"""The same recipes through mergekit 0.1.5 and through isomerge: the largest difference of any weight, method by
method.

    python benchmarks/mergekit/compare.py                    # writes benchmarks/results/mergekit.json
    python benchmarks/mergekit/compare.py --through functions

mergekit runs in a virtual environment of its own, made on the first run (benchmarks/data/mergekit-env).
Deterministic methods are compared number by number. Random ones draw other numbers: the share of changed weights,
and mean and variance of the change, are compared, in standard errors.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from recipes import KINDS, RANDOM, RECIPES, Recipe, as_yaml, write_models

HERE = Path(__file__).parent
DATA = HERE.parent / "data"
ENVIRONMENT = DATA / "mergekit-env"
RESULTS = HERE.parent / "results" / "mergekit.json"
TORCH, MERGEKIT = "torch==2.13.0", "mergekit==0.1.5"
LARGEST = 1e-6
"""Difference of float32 weights of size one that rounding explains."""
ERRORS = 5
"""Standard errors within which two random masks count as drawn alike."""
NOTES = {
    "nuslerp-rows-float32": (
        "expected where it differs: two vectors may be nearly opposite when they are short (BERT's classifier "
        "has two "
        "rows). mergekit then divides by the sine of an angle that it knows to 3e-4 in float32; isomerge takes "
        "angles in "
        "float64. With dtype float64 both tools agree."
    ),
    "arcee_fusion-light-float32": (
        "expected: mergekit computes the divergence of softmaxes in the working dtype, isomerge in float64 "
        "always. In "
        "float32 the divergence of near rows is rounding noise, and so are mergekit's decisions; with dtype "
        "float64 "
        "(arcee_fusion-light-float64) both tools agree."
    ),
}


def environment() -> Path:
    """The python that has mergekit; made if need be. The CPU build of torch goes first, so that no CUDA is
    fetched."""
    python = ENVIRONMENT / "bin" / "python"
    if not (ENVIRONMENT / "bin" / "mergekit-yaml").exists():
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        for package in (TORCH, MERGEKIT):
            subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True)
    return python


def by_functions(recipe: Path, out: Path) -> None:
    """Merge by the methods themselves, tensor by tensor."""
    import torch
    from safetensors.torch import load_file, save_file

    from isomerge.fusion.registry import method
    from isomerge.merging.fusing import generator

    content = yaml.safe_load(recipe.read_text())
    chosen, dtype = method(content["merge_method"]), getattr(torch, content["dtype"])

    def weights(folder: str) -> dict[str, Any]:
        return {n: t.to(dtype) for n, t in load_file(Path(folder) / "model.safetensors").items()}

    models = [weights(entry["model"]) for entry in content["models"]]
    base = weights(content["base_model"]) if "base_model" in content else None
    given = dict(content.get("parameters", {}))
    for name in content["models"][0].get("parameters", {}):
        given[name] = [entry["parameters"][name] for entry in content["models"]]
    merged = {}
    for name in models[0]:
        rng = generator(0, chosen.name, name) if chosen.random else None
        origin = base[name] if base is not None else None
        merged[name] = chosen.fuse([m[name] for m in models], given, base=origin, rng=rng).contiguous()
    out.mkdir(parents=True)
    save_file(merged, out / "model.safetensors", metadata={"format": "pt"})


def by_recipes(recipe: Path, out: Path) -> None:
    """Merge as a user does: ``isomerge merge RECIPE OUT``, without the cost of a process each."""
    import isomerge

    isomerge.merge(recipe, out=out)


THROUGH: dict[str, Callable[[Path, Path], None]] = {"functions": by_functions, "recipes": by_recipes}


def stored(folder: Path) -> dict[str, Any]:
    """All weights of a checkpoint, float64."""
    from safetensors.torch import load_file

    return {n: t.double() for file in sorted(folder.glob("*.safetensors")) for n, t in load_file(file).items()}


def difference(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """The largest difference and where it is, and the share of weights that differ by more than rounding."""
    gaps = {n: (theirs[n] - ours[n]).abs() for n in theirs}
    worst = max(gaps, key=lambda n: float(gaps[n].max()))
    beyond = sum(int((g > LARGEST).sum()) for g in gaps.values()) / sum(g.numel() for g in gaps.values())
    largest = float(gaps[worst].max())
    return {"largest_difference": largest, "tensor": worst, "beyond_1e-6": beyond, "agrees": largest <= LARGEST}


def statistics(theirs: dict[str, Any], ours: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Share of changed weights, mean and variance of the change, of both tools, and their gaps in standard
    errors."""
    import torch

    changes = [torch.cat([(m[n] - base[n]).flatten() for n in base]) for m in (theirs, ours)]
    kept = [(c.abs() > LARGEST).double() for c in changes]
    squares = [(c - c.mean()).square() for c in changes]
    found, gaps = {}, []
    for name, (a, b) in {"share": kept, "mean": changes, "variance": squares}.items():
        gap = float(((a.mean() - b.mean()) / ((a.var() + b.var()) / len(a)).sqrt()).abs())
        found[name] = {"mergekit": float(a.mean()), "isomerge": float(b.mean()), "standard_errors": gap}
        gaps.append(gap)
    return {**found, "agrees": max(gaps) < ERRORS}


def compare(
    kind: str, name: str, recipe: Recipe, folder: Path, merge: Callable[[Path, Path], None]
) -> dict[str, Any]:
    """One recipe through both tools; mergekit's result is there already."""
    file, out = folder / f"{name}.yml", folder / "ours" / name
    error = folder / f"{name}.error"
    row: dict[str, Any] = {"kind": kind, "recipe": name, "method": recipe.method}
    if error.exists():
        return {**row, "error": f"mergekit: {error.read_text()}", "agrees": False}
    try:
        merge(file, out)
    except Exception as problem:  # whatever it is, it is a result
        return {**row, "error": f"isomerge: {type(problem).__name__}: {problem}", "agrees": False}
    theirs, ours = stored(folder / name), stored(out)
    if theirs.keys() != ours.keys():
        return {**row, "tensors_differ": sorted(theirs.keys() ^ ours.keys()), "agrees": False}
    if recipe.method in RANDOM:
        row |= statistics(theirs, ours, stored(folder / "base"))
    else:
        row |= difference(theirs, ours)
    return row if row["agrees"] or name not in NOTES else {**row, "note": NOTES[name]}


def prepare(kind: str) -> Path:
    """A folder with the models and the recipes of one architecture."""
    folder = DATA / "mergekit" / kind
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_models(kind, folder)
    for name, recipe in RECIPES.items():
        (folder / f"{name}.yml").write_text(yaml.safe_dump(as_yaml(recipe, folder), sort_keys=False))
    return folder


def main() -> None:
    """Compare everything and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--through", choices=THROUGH, default="recipes")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    chosen = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    python, rows = environment(), []
    for kind in chosen.kinds:
        folder = prepare(kind)
        subprocess.run([python, HERE / "reference.py", folder], check=True)
        for name, recipe in RECIPES.items():
            rows.append(compare(kind, name, recipe, folder, THROUGH[chosen.through]))
            row = rows[-1]
            figure = row.get("largest_difference", row.get("share", row.get("error", "")))
            print(f"{kind:8} {name:22} {'agrees' if row['agrees'] else 'DIFFERS':8} {figure}", flush=True)
    worst: dict[str, float] = {}
    for row in rows:
        if "largest_difference" in row:
            worst[row["recipe"]] = max(worst.get(row["recipe"], 0.0), row["largest_difference"])
    found = {
        "mergekit": MERGEKIT,
        "torch": TORCH,
        "through": chosen.through,
        "largest_difference": worst,
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

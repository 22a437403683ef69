"""The newer merge methods against fusion_bench 0.2.33 and their authors' code, on the same tensors, one by one.

    python benchmarks/fusion_bench_equality.py --python ENV/bin/python [--authors FOLDER]

ENV has fusion_bench 0.2.33 (``pip install --no-deps fusion-bench==0.2.33``, and what its methods import: lightning,
omegaconf, hydra-core, transformers, datasets, peft, torchmetrics, bidict, tqdm, rich). FOLDER has ``pcb-merging.py`` of
github.com/duguodong7/pcb-merging and ``eval.py`` (``src/eval/eval.py``) of github.com/wang-kee/LiNeS, whose methods
fusion_bench lacks. Writes ``benchmarks/results/fusion_bench.json`` and the table in ``docs/lab/newer-methods.md``.

``--speed`` measures the processor's seconds of each method for one matrix of 4096 x 4096 and three models instead; of iterative
ones a few steps, and as many times longer.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "fusion_bench.json"
PAGE = HERE.parent / "docs" / "lab" / "newer-methods.md"
MARKS = ("<!-- made by benchmarks/fusion_bench_equality.py -->", "<!-- end -->")
State = dict[str, Tensor]
MODELS = 3
LAYERS = 3
ROUNDING = 2e-5
"""Difference, in shares of the largest change of a weight, that float32 explains."""
SHAPES = {
    "wide": (24, 40),
    "tall": (40, 24),
    "square": (32, 32),
    "embedding": (64, 16),
    "bias": (24,),
    "gain": (32,),
    "kernel": (8, 3, 2, 2),
}
GAPS = 2e-4
"""Of singular vectors one by one, which are known to rounding over the gap between two singular values."""
ADAM = 1e-3
"""Of iterative methods: theirs and ours take the same steps, rounding apart."""


# ------------------------------------------------------------ inputs


def inputs(folder: Path) -> None:
    """A base and models whose task vectors are full, and ones of adapters of rank 2."""
    rng = torch.Generator().manual_seed(0)

    def drawn(shape: tuple[int, ...], size: float) -> Tensor:
        return size * torch.randn(shape, generator=rng)

    names = {f"encoder.layers.{layer}.{kind}.weight": kind for layer in range(LAYERS) for kind in SHAPES}
    base = {name: drawn(SHAPES[kind], 0.05) for name, kind in names.items()}
    save_file(base, folder / "base.safetensors")
    for m in range(MODELS):
        full = {name: base[name] + drawn(SHAPES[kind], 0.004) for name, kind in names.items()}
        save_file(full, folder / f"full-{m}.safetensors")
        thin = {}
        for name, kind in names.items():
            shape = SHAPES[kind]
            change = (
                drawn((shape[0], 2), 0.06) @ drawn((2, shape[1]), 0.06) if len(shape) == 2 else drawn(shape, 0.004)
            )
            thin[name] = base[name] + change
        save_file(thin, folder / f"adapters-{m}.safetensors")
        # the same but for one rounding of some weights
        signs = {name: torch.randint(-1, 2, t.shape, generator=rng) for name, t in thin.items()}
        moved = {name: torch.nextafter(t, t + signs[name]) for name, t in thin.items()}
        save_file(moved, folder / f"nudged-{m}.safetensors")


def read(folder: Path, kind: str) -> tuple[State, list[State]]:
    """The base and the models."""
    return load_file(folder / "base.safetensors"), [
        load_file(folder / f"{kind}-{m}.safetensors") for m in range(MODELS)
    ]


def task_vectors(folder: Path, kind: str) -> list[State]:
    """Theirs to change."""
    base, models = as_matrices(*read(folder, kind))
    return [{name: model[name] - base[name] for name in base} for model in models]


def as_matrices(base: State, models: Sequence[State]) -> tuple[State, list[State]]:
    """Kernels as the matrices that they are here: theirs takes those for vectors that have more axes than two."""
    flat = [{n: t.flatten(1) if t.ndim > 2 else t for n, t in state.items()} for state in (base, *models)]
    return flat[0], flat[1:]


# ------------------------------------------------------------ theirs, in an environment of their own


def functions_of(file: Path, *names: str) -> dict[str, Any]:
    """Functions of a script, without what else it does."""
    import copy

    tree = ast.parse(file.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    room: dict[str, Any] = {"torch": torch, "copy": copy}
    exec(compile(tree, str(file), "exec"), room)
    return room


def of_fusion_bench(folder: Path, kind: str) -> dict[str, State]:
    """Merged task vectors by fusion_bench, by the name of our method and its variant."""
    from fusion_bench.method.emr_merging.utils import emr_merge  # pyright: ignore[reportMissingImports]
    from fusion_bench.method.isotropic_merging.iso_utils import iso_c, iso_cts  # pyright: ignore[reportMissingImports]
    from fusion_bench.method.task_singular_vector.utils import TSVM_utils  # pyright: ignore[reportMissingImports]
    from fusion_bench.method.wudi.wudi import wudi_merging  # pyright: ignore[reportMissingImports]

    def vectors() -> list[State]:
        return task_vectors(folder, kind)

    found = {
        "tsv_m": TSVM_utils.compute_and_sum_svd_mem_reduction(vectors(), accelerator="cpu"),
        "svd_task_arithmetic": TSVM_utils.compute_and_sum_svd_mem_reduction_rank_reduction(vectors(), "cpu"),
        "iso_c": iso_c(vectors(), accelerator="cpu"),
        "iso_cts": iso_cts(vectors(), 0.8, accelerator="cpu"),
        "wudi": {n: t.detach() for n, t in wudi_merging(vectors(), "cpu", iter_num=300).items()},
        "emr": emr_merge(vectors())[0],
        "knots": knots(vectors(), 100),
        "knots density=0.4": knots(vectors(), 40),
        "consensus": consensus(folder, kind),
        "doge": doge(folder, kind),
    }
    return {name: {n: t.contiguous() for n, t in state.items()} for name, state in found.items()}


def knots(vectors: Sequence[State], keep: int) -> State:
    """Their alignment of subspaces, then their TIES, matrix by matrix."""
    from fusion_bench.method.knots.knots_utils import subspace_alignment  # pyright: ignore[reportMissingImports]
    from fusion_bench.method.ties_merging.ties_merging_utils import ties_merging  # pyright: ignore[reportMissingImports]

    found = {}
    for name, first in vectors[0].items():
        u, parts = None, [vector[name] for vector in vectors]
        if first.ndim == 2:
            u, s, right = subspace_alignment(parts, eps=1e-6)
            parts = [s[:, None] * v for v in right]
        flat = torch.stack([part.reshape(-1) for part in parts])
        share = keep if keep < 100 else 1 - 0.5 / flat.shape[1]  # theirs fails where all are kept
        merged = ties_merging(flat, reset_thresh=share, merge_func="dis-mean").reshape(parts[0].shape)
        found[name] = merged if u is None else u @ merged
    return found


def consensus(folder: Path, kind: str) -> State:
    """The sum where two of their TALL masks agree."""
    from fusion_bench.method.tall_mask.utils import generate_task_masks  # pyright: ignore[reportMissingImports]

    base, models = as_matrices(*read(folder, kind))
    found = {}
    for name, origin in base.items():
        tuned = torch.stack([model[name].reshape(-1) for model in models])
        changes = tuned - origin.reshape(-1)
        masks = generate_task_masks(changes, tuned, origin.reshape(-1), tall_mask_lambda=0.4)
        found[name] = (changes.sum(0) * (masks.sum(0) >= 2)).reshape(origin.shape)
    return found


def doge(folder: Path, kind: str) -> State:
    """A model of one matrix at a time: theirs keeps the largest entries of a whole model."""
    from fusion_bench.method.doge_ta.doge_ta import DOGE_TA_Algorithm  # pyright: ignore[reportMissingImports]

    base, models = as_matrices(*read(folder, kind))
    found = {}
    for name, origin in base.items():
        if origin.ndim != 2:
            found[name] = torch.zeros_like(origin)
            continue

        def module(value: Tensor) -> torch.nn.Module:
            inside = torch.nn.Module()
            inside.encoder = torch.nn.Linear(value.shape[1], value.shape[0], bias=False)
            inside.encoder.weight.data.copy_(value)
            return inside

        pool = {"_pretrained_": module(origin), **{f"m{k}": module(m[name]) for k, m in enumerate(models)}}
        merged = DOGE_TA_Algorithm(subspace=6, K=30, lamda=0.07).run(pool)
        found[name] = merged.encoder.weight.detach() - origin
    return found


def of_authors(folder: Path, kind: str, authors: Path) -> dict[str, State]:
    """Merged task vectors by the authors' own code."""
    from types import SimpleNamespace

    vectors = task_vectors(folder, kind)
    room = functions_of(authors / "pcb-merging.py", "normalize", "clamp", "act", "PCB_merge")
    found: dict[str, State] = {"pcb": {}}
    for name, first in vectors[0].items():
        flat = torch.stack([vector[name].reshape(-1) for vector in vectors])
        found["pcb"][name] = room["PCB_merge"](flat, 0.1)[0].reshape(first.shape)
    scaling = functions_of(authors / "eval.py", "LiNeS_scaling")["LiNeS_scaling"]
    summed = {name: sum(vector[name] for vector in vectors) for name in vectors[0]}
    found["lines"] = scaling(SimpleNamespace(vector=summed), 1 / MODELS, 1 - 1 / MODELS, LAYERS).vector
    return found


def theirs(folder: Path, authors: Path | None) -> None:
    """Write what theirs give, a file for each."""
    for kind in ("full", "adapters", "nudged"):
        found = of_fusion_bench(folder, kind)
        found |= {} if authors is None else of_authors(folder, kind, authors)
        for name, state in found.items():
            save_file(
                {n: t.detach().clone() for n, t in state.items()}, folder / f"theirs-{kind}-{name}.safetensors"
            )


# ------------------------------------------------------------ ours

TOLERANCES = {"wudi": ADAM, "doge": ADAM, "knots": GAPS, "knots density=0.4": GAPS}
WHY = {
    (
        "tsv_m",
        "adapters",
    ): "theirs gives a model of low rank directions of rounding, up to its share of the side, and "
    "makes the others orthogonal to them; here they are left out",
    (
        "iso_c",
        "adapters",
    ): "theirs gives directions of rounding the mean singular value as well; here they stay zero, "
    "and the mean is that of the others",
    ("doge", "adapters"): "theirs counts directions of rounding among the shared ones",
    ("svd_task_arithmetic", "vectors"): "theirs averages biases and gains; here they are added, so that all ranks "
    "give task arithmetic",
}
WHY["iso_cts", "adapters"] = WHY["iso_c", "adapters"]


def parameters_of(name: str, shape: Sequence[int]) -> dict[str, Any]:
    """Ours, for a tensor: where entries are kept, as many as theirs, whose masks have the entry at the threshold
    too."""
    matrix = (shape[0], prod(shape[1:])) if len(shape) > 1 else (1, shape[0])
    if name == "doge":
        return {"density": (int(0.3 * prod(matrix)) + 1.5) / prod(matrix)}
    if name == "knots density=0.4":
        rows = min(matrix[0], MODELS * matrix[1]) if len(shape) > 1 else 1
        return {"density": (int(0.4 * rows * matrix[1]) + 1.5) / (rows * matrix[1])}
    return {}


def compared(folder: Path, name: str, kind: str) -> list[dict[str, Any]]:
    """A row for each kind of tensor: the largest difference, in shares of the largest change of a weight; and how far
    theirs is from itself where inputs differ by a rounding."""
    from isomerge.fusion.registry import method

    chosen = method(name.partition(" ")[0])
    base, models = read(folder, kind)
    other, nudged = (load_file(folder / f"theirs-{k}-{name}.safetensors") for k in (kind, "nudged"))
    gaps: dict[str, tuple[float, float, float]] = {}
    for tensor, origin in base.items():
        given = {**parameters_of(name, origin.shape), "depth": int(tensor.split(".")[2]) / (LAYERS - 1)}
        if kind == "adapters" and name == "knots density=0.4" and origin.ndim == 2:  # six directions
            numel = 2 * MODELS * origin.shape[1]
            given["density"] = (int(0.4 * numel) + 1.5) / numel
        mine = chosen.fuse([model[tensor] for model in models], given, base=origin) - origin
        sort = {1: "vectors", 2: "matrices"}.get(origin.ndim, "kernels")
        gap, size, own = gaps.get(sort, (0.0, 0.0, 0.0))
        there = other[tensor].reshape(origin.shape)
        itself = float((there - nudged[tensor].reshape(origin.shape)).abs().max())
        gap = max(gap, float((mine - there).abs().max()))
        gaps[sort] = (gap, max(size, float(mine.abs().max())), max(own, itself))
    rows = []
    for sort, (gap, size, own) in gaps.items():
        share = gap / size if size else gap
        tolerance = TOLERANCES.get(name, ROUNDING)
        why = "" if share <= tolerance else WHY.get((name, sort), WHY.get((name, kind), "unexplained"))
        row = {"method": name, "task_vectors": kind, "tensors": sort, "difference": share, "tolerance": tolerance}
        row |= {"theirs_after_a_rounding": own / size if kind == "adapters" and size else None}
        rows.append({**row, "equal": share <= tolerance, "why": why})
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of the page."""
    lines = [
        "| method | task vectors | tensors | largest difference | tolerance | theirs, after a rounding | |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        told = "equal" if row["equal"] else row["why"]
        cells = [f"`{row['method']}`", row["task_vectors"], row["tensors"]]
        itself = row["theirs_after_a_rounding"]
        cells += [
            f"{row['difference']:.1e}",
            f"{row['tolerance']:.0e}",
            "" if itself is None else f"{itself:.1e}",
            told,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_page(text: str, mark: str = MARKS[0]) -> None:
    """Put a table between the page's marks."""
    before, _, rest = PAGE.read_text().partition(mark)
    after = rest.partition(MARKS[1])[2]
    PAGE.write_text(f"{before}{mark}\n\n{text}\n\n{MARKS[1]}{after}")


# ------------------------------------------------------------ speed


STEPS = 10
"""Steps that iterative methods are measured with; the rest takes as long each."""


def speed(side: int, name: str) -> float:
    """Processor seconds, of one thread, of a method for one matrix and three models."""
    from isomerge.fusion.registry import method

    torch.set_num_threads(1)
    chosen, rng = method(name), torch.Generator().manual_seed(0)
    base = 0.02 * torch.randn(side, side, generator=rng)
    models = [base + 0.002 * torch.randn(side, side, generator=rng) for _ in range(MODELS)]

    def timed(given: dict[str, Any]) -> float:
        start = time.process_time()
        chosen.fuse(models, given, base=base)
        return time.process_time() - start

    if "iterations" not in chosen.options:
        return round(timed({}), 1)
    least, more = (timed({"iterations": count}) for count in (1, STEPS + 1))
    return round(least + (more - least) / STEPS * chosen.options["iterations"].default, 1)


NEW = (
    "lines",
    "emr",
    "consensus",
    "pcb",
    "svd_task_arithmetic",
    "iso_c",
    "iso_cts",
    "tsv_m",
    "knots",
    "wudi",
    "doge",
)


def main() -> None:
    """Compare, or measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--authors", type=Path)
    parser.add_argument("--theirs", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--only", nargs="*", default=NEW)
    asked = parser.parse_args()
    if asked.theirs:
        theirs(asked.theirs, asked.authors)
        return
    content: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if asked.speed:
        seconds = content.setdefault("seconds", {}).setdefault(str(asked.side), {})
        for name in asked.only:
            seconds[name] = speed(asked.side, name)
            print(name, seconds[name], flush=True)
            RESULTS.write_text(json.dumps(content, indent=1) + "\n")
        return
    with tempfile.TemporaryDirectory() as room:
        folder = Path(room)
        inputs(folder)
        authors = [] if asked.authors is None else ["--authors", str(asked.authors)]
        call = [asked.python, __file__, "--theirs", room, *authors]
        subprocess.run(call, check=True, stdout=subprocess.DEVNULL)
        names = sorted({p.stem.split("-", 2)[2] for p in folder.glob("theirs-*.safetensors")})
        rows = [row for name in names for kind in ("full", "adapters") for row in compared(folder, name, kind)]
    content["fusion_bench"], content["torch"], content["rows"] = "0.2.33", torch.__version__, rows
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")
    text = table(rows)
    print(text)
    if PAGE.exists():
        write_page(text)


if __name__ == "__main__":
    main()

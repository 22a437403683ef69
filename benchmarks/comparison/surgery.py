"""Representation surgery after merges of the fine-tunes of `benchmarks.comparison`, beside what else tasks can be given.

    python -m benchmarks.comparison.surgery                            # writes results/surgery.json and the tables
    python -m benchmarks.comparison.surgery --python ENV/bin/python    # the formula against fusion_bench 0.2.33 there

Of every merge: as it is; with the task's own head on it and nothing else (a control); with the correction that
`isomerge surgery` folds into that head, of rank 16 and of full rank; with the publication's, whose relu no checkpoint
has; and, of merges by EMR, the task's model back from its mask. Each task's head is scored on its own task: unlike a
merge alone, these know which task an example is of. 512 training images of a task, without labels.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

RESULTS = Path(__file__).parents[1] / "results" / "surgery.json"
PAGE = Path(__file__).parents[2] / "docs" / "lab" / "comparison.md"
START, END = "<!-- surgery: begin -->", "<!-- surgery: end -->"
METHODS: dict[str, dict[str, Any]] = {
    "linear": {}, "task_arithmetic": {"lambda": 0.5}, "ties": {}, "tsv_m": {}, "wudi": {}, "emr": {}, "doge": {},
}  # fmt: skip
"""Averages, sums, what elects and what takes matrices apart, and one that stays near the ancestor."""
WAYS = ("merged", "own head", "rank 16", "full rank", "with relu, rank 16", "mask")
FAMILY, STEPS, RATE, FORMULA_STEPS = "vit", 1000, 1e-2, 200


def measured(seed: int, name: str) -> dict[str, float]:
    """The mean accuracy over both tasks of one merge, by ways of giving each task its own."""
    import isomerge
    from benchmarks.comparison.__main__ import merged
    from benchmarks.comparison.models import PLAIN, TASKS, examples, score, trained
    from isomerge.fusion.registry import method

    tasks, folders = TASKS[FAMILY], trained(FAMILY, seed)
    out = merged(
        method(name), [folders[t] for t in tasks], folders[PLAIN], examples(FAMILY, tasks, seed), METHODS[name]
    )
    found: dict[str, list[float]] = {"merged": [score(FAMILY, out, (task,))["mean"] for task in tasks]}
    with tempfile.TemporaryDirectory() as room:
        head, whole = Path(room) / "head", Path(room) / "whole"
        for task in tasks:
            data = examples(FAMILY, (task,), seed)
            for way, rank in (("rank 16", 16), ("full rank", 64)):
                isomerge.surgery(out, folders[task], data=data, out=head, rank=rank, overwrite=True)
                isomerge.merge([f"{out}+{head}"], out=whole, method="passthrough", align=False, overwrite=True)
                found.setdefault(way, []).append(score(FAMILY, whole, (task,))["mean"])
            for way, value in by_hand(out, folders[task], data, task).items():
                found.setdefault(way, []).append(value)
            if name == "emr":
                mask = Path(room) / "mask.safetensors"
                isomerge.task_mask(out, folders[PLAIN], folders[task], out=mask, overwrite=True)
                isomerge.restore_task(out, folders[PLAIN], mask, out=whole, overwrite=True)
                found.setdefault("mask", []).append(score(FAMILY, whole, (task,))["mean"])
    return {way: statistics.fmean(values) for way, values in found.items()}


def by_hand(out: Path, task_folder: Path, data: Path, task: str) -> dict[str, float]:
    """The task's own head on the merge's representations, and on those that a relu's correction has mended."""
    from benchmarks.comparison.models import KINDS
    from isomerge.fusion.forward.surgery import learn
    from isomerge.merging.adapter.surgery import head_of, representations
    from isomerge.observe.data.examples import Examples
    from isomerge.observe.live.modules import load_module

    seen, held = (
        Examples({"pixel_values": x["pixel_values"]}, False)
        for x in (load_file(data), KINDS[FAMILY].held_out(task))
    )
    modules = [load_module(folder) for folder in (out, task_folder)]
    path = head_of(modules[0], seen)
    rows, wanted = (representations(module, path, seen, 64, 0) for module in modules)
    here, head = representations(modules[0], path, held, 64, 0), modules[1].get_submodule(path)
    mend = learn(rows, wanted, rank=16, steps=STEPS, rate=RATE, rectified=True, constant=False)
    labels = KINDS[FAMILY].held_out(task)["labels"]
    with torch.no_grad():
        right = [(head(x).argmax(-1) == labels).double().mean() for x in (here, mend(here))]
    return {"own head": float(right[0]), "with relu, rank 16": float(right[1])}


def table(results: dict[str, Any]) -> str:
    """Means and deviations over seeds, in %."""
    shown = dict(
        zip(
            WAYS,
            ("merged", "own head on it", "surgery", "surgery, full rank", "publication's, with relu", "EMR's mask"),
            strict=True,
        )
    )
    lines = [f"| method | {' | '.join(shown.values())} |", f"|{'---|' * (len(WAYS) + 1)}"]
    for name in METHODS:
        cells = []
        for way in WAYS:
            values = [100 * one[name][way] for one in results["seeds"].values() if way in one.get(name, {})]
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.1f}{spread}" if values else "")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


# ------------------------------------------------------------ against fusion_bench


def theirs(room: Path) -> None:
    """In an environment with fusion_bench: its module, from the same start, on the same rows."""
    from transformers.models.clip import modeling_clip  # type: ignore[import-not-found]

    # later versions of transformers lack a class that fusion_bench's module names in an import alone
    modeling_clip.CLIPVisionTransformer = getattr(modeling_clip, "CLIPVisionTransformer", torch.nn.Module)
    from fusion_bench.models.surgery.surgerymodelwrapper import SurgeryModelWrapper  # type: ignore[import-not-found]

    given = load_file(room / "given.safetensors")
    model = SurgeryModelWrapper(
        torch.nn.Identity(), ["task"], projection_dim=given["rows"].shape[1], hidden_dim=len(given["down"])
    )
    down, up = (getattr(model, f"feature_mapping_to_head_{half}_proj_task") for half in ("down", "up"))
    down.weight.data.copy_(given["down"])
    optimizer = torch.optim.Adam(model.collect_trainable_params(), lr=RATE)
    for step, chosen in enumerate(given["chosen"]):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / len(given["chosen"]))
        features, _, _ = model.compute_surgery_features(given["rows"][chosen], "task")
        loss = torch.nn.functional.l1_loss(features, given["wanted"][chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    features = model.compute_surgery_features(given["rows"], "task")[0].detach()
    save_file(
        {"features": features, "down": down.weight.detach(), "up": up.weight.detach()}, room / "theirs.safetensors"
    )


def formula(python: str) -> dict[str, float]:
    """How far ours is from fusion_bench's after the same steps, in shares of its largest number."""
    from isomerge.fusion.forward.surgery import BATCH, learn

    rng = torch.Generator().manual_seed(1)
    rows = torch.randn(512, 64, generator=rng)
    wanted = rows + 0.5 * torch.relu(rows @ torch.randn(64, 64, generator=rng) / 8)
    wanted /= wanted.square().mean().sqrt()
    ours = learn(rows, wanted, rank=16, steps=FORMULA_STEPS, rate=RATE, seed=5, rectified=True, constant=False)
    drawn = torch.Generator().manual_seed(5)
    down = torch.empty(16, 64).uniform_(-1 / 8, 1 / 8, generator=drawn)
    chosen = torch.stack([torch.randint(512, (BATCH,), generator=drawn) for _ in range(FORMULA_STEPS)])
    with tempfile.TemporaryDirectory() as room:
        save_file(
            {"rows": rows, "wanted": wanted, "down": down, "chosen": chosen}, Path(room) / "given.safetensors"
        )
        subprocess.run([python, __file__, "--theirs", room], check=True)
        other = load_file(Path(room) / "theirs.safetensors")
    mine = {"features": ours(rows), "down": ours.down, "up": ours.up}
    return {name: float((mine[name] - x).abs().max() / x.abs().max()) for name, x in other.items()}


def main() -> None:
    """Measure what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python")
    parser.add_argument("--theirs", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.theirs:
        theirs(asked.theirs)
        return
    warnings.simplefilter("ignore")
    logging.getLogger("isomerge").setLevel(logging.ERROR)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"seeds": {}}
    if asked.python:
        results["fusion_bench"] = {"version": "0.2.33", "steps": FORMULA_STEPS, "difference": formula(asked.python)}
        print(results["fusion_bench"], flush=True)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        return
    for seed in (0, 1, 2):
        rows = results["seeds"].setdefault(str(seed), {})
        for name in (name for name in METHODS if name not in rows):
            rows[name] = measured(seed, name)
            print(seed, name, rows[name], flush=True)
            RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    head, rest = PAGE.read_text().split(START)
    PAGE.write_text(f"{head}{START}\n\n{table(results)}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    sys.exit(main())

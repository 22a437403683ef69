"""What the whole symmetry group costs and brings: this checkout beside an older one.

    python -m benchmarks.whole_group --before COMMIT            # writes results/whole_group.json

Cost: CPU seconds of a default alignment of random models of width 512 with 6 layers, as fine-tunes of one model (noise
of a hundredth) and as models of two seeds; both checkouts take turns, and the least of so many runs counts.
Gain: the digits ViTs of `benchmarks/barrier/train.py`, of which two seeds are aligned by weights and by learning; the
distance before and after, and the barrier on test images, which this checkout measures for both.
Every alignment is a process of its own with one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.performance.processes import measure

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "whole_group.json"
TURNS = 3
FAMILY = "vit-digits"
SIZE = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", {**SIZE, "vocab_size": 8192}),
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 512, "n_layer": 6, "n_head": 8, "vocab_size": 8192}),
    "vit": ("ViTModel", SIZE),
    "llama": (
        "LlamaForCausalLM",
        {**SIZE, "intermediate_size": 1376, "num_key_value_heads": 2, "vocab_size": 8192},
    ),
}


def pair(kind: str, related: bool, folder: Path) -> list[Path]:
    """Two models."""
    import torch
    import transformers

    name, sizes = KINDS[kind]
    cls = getattr(transformers, name)
    found = []
    for k in range(2):
        torch.manual_seed(0 if related else k)
        model = cls(cls.config_class(**sizes))
        rng = torch.Generator().manual_seed(10 + k)
        with torch.no_grad():
            for p in model.parameters():  # biases and gains of their own, as trained models have
                p += 0.02 * torch.randn(
                    p.shape, generator=torch.Generator().manual_seed(p.numel() + (0 if related else k))
                )
                if related:
                    p += 0.01 * float(p.std()) * torch.randn(p.shape, generator=rng)
        model.save_pretrained(folder / str(k))
        found.append(folder / str(k))
    return found


def aligned(source: Path, models: list[Path], out: Path, **options: Any) -> dict[str, float]:
    """CPU seconds of one alignment with the package of a checkout, and the distances."""
    shutil.rmtree(out, ignore_errors=True)
    os.environ["PYTHONPATH"] = str(source / "src")
    said = json.dumps({"onto": str(models[0]), "out": str(out), **options})
    work = f"import isomerge, json; print(json.dumps(isomerge.align({str(models[1])!r}, **json.loads({said!r}))[1]['distance']))"
    log = out.with_suffix(".log")
    cost = measure([sys.executable, "-c", work], threads=1, log=log)
    found = json.loads(next(line for line in reversed(log.read_text().splitlines()) if line.startswith("{")))
    return {"seconds": round(cost["cpu_seconds"], 2), "before": found["before"], "after": found["after"]}


def gains(sources: dict[str, Path], folder: Path, rows: dict[str, Any], save: Any) -> None:
    """Both checkouts on the pairs of digits ViTs."""
    import isomerge
    from benchmarks.barrier.run import folder_of, options_of, test_data

    for pair in ("0-1", "0-2", "1-2"):
        models = [folder_of(FAMILY, seed, None, False) for seed in pair.split("-")]
        for row in ("all", "distilled-quick"):
            label = f"{pair}, {row}"
            for name, source in sources.items():
                if name in rows.setdefault(label, {}):
                    continue
                options = {**options_of(row, FAMILY), "align": True, "seed": 0}
                found = aligned(source, models, folder / "gain", **options)
                line = isomerge.barrier(
                    models[0], folder / "gain", data=test_data(FAMILY), spaces="none", points=25
                )
                rows[label][name] = {
                    **found,
                    "barrier": line["lines"][0]["barrier"]["entezari"],
                    "midpoint": line["lines"][0]["midpoint"],
                }
                save()
                print(label, name, rows[label][name], flush=True)


def costs(sources: dict[str, Path], folder: Path, rows: dict[str, Any], save: Any) -> None:
    """Both checkouts, in turns, on random pairs."""
    for kind in KINDS:
        for related in (True, False):
            label = f"{kind}, {'fine-tunes' if related else 'two seeds'}"
            if label in rows:
                continue
            models = pair(kind, related, folder / f"{kind}-{related}")
            runs: dict[str, list[float]] = {name: [] for name in sources}
            for _ in range(TURNS):
                for name, source in sources.items():
                    runs[name].append(aligned(source, models, folder / "out")["seconds"])
            rows[label] = {name: min(every) for name, every in runs.items()}
            save()
            print(label, runs, flush=True)


def main() -> None:
    """Read the command line and run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, help="the older commit")
    parser.add_argument("--part", choices=("cost", "gain"), help="one of them alone")
    asked = parser.parse_args()

    def kept() -> dict[str, Any]:
        return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"before": asked.before}

    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        sources = {"before": folder / "old", "now": ROOT}
        subprocess.run(
            ["git", "worktree", "add", "-q", "--detach", str(sources["before"]), asked.before], cwd=ROOT, check=True
        )
        try:
            for part, work in (("cost", costs), ("gain", gains)):
                if asked.part in (None, part):
                    rows = kept().get(part, {})

                    def save(
                        part: str = part, rows: dict[str, Any] = rows
                    ) -> None:  # the parts may run side by side
                        RESULTS.write_text(json.dumps({**kept(), part: rows}, indent=1, sort_keys=True) + "\n")

                    work(sources, folder, rows, save)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(sources["before"])], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()

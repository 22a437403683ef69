"""What the whole symmetry group costs: CPU seconds of a default alignment, of this checkout and of an older one.

    python -m benchmarks.alignment_cost --before COMMIT     # writes results/alignment_cost.json

Random models of width 512 with 6 layers, as fine-tunes of one model (noise of a hundredth) and as models of two seeds.
Every alignment is a process of its own with one thread; both checkouts take turns, and the least of so many runs counts.
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
RESULTS = ROOT / "benchmarks" / "results" / "alignment_cost.json"
TURNS = 3
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


def seconds(source: Path, models: list[Path], out: Path) -> float:
    """CPU seconds of one alignment with the package of a checkout."""
    shutil.rmtree(out, ignore_errors=True)
    os.environ["PYTHONPATH"] = str(source / "src")
    command = [
        sys.executable,
        "-m",
        "isomerge",
        "align",
        str(models[1]),
        "--onto",
        str(models[0]),
        "-o",
        str(out),
        "-q",
    ]
    return measure(command, threads=1, log=out.with_suffix(".log"))["cpu_seconds"]


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, help="the older commit")
    asked = parser.parse_args()
    results: dict[str, Any] = {"before": asked.before, "rows": {}}
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        old = folder / "old"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(old), asked.before], cwd=ROOT, check=True)
        try:
            for kind in KINDS:
                for related in (True, False):
                    models = pair(kind, related, folder / f"{kind}-{related}")
                    runs: dict[str, list[float]] = {"before": [], "now": []}
                    for _ in range(TURNS):
                        for name, source in (("before", old), ("now", ROOT)):
                            runs[name].append(round(seconds(source, models, folder / "out"), 2))
                    label = f"{kind}, {'fine-tunes' if related else 'two seeds'}"
                    results["rows"][label] = {name: min(every) for name, every in runs.items()}
                    print(label, runs, flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(old)], cwd=ROOT, check=True)
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()

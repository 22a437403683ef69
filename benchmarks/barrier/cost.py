"""What each kind of matching costs: CPU seconds and peak memory, by width, depth and number of heads.

    python benchmarks/barrier/cost.py

Pairs of randomly initialised Llama-like models (RoPE, grouped queries, SwiGLU, vocabulary 256) are aligned in a
process of their own, one thread, in each way. Random weights are the hardest case for sweeps (nothing settles
early), so a fixed number of sweeps, rows, learning steps and moves of the search is run. Writes
``benchmarks/results/barrier/cost.json``.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULT = HERE.parent / "results" / "barrier" / "cost.json"
BASE = {"width": 128, "depth": 4, "heads": 8}
SIZES = [
    BASE,
    *({**BASE, "width": w} for w in (256, 512)),
    *({**BASE, "depth": n} for n in (8, 16)),
    *({**BASE, "heads": h} for h in (4, 16)),
]
SWEEPS, ROWS, STEPS, MOVES = 5, 1024, 10, 10
KINDS = ("none", "paper", "default", "all", "activations", "search", "learned")


def build(text: str, folder: str, seed: str) -> None:
    """A random model; prints its number of parameters. (A parent that holds torch would count in its children's
    peak.)"""
    import torch
    import transformers

    size = json.loads(text)
    torch.manual_seed(int(seed))
    width = size["width"]
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=int(width * 2.6875),
        num_hidden_layers=size["depth"],
        num_attention_heads=size["heads"],
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    print(model.num_parameters())


def align(kind: str, a: str, b: str, text: str) -> None:
    """One alignment in this process; prints CPU seconds and peak memory."""
    import torch

    import isomerge
    from isomerge.solve.pairs import search
    from isomerge.solve.pairs import stream_descent as streams

    torch.set_num_threads(1)
    streams.SWEEPS = SWEEPS
    streams.StreamSolver.solve.__defaults__ = (SWEEPS,)
    forward, spent = search.search_forward, []

    def timed(*given: Any, **how: Any) -> dict[str, Any]:
        """The search, so many moves long; beside it stands what it takes by itself."""
        began = time.process_time()
        found = forward(*given, **{**how, "moves": MOVES})
        spent.append(time.process_time() - began)
        return found

    search.search_forward = timed
    options: dict[str, dict[str, Any]] = {
        "none": {"spaces": "none"},
        "paper": {"spaces": "paper"},
        "default": {"spaces": "default"},
        "all": {"spaces": "all"},
        "activations": {"data": text, "limit": 64, "spaces": "all"},
        "search": {"data": text, "limit": 64, "spaces": "all", "search": 3600.0},  # moves end it, not seconds
        "learned": {"learn": text, "limit": 512, "spaces": "all", "steps": STEPS, "batch_size": 16},
    }
    began = time.process_time()
    _, report = isomerge.align(b, onto=a, align=True, **options[kind])
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    objective = (report.get("streams") or [{}])[0].get("objective", [])
    own = {"own_cpu_seconds": round(sum(spent), 2)} if spent else {}
    print(json.dumps({"cpu_seconds": round(seconds, 2), "peak_bytes": peak, "sweeps": len(objective) // 2, **own}))


def call(*arguments: str) -> Any:
    """Run this script in a process of its own, one thread; returns the last line that it prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Measure everything that the results file lacks."""
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {"rows": {}}
    found["settings"] = {
        "sweeps": SWEEPS,
        "rows": ROWS,
        "learning_steps": STEPS,
        "moves": MOVES,
        "batch": "16 windows of 128 bytes",
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    for size in SIZES:
        name = " ".join(f"{k} {v}" for k, v in size.items())
        row = found["rows"].setdefault(name, {})
        if all(kind in row for kind in KINDS):
            continue
        with tempfile.TemporaryDirectory() as folder:
            a, b, text = (Path(folder) / part for part in ("a", "b", "text.txt"))
            row["parameters"] = call("build", json.dumps(size), str(a), "0")
            call("build", json.dumps(size), str(b), "1")
            text.write_bytes(bytes(32 + (k * k * 7 + k // 13) % 90 for k in range(200_000)))
            for kind in KINDS:
                if kind in row:
                    continue
                row[kind] = call(kind, str(a), str(b), str(text))
                print(name, kind, row[kind], flush=True)
                RESULT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["build"]:
        build(*sys.argv[2:])
    elif len(sys.argv) > 1:
        align(*sys.argv[1:])
    else:
        main()

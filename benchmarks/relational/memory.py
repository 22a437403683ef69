"""Peak memory of relational attention against sequence length, plain against chunked (Linux).

    python benchmarks/relational/memory.py      # writes results/relational/memory.json

Each run is a process of its own, which reports how far its peak resident memory (VmHWM) lies above the memory that
it held before the attention ran. Only what torch allocates for the run is in it; the inputs are not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results" / "relational" / "memory.json"
ANCHORS, HEADS, RANK, CHUNK = 64, 4, 16, 256
LENGTHS = {None: (512, 1024, 2048, 4096), CHUNK: (512, 1024, 2048, 4096, 8192, 16384)}
RUN = """
import sys, torch
from isomerge.relational import RelationalAttention
torch.set_num_threads(1)
torch.manual_seed(0)
anchors, heads, rank, length, chunk, backward = (int(a) for a in sys.argv[1:])
def held(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))
attention = RelationalAttention(anchors, heads, rank or None, chunk=chunk or None)
def step(grams):
    with torch.set_grad_enabled(bool(backward)):
        out = attention(grams, torch.eye(anchors))
        if backward:
            out.square().mean().backward()
step(torch.randn(1, 8, anchors, requires_grad=bool(backward)))  # what the libraries themselves need
grams = torch.randn(1, length, anchors, requires_grad=bool(backward))
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak begins here
before = held("VmRSS")
step(grams)
print(held("VmHWM") - before)
"""


def peak(length: int, *, rank: int | None, chunk: int | None, backward: bool) -> int:
    """Bytes above what the process held before, float32, one sequence."""
    numbers = (ANCHORS, HEADS, rank or 0, length, chunk or 0, int(backward))
    command = [sys.executable, "-c", RUN, *map(str, numbers)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Measure and write the results."""
    found = []
    for rank in (RANK, None):
        for backward in (False, True):
            for chunk, lengths in LENGTHS.items():
                for length in lengths:
                    bytes_ = peak(length, rank=rank, chunk=chunk, backward=backward)
                    run = {
                        "rank": rank,
                        "backward": backward,
                        "chunk": chunk,
                        "length": length,
                        "peak_bytes": bytes_,
                    }
                    found.append(run)
                    print(run, flush=True)
    shape = {"anchors": ANCHORS, "heads": HEADS, "batch": 1, "dtype": "float32"}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"shape": shape, "runs": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()

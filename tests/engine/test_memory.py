"""Memory follows the widest unit, not the depth: peak anonymous memory of runs on synthetic Llama-shaped pairs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from depth import more

WIDTH, NEURONS, HEADS, GROUPS, VOCAB = 256, 344, 8, 2, 512
SHAPE = {
    "hidden_size": WIDTH, "intermediate_size": NEURONS, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS,
    "vocab_size": VOCAB,
}  # fmt: skip
# a thread samples what is anonymous: pages of files (weights read, libraries) belong to the system's cache
RUN = """
import sys, threading
import torch, scipy.optimize, transformers
torch.set_num_threads(1)
import isomerge
def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
what, warm, one, two, out = sys.argv[1:]
isomerge.align(warm, onto=warm)
peak, done = [0], threading.Event()
def watch():
    while not done.wait(0.002):
        peak[0] = max(peak[0], anonymous())
thread = threading.Thread(target=watch)
start = anonymous()
thread.start()
if what == "align":
    isomerge.align(two, onto=one, out=out)
else:
    isomerge.merge([one, two], out=out)
done.set()
thread.join()
print(start * 1024, peak[0] * 1024)
"""


def write_model(folder: Path, depth: int, seed: int) -> Path:
    """A random Llama-shaped checkpoint in float32; two per depth differ by their seeds."""
    rng = torch.Generator().manual_seed(seed)
    narrow = WIDTH * GROUPS // HEADS
    shapes = {
        "model.embed_tokens.weight": (VOCAB, WIDTH),
        "model.norm.weight": (WIDTH,),
        "lm_head.weight": (VOCAB, WIDTH),
    }
    rows = {"q": WIDTH, "k": narrow, "v": narrow, "o": WIDTH}
    for layer in range(depth):
        start = f"model.layers.{layer}."
        shapes |= {f"{start}{n}_layernorm.weight": (WIDTH,) for n in ("input", "post_attention")}
        shapes |= {f"{start}self_attn.{n}_proj.weight": (size, WIDTH) for n, size in rows.items()}
        shapes |= {f"{start}mlp.{n}_proj.weight": (NEURONS, WIDTH) for n in ("gate", "up")}
        shapes[f"{start}mlp.down_proj.weight"] = (WIDTH, NEURONS)
    folder.mkdir()
    weights = {name: torch.randn(shape, generator=rng) * 0.02 for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": depth,
        "hidden_act": "silu",
    }
    config |= {**SHAPE, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def peak(what: str, root: Path, depth: int) -> tuple[int, int]:
    """Anonymous bytes before the runs, and at their peak."""
    models = [write_model(root / f"{depth}-{seed}", depth, seed) for seed in range(2)]
    warm = root / "warm" if (root / "warm").exists() else write_model(root / "warm", 1, 9)
    command = [sys.executable, "-c", RUN, what, *map(str, (warm, *models, root / f"out{depth}"))]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    start, highest = map(int, done.stdout.split())
    return start, highest


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("what", ["merge", *more("align")])
def test_memory_does_not_grow_with_depth(what: str, tmp_path: Path) -> None:
    """Of 16 layers more, less than half is ever held beyond what 4 layers need; a whole model never is.

    What a run needs beside weights (buffers of solvers, libraries loaded on the way) moves by some MB from run to
    run, so the deep model is many times that.
    """
    (start, shallow), (start_deep, deep) = (peak(what, tmp_path, depth) for depth in (4, 20))
    small, size = ((tmp_path / f"{depth}-0" / "model.safetensors").stat().st_size for depth in (4, 20))
    print(f"depth 4: {shallow / 1e6:.1f} MB (start {start / 1e6:.1f}), depth 20: {deep / 1e6:.1f} MB (start {start_deep / 1e6:.1f}), model {size / 1e6:.1f} MB")  # fmt: skip
    assert (deep - start_deep) - (shallow - start) < 0.5 * (size - small)
    assert deep - start_deep < 0.75 * size

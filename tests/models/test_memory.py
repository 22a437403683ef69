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
DEPTHS = (52, 104)
SHAPE = {
    "hidden_size": WIDTH, "intermediate_size": NEURONS, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS,
    "vocab_size": VOCAB,
}  # fmt: skip
# a thread samples what is anonymous: pages of files (weights read, libraries) belong to the system's cache
RUN = """
import sys, threading
import torch, scipy.optimize
torch.set_num_threads(1)
import isomerge
def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
def run(one, two):
    out = two + "-out"
    if what == "align":
        isomerge.align(two, onto=one, out=out)
    else:
        isomerge.merge([one, two], out=out)
def peak(one, two):
    highest, done = [0], threading.Event()
    def watch():
        while not done.wait(0.001):
            highest[0] = max(highest[0], anonymous())
    thread = threading.Thread(target=watch)
    thread.start()
    run(one, two)
    done.set()
    thread.join()
    return highest[0] * 1024
what, warm, *models = sys.argv[1:]
run(warm, warm)
print(*(peak(*models[k : k + 2]) for k in range(0, len(models), 2)))
"""


def write_model(folder: Path, depth: int, seed: int) -> Path:
    """A random Llama-shaped checkpoint in bfloat16, of which every tensor is copied to be worked on (float32 would
    be pages of its file); those of two seeds are fine-tunes of one base, which are matched faster."""
    base, rng = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1 + seed)
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
    weights = {
        name: (torch.randn(shape, generator=base) * 0.02 + torch.randn(shape, generator=rng) * 0.002).bfloat16()
        for name, shape in shapes.items()
    }
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


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("what", ["merge", *more("align")])
def test_memory_does_not_grow_with_depth(what: str, tmp_path: Path) -> None:
    """Peak anonymous memory, libraries included, grows by no more than a tenth when the depth doubles.

    Both depths are run by one process, which has run before: what libraries load on the way is there for both. The
    layers that are added are twice what may be: of a run that keeps them, of one model alone, the peak grows by too
    much.
    """
    models = [write_model(tmp_path / f"{depth}-{seed}", depth, seed) for depth in DEPTHS for seed in range(2)]
    warm = write_model(tmp_path / "warm", 1, 9)
    command = [sys.executable, "-c", RUN, what, *map(str, (warm, *models))]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    shallow, deep = map(int, done.stdout.split())
    small, _, large, _ = (2 * (model / "model.safetensors").stat().st_size for model in models)  # in float32
    print(
        f"depth {DEPTHS[0]}: {shallow / 1e6:.1f} MB, {DEPTHS[1]}: {deep / 1e6:.1f} MB, more: "
        f"{(large - small) / 1e6:.1f} MB"
    )
    assert deep <= 1.1 * shallow
    assert large - small > 0.2 * shallow, "the layers that are added are too few to be noticed"

"""Peak anonymous memory of align and merge against depth, on synthetic Llama-shaped pairs (Linux).

    python benchmarks/memory.py      # writes results/memory.json

Each run is a process of its own; a thread samples RssAnon every 5 ms.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "memory.json"
SHAPE = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
}
RUN = """
import sys, threading, time
import isomerge, torch, scipy.optimize
torch.set_num_threads(1)
peak, done = [0], threading.Event()
def watch():
    while not done.wait(0.005):
        for line in open("/proc/self/status"):
            if line.startswith("RssAnon"):
                peak[0] = max(peak[0], int(line.split()[1]))
threading.Thread(target=watch, daemon=True).start()
what, a, b, out = sys.argv[1:]
start = time.perf_counter()
if what == "align":
    isomerge.align(b, onto=a, out=out)
else:
    isomerge.merge([a, b], out=out)
done.set()
print(peak[0] * 1024, time.perf_counter() - start)
"""


def write_model(folder: Path, depth: int, seed: int) -> Path:
    """A random Llama-shaped checkpoint in bfloat16."""
    import torch
    from safetensors.torch import save_file

    d, ff = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    kv = d * SHAPE["num_key_value_heads"] // SHAPE["num_attention_heads"]
    rng = torch.Generator().manual_seed(seed)
    shapes = {
        "model.embed_tokens.weight": (SHAPE["vocab_size"], d),
        "model.norm.weight": (d,),
        "lm_head.weight": (SHAPE["vocab_size"], d),
    }
    for layer in range(depth):
        p = f"model.layers.{layer}."
        shapes |= {p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,)}
        shapes |= {
            p + f"self_attn.{n}_proj.weight": (rows, d) for n, rows in (("q", d), ("k", kv), ("v", kv), ("o", d))
        }
        shapes |= {p + f"mlp.{n}_proj.weight": (ff, d) for n in ("gate", "up")} | {
            p + "mlp.down_proj.weight": (d, ff)
        }
    folder.mkdir(parents=True)
    save_file(
        {n: torch.randn(s, generator=rng).mul(0.02).bfloat16() for n, s in shapes.items()},
        folder / "model.safetensors",
    )
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": depth,
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(
        json.dumps({**config, **SHAPE, "rms_norm_eps": 1e-5, "tie_word_embeddings": False})
    )
    return folder


def main() -> None:
    """Measure depths 4 and 16 and write the results."""
    found = []
    for depth in (4, 16):
        with tempfile.TemporaryDirectory() as temporary:
            root = Path(temporary)
            a, b = (write_model(root / name, depth, seed) for seed, name in enumerate("ab"))
            for what in ("align", "merge"):
                command = [sys.executable, "-c", RUN, what, str(a), str(b), str(root / what)]
                peak, seconds = map(
                    float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
                )
                size = (a / "model.safetensors").stat().st_size
                found.append(
                    {
                        "run": what,
                        "depth": depth,
                        "bytes_per_model": size,
                        "peak_anonymous_bytes": peak,
                        "seconds": seconds,
                    }
                )
                print(found[-1], flush=True)
    for what in ("align", "merge"):
        shallow, deep = (r["peak_anonymous_bytes"] for r in found if r["run"] == what)
        print(f"{what}: depth 16 over depth 4: {deep / shallow:.3f}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

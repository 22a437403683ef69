"""What optimisation on the quotient costs per step, against plain Adam, on one thread.

    python benchmarks/quotient/overhead.py      # writes results/quotient/overhead.json

All optimisers train copies of one model on the same batches, in turn, so that whatever else the machine does hits
them alike; figures are medians of whole training steps (forward, backward, optimiser).
"""

from __future__ import annotations

import copy
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as tf

from isomerge.quotient.optim import InvariantAdam, InvariantSGD, Quotient, QuotientOptimizer

RESULTS = Path(__file__).parents[1] / "results" / "quotient" / "overhead.json"
STEPS, WARM = 15, 3
LR = 1e-3


def vit(d: int, heads: int) -> Any:
    """A ViT of six layers for images of 32 x 32, 65 tokens each."""
    config = tf.ViTConfig(
        hidden_size=d, num_hidden_layers=6, num_attention_heads=heads, intermediate_size=4 * d, image_size=32,
        patch_size=4, num_labels=10,
    )  # fmt: skip
    return tf.ViTForImageClassification(config)


def llama(d: int) -> Any:
    """A Llama of four layers, two query heads to a key-value head."""
    config = tf.LlamaConfig(
        hidden_size=d, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, intermediate_size=3 * d,
        vocab_size=512, max_position_embeddings=128, tie_word_embeddings=False,
    )  # fmt: skip
    return tf.LlamaForCausalLM(config)


def images(model: Any, rng: torch.Generator) -> torch.Tensor:
    """The loss on 32 random images."""
    pixels = torch.randn(32, 3, 32, 32, generator=rng)
    return model(pixel_values=pixels, labels=torch.randint(0, 10, (32,), generator=rng)).loss


def tokens(model: Any, rng: torch.Generator) -> torch.Tensor:
    """The loss on 16 random sequences of 64 tokens."""
    ids = torch.randint(0, 512, (16, 64), generator=rng)
    return model(input_ids=ids, labels=ids).loss


CASES: dict[str, tuple[Callable[[], Any], Callable[..., torch.Tensor]]] = {
    "vit-64": (lambda: vit(64, 4), images),
    "llama-128": (lambda: llama(128), tokens),
    "vit-256": (lambda: vit(256, 4), images),
}
OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda m: torch.optim.AdamW(m.parameters(), lr=LR),
    "quotient-adam": lambda m: QuotientOptimizer(torch.optim.AdamW(m.parameters(), lr=LR), m),
    "invariant-adam": lambda m: InvariantAdam(m, lr=LR),
    "invariant-sgd": lambda m: InvariantSGD(m, lr=LR, momentum=0.9),
}


def measure(name: str, steps: int = STEPS) -> dict[str, Any]:
    """Medians of one case, milliseconds."""
    make, loss_of = CASES[name]
    torch.manual_seed(0)
    model = make().train()
    models = {key: copy.deepcopy(model) for key in OPTIMISERS}
    optimisers = {key: make_one(models[key]) for key, make_one in OPTIMISERS.items()}
    whole: dict[str, list[float]] = {key: [] for key in OPTIMISERS}
    alone: dict[str, list[float]] = {key: [] for key in OPTIMISERS}
    for step in range(WARM + steps):
        for key, optimiser in optimisers.items():
            rng = torch.Generator().manual_seed(step)
            start = time.perf_counter()
            optimiser.zero_grad()
            loss_of(models[key], rng).backward()
            middle = time.perf_counter()
            optimiser.step()
            end = time.perf_counter()
            if step >= WARM:
                whole[key].append((end - start) * 1e3)
                alone[key].append((end - middle) * 1e3)
    base = statistics.median(whole["adam"])
    spent = statistics.median(alone["adam"])
    quotient = Quotient(models["adam"])
    start = time.perf_counter()
    quotient.rebalance()
    found: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "vertical directions": quotient.dimension,
        "rebalance ms": round((time.perf_counter() - start) * 1e3, 1),
        "iterations of the last projection": getattr(optimisers["quotient-adam"], "iterations", None),
    }
    for key in OPTIMISERS:
        median = statistics.median(alone[key])
        found[key] = {
            "training step ms": round(statistics.median(whole[key]), 2),
            "optimiser ms": round(median, 2),
            # of the optimiser alone: forward and backward are the same for all, and their noise is not ours
            "overhead": round((median - spent) / base, 3),
        }
    return found


def main() -> None:
    """Measure every case."""
    torch.set_num_threads(1)
    found = {}
    for name in CASES:
        found[name] = measure(name)
        print(name, json.dumps(found[name]), flush=True)
    about = {"torch": torch.__version__, "machine": platform.machine(), "threads": 1, "steps": STEPS}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"about": about, "cases": found}, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

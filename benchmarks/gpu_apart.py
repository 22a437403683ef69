"""Two language models that were trained apart on a GPU, matched there by learning: the barrier, its curve and its cost.

    python -m benchmarks.gpu_apart                    # trains what is missing, measures the rows that are missing
    python -m benchmarks.gpu_apart --train            # trains only
    python -m benchmarks.gpu_apart --device cpu --size tiny

Llama-shaped models read bytes of Python sources: those of the packages torch, scipy and sympy as they are installed,
so that nothing needs to be fetched; every 64th file is held out. The two seeds share the text and nothing else: not
the initialisation, not the order. Trainings store their state once a minute and rows are written as they are made,
so that pieces of ten minutes do. Writes results/gpu_apart.json.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import shutil
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "gpu_apart.json"
DATA = ROOT / "benchmarks" / "data" / "gpu-apart"
PACKAGES = ("torch", "scipy", "sympy")
HELD_OUT_EVERY = 64
SECONDS_BETWEEN_STATES = 60


@dataclass(frozen=True)
class Size:
    """A pair, how long it is trained and how long its match is learned."""

    width: int
    layers: int
    steps: int
    batch: int
    window: int
    peak: float
    """Learning rate."""
    learn: int
    """Steps of learning."""
    examples: int
    """Of a step of learning."""
    functional: bool = True
    """Whether neurons are matched by what they compute before that."""

    @property
    def heads(self) -> int:
        """Heads of 64 coordinates, or four smaller ones."""
        return max(self.width // 64, 4)


SIZES = {
    "tiny": Size(64, 2, 20, 8, 64, 2e-3, 5, 4),
    "0.04b": Size(512, 12, 1200, 64, 256, 8e-4, 100, 32, functional=False),
    "0.09b": Size(768, 12, 2500, 64, 256, 6e-4, 300, 32),
}
ROWS = ("stored", "activations", "learned")


def corpus() -> dict[str, Path]:
    """The text, made once."""
    files = {part: DATA / "corpus" / f"{part}.txt" for part in ("train", "heldout")}
    if not all(file.exists() for file in files.values()):
        files["train"].parent.mkdir(parents=True, exist_ok=True)
        sources: list[Path] = []
        for package in PACKAGES:
            spec = importlib.util.find_spec(package)
            assert spec, package
            sources += sorted(Path(str(spec.origin)).parent.rglob("*.py"))
        texts = [text for source in sources if len(text := source.read_bytes().strip()) > 256]
        held = texts[HELD_OUT_EVERY // 2 :: HELD_OUT_EVERY]
        kept = [text for k, text in enumerate(texts) if k % HELD_OUT_EVERY != HELD_OUT_EVERY // 2]
        for part, some in (("train", kept), ("heldout", held)):
            files[part].write_bytes(b"\n\n".join(some))
    return files


def fresh(size: Size, seed: int) -> Any:
    """A model from its seed."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=256, hidden_size=size.width, intermediate_size=size.width * 8 // 3, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, num_key_value_heads=size.heads // 4, head_dim=size.width // size.heads,
        max_position_embeddings=size.window, tie_word_embeddings=False, initializer_range=0.02,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def train(name: str, seed: int, device: str) -> Path:
    """One endpoint, from its stored state if there is one: AdamW, a warm-up and a cosine, products in bfloat16."""
    import numpy as np
    import torch
    from torch.nn import functional as F

    size, out = SIZES[name], DATA / name / f"seed-{seed}"
    if (out / "training.json").exists():
        return out
    data = torch.from_numpy(np.fromfile(corpus()["train"], dtype=np.uint8)).to(device)
    model = fresh(size, seed).to(device).train()
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=device.startswith("cuda"))
    generator = torch.Generator().manual_seed(1000 + seed)
    state_file, step, spent = out.with_name(out.name + ".state"), 0, 0.0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        generator.set_state(state["generator"].cpu())
        step, spent = state["step"], state["spent"]
    began = stored = time.perf_counter()
    total = torch.zeros((), device=device)
    steps_of_total = 0
    while step < size.steps:
        step += 1
        progress = step / size.steps
        rate = size.peak * min(step / (0.03 * size.steps), 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(data) - size.window, (size.batch, 1), generator=generator).to(device)
        tokens = data[starts + torch.arange(size.window, device=device)].long()
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            logits = model(input_ids=tokens, use_cache=False).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total, steps_of_total = total + loss.detach(), steps_of_total + 1
        if step % 100 == 0:
            print(
                f"  seed {seed} step {step}/{size.steps} loss {float(total) / steps_of_total:.4f} "
                f"{spent + time.perf_counter() - began:.0f} s",
                flush=True,
            )
            total, steps_of_total = torch.zeros((), device=device), 0
            if time.perf_counter() - stored > SECONDS_BETWEEN_STATES:
                stored = time.perf_counter()
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                state |= {"generator": generator.get_state(), "spent": spent + stored - began}
                state_file.parent.mkdir(parents=True, exist_ok=True)
                unfinished = state_file.with_name(state_file.name + ".tmp")
                torch.save(state, unfinished)
                unfinished.replace(state_file)
    model.cpu().eval().save_pretrained(out)
    told = {
        "seconds": round(spent + time.perf_counter() - began, 1),
        "bytes": size.steps * size.batch * size.window,
    }
    (out / "training.json").write_text(json.dumps(told) + "\n")
    state_file.unlink(missing_ok=True)
    return out


class Clock:
    """Prints when another part of a run begins."""

    def __init__(self) -> None:
        self.began, self.part = time.perf_counter(), ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if what.split(":")[0] != self.part or (done == total and what.startswith("learning")):
            self.part = what.split(":")[0]
            print(f"  {time.perf_counter() - self.began:.0f} s {what} {done}/{total}", flush=True)


def row_of(row: str, size: Size, a: Path, b: Path, device: str) -> dict[str, Any]:
    """The second model moved onto the first in one way, and the line between them on held-out text."""
    import torch

    import isomerge

    text, moved, told = corpus(), b, {}
    if row != "stored":
        moved = a.with_name(row)
        how: dict[str, Any] = {"data": str(text["train"]), "limit": 64}
        if row == "learned":
            how = {"learn": str(text["train"]), "limit": size.learn * size.examples, "learn_target": "distill"}
            how |= {"steps": size.learn, "batch_size": size.examples, "seed": 0, "functional": size.functional}
            if device != "cpu":
                how["precision"] = "bfloat16"
        began = time.perf_counter()
        _, report = isomerge.align(
            b, onto=a, out=moved, align=True, overwrite=True, spaces="all", length=size.window, device=device,
            observer=Clock(), **how,
        )  # fmt: skip
        told["seconds"] = round(time.perf_counter() - began, 1)
        told["distance"] = report["distance"]
        if row == "learned":
            told["learned"] = report["streams"][0]["learned"]
        if device.startswith("cuda"):
            told["peak device bytes"] = torch.cuda.max_memory_allocated()
    line = isomerge.barrier(
        a, moved, data=str(text["heldout"]), spaces="none", points=11, limit=512, batch_size=128,
        length=size.window, device=device,
    )  # fmt: skip
    ends = [end["loss"] for end in line["lines"][0]["ends"]]
    told |= {key: line["lines"][0][key] for key in ("barrier", "midpoint", "losses", "accuracies")}
    return {**told, "ends": ends, "ensemble": line["ensemble"]}


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", choices=SIZES, default="0.09b")
    parser.add_argument("--train", action="store_true", help="train only")
    parser.add_argument("--seed", type=int, nargs="*", choices=(0, 1), default=[0, 1], help="with --train")
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=list(ROWS))
    asked = parser.parse_args()
    import torch

    if asked.train:
        for seed in asked.seed:
            train(asked.size, seed, asked.device)
        return
    a, b = (train(asked.size, seed, asked.device) for seed in (0, 1))
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    here = results.setdefault(asked.size, {"rows": {}})
    here["device"] = torch.cuda.get_device_name() if asked.device.startswith("cuda") else "CPU"
    here["text"] = {
        "packages": {name: version(name) for name in PACKAGES},
        "bytes": {part: file.stat().st_size for part, file in corpus().items()},
        "sha256": hashlib.sha256(corpus()["train"].read_bytes()).hexdigest(),
    }
    here["training"] = [json.loads((one / "training.json").read_text()) for one in (a, b)]
    for row in asked.rows:
        if row in here["rows"]:
            continue
        here["rows"][row] = told = row_of(row, SIZES[asked.size], a, b, asked.device)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        print(
            f"{row}: barrier {told['barrier']['entezari']:.4f} midpoint {told['midpoint']['loss']:.4f} "
            f"ends {told['ends']} in {told.get('seconds', 0)} s",
            flush=True,
        )
    shutil.rmtree(DATA / asked.size / "activations", ignore_errors=True)


if __name__ == "__main__":
    main()

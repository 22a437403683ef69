"""A pair of T5 models that read and write bytes, trained from scratch, and the line between them by matching.

    python -m benchmarks.paper.architectures.t5

The encoder reads 64 bytes of the State of the Union addresses, the decoder writes the 32 that follow. Two seeds, a
few minutes each on one core; the seed sets the initialisation and the order of the data. Models go to
`benchmarks/data/paper/t5/seed-N`; the loss is per byte, on held-out speeches. Cells `NAME` (and `training/SEED`) of
`benchmarks/results/paper/t5.json`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import isomerge
from benchmarks.barrier.data import load_text
from benchmarks.paper.results import Results
from benchmarks.paper.vision.endpoints import RESULTS, ROOT, prepare

MADE = ROOT / "benchmarks" / "data" / "paper" / "t5"
STEPS, BATCH, PEAK = 1500, 16, 4e-3
READ, WRITE, HELD_OUT = 64, 32, 256
FREE = {
    "spaces": "all"
}  # transformers ties the head of every T5 to the embeddings: streams are permuted, not rotated
TRAIN = str(MADE / "train.safetensors")
MATCHINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "paper": {"spaces": "paper"},
    "default": {"spaces": "default"},
    "all": FREE,
    "activations": {**FREE, "data": TRAIN, "limit": 128},
    "learned": {**FREE, "learn": TRAIN, "limit": 4000, "steps": 300, "learn_target": "labels", "seed": 0},
}
SETTINGS = {"steps": STEPS, "batch": BATCH, "bytes_read": READ, "bytes_written": WRITE, "tested_on": HELD_OUT}


def build(seed: int) -> Any:
    """A fresh T5: 3 + 3 layers of width 96, ReLU, embeddings tied to the head."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes: dict[str, Any] = {"vocab_size": 256, "d_model": 96, "d_kv": 24, "d_ff": 256, "num_heads": 4}
    sizes |= {"num_layers": 3, "num_decoder_layers": 3, "dropout_rate": 0.0, "feed_forward_proj": "relu"}
    tokens: dict[str, Any] = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": None}
    config = T5Config(**sizes, **tokens)
    torch.manual_seed(seed)
    return T5ForConditionalGeneration(config)


def pieces(text: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """What is read and what is written, int64 [n, READ] and [n, WRITE]."""
    found = text[starts[:, None] + torch.arange(READ + WRITE)].long()
    return found[:, :READ].contiguous(), found[:, READ:].contiguous()


def write_data() -> None:
    """Examples for matching, of the training text, and for tests, of the held-out speeches."""
    MADE.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    train, held_out = load_text("train"), load_text("heldout")
    spread = torch.arange(HELD_OUT) * ((len(held_out) - READ - WRITE) // (HELD_OUT - 1))
    drawn = torch.randint(len(train) - READ - WRITE, (4000,), generator=generator)
    for name, text, starts in (("train", train, drawn), ("heldout", held_out, spread)):
        if not (file := MADE / f"{name}.safetensors").is_file():
            save_file(dict(zip(("input_ids", "labels"), pieces(text, starts), strict=True)), file)


def train(seed: int) -> dict[str, Any]:
    """Train one model with AdamW, linear warm-up and decay; nothing is done when it is there."""
    model, text = build(seed).train(), load_text("train")
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.99), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 100, 1 - step / (STEPS + 1))
    )
    generator = torch.Generator().manual_seed(1000 + seed)
    began, worked = time.perf_counter(), time.process_time()
    for step in range(STEPS):
        read, written = pieces(text, torch.randint(len(text) - READ - WRITE, (BATCH,), generator=generator))
        loss = model(input_ids=read, labels=written).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"  seed {seed}  step {step + 1}/{STEPS}  loss {loss.item():.3f}", flush=True)
    model.eval().save_pretrained(folder(seed))
    seconds, work = time.perf_counter() - began, time.process_time() - worked
    count = sum(p.numel() for p in model.parameters())
    return {"seconds": round(seconds, 1), "processor_seconds": round(work, 1), "parameters": count}


def folder(seed: int) -> Path:
    """Where a model is."""
    return MADE / f"seed-{seed}"


def measure(name: str) -> dict[str, Any]:
    """The line between the anchor and the second model, matched."""
    one, two = folder(0), folder(1)
    began, cost = time.perf_counter(), {}
    if name != "none":
        two = MADE / f"aligned-{name}"
        _, report = isomerge.align(folder(1), onto=one, out=two, align=True, overwrite=True, **MATCHINGS[name])
        cost = {"distance": report["distance"]["after"], "distance_stored": report["distance"]["before"]}
    matched = time.perf_counter() - began
    data = str(MADE / "heldout.safetensors")
    found = isomerge.barrier(one, two, data=data, spaces="none", points=13, batch_size=64)
    (line,) = found["lines"]
    return {
        **cost,
        **{key: line[key] for key in ("barrier", "midpoint", "losses", "points", "ends")},
        "ensemble": found["ensemble"],
        "matching_seconds": round(matched, 2),
        "seconds": round(time.perf_counter() - began, 2),
    }


def main() -> None:
    """Train and measure what is missing."""
    prepare()
    write_data()
    found = Results(RESULTS / "t5.json", SETTINGS)
    for seed in (0, 1):
        if not (folder(seed) / "model.safetensors").is_file():
            found.put(f"training/{seed}", train(seed))
    for name in MATCHINGS:
        if not found.has(name):
            found.put(name, cell := measure(name))
            print(
                f"{name:12s} barrier {cell['barrier']['entezari']:.3f}  midpoint {cell['midpoint']['loss']:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""Models that this benchmark trains itself, beside those of the barrier benchmark: T5, ViTs of 24 layers; and how.

The T5 read and write bytes: the encoder reads 64 bytes of the State of the Union addresses, the decoder writes the 32
that follow. The ViTs read digits and are as deep as the paper's. A seed sets the initialisation and the order of the
data; a few minutes each on one core.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from benchmarks.barrier.data import load_images, load_text
from benchmarks.harness import DATA, versions
from examples import train_digits

MADE = DATA / "paper"
READ, WRITE, HELD_OUT = 64, 32, 256
T5_STEPS, T5_BATCH = 1500, 16
DEPTH, WIDTH, VIT_STEPS = 24, 64, 1200


def descend(
    model: Any, loss: Callable[[], Tensor], rates: Iterable[float], clip: float | None = None, **adam: Any
) -> list[float]:
    """Take a step of AdamW at each of these learning rates, down a loss that draws a batch when it is called; the
    losses."""
    optimizer = torch.optim.AdamW(model.train().parameters(), **adam)
    losses: list[float] = []
    for step, rate in enumerate(rates, 1):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        now = loss()
        now.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(float(now.detach()))
        if step % 100 == 0:
            print(f"  step {step}  loss {losses[-1]:.3f}", flush=True)
    model.eval()
    return losses


def kept(folder: Path, train: Callable[[], tuple[Any, list[float]]], settings: Mapping[str, Any]) -> Path:
    """A model that is trained once: stored with `training.json` beside it, complete or not at all, and trained anew
    where the settings in that file are others."""
    record, settings = folder / "training.json", json.loads(json.dumps(settings))
    if record.is_file() and json.loads(record.read_text()).get("settings") == settings:
        return folder
    print(folder, flush=True)
    began, worked = time.perf_counter(), time.process_time()
    model, losses = train()
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    shutil.rmtree(beside, ignore_errors=True)
    model.save_pretrained(beside)
    report = {
        "settings": settings,
        "losses": losses[-1:],
        "seconds": round(time.perf_counter() - began, 1),
        "processor_seconds": round(time.process_time() - worked, 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": versions(),
    }
    (beside / "training.json").write_text(json.dumps(report, indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)
    return folder


def pieces(text: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """What a T5 reads and what it writes, int64 [n, READ] and [n, WRITE]."""
    rows = text[starts[:, None] + torch.arange(READ + WRITE)].long()
    return rows[:, :READ].contiguous(), rows[:, READ:].contiguous()


def t5_examples(split: str) -> str:
    """The file of examples for matching (``train``), or of those that the models are tested on (``heldout``)."""
    file, text = MADE / "t5" / f"{split}.safetensors", load_text(split)
    starts = torch.arange(HELD_OUT) * ((len(text) - READ - WRITE) // (HELD_OUT - 1))
    if split == "train":
        starts = torch.randint(len(text) - READ - WRITE, (4000,), generator=torch.Generator().manual_seed(0))
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(dict(zip(("input_ids", "labels"), pieces(text, starts), strict=True)), file)
    return str(file)


def t5(seed: int) -> Path:
    """A T5 of 3 + 3 layers of width 96, ReLU, embeddings tied to the head."""

    def train() -> tuple[Any, list[float]]:
        from transformers import T5Config, T5ForConditionalGeneration

        sizes: dict[str, Any] = {"vocab_size": 256, "d_model": 96, "d_kv": 24, "d_ff": 256, "num_heads": 4}
        sizes |= {"num_layers": 3, "num_decoder_layers": 3, "dropout_rate": 0.0, "feed_forward_proj": "relu"}
        tokens: dict[str, Any] = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": None}
        torch.manual_seed(seed)
        model = T5ForConditionalGeneration(T5Config(**sizes, **tokens))
        text, rng = load_text("train"), torch.Generator().manual_seed(1000 + seed)

        def loss() -> Tensor:
            starts = torch.randint(len(text) - READ - WRITE, (T5_BATCH,), generator=rng)
            read, written = pieces(text, starts)
            return model(input_ids=read, labels=written).loss

        rates = [4e-3 * min((step + 1) / 100, 1 - step / (T5_STEPS + 1)) for step in range(T5_STEPS)]
        return model, descend(model, loss, rates, clip=1.0, betas=(0.9, 0.99), weight_decay=0.05)

    return kept(MADE / "t5" / f"seed-{seed}", train, {"steps": T5_STEPS, "batch": T5_BATCH})


def deep_vit(seed: int) -> Path:
    """A ViT of 24 layers; the deeper, the smaller its weights begin."""

    def train() -> tuple[Any, list[float]]:
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(
            hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=4, intermediate_size=2 * WIDTH,
            hidden_act="gelu", image_size=8, patch_size=2, num_channels=1, layer_norm_eps=1e-6,
            initializer_range=0.1 * math.sqrt(4 / DEPTH), id2label={k: str(k) for k in range(10)},
        )  # fmt: skip
        torch.manual_seed(seed)
        model, rng = ViTForImageClassification(config), torch.Generator().manual_seed(1000 + seed)
        images, labels = load_images("digits", "train")

        def loss() -> Tensor:
            rows = torch.randint(len(labels), (64,), generator=rng)
            moved = train_digits.augment(images[rows], rng)
            return F.cross_entropy(model(pixel_values=moved).logits, labels[rows])

        rates = [1e-3 * min(1.0, (step + 1) / 50) * (1 - step / VIT_STEPS) for step in range(VIT_STEPS)]
        return model, descend(model, loss, rates, weight_decay=0.05)

    return kept(MADE / "vision" / f"deep-{seed}", train, {"steps": VIT_STEPS, "depth": DEPTH})


@torch.no_grad()
def digits_scores(folder: Path) -> dict[str, float]:
    """Loss in nats and accuracy of a digits ViT on the 450 test images, as the mean of those of the digits below and
    above 5."""
    from transformers import ViTForImageClassification

    images, labels = load_images("digits", "test")
    logits = ViTForImageClassification.from_pretrained(folder).eval()(pixel_values=images).logits.double()
    halves = (labels < 5, labels >= 5)
    return {
        "loss": sum(float(F.cross_entropy(logits[rows], labels[rows])) for rows in halves) / 2,
        "accuracy": sum(float((logits[rows].argmax(-1) == labels[rows]).double().mean()) for rows in halves) / 2,
    }

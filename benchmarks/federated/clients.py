"""The clients of the federated benchmark: who has which digits, and how a client trains.

Images are scikit-learn's 8x8 digits with the split of `examples/train_digits.py`. Of the 1347 training images, 200
are the probe: images without labels that everybody may see; no client trains on them. The rest is dealt to the
clients, ``even`` (every client a random quarter) or ``skewed`` (the shares of every class are drawn from a
Dirichlet distribution with all parameters 0.5, as in Hsu et al. 2019). The 450 test images are seen by no client
and no match.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import ViTConfig, ViTForImageClassification

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.fetch import DATA
from examples.train_digits import load_split

CLIENTS = 4
PROBE = 200
CONCENTRATION = 0.5
BATCH_SIZE = 32
PEAK_LR = 2e-3
WEIGHT_DECAY = 0.05
TRAINED = DATA / "federated"

State = dict[str, Tensor]


def build(seed: int) -> ViTForImageClassification:
    """A small fresh vision transformer: 2 layers, 2 heads, width 32; the seed alone decides its weights."""
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=8,
        patch_size=2,
        num_channels=1,
        num_labels=10,
        initializer_range=0.14,
        layer_norm_eps=1e-6,
    )
    torch.manual_seed(seed)
    return ViTForImageClassification(config)


@cache
def deal(split: str, seed: int) -> list[np.ndarray]:
    """The numbers of the training images of every client; the probe comes last."""
    labels = load_split()[1].numpy()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    probe, rest = order[:PROBE], order[PROBE:]
    if split == "even":
        return [*np.array_split(rest, CLIENTS), probe]
    parts: list[list[np.ndarray]] = [[] for _ in range(CLIENTS)]
    for label in range(10):
        here = rest[labels[rest] == label]
        shares = rng.dirichlet([CONCENTRATION] * CLIENTS)
        cuts = (np.cumsum(shares)[:-1] * len(here)).round().astype(int)
        for part, piece in zip(parts, np.split(here, cuts), strict=True):
            part.append(piece)
    return [*(np.concatenate(part) for part in parts), probe]


def trained(state: State, split: str, seed: int, client: int, epochs: int, round_number: int) -> tuple[State, int]:
    """A client's parameters after some epochs on its own images, from given ones; and how many images it has."""
    images, labels, _, _ = load_split()
    own = torch.from_numpy(deal(split, seed)[client])
    model = build(0).train()
    model.load_state_dict(state)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, weight_decay=WEIGHT_DECAY)
    generator = torch.Generator().manual_seed(10_000 * seed + 100 * client + round_number)
    steps = epochs * -(-len(own) // BATCH_SIZE)
    for step in range(steps):
        if step % -(-len(own) // BATCH_SIZE) == 0:
            batches = iter(torch.randperm(len(own), generator=generator).split(BATCH_SIZE))
        batch = own[next(batches)]
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * min(1.0, (step + 1) / 10, 1.05 - step / steps)
        loss = F.cross_entropy(model(pixel_values=images[batch]).logits, labels[batch])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {name: x.detach() for name, x in model.state_dict().items()}, len(own)


def trained_apart(split: str, seed: int, client: int, epochs: int) -> tuple[State, int]:
    """The same from a fresh model of the client's own; kept, as every way of averaging begins with it."""
    file = TRAINED / f"{split}-{seed}-{client}-{epochs}.pt"
    if not file.exists():
        fresh = build(1000 * (seed + 1) + client).state_dict()
        found, _ = trained(fresh, split, seed, client, epochs, 1)
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}.tmp")
        torch.save(found, unfinished)
        unfinished.replace(file)
    return torch.load(file, weights_only=True), len(deal(split, seed)[client])


def measured(*states: State) -> dict[str, float]:
    """Loss (nats) and accuracy on the test images of one model, or of several models' mean probabilities."""
    _, _, images, labels = load_split()
    model = build(0).eval()
    total = torch.zeros(len(labels), 10, dtype=torch.float64)
    with torch.no_grad():
        for state in states:
            model.load_state_dict(state)
            total += model(pixel_values=images).logits.double().softmax(-1) / len(states)
    right = (total.argmax(-1) == labels).double().mean()
    return {"loss": round(float(F.nll_loss(total.log(), labels)), 4), "accuracy": round(float(right), 4)}

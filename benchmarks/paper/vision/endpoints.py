"""The models that the vision experiments merge, what they are tested on, and where everything lies.

Three ViTs that were trained from scratch on Fashion-MNIST from seeds 0, 1 and 2 (`benchmarks/barrier/train.py`), in
three pairs. The first of a pair is the anchor. Every merged model is tested on all 10,000 test images; matching and
statistics see training images alone.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

import isomerge
from isomerge.observe.data.examples import Examples
from isomerge.observe.data.opening_data import open_data
from isomerge.observe.live.modules import load_module
from isomerge.observe.losses import evaluate

ROOT = Path(__file__).resolve().parents[3]
BARRIER = ROOT / "benchmarks" / "data" / "barrier"
MADE = ROOT / "benchmarks" / "data" / "paper" / "vision"  # aligned models and statistics; ignored by git
RESULTS = ROOT / "benchmarks" / "results" / "paper"
FAMILY = "vit-fashion"
TRAIN = str(BARRIER / "fashion" / "train.safetensors")
TEST = str(BARRIER / "fashion" / "test.safetensors")
PAIRS = ("0-1", "0-2", "1-2")
BATCH = 500
ENDPOINTS = {"models": FAMILY, "pairs": list(PAIRS), "tested_on": "all 10000 test images of Fashion-MNIST"}


def seed(number: str | int) -> Path:
    """The model of a seed; stops with a plain sentence where it was not trained yet."""
    folder = BARRIER / FAMILY / f"seed-{number}"
    if not (folder / "model.safetensors").is_file():
        sys.exit(f"{folder} is not trained yet: python benchmarks/barrier/train.py {FAMILY} --seed {number}")
    return folder


def ends(pair: str) -> tuple[Path, Path]:
    """The anchor and the source of a pair."""
    one, two = pair.split("-")
    return seed(one), seed(two)


@cache
def examples(data: str, first: int = 0, last: int | None = None) -> Examples:
    """Labelled images ``[first, last)`` of a file; all of them by default."""
    found = open_data(data, seed(0), config=isomerge.open(seed(0)).config)
    return Examples({name: tensor[first:last] for name, tensor in found.tensors.items()}, found.labelled)


def measured(folder: Path, on: Examples | None = None) -> dict[str, Any]:
    """Loss (nats) and accuracy on the test images, or on other ones."""
    found = evaluate(load_module(folder), on or examples(TEST), BATCH)
    return {"loss": found.loss, "accuracy": found.accuracy}


def prepare() -> None:
    """One thread, and the folders."""
    torch.set_num_threads(1)
    MADE.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(parents=True, exist_ok=True)

"""Recipes whose modules differ, through both tools: encoder, decoder and what T5's share; tiny random models."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch

import isomerge
from benchmarks.harness import DATA, Benchmark
from benchmarks.mergekit.methods import run_reference, stored

SHAPE = {
    "vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
    "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "decoder_start_token_id": 0,
}  # fmt: skip
MODULES = ("encoder", "decoder", "shared")


def module(weights: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    """Models and their weights, and parameters for all."""
    models = [{"model": name, "parameters": {"weight": weight}} for name, weight in weights.items()]
    return {"models": models, "parameters": parameters} if parameters else {"models": models}


def layers(*slices: dict[str, tuple[int, int, float]]) -> dict[str, Any]:
    """Slices: of every model the first layer, the one behind the last, and the weight."""
    return {
        "slices": [
            {
                "sources": [
                    {"model": m, "layer_range": [a, b], "parameters": {"weight": w}}
                    for m, (a, b, w) in part.items()
                ]
            }
            for part in slices
        ]
    }


def recipe(method: str, parts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"merge_method": method, "dtype": "float32", **more, "modules": dict(zip(MODULES, parts, strict=True))}


FOLDER = DATA / "mergekit" / "modules"
A, B, C = (str(FOLDER / name) for name in "abc")
BASE = {"base_model": C}
FILTERED = [{"filter": "SelfAttention", "value": 0.3}, {"value": 0.7}]
RECIPES = {
    "weights and gradients": recipe(
        "linear",
        [module({A: 0.2, B: 0.8}), module({A: [0.5, 0.1, 0.9], B: 0.5}), module({A: 0.6, B: 0.4})],
    ),
    "lambdas": recipe(
        "task_arithmetic",
        [module({A: 0.5, B: 0.5}, **{"lambda": value}) for value in (0.3, [0.2, 1.0], 0.7)],
        **BASE,
    ),
    "models": recipe("linear", [module({A: 1, B: 1}), module({A: 1, C: 1}), module({B: 1})]),
    "models and densities": recipe(
        "ties",
        [module({A: 1, B: 1}, density=FILTERED), module({A: 1}, density=0.5), module({B: 1}, density=0.9)],
        **BASE,
    ),
    "layers of two models": recipe(
        "passthrough",
        [
            layers({A: (0, 1, 1)}, {B: (1, 2, 1)}),
            layers({A: (0, 3, 1)}, {B: (1, 3, 1)}),
            {"models": [{"model": A}]},
        ],
    ),
    "fewer layers, each merged": recipe(
        "linear",
        [
            layers({A: (0, 1, 0.3), B: (0, 1, 0.7)}),
            layers({A: (0, 1, 0.6), B: (0, 1, 0.4)}, {B: (2, 3, 0.5), C: (2, 3, 0.5)}),
            module({A: 0.5, B: 0.5}),
        ],
    ),
}


def write_models(folder: Path) -> None:
    """Three T5s."""
    from transformers import T5Config, T5ForConditionalGeneration

    for seed, name in enumerate("abc"):
        torch.manual_seed(seed)
        T5ForConditionalGeneration(T5Config(**SHAPE)).save_pretrained(folder / name)


@cache
def prepared() -> Path:
    return run_reference(FOLDER, write_models, RECIPES)


def compared(name: str) -> dict[str, Any]:
    folder = prepared()
    report = isomerge.merge(folder / f"{name}.yml", out=folder / "ours" / name)
    ours, theirs = (stored(folder / tool / name) for tool in ("ours", "theirs"))
    return {
        "difference": max(float((ours[n] - theirs[n]).abs().max()) for n in theirs),
        "tensors": len(ours),
        "same_tensors": ours.keys() == theirs.keys(),
        "steps": len(report.get("steps", ())),
    }


BENCHMARK = Benchmark(
    "mergekit-modules", lambda asked: {name: {"name": name} for name in RECIPES}, compared, inside="rows",
    about=lambda cells: {"mergekit": "0.1.5"},
)  # fmt: skip

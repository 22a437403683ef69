"""Recipes whose modules differ, through both tools: encoder, decoder and what T5's share; tiny random models."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

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


BASE = {"base_model": "c"}
FILTERED = [{"filter": "SelfAttention", "value": 0.3}, {"value": 0.7}]
RECIPES = {
    "weights and gradients": recipe(
        "linear",
        [module({"a": 0.2, "b": 0.8}), module({"a": [0.5, 0.1, 0.9], "b": 0.5}), module({"a": 0.6, "b": 0.4})],
    ),
    "lambdas": recipe(
        "task_arithmetic",
        [module({"a": 0.5, "b": 0.5}, **{"lambda": value}) for value in (0.3, [0.2, 1.0], 0.7)],
        **BASE,
    ),
    "models": recipe("linear", [module({"a": 1, "b": 1}), module({"a": 1, "c": 1}), module({"b": 1})]),
    "models and densities": recipe(
        "ties",
        [module({"a": 1, "b": 1}, density=FILTERED), module({"a": 1}, density=0.5), module({"b": 1}, density=0.9)],
        **BASE,
    ),
    "layers of two models": recipe(
        "passthrough",
        [
            layers({"a": (0, 1, 1)}, {"b": (1, 2, 1)}),
            layers({"a": (0, 3, 1)}, {"b": (1, 3, 1)}),
            {"models": [{"model": "a"}]},
        ],
    ),
    "fewer layers, each merged": recipe(
        "linear",
        [
            layers({"a": (0, 1, 0.3), "b": (0, 1, 0.7)}),
            layers({"a": (0, 1, 0.6), "b": (0, 1, 0.4)}, {"b": (2, 3, 0.5), "c": (2, 3, 0.5)}),
            module({"a": 0.5, "b": 0.5}),
        ],
    ),
}


@cache
def prepared() -> Path:
    """A folder with the models, the recipes, and what mergekit makes of them."""
    from transformers import T5Config, T5ForConditionalGeneration

    folder = DATA / "mergekit" / "modules"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for seed, name in enumerate("abc"):
        torch.manual_seed(seed)
        T5ForConditionalGeneration(T5Config(**SHAPE)).save_pretrained(folder / name)
    for name, content in RECIPES.items():
        text = yaml.safe_dump(content, sort_keys=False)
        for model in "abc":
            text = text.replace(f"model: {model}\n", f"model: {folder / model}\n")
        (folder / f"{name}.yml").write_text(text)
    run_reference(folder)
    return folder


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

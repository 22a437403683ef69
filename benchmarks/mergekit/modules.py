"""Recipes whose modules differ, through mergekit 0.1.5 and through isomerge: encoder, decoder and what T5's share.

    python benchmarks/mergekit/modules.py --python ENV/bin/python     # writes benchmarks/results/mergekit-modules.json

ENV is an environment with mergekit (`benchmarks/mergekit/compare.py` makes one). The models are tiny random ones, in
float32; a difference is the largest of any weight.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

RESULTS = Path(__file__).parents[1] / "results" / "mergekit-modules.json"
SHAPE = {
    "vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
    "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "decoder_start_token_id": 0,
}  # fmt: skip
MODULES = ("encoder", "decoder", "shared")
THEIRS = """
import json, sys, torch, yaml
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.options import MergeOptions

torch.set_num_threads(1)
for name in json.loads(sys.argv[1]):
    config = MergeConfiguration.model_validate(yaml.safe_load(open(name + ".yml")))
    try:
        run_merge(config, name + "-theirs", MergeOptions())
    except Exception as error:  # a model card that it cannot look up comes after the weights
        print(name, repr(error)[:200], file=sys.stderr)
"""


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
    """One document."""
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


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint."""
    return {name: x for file in folder.glob("*.safetensors") for name, x in load_file(file).items()}


def main() -> None:
    """Merge by both and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    asked = parser.parse_args()
    from transformers import T5Config, T5ForConditionalGeneration

    import isomerge

    rows = {}
    with tempfile.TemporaryDirectory() as room:
        folder = Path(room)
        for seed, name in enumerate("abc"):
            torch.manual_seed(seed)
            T5ForConditionalGeneration(T5Config(**SHAPE)).save_pretrained(folder / name)
        for name, content in RECIPES.items():
            (folder / f"{name}.yml").write_text(yaml.safe_dump(content, sort_keys=False))
        command = [asked.python, "-c", THEIRS, json.dumps(list(RECIPES))]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        for name, content in RECIPES.items():
            absolute = yaml.safe_dump(content, sort_keys=False)
            for model in "abc":
                absolute = absolute.replace(f"model: {model}\n", f"model: {folder / model}\n")
            (folder / "ours.yml").write_text(absolute)
            report = isomerge.merge(folder / "ours.yml", out=folder / f"{name}-ours")
            ours, theirs = (weights_of(folder / f"{name}-{who}") for who in ("ours", "theirs"))
            gap = max(float((ours[n] - theirs[n]).abs().max()) for n in theirs)
            same = ours.keys() == theirs.keys()
            rows[name] = {
                "difference": gap,
                "tensors": len(ours),
                "same_tensors": same,
                "steps": len(report.get("steps", ())),
            }
            print(name, rows[name], flush=True)
    RESULTS.write_text(json.dumps({"mergekit": "0.1.5", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

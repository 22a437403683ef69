"""What is fuzzed: for every kind of input a sound folder of files, which of them is mutated, and the commands that
read it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fuzz.mutations import (
    mutate_body,
    mutate_bytes,
    mutate_halves,
    mutate_header,
    mutate_json,
    mutate_own_file,
    mutate_recipe,
)

Mutation = Callable[[bytes, Random], bytes]
OUT = "out"
MERGE = ["merge", "a", "b", "-o", OUT, "-q"]


@dataclass(frozen=True)
class Subject:
    """One kind of input."""

    file: str
    """The file that is mutated, relative to the folder."""
    mutate: Mutation
    commands: tuple[list[str], ...]
    """One of them is run; the first ones are the likelier."""


SUBJECTS = {
    "header": Subject("a/model.safetensors", mutate_header, (["inspect", "a"], MERGE)),
    "body": Subject("b/model.safetensors", mutate_body, (MERGE, [*MERGE, "--no-align"], ["diff", "a", "b"])),
    "halves": Subject(
        "half/model.safetensors", mutate_halves,
        (
            ["fingerprint", "half", "a"], ["verify", "half", "a"], ["diff", "half", "a"],
            ["align", "half", "--onto", "a", "-o", OUT, "--spaces", "all"],
        ),
    ),
    "file": Subject("a/model.safetensors", mutate_bytes, (["inspect", "a"], MERGE)),
    "index": Subject(
        "shards/model.safetensors.index.json", mutate_json,
        (["inspect", "shards"], ["merge", "shards", "b", "-o", OUT]),
    ),
    "config": Subject("a/config.json", mutate_json, (["inspect", "a"], MERGE, ["verify", "a", "b"])),
    "recipe": Subject(
        "recipe.yml", mutate_recipe,
        (["merge", "recipe.yml", OUT, "-q"], ["merge", "recipe.yml", OUT, "--dry-run"]),
    ),
    "patch": Subject(
        "patch.safetensors", mutate_own_file,
        (
            ["apply", "patch.safetensors", "b", "-o", OUT],
            ["apply", "patch.safetensors", "b", "-o", OUT, "--inverse"],
        ),
    ),
    "statistics": Subject(
        "stats-b.safetensors", mutate_own_file,
        ([*MERGE, "--stats-anchor", "stats-a.safetensors", "--stats-src", "stats-b.safetensors"],),
    ),
    "report": Subject(
        "merged/isomerge.json", mutate_json, (["fsck", "merged"], ["report", "merged", "-o", "page.html"]),
    ),
    "fingerprint": Subject("print.json", mutate_json, (["fingerprint", "print.json", "b"],)),
    "adapter config": Subject("adapter/adapter_config.json", mutate_json, (["inspect", "a+adapter"],)),
    "adapter": Subject("adapter/adapter_model.safetensors", mutate_header, (["inspect", "a+adapter"],)),
    "barrier": Subject(
        "barrier.json", mutate_json, (["report", "merged", "--barrier", "barrier.json", "-o", "page.html"],),
    ),
}  # fmt: skip
"""By the names of the counts."""


def make_inputs(folder: Path) -> Path:
    """Sound inputs of every kind, made once: two models, shards, a recipe, a patch, statistics, an output, an
    adapter.
    """
    if (folder / "made").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    import torch

    import isomerge

    a, b = (_model(folder / name, seed) for name, seed in (("a", 0), ("b", 1)))
    isomerge.align(a, onto=a, spaces="none", out=folder / "shards", out_shard_size=3000)
    isomerge.align(a, onto=a, spaces="none", out=folder / "half", dtype="bfloat16")
    alignment, _ = isomerge.align(b, onto=a)
    alignment.save(folder / "patch.safetensors")
    data = folder / "data.safetensors"
    from safetensors.torch import save_file

    save_file({"input_ids": torch.randint(0, 40, (8, 6), generator=torch.Generator().manual_seed(2))}, str(data))
    for name in ("a", "b"):
        isomerge.stats(folder / name, data=str(data), out=folder / f"stats-{name}.safetensors", rows=32)
    isomerge.merge([a, b], out=folder / "merged")
    isomerge.fingerprint(a, out=folder / "print.json")
    isomerge.extract_lora(b, a, out=folder / "adapter", rank=2)
    import json

    barrier = isomerge.barrier(a, b, data=str(data), points=3)
    (folder / "barrier.json").write_text(json.dumps(barrier))
    (folder / "recipe.yml").write_text(RECIPE)
    (folder / "made").touch()
    return folder


RECIPE = """\
models:
- model: a
  parameters: {weight: [0.3, 0.7], density: 0.5}
- model: b
  parameters:
    weight:
    - {filter: mlp, value: 0.2}
    - {value: 0.8}
base_model: a
merge_method: ties
parameters: {normalize: true, int8_mask: false}
dtype: float32
align: {enabled: true, spaces: default, layers: 0-1}
"""


def _model(folder: Path, seed: int) -> Path:
    """A GPT-2 of two layers and 3 kB of weights."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    size: dict[str, Any] = {
        "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 12, "n_inner": 10, "vocab_size": 40,
    }  # fmt: skip
    GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
    return folder

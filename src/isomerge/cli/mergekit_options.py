"""mergekit's options, of which recipes on the web tell: what to give here in their place."""

from __future__ import annotations

_DEVICE = "give --device cuda for the device that units are matched on"
_MEMORY = "leave it out: tensors are read one by one, and --max-memory bounds a run"
_ADAPTERS = "leave it out: adapters are merged in as tensors are read, and nothing is cached"
_THREADS = "give --jobs"
MERGEKITS = {
    "cuda": _DEVICE,
    "gpu-rich": _DEVICE,
    "multi-gpu": _DEVICE,
    "read-to-gpu": _DEVICE,
    "lazy-unpickle": _MEMORY,
    "low-cpu-memory": _MEMORY,
    "lora-merge-cache": _ADAPTERS,
    "lora-merge-dtype": _ADAPTERS,
    "num-threads": _THREADS,
    "async-write": "leave it out",
    "write-threads": "leave it out",
    "copy-tokenizer": "leave it out: the tokenizer is always written with the model",
    "clone-tensors": "leave it out: layers may occur several times",
    "write-model-card": "leave it out: a model card is always written",
    "safe-serialization": "leave it out: weights are always written as safetensors",
    "trust-remote-code": "leave it out: no code of a checkpoint is ever run",
    "allow-crimes": "leave it out: models of different architectures are not merged",
    "random-seed": "give --seed",
    "transformers-cache": "set the environment variable HF_HUB_CACHE",
}
"""By name, without dashes."""


def in_place_of(option: str) -> str | None:
    """What to do in place of an option of mergekit's; None where it is none.

    Args:
        option: as it was given, with its dashes; ``--no-`` may stand before the name.
    """
    name = option.removeprefix("--")
    if name not in MERGEKITS:
        name = name.removeprefix("no-")
    return f"{option} is mergekit's: {MERGEKITS[name]}" if name in MERGEKITS else None

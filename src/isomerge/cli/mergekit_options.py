"""mergekit's options, of which recipes on the web tell: those that an option here says, those that change nothing
here, and what to give in place of the others."""

from __future__ import annotations

from collections.abc import Sequence

_DEVICE = "give --device cuda for the device that units are matched on"
_MEMORY = "tensors are read one by one, and --max-memory bounds a run"
_ADAPTERS = "adapters are merged in as tensors are read, in float32 at least, and nothing is cached"
_WRITER = "the writer has a thread of its own where that helps"
MERGEKITS = {
    "cuda": _DEVICE,
    "gpu-rich": _DEVICE,
    "multi-gpu": _DEVICE,
    "read-to-gpu": _DEVICE,
    "copy-tokenizer": "leave it out: the tokenizer is always written with the model",
    "write-model-card": "leave it out: a model card is always written",
    "safe-serialization": "leave it out: weights are always written as safetensors",
    "random-seed": "give --seed",
    "load-in-4bit": "leave it out: prompts are run in float32",
    "load-in-8bit": "leave it out: prompts are run in float32",
    "transformers-cache": "set the environment variable HF_HUB_CACHE",
}
"""By name, without dashes: those that would change a run or its output (some of them where they are off)."""
SAME = {"cuda": ("--device", "cuda"), "random-seed": ("--seed",)}
"""Those that are options of a merge under another name; a value may follow."""
ALIKE = {
    "lazy-unpickle": _MEMORY,
    "low-cpu-memory": _MEMORY,
    "async-write": _WRITER,
    "clone-tensors": "layers may occur several times",
    "trust-remote-code": "no code of a checkpoint is ever run",
    "i-understand-this-is-not-useful-without-training": "experts of one model are made, and that is told",
    "allow-crimes": "models of different architectures are not merged",
}
"""Switches that change nothing here, on or off, and why."""
ON = {
    "copy-tokenizer": "the tokenizer is always written with the model",
    "write-model-card": "a model card is always written",
    "safe-serialization": "weights are always written as safetensors",
}
"""Switches that ask for what is done in any case."""
WITH_VALUE = {
    "lora-merge-cache": _ADAPTERS,
    "lora-merge-dtype": _ADAPTERS,
    "num-threads": "--jobs says how many units are worked on at a time",
    "write-threads": _WRITER,
}
"""Options with a value that change nothing in what is written."""


def in_own_words(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """A merge's words with its own options in place of mergekit's that say the same, and without those that change
    nothing here; why these do not, by their names.

    What stands behind ``--`` is left as it is.
    """
    kept: list[str] = []
    left: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        name, equals, _ = word.removeprefix("--").partition("=")
        off = name.removeprefix("no-")
        if not word.startswith("--"):
            kept.append(word)
        elif name in SAME and not (equals and len(SAME[name]) > 1):
            option, *value = SAME[name]
            kept += [option + word.removeprefix(f"--{name}"), *value]
        elif not equals and (reason := ON.get(name) or ALIKE.get(off)):
            left[name] = reason
        elif reason := WITH_VALUE.get(name):
            left[name] = reason
            if not equals and rest:
                rest.pop(0)
        else:
            kept.append(word)
    return [*kept, *rest], left


def in_place_of(option: str) -> str | None:
    """What to do in place of an option of mergekit's; None where it is none.

    Args:
        option: as it was given, with its dashes; ``--no-`` may stand before the name.
    """
    name = option.removeprefix("--")
    if name not in MERGEKITS:
        name = name.removeprefix("no-")
    if name in MERGEKITS:
        return f"{option} is mergekit's: {MERGEKITS[name]}"
    reason = {**ALIKE, **ON, **WITH_VALUE}.get(name)
    return f"{option} is mergekit's: leave it out: {reason}" if reason else None

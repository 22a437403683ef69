"""All commands of both doors: where each is declared, run and told, and what it does in a line. It imports nothing,
so that names are listed before anything is loaded."""

from __future__ import annotations

from importlib import import_module
from typing import Any

COMMANDS = {
    "merge": ("merging", "Align the models, merge them, write one checkpoint."),
    "layershuffle": ("merging", "Write a model of layers drawn from several models."),
    "tune": ("tuning", "Search for the parameters of a recipe on a loss or on tasks."),
    "methods": ("showing", "List the merge methods and their parameters."),
    "architectures": ("showing", "List the model types that have a spec text."),
    "align": ("moving", "Move a model along its symmetry orbit to another one."),
    "apply": ("moving", "Move a model by a saved alignment."),
    "diff": ("comparing", "Compare two models: raw, and modulo symmetry."),
    "verify": ("comparing", "Are two models the same function modulo symmetry?"),
    "fsck": ("checking", "Is an output still what was written?"),
    "canon": ("moving", "Write a model in its canonical form."),
    "widen": ("widening", "Write a model as a wider one, the same function."),
    "transplant-tokenizer": ("widening", "Give a model another one's tokenizer."),
    "relational": ("relating", "Write a model as a function of Gram matrices."),
    "fingerprint": ("comparing", "The hash that all disguises of a model share."),
    "barrier": ("measuring", "Measure the loss between two models, or three."),
    "eval": ("measuring", "Evaluate models side by side."),
    "report": ("measuring", "Write one self-contained HTML page on an output."),
    "stats": ("measuring", "Write the statistics that matching and merging need."),
    "generate": ("measuring", "Write examples for matching where you have none."),
    "extract-lora": ("adapting", "Write a difference of two models as a LoRA adapter."),
    "merge-lora": ("adapting", "Merge LoRA adapters into one, without their base."),
    "task-mask": ("adapting", "Write the mask that gives one task its model back."),
    "restore-task": ("adapting", "Write one task's model, from its mask."),
    "surgery": ("adapting", "Correct what a task's head reads in a merged model."),
    "inspect": ("comparing", "Show architecture, symmetries and redundant dimensions."),
    "discover": ("proving", "Derive the spec of an unknown architecture, proven."),
    "prove": ("proving", "Prove a spec text by the law, on tiny random models."),
    "demo": ("showing", "Align and merge two small classifiers of digits."),
}
"""By name, in the order in which people meet them: its modules in `options.requests`, `api` and `cli`, and a
sentence of at most 60 characters."""
FUNCTIONS = {"eval": "evaluate"}
"""Commands whose function in Python is called otherwise: eval is a word of Python's own."""
ALONE = {
    "demo": "it tells a story in the terminal, of calls of isomerge.align, merge, barrier and report",
    "relational": "isomerge.research.relational has its parts: from_standard, save and load",
}
"""Commands without a function of Python's door, and why."""
PYTHONS = {"open": "opening", "orbit_distance": "comparing", "similarity": "comparing"}
"""Functions without a command, and their modules."""


def function_of(command: str) -> str:
    """What Python calls a command."""
    return FUNCTIONS.get(command, command.replace("-", "_"))


def functions() -> dict[str, str]:
    """Python's functions, and their modules."""
    named = {function_of(command): theme for command, (theme, _) in COMMANDS.items() if command not in ALONE}
    return {**named, **PYTHONS}


def request_of(command: str) -> Any:
    """What a command is asked for: the class (`isomerge.options.option.Request`) of its Python name."""
    module = import_module(f"isomerge.options.requests.{COMMANDS[command][0]}")
    return getattr(module, "".join(map(str.capitalize, function_of(command).split("_"))))

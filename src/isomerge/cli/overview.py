"""What ``isomerge --help`` says: printed without loading the command line itself, which takes five times as
long."""

from __future__ import annotations

TAGLINE = "Align transformers along their weight symmetries, merge them, and prove it."
COMMANDS = {
    "merge": "Align the models, merge them, write one checkpoint.",
    "tune": "Search for the parameters of a recipe on a loss or on tasks.",
    "methods": "List the merge methods and their parameters.",
    "architectures": "List the model types that have a spec text.",
    "align": "Move a model along its symmetry orbit to another one.",
    "apply": "Move a model by a saved alignment.",
    "diff": "Compare two models: raw, and modulo symmetry.",
    "verify": "Are two models the same function modulo symmetry?",
    "fsck": "Is an output still what was written?",
    "canon": "Write a model in its canonical form.",
    "widen": "Write a model as a wider one, the same function.",
    "transplant-tokenizer": "Give a model another one's tokenizer.",
    "relational": "Write a model as a function of Gram matrices.",
    "fingerprint": "The hash that all disguises of a model share.",
    "barrier": "Measure the loss between two models, or three.",
    "eval": "Evaluate models side by side.",
    "report": "Write one self-contained HTML page on an output.",
    "stats": "Write the statistics that matching and merging need.",
    "generate": "Write examples for matching where you have none.",
    "extract-lora": "Write a difference of two models as a LoRA adapter.",
    "merge-lora": "Merge LoRA adapters into one, without their base.",
    "task-mask": "Write the mask that gives one task its model back.",
    "restore-task": "Write one task's model, from its mask.",
    "surgery": "Correct what a task's head reads in a merged model.",
    "inspect": "Show architecture, symmetries and work units.",
    "discover": "Derive the spec of an unknown architecture, proven.",
    "prove": "Prove a spec text by the law, on tiny random models.",
    "demo": "Align and merge two small classifiers of digits.",
}
"""Every command, in the order in which people meet them, and what it does in at most 60 characters."""
OPTIONS = {"--version": "Print the version.", "-h, --help": "Show this message and exit."}


def overview() -> str:
    """The text of ``isomerge --help``."""
    return "\n".join(
        [
            "",
            "Usage: isomerge [OPTIONS] COMMAND [ARGS]...",
            "",
            f"  {TAGLINE}",
            "",
            "Options:",
            *_table(OPTIONS),
            "",
            "Commands:",
            *_table(COMMANDS),
            "",
            "isomerge COMMAND --help tells what a command takes.",
            "",
        ]
    )


def _table(rows: dict[str, str]) -> list[str]:
    wide = max(map(len, rows))
    return [f"  {name:<{wide}}  {said}" for name, said in rows.items()]

"""What the command line says of what there is to choose from: ``isomerge methods`` and ``architectures``."""

from __future__ import annotations

from isomerge.cli.console import Voice
from isomerge.options.requests import listing as asked_for
from isomerge.records import Json


def tell_methods(voice: Voice, asked: asked_for.Methods, report: Json) -> None:
    """The methods, with their parameters and whether they need a base model."""
    for row in report["methods"]:
        words = [
            f"{name}{'' if o['required'] else '=' + str(o['default'])}{' (per model)' if o['per_model'] else ''}"
            for name, o in row["parameters"].items()
        ]
        base = {"none": "", "optional": " [base_model]", "required": " base_model,"}[row["base_model"]]
        voice.say(f"{row['method']}:{base} {', '.join(words)}".rstrip(" ,:"), style="bold")
        voice.say(f"    {row['summary']}")
        if row["source"] != "isomerge":
            voice.say(f"    from {row['source']}")


def tell_architectures(voice: Voice, asked: asked_for.Architectures, report: Json) -> None:
    """The model types, and where their texts come from."""
    for row in report["architectures"]:
        more = "" if row["source"] == "isomerge" else f" from {row['source']}"
        voice.say(f"{row['model_type']}: {row['spec']}{more}")
    voice.warn(*report["problems"])

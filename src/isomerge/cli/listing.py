"""What the command line says of what there is to choose from: ``isomerge methods`` and ``architectures``."""

from __future__ import annotations

from isomerge.cli.console import Voice
from isomerge.options.requests import listing as asked_for
from isomerge.records import Json


def tell_methods(voice: Voice, asked: asked_for.Methods, report: Json) -> None:
    """The methods, with their parameters and whether they need a base model."""
    from isomerge.fusion.registry import source, with_plug_ins

    for method in with_plug_ins().values():
        words = [
            f"{name}{'' if o.required else f'={o.default}'}{' (per model)' if o.per_model else ''}"
            for name, o in method.options.items()
        ]
        base = {"none": "", "optional": " [base_model]", "required": " base_model,"}[method.base]
        voice.say(f"{method.name}:{base} {', '.join(words)}".rstrip(" ,:"), style="bold")
        voice.say(f"    {method.summary}")
        if (origin := source(method)) != "isomerge":
            voice.say(f"    from {origin}")


def tell_architectures(voice: Voice, asked: asked_for.Architectures, report: Json) -> None:
    """The model types, and where their texts come from."""
    from isomerge.archs import listing

    rows, problems = listing()
    for row in rows:
        more = "" if row["source"] == "isomerge" else f" from {row['source']}"
        voice.say(f"{row['model_type']}: {row['spec']}{more}")
    for problem in problems:
        voice.warn(problem)

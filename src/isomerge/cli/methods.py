"""``isomerge methods``: the merge methods and their parameters."""

from __future__ import annotations

from typing import Any

from isomerge.cli.grouped import grouped
from isomerge.options import ImportOptions, ReportOptions


@grouped
def methods(*, importing: ImportOptions, telling: ReportOptions) -> None:
    """List the merge methods: what each does, its parameters, and whether it needs a base model."""
    from isomerge.cli.console import Voice, write_json
    from isomerge.fusion.registry import source, with_plug_ins

    voice = Voice(telling.quiet)
    rows: list[dict[str, Any]] = []
    for method in with_plug_ins().values():
        options = {
            name: {
                "per_model": option.per_model,
                "default": None if option.required else option.default,
                "required": option.required,
                "type": option.kind.__name__,
            }
            for name, option in method.options.items()
        }
        row = {"method": method.name, "summary": method.summary, "base_model": method.base, "parameters": options}
        rows.append(row | {"source": source(method)})
        words = [
            f"{name}{'' if o['required'] else '=' + str(o['default'])}{' (per model)' if o['per_model'] else ''}"
            for name, o in options.items()
        ]
        base = {"none": "", "optional": " [base_model]", "required": " base_model,"}[method.base]
        voice.say(f"{method.name}:{base} {', '.join(words)}".rstrip(" ,:"), style="bold")
        voice.say(f"    {method.summary}")
        if not method.built_in:
            voice.say(f"    from {rows[-1]['source']}")
    write_json(telling.json, {"command": "methods", "methods": rows})

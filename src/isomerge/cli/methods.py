"""``isomerge methods``: the merge methods and their parameters."""

from __future__ import annotations

from isomerge.cli.grouped import grouped
from isomerge.options import ImportOptions, ReportOptions


@grouped
def methods(*, importing: ImportOptions, telling: ReportOptions) -> None:
    """List the merge methods: what each does, its parameters, and whether it needs a base model."""
    import isomerge
    from isomerge.cli.console import Voice, write_json

    voice = Voice(telling.quiet)
    report = isomerge.methods()
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
    write_json(telling.json, report)

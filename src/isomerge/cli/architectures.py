"""``isomerge architectures``: the model types that have a spec text, and where texts of others come from."""

from __future__ import annotations

from isomerge.cli.grouped import grouped
from isomerge.options import ImportOptions, ReportOptions


@grouped
def architectures(*, importing: ImportOptions, telling: ReportOptions) -> None:
    """List the model types that have a spec text: isomerge's own, those of installed packages, and those that an
    imported module registers."""
    import isomerge
    from isomerge.cli.console import Voice, write_json

    voice = Voice(telling.quiet)
    report = isomerge.architectures()
    for row in report["architectures"]:
        more = "" if row["source"] == "isomerge" else f" from {row['source']}"
        voice.say(f"{row['model_type']}: {row['spec']}{more}")
    for problem in report["problems"]:
        voice.warn(problem)
    write_json(telling.json, report)

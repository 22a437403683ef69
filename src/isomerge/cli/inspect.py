"""``isomerge inspect``: what a checkpoint is, and what of it is redundant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from isomerge.cli.grouped import grouped
from isomerge.options import OpeningOptions, TellingOptions


@grouped
def inspect(
    model: Annotated[str, typer.Argument(help="A model: a folder or hub id.")],
    *,
    opening: OpeningOptions,
    print_spec: Annotated[
        bool, typer.Option("--print-spec", help="Print the spec text of its architecture and stop.")
    ] = False,
    telling: TellingOptions,
) -> None:
    """Show architecture, symmetry spaces, work units and redundant dimensions; reads headers only."""
    import isomerge
    from isomerge.cli.console import Voice, size_text, warn_fixed, write_json
    from isomerge.symmetry.layer_norms import NORMS

    voice = Voice(telling.quiet, telling.verbose)
    report = isomerge.inspect(model, spec=opening.spec, allow_pickle=opening.allow_pickle)
    if print_spec:
        from isomerge.archs import spec_texts

        print(
            spec_texts()[report["architecture"]][1]
            if opening.spec is None
            else Path(opening.spec).read_text(encoding="utf-8")
        )
        return
    voice.say(
        f"{report['model']}: {report['architecture']} ({report['spec']}), {report['parameters']:,} parameters in "
        f"{report['tensors']} tensors, {size_text(report['bytes'])} of {', '.join(report['dtypes'])}"
    )
    rows = [
        [
            s["name"], s["role"], s["group"] + (f"({s['size']})" if s["size"] > 1 else ""), ", ".join(s["index"]),
            f"{s['elements']:,}", f"{s['dimension']:,}",
            f"{s['log10_permutations']:.0f}" if s["log10_permutations"] else "",
            "yes" if s["matched"] else "with all",
        ]
        for s in report["spaces"]
    ]  # fmt: skip
    rows += [[name, "bias", "translation", "", "", f"{n:,}", "", "yes"] for name, n in report["shifts"].items()]
    if norms := report["norms"]:
        rows.append([NORMS, NORMS, "translation", "", "", f"{norms:,}", "", "yes"])
    voice.table("", ["space", "role", "group", "per", "elements", "dimensions", "log10 perms", "matched"], rows)
    warn_fixed(voice, report["fixed"])
    for stream in report["streams"]:
        voice.say(_stream_text(stream))
    voice.say(
        f"{report['units']} work units, {report['units_matched']} of them with symmetries; "
        f"{report['redundant_dimensions']:,} continuous dimensions are redundant{_parts_text(report['redundant'])}"
    )
    if telling.verbose:
        voice.table("", ["tensor", "axes"], [[name, axes] for name, axes in report["lines"].items()])
    write_json(telling.json, report)


PARTS = {
    "spaces": "of spaces inside the layers",
    "shifts": "of shifts",
    "norms": "that LayerNorm leaves free",
    "gains": "of gains over the streams",
    "streams": "of the streams",
}
"""What is said of the parts of a model's redundant dimensions."""


def _parts_text(parts: dict[str, int]) -> str:
    """The parts of the redundant dimensions, the whole declared group's, behind a colon."""
    counts = ", ".join(f"{parts[name]:,} {words}" for name, words in PARTS.items() if parts[name])
    twice = f", less {-parts['common']:,} that shifts and LayerNorm have in common" if parts["common"] else ""
    return f": {counts}{twice}" if counts else ""


def _stream_text(stream: dict[str, Any]) -> str:
    """One residual stream in a sentence: what acts on it, and why it is no more."""
    name, group, why = stream["name"], stream["group"], stream["why"]
    if group is None:
        return f"residual stream {name}: stays as it is ({why})"
    how = "once the gains over it are folded" if stream["folded"] else "as it is"
    return f"residual stream {name}: {group} {how}, with --spaces all" + (f" ({why})" if why else "")

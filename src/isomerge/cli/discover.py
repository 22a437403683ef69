"""``isomerge discover``: the spec of an architecture that isomerge does not know, found and proven."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from isomerge.cli.grouped import grouped
from isomerge.options import TellingOptions


@grouped
def discover(
    model: Annotated[str, typer.Argument(help="A model: a folder, a hub id, or its config.json alone.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the spec text to this file; printed otherwise.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the tiny random models.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file when it exists.")] = False,
    *,
    telling: TellingOptions,
) -> None:
    """Derive the spec of MODEL's architecture and prove it: every symmetry is tried on tiny random models of the
    same class.

    Only symmetries that leave the outputs unchanged enter the spec; what is not understood stays fixed, and is
    named. The weights of MODEL are not read.
    """
    import isomerge
    from isomerge.cli.console import Voice, write_json

    voice = Voice(telling.quiet, telling.verbose)
    with voice.progress("discover") as observer:
        report = isomerge.discover(model, out=out, seed=seed, overwrite=overwrite, observer=observer)
    voice.say(f"{model}: {report['model_type']}, run as a tiny random {report['class']}")
    columns = ["space", "role", "group", "per", "verdict", "outputs changed by"]
    rows = [_row(space, "proven", report["checked"]) for space in report["proven"]]
    rows += [_row(space, "rejected", {}) for space in report["rejected"]]
    voice.table("", columns, rows)
    if "all" in report["checked"]:
        voice.say(f"All together, on fresh models: outputs change by {report['checked']['all']:.1e}.")
    if report["coverage"] is not None:
        voice.say(f"The spec describes all {report['coverage']} tensors of {model}.")
    if report["fixed"]:
        voice.warn(
            f"nothing acts on {len(report['fixed'])} kinds of tensors, they stay fixed: "
            f"{', '.join(report['fixed'])}"
        )
    if out is not None:
        voice.say(f"Wrote {out}; use it with --spec {out}.")
    else:
        voice.say("")
        voice.say(report["spec"].rstrip())
    write_json(telling.json, report)


def _row(space: dict[str, Any], verdict: str, checked: dict[str, float]) -> list[str]:
    """One line of the table; the error of a proven space is the larger one of both proofs."""
    error = space["error"]
    if error is not None:
        error = max(error, checked.get(space["space"], 0.0))
    shown = "cannot act" if error is None else f"{error:.1e}"
    return [space["space"], space["role"], space["group"], ", ".join(space["index"]), verdict, shown]

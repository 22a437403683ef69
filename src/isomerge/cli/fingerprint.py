"""``isomerge fingerprint``: what a model is modulo symmetry, and whether two models are kin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from isomerge.cli import options as o


def fingerprint(
    model: Annotated[str, typer.Argument(help="A model (a folder or hub id), or a fingerprint that was written.")],
    others: Annotated[
        list[str] | None, typer.Argument(help="Models or fingerprints to compare it with.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the first model's fingerprint to this JSON file.")
    ] = None,
    spec: o.SpecFile = None,
    allow_pickle: o.Pickle = False,
    json: o.Json = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Print the hash of MODEL that all of its disguises share, and how OTHERS are related to it.

    Nothing is matched or run: relations between fixed tokens are compared, which no symmetry changes. Derived models
    (fine-tuned, pruned, rounded, with more tokens or experts) are recognised as such.
    """
    import isomerge
    from isomerge.cli.console import Voice, write_json
    from isomerge.files import check_file

    if out is not None:
        check_file(out, f"--out {out}", force=True)
    voice = Voice(quiet, verbose)
    options: dict[str, Any] = {"spec": spec, "allow_pickle": allow_pickle}
    with voice.progress("fingerprint") as observer:
        prints = [_read(given, {**options, "observer": observer}) for given in [model, *(others or [])]]
    first, *rest = prints
    for found in prints:
        voice.say(f"{found.hash}  {found.ref} ({found.model_type}, {found.dtype})")
    if out is not None:
        first.save(out)
        voice.say(f"Wrote {out}: {len(first.relations)} relations and {len(first.spectra)} spectra.")
    compared = [isomerge.similarity(first, found) for found in rest]
    if compared:
        voice.table("", ["compared with", "", "score", "difference"], [_row(found) for found in compared])
    if verbose:
        for found in compared:
            voice.say(
                f"{found['models'][1]}: the largest difference is in {found['tensor'] or 'no relation of both'}."
            )
    report = {"command": "fingerprint", "models": [found.ref for found in prints]}
    report |= {"hashes": [found.hash for found in prints], "compared": compared}
    write_json(json, report)


def _read(given: str, options: dict[str, Any]) -> Any:
    """A fingerprint from a file, or of a model."""
    import isomerge

    if Path(given).is_file():
        from isomerge.quotient.fingerprint import read_fingerprint

        return read_fingerprint(Path(given))
    return isomerge.fingerprint(given, **options)


def _row(found: dict[str, Any]) -> list[str]:
    score = "" if found["score"] is None else f"{found['score']:.3f}"
    difference = "" if found["difference"] is None else f"{found['difference']:.1e}"
    return [found["models"][1], found["verdict"], score, difference]

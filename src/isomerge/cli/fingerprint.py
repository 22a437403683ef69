"""``isomerge fingerprint``: what a model is modulo symmetry, and whether two models are kin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isomerge.cli.grouped import grouped
from isomerge.options import OpeningOptions, TellingOptions

if TYPE_CHECKING:
    from isomerge.cli.console import Voice

DISAGREE = 3
"""The exit code where the witnesses of a pair disagree: somebody must look."""


@grouped
def fingerprint(
    model: Annotated[str, typer.Argument(help="A model (a folder or hub id), or a fingerprint that was written.")],
    others: Annotated[
        list[str] | None, typer.Argument(help="Models or fingerprints to compare it with.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the first model's fingerprint to this JSON file.")
    ] = None,
    salt: Annotated[
        str,
        typer.Option(help="A secret text that decides what is looked at, so that no model can be prepared for it."),
    ] = "",
    *,
    opening: OpeningOptions,
    telling: TellingOptions,
) -> None:
    """Print the hash of MODEL that all of its disguises share, and how OTHERS are related to it.

    Nothing is matched or run: relations between fixed tokens, sums of all tokens, and spectra of circuits are
    compared, which no symmetry changes. Derived models (fine-tuned, pruned, rounded, with other layers, tokens or
    experts) are recognised as such, with what was done. Exit 2 if a model cannot be read (the others are compared
    all the same), 3 if witnesses disagree.
    """
    from isomerge.cli.console import Voice, write_json
    from isomerge.errors import IsomergeError
    from isomerge.files import check_file

    if out is not None:
        check_file(out, f"--out {out}", overwrite=True)
    voice = Voice(telling.quiet, telling.verbose)
    options: dict[str, Any] = {"spec": opening.spec, "allow_pickle": opening.allow_pickle, "salt": salt}
    prints: dict[int, Any] = {}
    unread: list[dict[str, str]] = []
    with voice.progress("fingerprint") as observer:
        for number, source in enumerate((model, *(others or ()))):
            try:
                prints[number] = _read(source, {**options, "observer": observer})
            except IsomergeError as error:
                if not others or (number == 0 and out is not None):
                    raise
                unread.append({"model": source, "error": str(error)})
    for each in prints.values():
        voice.say(f"{each.hash}  {each.ref} ({each.model_type}, {each.dtype})")
    if out is not None:
        prints[0].save(out)
        voice.say(f"Wrote {out}: {len(prints[0].relations)} relations and {len(prints[0].spectra)} spectra.")
    compared = _compared(prints, unread)
    if compared:
        voice.table("", ["compared with", "", "score", "difference"], [_row(each) for each in compared])
    for each in compared:
        _tell(voice, each)
    for failure in unread:
        voice.warn(f"{failure['model']} is left out: {failure['error']}")
    report: dict[str, Any] = {"command": "fingerprint", "models": [each.ref for each in prints.values()]}
    report |= {"hashes": [each.hash for each in prints.values()], "compared": compared, "unread": unread}
    conflicts = [f"{each['models'][1]}: {each['conflict']}" for each in compared if each["conflict"]]
    report["notes"] = conflicts + [f"{failure['model']} could not be read" for failure in unread]
    write_json(telling.json, report)
    if unread:
        names = " and ".join(failure["model"] for failure in unread)
        raise IsomergeError(
            f"{len(unread)} of {1 + len(others or ())} models could not be compared: {names}; mend them, or "
            f"leave them out"
        )
    if conflicts:
        raise typer.Exit(DISAGREE)


def _read(source: str, options: dict[str, Any]) -> Any:
    """A fingerprint from a file, or of a model."""
    import isomerge

    if Path(source).is_file():
        from isomerge.quotient.record import read_fingerprint

        return read_fingerprint(Path(source), salt=options["salt"] or None)
    return isomerge.fingerprint(source, **options)


def _compared(prints: dict[int, Any], unread: list[dict[str, str]]) -> list[dict[str, Any]]:
    """The first fingerprint with every other; one of another salt is added to what could not be read."""
    import isomerge
    from isomerge.errors import IsomergeError

    rows = []
    for number, other in prints.items():
        if number and 0 in prints:
            try:
                rows.append(isomerge.similarity(prints[0], other))
            except IsomergeError as error:
                unread.append({"model": other.ref, "error": str(error)})
    return rows


def _row(pair: dict[str, Any]) -> list[str]:
    score = "" if pair["score"] is None else f"{pair['score']:.3f}"
    difference = "" if pair["difference"] is None else f"{pair['difference']:.1e}"
    return [pair["models"][1], pair["verdict"], score, difference]


def _tell(voice: Voice, pair: dict[str, Any]) -> None:
    """What was done, which way, and what speaks against it."""
    first, other = pair["models"]
    if pair["changes"]:
        made = {None: other, 0: f"{other}, made from {first}", 1: f"{first}, made from {other}"}[pair["source"]]
        voice.say(f"{made}: {'; '.join(pair['changes'])}.")
    if pair["conflict"]:
        voice.warn(f"{other}: {pair['conflict']}.")
    if voice.verbose:
        said = ", ".join(f"{name} {value:.2f}" for name, value in pair["witnesses"].items() if value is not None)
        voice.say(
            f"{other}: {said or 'no witness sees anything'}; the largest difference is in "
            f"{pair['tensor'] or 'no relation of both'}."
        )

"""``isomerge verify``: are two models the same function?"""

from __future__ import annotations

from typing import Annotated

import typer

from isomerge.cli.grouped import grouped
from isomerge.options import OpeningOptions, TellingOptions

UNTOLD = 3
"""The exit code where it cannot be told: rounding, configs or outputs leave the question open. 1 is not the same, 2
a question that makes no sense."""


@grouped
def verify(
    a: Annotated[str, typer.Argument(help="A model: a folder or hub id.")],
    b: Annotated[str, typer.Argument(help="Another one.")],
    run: Annotated[bool, typer.Option("--run", help="Also compare outputs on random inputs.")] = False,
    *,
    opening: OpeningOptions,
    telling: TellingOptions,
) -> None:
    """Exit 0 if two models are the same function by the symmetries declared for them (without running them), 1 if
    not, 3 if it cannot be told."""
    import isomerge
    from isomerge.cli.console import Voice, write_json
    from isomerge.evidence.verify import AGREEING

    voice = Voice(telling.quiet, telling.verbose)
    with voice.progress("verifying") as observer:
        report = isomerge.verify(
            a, b, run=run, spec=opening.spec, allow_pickle=opening.allow_pickle, observer=observer
        )
    residual = report["residual"]
    how = (
        f"largest relative residual {residual['largest']:.2g} in {residual['tensor']}, rounding allows "
        f"{residual['tolerance']:.0e}"
    )
    if report["refuted"]:
        how = (
            f"their fingerprints are {report['fingerprints']['verdict']} and differ, the relation in "
            f"{residual['tensor']} by {residual['largest']:.2g}, rounding allows {residual['tolerance']:.0e}"
        )
    for note in report["notes"]:
        voice.say(f"Note: {note}.")
    if report["same"] is None:
        voice.say(f"Cannot tell: {report['reason']}.{'' if run else ' --run compares outputs.'}")
    elif report["same"]:
        taken = ", and without what LayerNorm takes away by itself" if report["layer_norm_form"] else ""
        what = "predictions" if report["turned"] else "function"
        voice.say(f"Same {what} modulo symmetry{taken}: {how}.")
        for sentence in report["turned"]:
            voice.say(f"{sentence[0].upper()}{sentence[1:]}.")
    elif report["reason"]:
        voice.say(f"Not the same: {report['reason']}. The weights were not compared.")
    else:
        voice.say(f"Not the same by the symmetries declared for {report['model_type']}: {how}.")
    if telling.verbose:
        rows = [[f"layer {n}" if n != "outside" else n, f"{r:.2g}"] for n, r in residual["layers"].items()]
        voice.table("", ["largest relative residual", ""], rows)
    if report["only_in_one"]:
        names = ", ".join(report["only_in_one"][:4])
        voice.say(f"Not compared, as only one model has them: {names}.")
    if "outputs" in report:
        place = f", in {report['output']}" if report["outputs"] > AGREEING else ""
        voice.say(f"Outputs on random inputs differ by {report['outputs']:.2g} of the largest output{place}.")
    write_json(telling.json, report)
    if not report["same"]:
        raise typer.Exit(UNTOLD if report["same"] is None else 1)

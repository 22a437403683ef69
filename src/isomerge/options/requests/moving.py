"""Models moved along their orbits: what `isomerge align`, `apply` and `canon` are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isomerge.options.files import DryRunOptions, OpeningOptions, OutputOptions, TellingOptions, out_folder
from isomerge.options.fusing import AUTO
from isomerge.options.matching import DATA, MatchingOptions
from isomerge.options.option import (
    COMMAND_LINE,
    FILE,
    REFUSED,
    Asked,
    Options,
    Request,
    argument,
    group,
    needed,
    option,
)
from isomerge.options.running import LiveOptions, RunningOptions
from isomerge.options.spaces import SpacesOptions, UntieOptions


class Align(Request):
    """Move SOURCE along its symmetry orbit to the point closest to the anchor, and write it."""

    progress = "aligning"
    source: Any = argument("The model to move: a folder or hub id.")
    onto: Any = needed("The anchor: the model to come close to.", "--onto", kind=str, reads=True)
    out: str | Path | None = out_folder()
    align: bool | str = option(
        AUTO, "Match also what is aligned already, as fine-tunes of one base are; by default it is left as it is.",
        "--align", kind=bool, default=False, read=lambda given: given or AUTO,
    )  # fmt: skip
    moving: SpacesOptions = group(SpacesOptions)
    save_alignment: Path | None = option(
        None, "Also save what was applied, to replay it with apply.", door=COMMAND_LINE, writes=FILE,
    )  # fmt: skip
    live: LiveOptions = group(LiveOptions)
    opening: OpeningOptions = group(OpeningOptions)
    writing: OutputOptions = group(OutputOptions)
    planning: DryRunOptions = group(DryRunOptions)
    telling: TellingOptions = group(TellingOptions)
    running: RunningOptions = group(RunningOptions)
    matching: MatchingOptions = group(MatchingOptions)


class Apply(Request):
    """Move MODEL by a saved alignment and write it: the same function in other weights."""

    progress = "applying"
    alignment: Any = argument(
        "An alignment file (alignment.safetensors).", "patch", kind=Path, python="Alignment | str | Path",
    )  # fmt: skip
    model: Any = argument("The model to move: a folder or hub id.")
    out: str | Path | None = out_folder()
    inverse: bool = option(False, "Undo the alignment: back to the coordinates from before it.", "--inverse")
    tie: UntieOptions = group(UntieOptions)
    opening: OpeningOptions = group(OpeningOptions)
    writing: OutputOptions = group(OutputOptions)
    telling: TellingOptions = group(TellingOptions)


def _dressed(a: Asked) -> str | None:
    return "no model is run (--activations)" if a.activations is None else None


class DressingOptions(Options):
    """Whether, and on what, activations are dressed."""

    activations: str | Path | None = option(
        None, "Also write the layers' activations on --data, in the canonical frame, to this file (safetensors).",
        "--activations", kind=Path | None, panel="Activations", writes=FILE,
    )  # fmt: skip
    data: Any = option(
        None, f"Examples to run the model on. {DATA}", kind=str | None, panel="Activations", acts=REFUSED,
        reads=True,
    )  # fmt: skip
    limit: int = option(64, "Run it on no more than so many examples.", panel="Activations", acts=_dressed)
    length: int = option(128, "Tokens per example of text.", panel="Activations", acts=_dressed)


class Canon(Request):
    """Write MODEL in its canonical form: the same function, and the same weights whatever symmetries disguised it.

    It says how clear every choice was: where a gap is small, rounding may choose otherwise in a twin.
    """

    progress = "canonical form"
    model: Any = argument("The model: a folder or hub id.")
    out: str | Path | None = out_folder()
    tie: UntieOptions = group(UntieOptions)
    dressing: DressingOptions = group(DressingOptions)
    opening: OpeningOptions = group(OpeningOptions)
    writing: OutputOptions = group(OutputOptions)
    telling: TellingOptions = group(TellingOptions)

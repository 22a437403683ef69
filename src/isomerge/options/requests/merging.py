"""Models merged, or their layers shuffled: what `isomerge merge` and `layershuffle` are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isomerge.options.files import OUTPUT, DryRunOptions, OpeningOptions, OutputOptions, TellingOptions, out_folder
from isomerge.options.fusing import METHOD, FusingOptions, weights_of
from isomerge.options.matching import MatchingOptions
from isomerge.options.option import COMMAND_LINE, FILE, FIRST, FOLDER, LATE, Key, Request, argument, group, option
from isomerge.options.running import LiveOptions, RunningOptions
from isomerge.options.spaces import SpacesOptions


class Merge(Request):
    """Align the models, merge them, and write an ordinary Hugging Face checkpoint.

    A recipe is mergekit's YAML; it aligns where it has a block `align:` (or `align: true`). One of mergekit-moe's
    makes a mixture of experts of dense models.
    """

    progress = "merging"
    settled = False
    models: Sequence[Any] | str | Path = argument(
        "Models (folders, pipelines, hub ids, model+lora), the anchor first; or one RECIPE.yml and OUT.",
        kind=list[str],
    )
    out: str | Path | None = option(
        None, "Folder to write; must not exist or be empty.",
        "--out", "-o", kind=Path | None, panel=FIRST, writes=FOLDER,
    )  # fmt: skip
    intermediate_dir: str | Path | None = option(
        None,
        "Of a recipe of several steps: where all but the last are written, by their names; OUT.steps by default.",
        "--intermediate-dir", "-I", kind=Path | None, panel=OUTPUT, acts=LATE,
    )  # fmt: skip
    fusing: FusingOptions = group(FusingOptions)
    moving: SpacesOptions = group(SpacesOptions)
    report: bool = option(
        True, "Write OUT/report.html, a page for people (see isomerge report).",
        "--report/--no-report", panel=OUTPUT, door=COMMAND_LINE,
    )  # fmt: skip
    repair: Any = option(
        None, "Re-normalise the merged model's activations on these examples (REPAIR).",
        kind=str | None, panel=METHOD, reads=True, recipe=Key(aligns=False, experts=False),
    )  # fmt: skip
    live: LiveOptions = group(LiveOptions)
    opening: OpeningOptions = group(OpeningOptions)
    writing: OutputOptions = group(OutputOptions)
    planning: DryRunOptions = group(DryRunOptions)
    telling: TellingOptions = group(TellingOptions)
    running: RunningOptions = group(RunningOptions)
    matching: MatchingOptions = group(MatchingOptions)


class Layershuffle(Request):
    """Write a model whose every layer is one of several models', drawn at random, as mergekit-layershuffle does.

    A passthrough recipe of slices is drawn and run. It has as many layers as the first model. What comes before the
    layers is the first slice's model's, what comes after them the last one's.
    """

    progress = "merging"
    models: Sequence[str | Path] = argument(
        "Models that layers are drawn from: folders or hub ids.", kind=list[str]
    )
    out: str | Path = out_folder(needed_in_python=True, panel=FIRST)
    weights: Sequence[float] | None = option(
        None, "The share of layers that each model gives, such as 0.6,0.4; equal by default.", kind=str | None,
        read=weights_of, panel=FIRST,
    )  # fmt: skip
    full_random: bool = option(
        False, "Draw the number of every layer as well; else layer i is layer i of a model.", "--full-random",
        panel=FIRST,
    )  # fmt: skip
    seed: int = option(0, "Of what is drawn.", panel=FIRST)
    write_yaml: str | Path | None = option(
        None, "Write the recipe to this file, with --dry-run as well.", "--write-yaml", kind=Path | None,
        panel=OUTPUT, writes=FILE,
    )  # fmt: skip
    opening: OpeningOptions = group(OpeningOptions)
    writing: OutputOptions = group(OutputOptions)
    planning: DryRunOptions = group(DryRunOptions)
    telling: TellingOptions = group(TellingOptions)
    running: RunningOptions = group(RunningOptions)

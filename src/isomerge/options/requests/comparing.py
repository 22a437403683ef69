"""Models compared by their weights: what `isomerge diff`, `verify`, `fingerprint` and `inspect` are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isomerge.options.files import OpeningOptions, TellingOptions
from isomerge.options.option import COMMAND_LINE, FILE, Request, argument, group, option
from isomerge.options.spaces import LayersOptions

MODEL, OTHER = "A model: a folder or hub id.", "Another one."


class Diff(Request):
    """Compare two models: raw distance, distance modulo symmetry, and what that means."""

    progress = "comparing"
    one: Any = argument(MODEL, "a")
    two: Any = argument(OTHER, "b")
    moving: LayersOptions = group(LayersOptions)
    opening: OpeningOptions = group(OpeningOptions)
    telling: TellingOptions = group(TellingOptions)


class Verify(Request):
    """Exit 0 if two models are the same function by the symmetries declared for them (without running them), 1 if
    not, 3 if it cannot be told."""

    progress = "verifying"
    one: Any = argument(MODEL, "a")
    two: Any = argument(OTHER, "b")
    run: bool = option(False, "Also compare outputs on random inputs.", "--run")
    opening: OpeningOptions = group(OpeningOptions)
    telling: TellingOptions = group(TellingOptions)


class Fingerprint(Request):
    """Print the hash of MODEL that all of its disguises share, and how OTHERS are related to it.

    Nothing is matched or run: relations between fixed tokens, sums of all tokens, and spectra of circuits are
    compared, which no symmetry changes. Derived models (fine-tuned, pruned, rounded, with other layers, tokens or
    experts) are recognised as such, with what was done. Exit 2 if a model cannot be read (the others are compared
    all the same), 3 if witnesses disagree.
    """

    progress = "fingerprint"
    model: Any = argument("A model (a folder or hub id), or a fingerprint that was written.")
    others: list[str] | None = argument(
        "Models or fingerprints to compare it with.", default=None, kind=list[str] | None, shown=False,
        door=COMMAND_LINE,
    )  # fmt: skip
    out: str | Path | None = option(
        None, "Write the first model's fingerprint to this JSON file.", "--out", "-o", kind=Path | None,
        writes=FILE,
    )  # fmt: skip
    salt: str = option("", "A secret text that decides what is looked at, so that no model can be prepared for it.")
    opening: OpeningOptions = group(OpeningOptions)
    telling: TellingOptions = group(TellingOptions)


class Similarity(Request):
    """Python's alone: two models by their fingerprints."""

    progress = "fingerprint"
    one: Any = argument(MODEL)
    two: Any = argument(OTHER)
    salt: str = option("", "What models are fingerprinted with.")
    opening: OpeningOptions = group(OpeningOptions)


class OrbitDistance(Request):
    """Python's alone: the distance between the orbits of two models."""

    progress = "comparing"
    one: Any = argument(MODEL)
    two: Any = argument(OTHER)
    streams: bool = option(False, "Match the residual streams as well.")
    opening: OpeningOptions = group(OpeningOptions)


class Inspect(Request):
    """Show architecture, symmetries and redundant dimensions; reads headers only."""

    model: Any = argument(MODEL)
    opening: OpeningOptions = group(OpeningOptions)
    print_spec: bool = option(
        False, "Print the spec text of its architecture and stop.", "--print-spec", door=COMMAND_LINE,
    )  # fmt: skip
    telling: TellingOptions = group(TellingOptions)

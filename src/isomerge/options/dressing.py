"""What is looked at of a model's activations in its canonical frame."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isomerge.options.matching import DATA
from isomerge.options.option import Options, option

PANEL = "Activations"


@dataclass(frozen=True)
class DressingOptions(Options):
    """Whether, and on what, activations are dressed."""

    activations: str | Path | None = option(
        None,
        "Also write the layers' activations on --data, in the canonical frame, to this file (safetensors).",
        "--activations", kind=Path | None, panel=PANEL,
    )  # fmt: skip
    data: Any = option(None, f"Examples to run the model on. {DATA}", kind=str | None, panel=PANEL)
    limit: int = option(64, "Run it on no more than so many examples.", panel=PANEL)
    length: int = option(128, "Tokens per example of text.", panel=PANEL)

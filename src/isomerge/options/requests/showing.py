"""What isomerge does, shown: what `isomerge demo` is asked for."""

from __future__ import annotations

from pathlib import Path

from isomerge.options.files import TellingOptions
from isomerge.options.option import Request, group, option


class Demo(Request):
    """Align and merge two digit classifiers that were trained apart, and show what it does."""

    out: Path = option(Path("demo-out"), "Folder for the merged models and the picture.", "--out", "-o")
    telling: TellingOptions = group(TellingOptions)

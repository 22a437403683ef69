"""Isomerge itself, shown: what `isomerge methods`, `architectures` and `demo` are asked for."""

from __future__ import annotations

from pathlib import Path

from isomerge.options.files import ImportOptions, ReportOptions, TellingOptions
from isomerge.options.option import Request, group, option


class Methods(Request):
    """List the merge methods: what each does, its parameters, and whether it needs a base model."""

    importing: ImportOptions = group(ImportOptions)
    telling: ReportOptions = group(ReportOptions)


class Architectures(Request):
    """List the model types that have a spec text: isomerge's own, those of installed packages, and those that an
    imported module registers."""

    importing: ImportOptions = group(ImportOptions)
    telling: ReportOptions = group(ReportOptions)


class Demo(Request):
    """Align and merge two digit classifiers that were trained apart, and show what it does."""

    out: Path = option(Path("demo-out"), "Folder for the merged models and the picture.", "--out", "-o")
    telling: TellingOptions = group(TellingOptions)

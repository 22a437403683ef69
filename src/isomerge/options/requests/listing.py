"""What there is to choose from: what `isomerge methods` and `architectures` are asked for."""

from __future__ import annotations

from dataclasses import dataclass

from isomerge.options.files import ImportOptions, ReportOptions
from isomerge.options.option import Request, group


@dataclass(frozen=True, kw_only=True)
class Methods(Request):
    """List the merge methods: what each does, its parameters, and whether it needs a base model."""

    importing: ImportOptions = group(ImportOptions)
    telling: ReportOptions = group(ReportOptions)


@dataclass(frozen=True, kw_only=True)
class Architectures(Request):
    """List the model types that have a spec text: isomerge's own, those of installed packages, and those that an
    imported module registers."""

    importing: ImportOptions = group(ImportOptions)
    telling: ReportOptions = group(ReportOptions)

"""What there is to choose from: what `isomerge methods` and `architectures` are asked for."""

from __future__ import annotations

from isomerge.options.files import ImportOptions, ReportOptions
from isomerge.options.option import Request, group


class Methods(Request):
    """List the merge methods: what each does, its parameters, and whether it needs a base model."""

    importing: ImportOptions = group(ImportOptions)
    telling: ReportOptions = group(ReportOptions)


class Architectures(Request):
    """List the model types that have a spec text: isomerge's own, those of installed packages, and those that an
    imported module registers."""

    importing: ImportOptions = group(ImportOptions)
    telling: ReportOptions = group(ReportOptions)

"""What there is to choose from."""

from __future__ import annotations

from typing import Any

from isomerge.archs import listing
from isomerge.evidence.report.notebook import Report
from isomerge.fusion.registry import described
from isomerge.options.requests import listing as asked_for
from isomerge.run.arguments import checked


@checked(asked_for.Methods)
def methods(asked: asked_for.Methods) -> dict[str, Any]:
    """The merge methods, those of installed packages and imported modules among them.

    Returns:
        ``methods``: a row for each with ``method`` (its name), ``summary``, ``base_model`` (``none``, ``optional``
        or ``required``), ``parameters`` (by name ``type``, ``default``, ``required``, and whether there is one
        ``per_model``) and ``source``.
    """
    return Report({"command": "methods", "methods": described()})


@checked(asked_for.Architectures)
def architectures(asked: asked_for.Architectures) -> dict[str, Any]:
    """The model types that have a spec text: isomerge's own, those of installed packages, and those that an
    imported module registers.

    Returns:
        ``architectures``: a row for each with ``model_type``, ``spec`` and ``source``; and ``problems``, sentences.
    """
    rows, problems = listing()
    return Report({"command": "architectures", "architectures": rows, "problems": problems})

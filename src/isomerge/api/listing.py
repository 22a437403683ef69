"""What there is to choose from."""

from __future__ import annotations

from typing import Any

from isomerge.evidence.report.notebook import Report
from isomerge.fusion.registry import described
from isomerge.run.arguments import checked


@checked()
def methods() -> dict[str, Any]:
    """The merge methods, those of installed plug-ins among them.

    Returns:
        ``methods``: a row for each with ``method`` (its name), ``summary``, ``base_model`` (``none``, ``optional``
        or ``required``), ``parameters`` (by name ``type``, ``default``, ``required``, and whether there is one
        ``per_model``) and ``source``.
    """
    return Report({"command": "methods", "methods": described()})

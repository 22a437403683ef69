"""What there is to choose from."""

from __future__ import annotations

from isomerge.archs import listing
from isomerge.fusion.registry import described
from isomerge.options.requests import showing as asked_for
from isomerge.records import Json
from isomerge.run.arguments import checked


@checked(asked_for.Methods)
def methods(asked: asked_for.Methods) -> Json:
    """The merge methods, those of installed packages and imported modules among them.

    Returns:
        ``methods``: a row for each with ``method`` (its name), ``summary``, ``base_model`` (``none``, ``optional``
        or ``required``), ``parameters`` (by name ``type``, ``default``, ``required``, and whether there is one
        ``per_model``) and ``source``.
    """
    return {"command": "methods", "methods": described()}


@checked(asked_for.Architectures)
def architectures(asked: asked_for.Architectures) -> Json:
    """The model types that have a spec text: isomerge's own, those of installed packages, and those that an
    imported module registers.

    Returns:
        ``architectures``: a row for each with ``model_type``, ``spec`` and ``source``; and ``problems``, sentences.
    """
    rows, problems = listing()
    return {"command": "architectures", "architectures": rows, "problems": problems}

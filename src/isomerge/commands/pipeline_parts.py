"""Two pipelines, or single files, compared part by part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from isomerge.archs import without_spec
from isomerge.checkpoint.pipeline import Component
from isomerge.errors import IsomergeError
from isomerge.models.references import is_assembled, open_assembled

Compare = Callable[[str, str], dict[str, Any]]


def by_parts(command: str, one: Any, two: Any, compare: Compare) -> dict[str, Any] | None:
    """The report on two pipelines; None where neither is one.

    Args:
        command: its name.
        one, two: what is compared.
        compare: compares two models; its report.

    Returns:
        ``parts``: by their names ``said`` in words, ``same`` (True; False; None where it cannot be told), and the
        ``report`` of those that were compared; ``same`` of all together, ``reason`` where it cannot be told.

    Raises:
        IsomergeError: only one is a pipeline, or two parts do not fit together.
    """
    given = [ref for ref in (one, two) if isinstance(ref, str | Path) and is_assembled(ref)]
    if not given:
        return None
    if len(given) == 1:
        other = two if given[0] is one else one
        raise IsomergeError(f"{given[0]} is a pipeline and {other} none: compare two pipelines, or two models")
    first, second = map(open_assembled, given)
    parts: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys((*first.components, *second.components)):
        mine, theirs = first.components.get(name), second.components.get(name)
        if mine is None or theirs is None:
            said = f"only {first.ref if theirs is None else second.ref} has it"
            parts[name] = {"said": said, "same": False}
        else:
            parts[name] = _compared(mine, theirs, compare)
    verdicts = {row["same"] for row in parts.values()}
    same = False if False in verdicts else None if None in verdicts else True
    open_parts = [f"{name}: {row['said']}" for name, row in parts.items() if row["same"] is None]
    return {
        "command": command,
        "models": [first.ref, second.ref],
        "parts": parts,
        "same": same,
        "reason": "; ".join(open_parts) if same is None else None,
    }


def _compared(mine: Component, theirs: Component, compare: Compare) -> dict[str, Any]:
    """One part of both."""
    if mine.kind != theirs.kind:
        return {"said": f"a {mine.kind} and a {theirs.kind}", "same": False}
    if mine.equals(theirs):
        return {"said": "the same bytes", "same": True}
    if not mine.has_weights:
        return {"said": "files that differ, which are not compared", "same": None}
    if without_spec(mine.config()):
        return {"said": "weights that differ as they are stored, and there is no spec for the class", "same": None}
    report = compare(mine.ref, theirs.ref)
    return {"said": "compared", "same": report["same"], "report": report}

"""Whether a search has found anything, on examples that it has not seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isomerge.tuning.task_documents import SCORE


def verdict_of(judged: Mapping[str, Any], *, own: bool) -> tuple[str, list[str]]:
    """One sentence on the values found, and what it doubts as notes.

    Args:
        judged: ``best`` and ``start`` (``judge.loss``, or ``judge.score`` of tasks, more of which is better),
            ``models`` (``model``, ``judge`` or None), ``unit``.
        own: whether the best values are the recipe's own.
    """
    figures = judged["best"]["judge"]
    key, sign = (SCORE, -1) if SCORE in figures else ("loss", 1)
    best, start = figures[key], judged["start"]["judge"][key]
    rows = [(row["judge"][key], row["model"]) for row in judged["models"] if row["judge"] is not None]
    models = sorted(rows, key=lambda row: sign * row[0])
    doubts = []
    if own:
        doubts.append(
            f"no trial was better than the recipe's own values on the {_read(key)} of the search, and these are "
            f"written"
        )
    elif sign * best >= sign * start:
        doubts.append(
            f"on the held-out {_read(key)} the values found ({best:.4g}) are no better than the recipe's own "
            f"({start:.4g})"
        )
    if models and sign * models[0][0] <= sign * best:
        figure, name = models[0]
        doubts.append(
            f"on the held-out {_read(key)} {name} alone ({figure:.4g}) is no worse than the merge ({best:.4g})"
        )
    if doubts:
        text = "; ".join(doubts)
        return f"{text[0].upper()}{text[1:]}.", doubts
    than = f" and {models[0][0]:.4g} of the best model alone" if models else ""
    return (
        f"On the held-out {_read(key)} the values found give {_said(best, judged['unit'], key)}, against "
        f"{start:.4g} of the recipe's own{than}.",
        [],
    )


def _read(key: str) -> str:
    """What a figure was measured on."""
    return "documents" if key == SCORE else "examples"


def _said(figure: float, unit: str, key: str) -> str:
    return f"a score of {figure:.4g}" if key == SCORE else f"{figure:.4g} {unit}"

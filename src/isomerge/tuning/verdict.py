"""Whether a search has found anything, on examples that it has not seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def verdict_of(judged: Mapping[str, Any], *, own: bool) -> tuple[str, list[str]]:
    """One sentence on the values found, and what it doubts as notes.

    Args:
        judged: ``best`` and ``start`` (``judge.loss``), ``models`` (``model``, ``judge`` or None), ``unit``.
        own: whether the best values are the recipe's own.
    """
    best, start = judged["best"]["judge"]["loss"], judged["start"]["judge"]["loss"]
    models = [(row["judge"]["loss"], row["model"]) for row in judged["models"] if row["judge"] is not None]
    doubts = []
    if own:
        doubts.append(
            "no trial was better than the recipe's own values on the examples of the search, and these are written"
        )
    elif best >= start:
        doubts.append(
            f"on the held-out examples the values found ({best:.4g}) are no better than the recipe's own "
            f"({start:.4g})"
        )
    if models and min(models)[0] <= best:
        loss, name = min(models)
        doubts.append(f"on the held-out examples {name} alone ({loss:.4g}) is no worse than the merge ({best:.4g})")
    if doubts:
        text = "; ".join(doubts)
        return f"{text[0].upper()}{text[1:]}.", doubts
    than = f" and {min(models)[0]:.4g} of the best model alone" if models else ""
    return (
        f"On the held-out examples the values found give {best:.4g} {judged['unit']}, against {start:.4g} of the "
        f"recipe's own{than}.",
        [],
    )

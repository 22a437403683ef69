"""Whether a search has found anything, on examples that it has not seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def verdict_of(judged: Mapping[str, Any]) -> tuple[str, list[str]]:
    """One sentence on the values found, and the same as notes where they are no gain.

    Args:
        judged: ``best`` and ``start`` (``judge.loss``), ``models`` (``model``, ``judge`` or None), ``unit``.
    """
    best, start = judged["best"]["judge"]["loss"], judged["start"]["judge"]["loss"]
    known = [(row["judge"]["loss"], row["model"]) for row in judged["models"] if row["judge"] is not None]
    doubts = []
    if best >= start:
        doubts.append(
            f"on the held-out examples the values found ({best:.4g}) are no better than the recipe's own "
            f"({start:.4g})"
        )
    if known and min(known)[0] <= best:
        loss, name = min(known)
        doubts.append(f"on the held-out examples {name} alone ({loss:.4g}) is no worse than the merge ({best:.4g})")
    if doubts:
        return f"{doubts[0][0].upper()}{'; '.join(doubts)[1:]}.", doubts
    than = f" and {min(known)[0]:.4g} of the best model alone" if known else ""
    return (
        f"On the held-out examples the values found give {best:.4g} {judged['unit']}, against {start:.4g} of the "
        f"recipe's own{than}.",
        [],
    )

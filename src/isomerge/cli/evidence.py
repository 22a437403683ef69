"""What data brought to a match, in a sentence each: the forward search, and learning."""

from __future__ import annotations

from typing import Any


def evidence_lines(report: dict[str, Any]) -> list[str]:
    """Sentences on what was searched and learned, source by source; none where weights or activations decided
    alone.

    Args:
        report: of a match, as in ``isomerge.json``.
    """
    lines = []
    for number, stream in enumerate(report["streams"], 1):
        whose = "" if len(report["streams"]) == 1 else f" source {number}"
        if "search" in stream:
            lines.append(f"Searched{whose}: {_searched(stream['search'])}.")
        if "not_learned" in stream:
            lines.append(f"Not learned{whose}, as that cannot be: {stream['not_learned']}.")
        if "learned" in stream:
            lines.append(f"Learned{whose}: {_learned(stream['learned'], 'path')}.")
    if (reason := report.get("mean", {}).get("not_learned")) is not None:
        lines.append(f"Not learned, as that cannot be: {reason}.")
    together = report.get("mean", {}).get("learned")
    if together is not None:
        lines.append(f"Learned together: {_learned(together, 'simplex')}.")
    return lines


def rounding_lines(report: dict[str, Any]) -> list[str]:
    """A sentence on what rounding has done to what was moved; none where nothing was rounded."""
    rounding = report.get("rounding")
    if rounding is None:
        return []
    return [
        f"Rounding changes no tensor by more than {100 * rounding['error']:.2g} % once the move is undone "
        f"({rounding['tensor']}; {100 * rounding['tolerance']:.2g} % is the most that is written)."
    ]


def _searched(search: dict[str, Any]) -> str:
    before, after = search["divergence"]["held_out"]
    kept = sum(search["accepted"].values())
    return (
        f"the midpoint's divergence from the models' mean {before:.3f} -> {after:.3f} {search['unit']} on "
        f"{search['examples'][1]} examples held out, {kept} of {search['moves']} moves kept"
    )


def _learned(learned: dict[str, Any], where: str) -> str:
    history = learned["history"]
    best = min(history, key=lambda look: look["barrier"])
    if best["step"] == 0:
        no_barrier = "; there was no barrier to lower" if best["barrier"] <= 0 else ""
        return (
            f"no step of {learned['steps']} lowered the loss on {learned['held_out']} examples held out, so the "
            f"match is what it was{no_barrier}"
        )
    stopped = (
        f"; learning diverged at step {learned['diverged']}, and what was best before is kept"
        if "diverged" in learned
        else ""
    )
    return (
        f"the highest point of the {where}, above the models' own loss, {history[0]['barrier']:.3f} -> "
        f"{best['barrier']:.3f} {learned['unit']} on {learned['held_out']} examples held out, at step "
        f"{best['step']} of {learned['steps']}{stopped}"
    )

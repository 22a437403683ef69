"""What data brought to a match, in a sentence each: the forward search, and learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isomerge.records import Json

if TYPE_CHECKING:
    from isomerge.solve.rounding import Rounded


def evidence_lines(streams: Sequence[Json], mean: Json | None = None) -> list[str]:
    """Sentences on what was searched and learned, source by source; none where weights or activations decided
    alone.

    Args:
        streams: what is said of every source that was matched as a whole.
        mean: the same of a common mean.
    """
    lines = []
    for number, stream in enumerate(streams, 1):
        whose = "" if len(streams) == 1 else f" source {number}"
        if "search" in stream:
            lines.append(f"Searched{whose}: {_searched(stream['search'])}.")
        if "not_learned" in stream:
            lines.append(f"Not learned{whose}, as that cannot be: {stream['not_learned']}.")
        if "learned" in stream:
            lines.append(f"Learned{whose}: {_learned(stream['learned'], 'path')}.")
    mean = mean or {}
    if (reason := mean.get("not_learned")) is not None:
        lines.append(f"Not learned, as that cannot be: {reason}.")
    if (together := mean.get("learned")) is not None:
        lines.append(f"Learned together: {_learned(together, 'simplex')}.")
    return lines


def rounding_lines(rounding: Rounded | None) -> list[str]:
    """A sentence on what rounding has done to what was moved; none where nothing was rounded."""
    if rounding is None:
        return []
    return [
        f"Rounding changes no tensor by more than {100 * rounding.error:.2g} % once the move is undone "
        f"({rounding.tensor}; {100 * rounding.tolerance:.2g} % is the most that is written)."
    ]


def _searched(search: Json) -> str:
    before, after = search["divergence"]["held_out"]
    kept = sum(search["accepted"].values())
    return (
        f"the midpoint's divergence from the models' mean {before:.3f} -> {after:.3f} {search['unit']} on "
        f"{search['examples'][1]} examples held out, {kept} of {search['moves']} moves kept"
    )


def _learned(learned: Json, where: str) -> str:
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

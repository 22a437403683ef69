"""What a move must take away of a difference to be worth it: one rule for all that may be added for nothing.

All of what is between two biases that no output depends on is free, and fine-tunes keep theirs: so nothing is moved
that brings models closer by little, or by no more than chance has it. Three questions are asked of squared
distances: whether a move is made at all (`least`), whether two models differ by it so far that they are matched
without (`DISGUISED`), and whether it was made by somebody, so that they are not called aligned (`takes_away`).
"""

from __future__ import annotations

WORTH, PARTS = 0.05, 10.0
"""The least part of a squared distance for which anything is moved, and parts in the number of entries that all
change alike, where these are few: a random difference has one part along a constant, and rarely ten."""
DISGUISED = 0.2
"""The part of a tensor's squared distance from which on models are matched without it; of narrow ones, what chance
hardly makes of a single direction."""
GAINED = 0.6
"""Of a squared distance: where an element takes away more than this, it was a matter of coordinates. A change of
one side alone, as a fine-tune of the value projection, can be halved by balancing it over both."""
SHARE = 0.1
"""The least part of a unit's squared distance that additions must take away."""
CHANCE = 1e-4
"""How often a difference without meaning may look like a turn: of an element with few entries to act on (the gains
of norms over small heads) random noise is a turn to six tenths once in fifty times."""


def least(before: float, entries: float = float("inf")) -> float:
    """By how much a squared distance must fall that a move is made.

    Args:
        before: the squared distance without it.
        entries: how many change alike.
    """
    return before * max(WORTH, min(PARTS / entries, 0.5))


def much_of_all(part: float) -> float:
    """The part of a squared distance that is much for tensors of which nothing counts, so that they cannot tell by
    themselves whether somebody moved them: their entries differ by `PARTS` times as much as others.

    Args:
        part: the part of all entries that they have.
    """
    return max(SHARE, PARTS * part / (1 + (PARTS - 1) * part))


def takes_away(before: float, after: float, whole: float, chance: float = 0.0, share: float = SHARE) -> bool:
    """Whether what was added takes away most of a squared distance, more than chance would have it, and much of
    what is between two units.

    Args:
        before, after: squared distances of the tensors that it changes.
        whole: that of all tensors.
        chance: the part that a difference without meaning has in it (`by_chance`).
        share: the part of that of all tensors that is much.
    """
    return before - after > max(share * whole, max(GAINED, chance) * before)


def by_chance(dimensions: float, entries: float) -> float:
    """The part of a difference without meaning that lies in a subspace once in 1 / `CHANCE` times, of a space of so
    many entries."""
    # only where something lies there at all
    from scipy.special import betaincinv

    rest = entries - dimensions
    return float(betaincinv(dimensions / 2, rest / 2, 1 - CHANCE)) if rest > 0 else 1.0

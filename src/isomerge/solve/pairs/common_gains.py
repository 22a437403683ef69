"""The gains that the models of a run have in common, and the coordinates that they are written in."""

from __future__ import annotations

from dataclasses import dataclass

from isomerge.symmetry.alignment import Alignment


@dataclass(frozen=True)
class CommonGains:
    """The gains that models are written with."""

    fold: Alignment
    """From the anchor's coordinates to those in which its gains are one."""
    take: Alignment
    """From there to the coordinates that are written."""

    @property
    def written(self) -> Alignment:
        """From the anchor's coordinates to those that are written."""
        return self.take @ self.fold

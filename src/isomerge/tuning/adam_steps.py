"""A search that follows the gradient: every trial is a step of Adam from the one before.

Coordinates are shares of ranges (of their logarithms where orders of magnitude are searched), so that one rate fits
all parameters; a step that leaves a range ends at its edge, as AdaMerging clamps its coefficients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Any

import torch

from isomerge.errors import IsomergeError
from isomerge.merging.recipe.dimensions import Dimension


def check_gradient(dimensions: Sequence[Dimension]) -> None:
    """Refuse dimensions that have no gradient.

    Raises:
        IsomergeError: naming the first.
    """
    for d in dimensions:
        if d.choices or d.whole:
            raise IsomergeError(
                f"--sampler gradient changes numbers little by little, and `{d.name}` has choices: leave it out of "
                f"the search, or take tpe"
            )


class AdamSteps:
    """Asks for points and is told their losses and gradients: a function of what it is told alone
    (`isomerge.tuning.sampling.Study`).

    Args:
        dimensions: numbers.
        rate: Adam's, in shares of a range.
    """

    def __init__(self, dimensions: Sequence[Dimension], rate: float) -> None:
        self.dimensions = dimensions
        starts = [min(max(float(d.start), d.low), d.high) for d in dimensions]
        shares = [_share(d, value) for d, value in zip(dimensions, starts, strict=True)]
        self._at = torch.tensor(shares, dtype=torch.float64)
        self._adam = torch.optim.Adam([self._at], lr=rate)
        self._over = False

    def know(self, values: Mapping[str, Any], loss: float, gradient: Mapping[str, float] | None = None) -> None:
        """Told of the point where it starts; one outside of the ranges begins at their edges."""
        self._take(values, gradient)

    def ask(self) -> Mapping[str, Any] | None:
        """The next point, by the names of the dimensions; None where nothing says where it would be."""
        if self._over:
            return None
        self._adam.step()
        self._at.clamp_(0, 1)
        pairs = zip(self.dimensions, self._at.tolist(), strict=True)
        return {d.name: d.rounded(_value(d, share)) for d, share in pairs}

    def tell(self, loss: float | None, gradient: Mapping[str, float] | None = None) -> None:
        """What the last point is worth, and how that changes; None: it was refused, and nothing leads on."""
        pairs = zip(self.dimensions, self._at.tolist(), strict=True)
        self._take({d.name: _value(d, share) for d, share in pairs}, gradient)

    def _take(self, values: Mapping[str, Any], gradient: Mapping[str, float] | None) -> None:
        if gradient is None:
            self._over = True
            return
        slopes = [gradient[d.name] * _stretch(d, values[d.name]) for d in self.dimensions]
        self._at.grad = torch.tensor(slopes, dtype=torch.float64)


def _share(d: Dimension, value: float) -> float:
    """Where in its range a value lies, from 0 to 1."""
    return log(value / d.low) / log(d.high / d.low) if d.log else (value - d.low) / (d.high - d.low)


def _value(d: Dimension, share: float) -> float:
    """The inverse of `_share`."""
    return d.low * exp(share * log(d.high / d.low)) if d.log else d.low + share * (d.high - d.low)


def _stretch(d: Dimension, value: float) -> float:
    """How fast the value changes with its share."""
    return value * log(d.high / d.low) if d.log else d.high - d.low
